"""An in-process driver of the HTTP application: no sockets, every ASGI message in the test's hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from basalt.http.app import build_app
from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore

T = TypeVar("T")

AVRO = "avro/binary"
JSON = "application/json"


@dataclass
class Reply:
    """An answer as the server would have sent it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def header(self, name: str) -> str | None:
        found = [value.decode() for key, value in self.headers if key.decode() == name.lower()]
        assert len(found) < 2, f"{name} is there twice: {found}"
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem document."""
        assert self.header("content-type") == "application/problem+json", (self.status, self.headers, self.body)
        document = self.json()
        assert document["status"] == self.status
        assert document["requestId"] == self.header("basalt-request-id")
        assert document["title"]
        assert document["detail"]
        code: str = document["code"]
        return code


class Client:
    """Requests of one application, and the loop that it runs on."""

    def __init__(self, services: RunningServices, runner: asyncio.Runner) -> None:
        self.services = services
        self.clock = services.clock
        self.app = build_app(services)
        self.runner = runner

    def run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await work

        return self.runner.run(main())

    def call(self, method: str, target: str, body: Any = b"", media_type: str | None = None, **headers: str) -> Reply:
        """One request with a whole body; a body that is not bytes is sent as JSON."""
        return self.run(self.ask(method, target, body, media_type, **headers))

    async def ask(
        self, method: str, target: str, body: Any = b"", media_type: str | None = None, **headers: str
    ) -> Reply:
        if not isinstance(body, bytes):
            body, media_type = json.dumps(body).encode(), media_type or JSON
        return await self.exchange(method, target, [body], media_type, headers)

    async def exchange(
        self,
        method: str,
        target: str,
        chunks: Iterable[bytes],
        media_type: str | None = None,
        headers: dict[str, str] | None = None,
        *,
        cut: bool = False,
        raw_headers: Iterable[tuple[bytes, bytes]] = (),
        gone: asyncio.Event | None = None,
        address: tuple[str, int] | None = ("192.0.2.7", 40_000),
    ) -> Reply:
        """One request whose body comes in these chunks; `cut` ends it before its last one, `gone` after it."""
        parts = list(chunks)
        pairs = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        if b"host" not in dict(pairs):
            pairs.insert(0, (b"host", b"localhost"))
        if media_type is not None:
            pairs.append((b"content-type", media_type.encode()))
        raw_path, _, query = target.encode().partition(b"?")
        scope = {
            "type": "http",
            "method": method,
            "path": _unquoted(raw_path),
            "raw_path": raw_path,
            "query_string": query,
            "headers": [*pairs, *raw_headers],
            "client": address,
            "http_version": "1.1",
        }
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        if not cut:
            messages[-1]["more_body"] = False
        reply = Reply(0, [])

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            if not cut:
                await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert not reply.status, "the answer was begun twice"
                reply.status, reply.headers = message["status"], list(message["headers"])
            else:
                assert not reply.complete, "something follows the end of the answer"
                reply.parts.append(message["body"])
                reply.complete = not message.get("more_body", False)

        await self.app(scope, receive, send)
        return reply

    def topic(self, name: str = "orders", namespace: str = "shop", **properties: object) -> str:
        """Create a topic; its path."""
        path = f"/v1/namespaces/{namespace}/topics/{name}"
        assert self.call("PUT", path, properties).status == 200
        return path

    def publish(self, path: str, *messages: str, pointer: int | None = None) -> Reply:
        reply = self.call("POST", f"{path}/publish", {"transactionWritePointer": pointer, "messages": list(messages)})
        assert reply.status == 200, reply.body
        return reply

    def poll(self, path: str, query: str = "", **wanted: object) -> Reply:
        return self.call("POST", f"{path}/poll{query}", wanted)

    def payloads(self, path: str, query: str = "", **wanted: object) -> list[str]:
        reply = self.poll(path, query, **wanted)
        assert reply.status == 200, reply.body
        return [message["payload"] for message in reply.json()]

    def begin(self, **wanted: object) -> Any:
        reply = self.call("POST", "/v1/transactions", wanted)
        assert reply.status == 200, reply.body
        return reply.json()


def _unquoted(raw_path: bytes) -> str:
    from urllib.parse import unquote

    return unquote(raw_path.decode("ascii"))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def connect(runner: asyncio.Runner) -> Iterator[Callable[[Settings], Client]]:
    """Open services over a memory store, and a client of them."""
    opened: list[RunningServices] = []

    def open_one(settings: Settings) -> Client:
        services = runner.run(open_services(settings, None, store=MemoryStore(), clock=ManualClock()))
        opened.append(services)
        return Client(services, runner)

    yield open_one
    for services in opened:
        runner.run(services.close())


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def client(connect: Callable[[Settings], Client], settings: Settings) -> Client:
    return connect(settings)


@pytest.fixture
def small(connect: Callable[[Settings], Client], settings: Settings) -> Client:
    """A server that takes bodies of 1 KiB at most, so that tests of the limit stay small."""
    return connect(replace(settings, http=replace(settings.http, body_bytes_max=1_024)))


@pytest.fixture(scope="module")
def open_client() -> Iterator[Callable[[Settings, bool], Client]]:
    """Open services for a whole module, over a store that writes a batch at once or row by row, and a client of them."""
    opened: list[RunningServices] = []
    with asyncio.Runner() as runner:

        def open_one(settings: Settings, atomic: bool) -> Client:
            store = MemoryStore(atomic=atomic)
            services = runner.run(open_services(settings, None, store=store, clock=ManualClock()))
            opened.append(services)
            return Client(services, runner)

        yield open_one
        for services in opened:
            runner.run(services.close())


@pytest.fixture(params=["one batch", "row by row"])
def shop(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Any]:
    """A client of one group, over a store that writes a batch at once and one that writes row by row."""
    from tests.control.http.group_client import GroupClient  # which needs the client above

    store = MemoryStore(atomic=request.param == "one batch")
    services = runner.run(open_services(Settings(), None, store=store, clock=ManualClock()))
    yield GroupClient(services, runner)
    runner.run(services.close())
