"""A connection to the server that leads, over which one call after the other is passed on: bytes as they come, both ways.

It holds little of a body: when nobody takes what the leader sends, no more is read, and who writes waits for the leader to take it. Nothing is sent
twice here, and a connection whose answer did not come whole, or came before all was sent, carries no other call.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

import httptools

from basalt.api.bodies.messages import Buffer
from basalt.cluster.lease import LeaseRecord
from basalt.cluster.membership import Owner
from basalt.http.asgi.requests import Headers

READ_AHEAD_BYTES_MAX = 262_144  # of an answer that its client has not taken; beyond, no more is read
HEAD_BYTES_MAX = 65_536  # of an answer's status line and headers; ours are a hundredth of it
CONNECT_SECONDS_MAX = 2.0  # a host that is gone says nothing; nothing was sent, so the caller may go elsewhere
IDLE_SECONDS_MAX = 30.0  # below the 75 s after which the leader closes: no call may meet a connection that just goes
IDLE_CONNECTIONS_MAX = 64  # that are kept, for as many callers at a time; others close after their answer
FORMER_SECONDS_MAX = 10.0  # in which a server that stops answers what is open; one that was cut off never does
GONE = "that server is gone, or has another part"
_STATUSES = frozenset(status.value for status in HTTPStatus)


class LeaderLostError(Exception):
    """The connection ended, or says what no server of ours says, before the answer was whole."""


class LeaderConnection(asyncio.Protocol):
    """One connection. `ask`, wait for `answered`, take `parts` or `whole`; then `is_free` tells whether it can carry another call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._writable: asyncio.Future[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._read_paused = False
        self._write_paused = False
        self._lost: BaseException | None = None
        self._is_head = False
        self._head_bytes = 0
        self._parts: list[Buffer] = []
        self._held_bytes = 0
        self._body_bytes = 0  # of the answer so far
        self._unparsed_bytes = (
            0  # of a body whose length is known, the rest: it goes round the parser, which would copy it
        )
        self.idle_since = 0.0
        self.is_sent = True  # all of the call, so that the leader may have done it
        self.answered: asyncio.Future[None] = self._loop.create_future()
        self._tell: Callable[[], None] | None = None
        self.is_whole = True  # the answer
        self.status = 0
        self.headers: Headers = []

    def ask(self, head: bytes, *, is_head: bool, tell: Callable[[], None] | None = None) -> None:
        """Begin a call: all of it, or its head. `tell` is called as soon as `answered` is done, without a turn of the loop between."""
        self.answered = self._loop.create_future()
        self._tell = tell
        self.is_sent = self.is_whole = False
        self.status, self.headers, self._parts, self._held_bytes, self._head_bytes = 0, [], [], 0, 0
        self._body_bytes = self._unparsed_bytes = 0
        self._is_head = is_head
        self._transport.write(head)

    def write(self, part: bytes) -> None:
        """Send more of the call."""
        self._transport.write(part)

    async def drained(self) -> None:
        """Wait until the leader has taken most of what was sent. `LeaderLostError`"""
        while self._write_paused and self._lost is None:
            self._writable = self._loop.create_future()
            await self._writable
        if self._lost is not None:
            raise self._lost

    async def parts(self) -> AsyncGenerator[Buffer, None]:
        """The body of the answer, as it comes. `LeaderLostError`, or what it was ended with."""
        while True:
            if self._parts:
                for part in self._taken():
                    yield part
            elif self.is_whole:
                return
            elif self._lost is not None:
                raise self._lost
            else:
                self._arrived = self._loop.create_future()
                await self._arrived

    def whole(self) -> list[Buffer]:
        """The body of an answer that is whole."""
        return self._taken() or [b""]

    def seen(self) -> bytes:
        """The part of the body that has come so far; it stays to be taken."""
        return b"".join(self._parts)

    @property
    def is_free(self) -> bool:
        """True where it can carry a call, or another one."""
        return self._lost is None and self.is_sent and self.is_whole

    def end(self, why: BaseException) -> None:
        """End it: whoever waits for something gets this error. The leader ends the call when it sees that."""
        self._lose(why)
        self._transport.abort()

    def _taken(self) -> list[Buffer]:
        parts, self._parts, self._held_bytes = self._parts, [], 0
        if self._read_paused and self._lost is None:
            self._read_paused = False
            self._transport.resume_reading()
        return parts

    def _lose(self, why: BaseException) -> None:
        if self._lost is None:
            self._lost = why
        if not self.answered.done():
            self.answered.set_exception(self._lost)
            self.answered.exception()  # it may be that nobody waits any more
            if self._tell is not None:  # later, for whoever ends it may be in the middle of something
                self._loop.call_soon(self._tell)
        self._wake()

    def _wake(self) -> None:
        for waiting in (self._arrived, self._writable):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, not one of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._write_paused = False
        self._lose(LeaderLostError("the leader closed the connection" if exc is None else str(exc)))

    def data_received(self, data: bytes) -> None:
        if self.is_whole:  # nobody has asked
            self.end(LeaderLostError("the leader says something unasked"))
            return
        if self._unparsed_bytes:
            self._take_unparsed(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(LeaderLostError(f"the leader's answer is no HTTP/1.1: {error}"))
            return
        if not self.status:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.end(LeaderLostError("the leader's answer has a head without end"))
            return
        if not self.is_whole:
            self._unparsed_bytes = self._rest_of_body()
        if not self.answered.done():
            self.answered.set_result(None)
            if self._tell is not None:
                self._tell()
        elif self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _rest_of_body(self) -> int:
        """The bytes of the body that are yet to come; 0 where that is not known."""
        for name, value in self.headers:
            if name == b"content-length":  # a number, and the only one, or the parser would have refused it
                return int(value) - self._body_bytes
        return 0

    def _take_unparsed(self, data: bytes) -> None:
        left = self._unparsed_bytes - len(data)
        if left < 0:
            data = data[:left]
        self._unparsed_bytes = max(left, 0)
        self.on_body(data)
        if left <= 0:
            self.on_message_complete()
            self._parser = httptools.HttpResponseParser(self)  # the former one waits for that body
        if left < 0:
            self.end(LeaderLostError("the leader says something unasked"))
        elif self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else a trailer, which no answer of ours has
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < HTTPStatus.OK:  # an interim answer: the one that counts follows
            self.headers = []
            return
        if self.is_whole or status not in _STATUSES:
            raise LeaderLostError(f"the leader's answer has the status {status}")
        self.status = status
        if self._is_head:  # of which the parser does not know: it would wait for a body
            self.is_whole = True
            self._parser = httptools.HttpResponseParser(self)

    def on_body(self, body: bytes) -> None:
        if self.is_whole:
            return
        self._parts.append(body)
        self._body_bytes += len(body)
        self._held_bytes += len(body)
        if self._held_bytes > READ_AHEAD_BYTES_MAX and not self._read_paused:
            self._read_paused = True
            with suppress(RuntimeError):  # it closes
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self.status or self.is_whole:
            return
        self.is_whole = True
        if not self._parser.should_keep_alive():
            self._lost = self._lost or LeaderLostError("the leader closes the connection")


class LeaderConnections:
    """The address and secret of the leader as its lease has them, or of an owner as its row does; and the connections to it."""

    def __init__(self, server: LeaseRecord | Owner, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(server.url)
        self.server = server
        self.part = "leader" if isinstance(server, LeaseRecord) else "owner"
        self.secret = server.secret.encode("ascii")
        self.is_secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.is_secure else 80)
        self.authority = parts.netloc.encode("ascii")
        self.owner = (b"basalt-owner", server.url.encode("ascii", "replace"))
        self.prefix = parts.path.rstrip("/").encode("ascii")
        self.is_former = False
        self.is_reached = True  # as far as the log has said
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._idle: list[LeaderConnection] = []
        self.busy: set[LeaderConnection] = set()

    def is_to(self, server: LeaseRecord | Owner) -> bool:
        """True for the way to this server in this part, while calls go there."""
        known = self.server
        return (
            not self.is_former
            and (known.instance, known.url, known.secret) == (server.instance, server.url, server.secret)
            and type(known) is type(server)
        )

    def kept(self) -> LeaderConnection | None:
        """A connection that is there already: the one used last."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free and self._loop.time() - connection.idle_since <= IDLE_SECONDS_MAX:
                self.busy.add(connection)
                return connection
            connection.end(LeaderLostError("it was idle for long"))
        return None

    async def connect(self) -> LeaderConnection:
        """A new connection. `OSError`, `TimeoutError`; `ssl.SSLError`, which is the first, where the leader is not whom it should be."""
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, connection = await self._loop.create_connection(
                LeaderConnection, self.host, self.port, ssl=self._tls, server_hostname=self.host if self._tls else None
            )
        if self.is_former:  # since meanwhile: nobody would end a call that gets no answer
            connection.end(LeaderLostError(GONE))
            raise ConnectionAbortedError(GONE)
        self.busy.add(connection)
        self.is_reached = True
        return connection

    def give_back(self, connection: LeaderConnection) -> None:
        """The call is over: keep its connection for the next one, or close it."""
        self.busy.discard(connection)
        if connection.is_free and not self.is_former and len(self._idle) < IDLE_CONNECTIONS_MAX:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            connection.end(LeaderLostError("the call is over"))

    def retire(self) -> None:
        """Another one has its part, or nobody: begin no call, and end those that get no answer for long."""
        self.is_former = True
        self._close_idle()
        if self.busy:
            self._loop.call_later(FORMER_SECONDS_MAX, self.close)

    def close(self) -> None:
        """End every connection."""
        self.is_former = True
        self._close_idle()
        for connection in list(self.busy):
            connection.end(LeaderLostError(GONE))

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().end(LeaderLostError(GONE))
