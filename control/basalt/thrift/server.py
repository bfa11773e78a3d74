"""Listens for clients of Apache Tephra: frames in, one call of a client at a time in their order, frames out.

A frame is four bytes of length and a message. Nothing is set aside for a length that is only announced; a peer that
stops in the middle, or never reads its answers, is cut off; the number of clients and what they send is kept within bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Iterable
from typing import Any, cast

from basalt.access.networks import Networks
from basalt.errors import BasaltError, UnavailableError
from basalt.thrift.calls import Calls, Encode, Served
from basalt.thrift.wire import (
    BY_HEAD,
    CALL,
    INTERNAL_ERROR,
    INVALID_MESSAGE_TYPE,
    NO_SEQUENCE,
    PROTOCOL_ERROR,
    SEQUENCE_BYTES,
    UNKNOWN_METHOD,
    ApplicationError,
    MalformedArgumentsError,
    Method,
    NoMessageError,
    Pieces,
    TooManyEntriesError,
    exception,
    head_of,
    read_arguments,
    read_header,
    reply,
    unframed_exception,
)

CONNECTIONS_MAX = 1_024  # a client process has a few; each is a descriptor and some KiB
IDLE_SECONDS_MIN = 60  # after which a client may have to make room for another
HELD_BYTES_MAX = 256 << 20  # of requests that are half received, all clients together: sixteen of the largest
CHECK_INTERVAL_S = 1.0  # how late a time-out may be
FINISH_S = 1.0  # what calls under way are given when the server stops
BACKLOG = 128
TOLD_MAX = 1_000  # peers of which is remembered that a refusal was logged
TELL_AGAIN_S = 60.0

FRAME_BYTES_MAX = 16 << 20  # as Tephra's own server; a change set of 10 MiB fits, with all that a client sends back
IDLE_SECONDS_MAX = 3_600  # clients keep a pool open; one that is gone without a word must not hold a place for ever
HALF_SECONDS_MAX = 20  # for a frame to be complete, from its first byte
STALL_SECONDS_MAX = 60  # for a client to read what waits for it
AHEAD_BYTES_MAX = 65_536  # of what a client sends before it has its answer; clients of Tephra's send nothing
CALLS_PER_TURN = 16  # that one client may have answered before others get their turn
LENGTH_BYTES = 4

_LENGTH = struct.Struct(">i")
_UNFRAMED_START = b"\x80\x01"
_HTTP_STARTS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN")
_HTTP_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks Thrift, for clients of Apache Tephra. Basalt's HTTP API has a port of its own.\n"
)
_UNFRAMED = "this port speaks Thrift in frames: give the client a framed transport"

log = logging.getLogger("basalt.tephra")


class TephraServer:
    """The Thrift face of one server. `port` is where it listens once it has started."""

    def __init__(self, served: Served, networks: Iterable[str]) -> None:
        self.calls = Calls(served)
        self._networks = Networks(networks)
        self.port = 0
        self._metrics = served.metrics
        self._connections: set[ThriftConnection] = set()
        self._held_bytes = 0
        self._told_s: dict[str, float] = {}
        self._stopping = False
        self._empty = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._listening: asyncio.Server
        self._checking: asyncio.Task[None]

    async def start(self, host: str, port: int) -> None:
        """Listen; `UnavailableError` when nobody can there."""
        try:
            self._listening = await self._loop.create_server(
                lambda: ThriftConnection(self), host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {host} port {port} for Thrift: {error.strerror or error}",
                field="thrift.port",
                hint="another process may have it; port 0 picks a free one",
            ) from error
        self.port = self._listening.sockets[0].getsockname()[1]
        self._checking = self._loop.create_task(self._check_all())
        log.info("the Thrift transaction service listens on %s port %d", host, self.port)

    async def stop(self) -> None:
        """Take no more calls, answer those under way, and hang up."""
        self._stopping = True
        self._listening.close()
        self._checking.cancel()
        for connection in tuple(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), FINISH_S if self._connections else 0.0)
        for connection in tuple(self._connections):
            connection.abort()
        with contextlib.suppress(BasaltError):  # a former leader writes nothing more
            await self.calls.change_sets.log_empty_sets()

    # For connections.

    def enter(self, connection: ThriftConnection) -> bool:
        """Take the connection in, if need be in place of an idle one; False without room, or while the server stops."""
        if self._stopping:
            return False
        if not self._admits(connection.peer):
            self.refuse(connection.peer, "its address is in none of thrift.networks")
            return False
        if len(self._connections) >= CONNECTIONS_MAX and not self._make_room():
            self.refuse(connection.peer, f"{CONNECTIONS_MAX} clients are connected already, all at work")
            return False
        self._connections.add(connection)
        self._metrics.connections = len(self._connections)
        return True

    def _admits(self, peer: str) -> bool:
        return peer.partition("%")[0] in self._networks  # of a link's own address, without the link

    def leave(self, connection: ThriftConnection) -> None:
        self._connections.discard(connection)
        self._metrics.connections = len(self._connections)
        if self._stopping and not self._connections:
            self._empty.set()

    def hold(self, size_bytes: int) -> bool:
        """Count bytes of requests that are not complete; False when they are too many."""
        self._held_bytes += size_bytes
        return self._held_bytes <= HELD_BYTES_MAX

    def answered(self, method: str, outcome: str) -> None:
        self._metrics.calls[method, outcome] += 1

    def refuse(self, peer: str, reason: str) -> None:
        """Count a client that was turned out, and log it; a peer that keeps coming is in the log once a minute."""
        self._metrics.refused += 1
        now_s = self._loop.time()
        told_s = self._told_s.get(peer)
        if told_s is not None and now_s - told_s < TELL_AGAIN_S:
            return
        if len(self._told_s) >= TOLD_MAX:
            self._told_s.clear()
        self._told_s[peer] = now_s
        log.warning("a client at %s is turned out: %s", peer, reason)

    def _make_room(self) -> bool:
        """Let go of the client that has been idle for longest, if there is one: its next call connects again."""
        now_s = self._loop.time()
        idlest = max(self._connections, key=lambda connection: connection.idle_s(now_s))
        if idlest.idle_s(now_s) < IDLE_SECONDS_MIN:
            return False
        idlest.finish()
        return True

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            now_s = self._loop.time()
            for connection in tuple(self._connections):
                connection.check(now_s)


class ThriftCall:
    """A call under way. It is told by the group commit what became of it, as the waiter of its stage."""

    __slots__ = ("_connection", "arguments", "encode", "method", "sequence")

    def __init__(self, connection: ThriftConnection, method: Method, sequence: bytes) -> None:
        self._connection = connection
        self.method = method
        self.sequence = sequence
        self.arguments: dict[str, Any] = {}
        self.encode: Encode  # what it is told, as a result

    def cancelled(self) -> bool:
        """Never: a call goes on when its client has gone."""
        return False

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        if isinstance(result, BasaltError):
            self._connection.respond(self, result)
        else:
            self._connection.respond(self, None, result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._connection.respond(self, exception)


class ThriftConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: TephraServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._call: ThriftCall | asyncio.Task[None] | asyncio.Handle | None = None  # what is under way
        self._since_s = self._loop.time()  # when it became idle, or a frame began
        self._stalled_s: float | None = None
        self._reading = True
        self._leaving = False
        self.peer = "somebody"

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, not one of asyncio's
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else "somebody"
        if not self._server.enter(self):
            self._leaving = True
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leaving = True
        self._server.leave(self)
        self._server.hold(-len(self._buffer))
        self._buffer.clear()

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        if not self._buffer:
            self._since_s = self._loop.time()
            if self._call is None and self._stalled_s is None and _is_frame(data):
                self._begin(data[LENGTH_BYTES:])
                return
        self._buffer += data
        if not self._server.hold(len(data)):
            self._refuse(INTERNAL_ERROR, "too many requests are half received; try again")
            return
        self._next()

    def pause_writing(self) -> None:
        self._stalled_s = self._loop.time()

    def resume_writing(self) -> None:
        self._stalled_s = None
        self._next()

    # What the server asks.

    def check(self, now_s: float) -> None:
        """Cut off a peer whose time is up."""
        if self._stalled_s is not None:
            if now_s - self._stalled_s > STALL_SECONDS_MAX:
                self._transport.abort()
        elif self._leaving:
            if self._call is None and now_s - self._since_s > STALL_SECONDS_MAX:
                self._transport.abort()  # it does not even read why it is turned out
        elif self._call is not None:
            return
        elif self._buffer:
            if now_s - self._since_s > HALF_SECONDS_MAX:
                self._refuse(PROTOCOL_ERROR, f"no whole frame came within {HALF_SECONDS_MAX} s")
        elif now_s - self._since_s > IDLE_SECONDS_MAX:
            self._leave()

    def idle_s(self, now_s: float) -> float:
        """For how long nobody has wanted anything of it; 0 while it has work."""
        at_work = self._call is not None or self._buffer or self._stalled_s is not None or self._leaving
        return 0.0 if at_work else now_s - self._since_s

    def finish(self) -> None:
        """Answer the call that is under way, then hang up."""
        self._leaving = True
        if self._call is None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up now. A call that is under way goes on, and nobody hears of it."""
        self._transport.abort()

    # What the group commit tells.

    def respond(self, call: ThriftCall, error: BaseException | None, result: Any = None) -> None:
        try:
            pieces = (
                call.encode(result) if error is None else self._server.calls.refused(call.method, error, call.arguments)
            )
            answer = self._answered(call, pieces)
        except Exception as refusal:  # noqa: BLE001  # each has its answer
            answer = self._not_answered(call, refusal)
        self._finish(answer)

    # How.

    def _next(self) -> None:
        """Go on with the calls that are there, until one has to wait."""
        for _ in range(CALLS_PER_TURN):
            frame = self._frame()
            if frame is None:
                return
            self._begin(frame)
        if self._call is None:
            self._call = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._call = None
        if self._leaving:
            self._transport.close()
        else:
            self._next()

    def _frame(self) -> bytes | None:
        """The next frame, if there is a whole one and nothing before it."""
        if self._call is not None or self._stalled_s is not None or self._leaving:
            if self._reading and len(self._buffer) > AHEAD_BYTES_MAX:
                self._reading = False
                self._transport.pause_reading()
            return None
        if len(self._buffer) >= LENGTH_BYTES:
            (size_bytes,) = _LENGTH.unpack_from(self._buffer)
            if not 0 < size_bytes <= FRAME_BYTES_MAX:
                self._refuse_stranger(size_bytes)
                return None
            stop = LENGTH_BYTES + size_bytes
            if len(self._buffer) >= stop:
                frame = bytes(memoryview(self._buffer)[LENGTH_BYTES:stop])
                del self._buffer[:stop]
                self._server.hold(-stop)
                return frame
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        return None

    def _begin(self, frame: bytes) -> None:
        """Answer the call in the frame, or have it under way."""
        head = head_of(frame)
        method = BY_HEAD.get(head)
        start = len(head) + SEQUENCE_BYTES
        if method is None or len(frame) < start:
            self._begin_unknown(frame)
            return
        call = ThriftCall(self, method, frame[len(head) : start])
        calls = self._server.calls
        try:
            call.arguments = read_arguments(frame, start, method.arguments, calls.entries_max(method))
            begun = calls.begin(method, call.arguments, call)
            if begun is None:
                self._call = self._loop.create_task(self._answer(call))
            elif callable(begun):
                call.encode, self._call = begun, call
            else:
                self._send(self._answered(call, begun))
        except Exception as error:  # noqa: BLE001  # each has its answer
            self._send(self._not_answered(call, error))

    def _begin_unknown(self, frame: bytes) -> None:
        try:
            header = read_header(frame)
            if header.kind != CALL:
                raise NoMessageError(f"message type {header.kind} is not a call")
        except NoMessageError as error:
            self._refuse(INVALID_MESSAGE_TYPE, str(error))
            return
        self._server.answered("_other", "refused")
        sequence = frame[header.arguments_start - SEQUENCE_BYTES : header.arguments_start]
        self._send(exception(header.name, sequence, UNKNOWN_METHOD, f"there is no method {header.name!r}"))

    async def _answer(self, call: ThriftCall) -> None:
        try:
            answer = self._answered(call, await self._server.calls.answer(call.method, call.arguments))
        except Exception as error:  # noqa: BLE001  # each has its answer
            answer = self._not_answered(call, error)
        self._finish(answer)

    def _finish(self, answer: Pieces) -> None:
        """Answer what was under way, and go on."""
        self._call = None
        if self._transport.is_closing():
            return
        self._send(answer)
        if self._leaving:
            self._transport.close()
        elif self._buffer or not self._reading:
            self._next()

    def _answered(self, call: ThriftCall, result: Pieces) -> Pieces:
        answer = reply(call.method.reply_head, call.sequence, result)
        self._server.answered(call.method.name, "answered")
        return answer

    def _not_answered(self, call: ThriftCall, error: Exception) -> Pieces:
        """The answer to a call that has no result: an exception of its own, or a TApplicationException."""
        name = call.method.name
        if isinstance(error, BasaltError | TooManyEntriesError):
            try:
                return self._answered(call, self._server.calls.refused(call.method, error, call.arguments))
            except ApplicationError as refusal:
                error = refusal
        if isinstance(error, ApplicationError):
            self._server.answered(name, "refused")
            return exception(name, call.sequence, error.kind, str(error))
        if isinstance(error, MalformedArgumentsError):
            self._server.answered(name, "refused")
            return exception(name, call.sequence, PROTOCOL_ERROR, f"{name}: {error}")
        log.error("%s failed", name, exc_info=error)
        self._server.answered(name, "failed")
        return exception(name, call.sequence, INTERNAL_ERROR, f"{name} failed; the server's log says why")

    def _send(self, frame: Pieces) -> None:
        self._since_s = self._loop.time()
        if len(frame) == 1:
            self._transport.write(frame[0])
        else:
            self._transport.writelines(frame)

    def _refuse_stranger(self, size_bytes: int) -> None:
        start = bytes(self._buffer[:LENGTH_BYTES])
        if start in _HTTP_STARTS:
            self._transport.write(_HTTP_REFUSAL)
            self._turn_out("it speaks HTTP")
        elif start.startswith(_UNFRAMED_START):
            self._transport.write(unframed_exception(PROTOCOL_ERROR, _UNFRAMED))
            self._turn_out("it sends no frames")
        else:
            self._refuse(PROTOCOL_ERROR, f"a frame is 1 to {FRAME_BYTES_MAX} bytes, this one says {size_bytes}")

    def _refuse(self, kind: int, reason: str) -> None:
        """Say why, to nobody's call in particular, and hang up."""
        self._send(exception("", NO_SEQUENCE, kind, reason))
        self._turn_out(reason)

    def _turn_out(self, reason: str) -> None:
        self._server.refuse(self.peer, reason)
        self._leave()

    def _leave(self) -> None:
        self._leaving = True
        self._since_s = self._loop.time()
        self._transport.close()


def _is_frame(data: bytes) -> bool:
    """True for exactly one whole frame: nearly every call comes that way, and needs no buffer."""
    return len(data) > LENGTH_BYTES and _LENGTH.unpack_from(data)[0] == len(data) - LENGTH_BYTES <= FRAME_BYTES_MAX
