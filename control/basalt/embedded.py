"""Basalt without a server: the same application, run on an event loop thread of this process, called without a socket.

`basalt.connect("embedded:DIR")` and its async twin use it. The thread runs everything that a server runs, jobs included; one
process at a time may have the directory open.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from basalt.client import AsyncClient, Client
from basalt.client.asynchronous import client as asynchronous
from basalt.client.attempts import RetryPolicy, Send
from basalt.client.blocking import client as blocking
from basalt.client.plans import Answer, AnswerLost, Reply
from basalt.client.servers import EMBEDDED_SCHEME
from basalt.errors import InputError, not_installed
from basalt_engine.clock import SystemClock

if TYPE_CHECKING:
    from basalt.http.app import Frame
    from basalt.server.wiring import RunningServices

T = TypeVar("T")

_Message = MutableMapping[str, Any]
_Application = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]],
    Awaitable[None],
]

CLOSE_SECONDS_MAX = 30  # a store that takes longer to close is broken; leave the thread to the process's end


class EmbeddedServer:
    """A store and all its services, open on a thread of their own until `close`.

    Raises what a server would at its start: an error that names the directory when another process has it open.
    """

    def __init__(self, directory: Path | None, settings: Mapping[str, str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="basalt-embedded", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._services, self._application = self._wait(_open(directory, settings))
        except BaseException as error:
            self._stop_loop()
            if isinstance(error, ModuleNotFoundError):
                raise not_installed(error) from None
            raise
        atexit.register(self.close)

    def call(self, request: Send, headers: Mapping[str, str]) -> Future[Reply]:
        """Have the application answer a request, on its own thread."""
        if self._closed:
            raise RuntimeError("this client is closed; connect again")
        return asyncio.run_coroutine_threadsafe(exchange(self._application, request, headers), self._loop)

    def close(self) -> None:
        """Answer what was taken and close the store. Closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._wait(self._close())
        finally:
            self._stop_loop()

    async def _close(self) -> None:
        self._application.sampler.stop()
        await self._services.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS_MAX)
        if not self._thread.is_alive():
            self._loop.close()


class EmbeddedTransport:
    """The blocking client's way to an embedded server."""

    def __init__(self, server: EmbeddedServer, headers: Mapping[str, str]) -> None:
        self._server = server
        self._headers = headers

    def send(self, request: Send) -> Reply:
        """Wait for the application's answer."""
        answer = self._server.call(request, self._headers)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()  # an interrupt: the application sees a client that has gone
            raise

    def close(self) -> None:
        self._server.close()


class AsyncEmbeddedTransport:
    """The async client's way to an embedded server, which has an event loop of its own."""

    def __init__(self, server: EmbeddedServer, headers: Mapping[str, str]) -> None:
        self._server = server
        self._headers = headers

    async def send(self, request: Send) -> Reply:
        """Await the application's answer; a cancelled call is one whose client has gone."""
        return await asyncio.wrap_future(self._server.call(request, self._headers))

    async def close(self) -> None:
        await asyncio.to_thread(self._server.close)


async def exchange(application: _Application, request: Send, headers: Mapping[str, str]) -> Reply:
    """One request and its answer, as ASGI without a socket."""
    sent: list[_Message] = [{"type": "http.request", "body": request.body, "more_body": False}]
    status = 0
    answered: list[tuple[bytes, bytes]] = []
    parts: list[bytes] = []
    complete = False

    async def receive() -> _Message:
        if sent:
            return sent.pop()
        await asyncio.Event().wait()  # the client goes only by cancelling
        return {"type": "http.disconnect"}

    async def send(message: _Message) -> None:
        nonlocal status, complete
        if message["type"] == "http.response.start":
            status = message["status"]
            answered.extend(message.get("headers", ()))
        else:
            parts.append(message.get("body", b""))
            complete = not message.get("more_body", False)

    try:
        async with asyncio.timeout(max(0.001, request.timeout_ms / 1_000)):
            await application(_scope(request, headers), receive, send)
    except TimeoutError:
        return AnswerLost(f"no answer within {request.timeout_ms:.0f} ms")
    except Exception as error:  # noqa: BLE001  # a broken application is to its client what a broken connection is
        return AnswerLost(f"{type(error).__name__} while answering: {error}")
    if not complete:
        return AnswerLost("the answer broke off")
    return Answer(
        status, {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answered}, b"".join(parts)
    )


def connect(
    url: str,
    namespace: str,
    timeout_ms: int,
    attempts_max: int | None,
    headers: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    dedup: bool = True,
) -> Client:
    """A blocking client over the store in the directory that the URL names; closing it closes the store."""
    retries = RetryPolicy(timeout_ms, attempts_max)
    transport = EmbeddedTransport(EmbeddedServer(embedded_directory(url, settings), settings), headers)
    return blocking.client_of(transport, url, namespace, retries, SystemClock(), dedup=dedup)


def connect_async(
    url: str,
    namespace: str,
    timeout_ms: int,
    attempts_max: int | None,
    headers: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    dedup: bool = True,
) -> AsyncClient:
    """Its async twin. Opening the store holds up the event loop for as long as that takes."""
    retries = RetryPolicy(timeout_ms, attempts_max)
    transport = AsyncEmbeddedTransport(EmbeddedServer(embedded_directory(url, settings), settings), headers)
    return asynchronous.client_of(transport, url, namespace, retries, SystemClock(), dedup=dedup)


def embedded_directory(url: str, settings: Mapping[str, str]) -> Path | None:
    """The directory that an `embedded:` URL names; None for a memory store, which needs none."""
    name = url.removeprefix(EMBEDDED_SCHEME)
    if name:
        return Path(name).expanduser()
    if settings.get("store.kind") == "memory":
        return None
    raise InputError(f"{url!r} names no directory", field="url", hint="Write embedded:DIRECTORY.")


async def _open(directory: Path | None, settings: Mapping[str, str]) -> tuple[RunningServices, Frame]:
    # Imported here: a client of a server far away needs none of the server.
    from basalt.access.policy import Caller
    from basalt.access.principal import internal
    from basalt.http.app import build_app
    from basalt.server.wiring import open_services
    from basalt.settings import load_settings

    loaded = load_settings([f"{key}={value}" for key, value in settings.items()])
    services = await open_services(loaded, directory)
    await services.scheduler.start()
    application = build_app(services, Caller(internal("embedded"), None))  # who opens the directory owns it
    application.metrics.watch()
    application.sampler.start()
    return services, application


def _scope(request: Send, headers: Mapping[str, str]) -> _Message:
    path, _, query = request.target.partition("?")
    given = {**headers, **request.headers}
    if request.body:
        given["Content-Length"] = str(len(request.body))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given.items()],
        "client": None,
        "server": None,
    }
