"""One client of the Thrift face: frames in, one call at a time in their order, frames out; and what is done to strangers.

A frame is four bytes of length and a message. Nothing is set aside for a length that is only announced, and a peer that
stops in the middle, or never reads its answers, is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any, Protocol, cast

from basalt.errors import BasaltError
from basalt.thrift import replies
from basalt.thrift.arguments import (
    CALL,
    SEQUENCE_BYTES,
    MalformedArgumentsError,
    NoMessageError,
    TooManyEntriesError,
    head_of,
    read_arguments,
    read_header,
)
from basalt.thrift.calls import Calls, Encode
from basalt.thrift.idl import BY_HEAD, Method
from basalt.thrift.replies import (
    INTERNAL_ERROR,
    INVALID_MESSAGE_TYPE,
    NO_SEQUENCE,
    PROTOCOL_ERROR,
    UNKNOWN_METHOD,
    ApplicationError,
    Pieces,
)

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


class House(Protocol):
    """The part of its server that a connection needs."""

    calls: Calls

    def enter(self, connection: Connection) -> bool:
        """Take the connection in; False when there is no room for it."""
        ...

    def leave(self, connection: Connection, error: Exception | None) -> None:
        """It is gone."""
        ...

    def hold(self, size_bytes: int) -> bool:
        """It holds so many more bytes of requests (fewer, if negative); False when all hold too many together."""
        ...

    def answered(self, method: str, outcome: str) -> None:
        """A call was answered."""
        ...

    def refuse(self, peer: str, reason: str) -> None:
        """A client is refused for what it sent."""
        ...


class Call:
    """A call under way. It is told by the group commit what became of it, as the waiter of its stage."""

    __slots__ = ("_connection", "arguments", "encode", "method", "sequence")

    def __init__(self, connection: Connection, method: Method, sequence: bytes) -> None:
        self._connection = connection
        self.method = method
        self.sequence = sequence
        self.arguments: dict[str, Any] = {}
        self.encode: Encode  # what it is told, as a result

    def cancelled(self) -> bool:
        """Never: a call goes on when its client has gone."""
        return False

    def done(self) -> bool:
        """Not before it is told."""
        return False

    def set_result(self, result: Any, /) -> None:
        """It is done, or refused by what is durable now."""
        if isinstance(result, BasaltError):
            self._connection.told(self, result)
        else:
            self._connection.told(self, None, result)

    def set_exception(self, exception: BaseException, /) -> None:
        """It is refused, or failed."""
        self._connection.told(self, exception)


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._call: Call | asyncio.Task[None] | asyncio.Handle | None = None  # what is under way
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
        if not self._house.enter(self):
            self._leaving = True
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leaving = True
        self._house.leave(self, exc)
        self._house.hold(-len(self._buffer))
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
        if not self._house.hold(len(data)):
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

    def told(self, call: Call, error: BaseException | None, result: Any = None) -> None:
        """The call has come to its end."""
        try:
            pieces = (
                call.encode(result) if error is None else self._house.calls.refused(call.method, error, call.arguments)
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
                self._house.hold(-stop)
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
        call = Call(self, method, frame[len(head) : start])
        calls = self._house.calls
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
        self._house.answered("_other", "refused")
        sequence = frame[header.arguments_start - SEQUENCE_BYTES : header.arguments_start]
        self._send(replies.exception(header.name, sequence, UNKNOWN_METHOD, f"there is no method {header.name!r}"))

    async def _answer(self, call: Call) -> None:
        try:
            answer = self._answered(call, await self._house.calls.answer(call.method, call.arguments))
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

    def _answered(self, call: Call, result: Pieces) -> Pieces:
        answer = replies.reply(call.method.reply_head, call.sequence, result)
        self._house.answered(call.method.name, "answered")
        return answer

    def _not_answered(self, call: Call, error: Exception) -> Pieces:
        """The answer to a call that has no result: an exception of its own, or a TApplicationException."""
        name = call.method.name
        if isinstance(error, BasaltError | TooManyEntriesError):
            try:
                return self._answered(call, self._house.calls.refused(call.method, error, call.arguments))
            except ApplicationError as refusal:
                error = refusal
        if isinstance(error, ApplicationError):
            self._house.answered(name, "refused")
            return replies.exception(name, call.sequence, error.kind, str(error))
        if isinstance(error, MalformedArgumentsError):
            self._house.answered(name, "refused")
            return replies.exception(name, call.sequence, PROTOCOL_ERROR, f"{name}: {error}")
        log.error("%s failed", name, exc_info=error)
        self._house.answered(name, "failed")
        return replies.exception(name, call.sequence, INTERNAL_ERROR, f"{name} failed; the server's log says why")

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
            self._transport.write(replies.unframed_exception(PROTOCOL_ERROR, _UNFRAMED))
            self._turn_out("it sends no frames")
        else:
            self._refuse(PROTOCOL_ERROR, f"a frame is 1 to {FRAME_BYTES_MAX} bytes, this one says {size_bytes}")

    def _refuse(self, kind: int, reason: str) -> None:
        """Say why, to nobody's call in particular, and hang up."""
        self._send(replies.exception("", NO_SEQUENCE, kind, reason))
        self._turn_out(reason)

    def _turn_out(self, reason: str) -> None:
        self._house.refuse(self.peer, reason)
        self._leave()

    def _leave(self) -> None:
        self._leaving = True
        self._since_s = self._loop.time()
        self._transport.close()


def _is_frame(data: bytes) -> bool:
    """True for exactly one whole frame: nearly every call comes that way, and needs no buffer."""
    return len(data) > LENGTH_BYTES and _LENGTH.unpack_from(data)[0] == len(data) - LENGTH_BYTES <= FRAME_BYTES_MAX
