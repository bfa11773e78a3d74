"""HTTP/1.1 on one connection: requests parsed, handed to the application, answered in their order; and bounds on all of it.

uvicorn listens; this is the protocol that it runs on each of them. It needs neither ASGI's messages nor
a coroutine for each of them: a request is a `Call`, its answer one write where it is small. What it bounds: a request's
head, the time for it, bodies that nobody reads yet, readers that take nothing, connections on which nothing comes. A body has
its time-out in `requests`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from basalt.access.proofs.certificate import ClientCertificate
from basalt.api.bodies.messages import Buffer
from basalt.http.asgi.answer_heads import AnswerHeads, refusal
from basalt.http.asgi.connections import Connections
from basalt.http.asgi.heads import Heads
from basalt.http.asgi.requests import (
    ClientGoneError,
    Exchange,
    Head,
    Headers,
    Parts,
    PromptExchange,
    RequestHead,
    add_header,
)
from basalt.http.asgi.server_context import ServerContext

HEAD_BYTES_MAX = 65_536  # a request line and headers; ours are a tenth of it, proxies add to them
HEAD_SECONDS_MAX = 20  # for a head to be complete, from its first byte or from the connection's start
STALL_SECONDS_MAX = 60  # for a reader to take any of what waits to be sent, which holds memory until then
UNREAD_BYTES_MAX = 65_536  # of a body that the call does not take yet; beyond, no more is read
CLOSING_SECONDS_MAX = 1  # for a client to say that it closes too, where nothing was owed to it; only TLS waits for that
JOINED_BYTES_MAX = 65_536  # an answer up to this size is copied behind its head, and written at once

_UPGRADE = re.compile(rb"\r\n(upgrade:)", re.IGNORECASE)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

log = logging.getLogger("basalt.http")


class Application(Protocol):
    """The answerer of requests: a server's, or that of a server which may be a standby."""

    heads: Heads
    connections: Connections

    def begin(self, head: Head, exchange: Exchange, client_id: str | None = None) -> Coroutine[Any, Any, None]:
        """Make the coroutine that answers this request."""

    def begin_whole(
        self, head: Head, exchange: PromptExchange, client_id: str | None, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """The same for a request that is here with all of its body; None: it is answered without a coroutine."""


class Call:
    """One request of a connection, and the way to its client."""

    __slots__ = (
        "_wake",
        "body",
        "client_id",
        "complete",
        "connection",
        "disconnected",
        "head",
        "keep_alive",
        "more",
        "sequence",
        "started",
        "unread_bytes",
        "wants_continue",
    )  # fmt: skip
    internal = False
    is_admitted = False
    id_is_clients = True

    def __init__(
        self, connection: HttpConnection, head: Head, client_id: str | None, *, keep_alive: bool, wants_continue: bool
    ) -> None:
        self.connection = connection
        self.head = head
        self.client_id = client_id
        self.keep_alive = keep_alive
        self.wants_continue = wants_continue
        self.sequence: bytes | None = None  # the header, where the head was known
        self.body: list[bytes] = []  # what of it is not taken yet
        self.unread_bytes = 0
        self.more = True  # of the body, may come
        self.disconnected = False
        self.started = False  # to answer
        self.complete = False
        self._wake: asyncio.Future[None] | None = None

    @property
    def client(self) -> str | None:
        """The client's address; None where it has none."""
        return self.connection.client

    @property
    def scheme(self) -> str:
        """`http` or `https`, as the client asked."""
        return self.connection.scheme

    @property
    def certificate(self) -> ClientCertificate | None:
        """The certificate by which the client proved at the handshake who it is."""
        return self.connection.certificate

    @property
    def end_point_hash(self) -> bytes | None:
        """The hash of the server's certificate on this connection (`tls-server-end-point`, RFC 5929)."""
        context = self.connection.context
        return None if context is None else context.end_point_hash

    def gone(self) -> bool:
        """Tell whether the connection has ended, which may be at any await."""
        return self.disconnected

    async def receive(self) -> tuple[bytes, bool]:
        """Wait for the next part of the body, and learn whether more follow. `ClientGoneError`."""
        connection = self.connection
        if self.wants_continue and not connection.transport.is_closing():
            connection.transport.write(_CONTINUE)
            self.wants_continue = False
        while self.more and not self.body and not self.gone():
            await self._woken()
        if self.gone():
            raise ClientGoneError
        parts, self.body, self.unread_bytes = self.body, [], 0
        if self.more:
            connection.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts), self.more

    def give_again(self, body: bytes) -> None:
        """Have `receive` give this body, which is all of it, though somebody has taken it before."""
        self.body = [body]

    async def until_gone(self) -> None:
        """Wait until the client has closed the connection. Only after the body was read."""
        self.connection.resume_reading()
        while not self.gone() and not self.complete:
            await self._woken()

    async def send(self, request: RequestHead, status: int, headers: Headers, parts: Parts) -> None:
        """Send the whole answer as fast as the client takes it."""
        connection = self.connection
        if connection.write_paused:
            await connection.drained()
        if isinstance(parts, list):
            request.sent_bytes = sum(map(len, parts))
        if self.gone():
            return
        if connection.is_outdated():
            self.keep_alive = False
        is_sized = isinstance(parts, list)
        if isinstance(parts, AsyncIterator):  # of an answer that comes from elsewhere the length may be known
            is_sized = any(name == b"content-length" for name, _ in headers)
        head = connection.answer_heads.head(status, headers, self.keep_alive, chunked=not is_sized)
        self.started, self.wants_continue = True, False
        if isinstance(parts, AsyncIterator):
            await self._send_stream(request, head, parts, is_sized=is_sized)
        elif not isinstance(parts, list):
            await self._send_chunks(request, head, parts)
        elif request.sent_bytes <= JOINED_BYTES_MAX:
            connection.transport.write(b"".join((head, *parts)))
        else:
            await self._send_parts(head, parts)
        if not self.gone():
            self.finish()

    def send_now(self, request: RequestHead, status: int, headers: Headers, parts: list[Buffer]) -> None:
        """Send the whole answer, which is small."""
        request.sent_bytes = sum(map(len, parts))
        if self.disconnected:
            return
        connection = self.connection
        if connection.is_outdated():
            self.keep_alive = False
        head = connection.answer_heads.head(status, headers, self.keep_alive, chunked=False)
        self.started = True
        connection.transport.write(b"".join((head, *parts)))
        self.finish()

    def break_off(self) -> None:
        """End the connection: there is no answer, for which the client would wait."""
        if not self.disconnected:
            self.connection.transport.close()

    async def _send_parts(self, head: bytes, parts: list[Buffer]) -> None:
        connection = self.connection
        connection.transport.write(head)
        for part in parts:
            if connection.write_paused:
                await connection.drained()
            if self.gone():
                return
            connection.transport.write(part)

    async def _send_chunks(self, request: RequestHead, head: bytes, parts: Iterator[Buffer]) -> None:
        connection = self.connection
        connection.transport.write(head)
        for part in parts:
            request.sent_bytes += len(part)
            if connection.write_paused:
                await connection.drained()
            if self.gone():
                return
            if part:
                connection.transport.write(b"".join((b"%x\r\n" % len(part), part, b"\r\n")))
            await asyncio.sleep(0)  # making a part takes time: others go in between
        if not self.gone():
            connection.transport.write(b"0\r\n\r\n")

    async def _send_stream(
        self, request: RequestHead, head: bytes, parts: AsyncIterator[Buffer], *, is_sized: bool
    ) -> None:
        connection = self.connection
        connection.transport.write(head)
        async for part in parts:
            request.sent_bytes += len(part)
            if connection.write_paused:
                await connection.drained()
            if self.gone():
                raise ClientGoneError
            if part:
                connection.transport.write(part if is_sized else b"".join((b"%x\r\n" % len(part), part, b"\r\n")))
        if not is_sized and not self.gone():
            connection.transport.write(b"0\r\n\r\n")

    def finish(self) -> None:
        """The answer is complete: the connection goes on to the next request, or ends."""
        self.complete = True
        self.wake()
        connection = self.connection
        if not self.keep_alive:
            connection.transport.close()
        connection.answered(self)

    def ended(self, task: asyncio.Task[None]) -> None:
        """The task that answers is over; when it has not answered, its client must not wait."""
        self.connection.server_state.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self.complete or self.disconnected:
            return
        if error is not None and not self.started:
            log.error("a request could not be answered", exc_info=error)
        transport = self.connection.transport
        if not self.started:
            transport.write(self.connection.answer_heads.plain_problem(500))
        transport.close()

    def wake(self) -> None:
        """Something came, or the connection or the answer has ended."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _woken(self) -> None:
        self._wake = self.connection.loop.create_future()
        try:
            await self._wake
        finally:
            self._wake = None


class HttpConnection(asyncio.Protocol):
    """One connection, as uvicorn makes and ends it."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        app: Any = config.app  # to uvicorn it is only an ASGI application
        self.app: Application = app
        self.heads = self.app.heads
        # Among the connections that the server has: by its handshake, or else when it begins. One too many never is.
        self.is_counted = False
        self.has_begun = False
        self.loop = _loop or asyncio.get_running_loop()
        self.server_state = server_state
        self.keep_alive_s = config.timeout_keep_alive
        self.transport: asyncio.Transport
        self.client: str | None = None
        self.scheme = "http"
        self.context: ServerContext | None = None  # that its handshake was made with
        self.certificate: ClientCertificate | None = None  # of the client; only one that was verified is told
        self.write_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._unsent_bytes = 0
        self._read_paused = False
        self._parser = httptools.HttpRequestParser(self)
        # Without this, a request that is answered before it has come as a whole could be followed by none.
        with suppress(AttributeError):  # which old versions of the parser do not have
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._deaf = False  # what follows a broken request on its connection means nothing
        self._between = True  # the parser stands before a request, or has none of the next one
        self._in_head = True
        self._head_bytes = 0
        self._begun = 0  # heads
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated: tuple[bytes, ...] = ()
        self._wants_continue = False
        self._parsed: Head | None = None  # the head of the last request, while the bytes at hand are parsed
        self._newest: Call | None = None  # whose body comes, or came last
        self._active: Call | None = None  # that is being answered
        self._waiting: deque[Call] = deque()  # behind that one
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self.answer_heads = AnswerHeads(server_state)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        self.transport = transport
        address = get_remote_addr(transport)
        self.client = address[0] if address else None
        self.has_begun = True
        self.is_counted = self.is_counted or self.app.connections.open(self.client, self.loop.time())
        if not self.is_counted:
            self._deaf = True
            transport.abort()
            return
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # any with `shutdown`
        context = transport.get_extra_info("sslcontext")
        if context is not None:
            self.scheme = "https"
            self.context = context if isinstance(context, ServerContext) else None
            fields = transport.get_extra_info("peercert")
            if fields:  # of one that was verified: for any other there are none
                der = transport.get_extra_info("ssl_object").getpeercert(True)
                self.certificate = ClientCertificate(fields, der)
        self._arm_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        if self.is_counted:
            self.is_counted = False
            self.app.connections.close(self.client)
        for timer in (self._head_timer, self._stall_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._stall_timer = self._idle_timer = None
        for call in (self._active, *self._waiting, self._newest):
            if call is not None and not call.complete:
                call.disconnected = True
                call.wake()
        self._waiting.clear()
        self._resume_writers()

    # What comes.

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._between and self._active is None:
            known = self.heads.find(data)
            if known is not None:
                self._take_known(*known)
                return
        self._parse(data)

    def _take_known(self, head: Head, client_id: str | None, sequence: bytes | None, body: bytes) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._disarm_head_timer()
        call = Call(self, head, client_id, keep_alive=True, wants_continue=False)
        call.more = False
        call.sequence = sequence
        call.body.append(body)
        self._newest = call
        self._begin(call)

    def _parse(self, data: bytes) -> None:
        was_between, before, begun = self._between, self._newest, self._begun
        refused = False
        try:
            self._parser.feed_data(_without_upgrade(data) if self._in_head else data)
        except httptools.HttpParserUpgrade:
            pass  # an upgrade whose head came in pieces is answered as the plain request that it also is
        except httptools.HttpParserError:
            refused = True
        parsed, self._parsed = self._parsed, None
        if refused:
            self._refuse(400, "malformed_request", "this is not an HTTP/1.1 request")
        elif was_between and self._between and parsed is not None and self._newest is not before:
            assert self._newest is not None
            if self._newest.keep_alive and len(self._waiting) == 1:
                self.heads.keep(data, parsed)
        self._begin_waiting()
        if not self._in_head or self._deaf or self.transport.is_closing():
            return
        self._head_bytes += len(data) if self._begun - begun <= was_between else self._behind_requests(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, "head_too_large", f"the request's head is more than {HEAD_BYTES_MAX} bytes")
        elif self._head_timer is None:
            self._arm_head_timer()

    def _behind_requests(self, data: bytes) -> int:
        """The bytes of these, no fewer than 1, that belong to a head which began in them behind other requests."""
        body_bytes = 0 if self._newest is None else self._newest.unread_bytes
        return max(1, len(data) - (data.rfind(b"\r\n\r\n") + 4) - body_bytes)

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        self._between = False
        self._in_head = True
        self._head_bytes = 0
        self._begun += 1
        self._url = b""
        self._headers = {}
        self._repeated = ()
        self._wants_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: what a body brings behind it must not pass for a header, which may be checked by now
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._wants_continue = True
        self._repeated += add_header(self._headers, name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm_head_timer()
        url = httptools.parse_url(self._url)
        raw_path: bytes = url.path
        path = raw_path.decode("ascii")
        method = self._parser.get_method().decode("ascii")
        version = self._parser.get_http_version()
        self._parsed = Head(
            method, unquote(path) if "%" in path else path, raw_path, url.query or b"", self._headers, version,
            _authority(url), self._repeated,
        )  # fmt: skip
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        self._newest = Call(self, self._parsed, None, keep_alive=keep_alive, wants_continue=self._wants_continue)
        if self._active is not None:
            self._pause_reading()
        self._waiting.append(self._newest)

    def on_body(self, body: bytes) -> None:
        call = self._newest
        if call is None:
            return
        if call.complete:
            self._idle_since = self.loop.time()
            return
        call.body.append(body)
        call.unread_bytes += len(body)
        if call.unread_bytes > UNREAD_BYTES_MAX:
            self._pause_reading()
        call.wake()

    def on_message_complete(self) -> None:
        self._between = True
        call = self._newest
        if call is not None:
            call.more = False
            call.wake()

    # Calls, one after the other.

    def _begin_waiting(self) -> None:
        while self._active is None and self._waiting:
            self._begin(self._waiting.popleft())

    def _begin(self, call: Call) -> None:
        self._active = call
        if call.more or call.wants_continue or call.disconnected or self.write_paused:
            answering: Coroutine[Any, Any, None] | None = self.app.begin(call.head, call, call.client_id)
        else:
            body = call.body[0] if len(call.body) == 1 else b"".join(call.body)
            answering = self.app.begin_whole(call.head, call, call.client_id, body)
        if answering is None:
            return
        task = self.loop.create_task(answering)
        self.server_state.tasks.add(task)
        task.add_done_callback(call.ended)

    def answered(self, call: Call) -> None:
        """An answer is complete: go on with the next request, or wait for one."""
        self.server_state.total_requests += 1
        self._active = None
        if self.transport.is_closing():
            return
        if self._waiting:
            self._begin_waiting()
            if not self._waiting:  # else more would come with each answer than is answered
                self.resume_reading()
            return
        self.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.keep_alive_s, self._check_idle)

    def _check_idle(self) -> None:
        """Close the connection when nothing came for long. The timer runs on over calls, for they are many."""
        self._idle_timer = None
        if self._active is not None or self._in_head or self.transport.is_closing():
            return  # the next answer arms it; a head has its own timer, the rest of a body that was refused has none
        left_s = self._idle_since + self.keep_alive_s - self.loop.time()
        if left_s <= 0:
            self._hang_up()
        else:
            self._idle_timer = self.loop.call_later(left_s, self._check_idle)

    def shutdown(self) -> None:
        """The server stops: answer what has come, and hang up."""
        if self._newest is None or self._newest.complete:
            self._hang_up()
        else:
            self._newest.keep_alive = False

    def is_outdated(self) -> bool:
        """Tell whether the client came in by a certificate, and the files that let it in have changed since."""
        return self.certificate is not None and self.context is not None and self.context.retired

    def _hang_up(self) -> None:
        """Close a connection on which no answer is under way: whether a client of TLS says goodbye does not matter."""
        self.transport.close()
        if self.scheme == "https":
            self.loop.call_later(CLOSING_SECONDS_MAX, self.transport.abort)

    # What goes out.

    def pause_writing(self) -> None:
        self.write_paused = True
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._arm_stall_timer()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._resume_writers()

    async def drained(self) -> None:
        """Wait until the client has taken most of what waits to be sent, or has gone."""
        while self.write_paused:
            self._writable = self.loop.create_future()  # nobody else waits: answers go one after the other
            await self._writable

    def _resume_writers(self) -> None:
        self.write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, where nobody was to take what came."""
        if self._read_paused and not self.transport.is_closing():
            self._read_paused = False
            self.transport.resume_reading()

    # Bounds.

    def _arm_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self._head_is_late)

    def _disarm_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._head_bytes:
            self._refuse(408, "request_timeout", f"no whole request head came within {HEAD_SECONDS_MAX} s")
        else:
            self.transport.close()  # nothing was asked: an answer could be taken for that of a later request

    def _arm_stall_timer(self) -> None:
        self._stall_timer = self.loop.call_later(STALL_SECONDS_MAX, self._check_stall)

    def _check_stall(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes >= self._unsent_bytes:
            self.transport.abort()
        else:
            self._unsent_bytes = unsent_bytes
            self._arm_stall_timer()

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer what never became a request, and hang up; but first answer the requests that came before it."""
        broken = self._newest if self._newest is not None and self._newest.more else None
        if broken is not None and not broken.started:
            broken.disconnected = True  # a body that turned out to be none: its call must not go on
            broken.wake()
            if broken in self._waiting and (self._active is not None or len(self._waiting) > 1):
                self._waiting.remove(broken)
        owing = next((call for call in (*reversed(self._waiting), self._active) if _is_owed(call)), None)
        if owing is not None:
            self._deaf = True
            owing.keep_alive = False  # hangs up after its answer
            return
        self.transport.write(refusal(status, code, detail))
        self.transport.close()


def _is_owed(call: Call | None) -> bool:
    """Tell a request that came whole, or is being answered already, from one whose answer is complete."""
    return call is not None and not call.complete and not call.disconnected and (call.started or not call.more)


def _authority(url: Any) -> bytes | None:
    """The authority of an absolute target as it was written, to be refused where it has a user's name; None for a plain target."""
    if url.host is None:
        return None
    host: bytes = b"[%s]" % url.host if b":" in url.host else url.host
    named = host if url.port is None else b"%s:%d" % (host, url.port)
    return named if url.userinfo is None else b"%s@%s" % (url.userinfo, named)


def _without_upgrade(data: bytes) -> bytes:
    """The head without an upgrade, none of which we offer: the parser would take what follows it for another protocol's.

    Java's own HTTP client asks for HTTP/2 in this way with each first request, and sends the body right behind.
    """
    stop = data.find(b"\r\n\r\n")
    found = _UPGRADE.search(data, 0, len(data) if stop < 0 else stop)
    return data if found is None else data[: found.start(1)] + b"x-" + data[found.start(1) :]
