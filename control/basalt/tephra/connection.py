"""One client of the Thrift face: frames in, one call at a time in their order, frames out; and what is done to strangers.

A frame is four bytes of length and a message. Nothing is set aside for a length that is only announced, and a peer that
stops in the middle, or never reads its answers, is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Protocol, cast

from basalt.tephra import replies
from basalt.tephra.arguments import (
    CALL,
    Header,
    MalformedArgumentsError,
    NoMessageError,
    TooManyEntriesError,
    read_arguments,
    read_header,
)
from basalt.tephra.calls import Calls
from basalt.tephra.idl import METHODS
from basalt.tephra.replies import INTERNAL_ERROR, INVALID_MESSAGE_TYPE, PROTOCOL_ERROR, UNKNOWN_METHOD, ApplicationError

FRAME_BYTES_MAX = 16 << 20  # as Tephra's own server; a change set of 10 MiB fits, with all that a client sends back
IDLE_SECONDS_MAX = 3_600  # clients keep a pool open; one that is gone without a word must not hold a place for ever
HALF_SECONDS_MAX = 20  # for a frame to be complete, from its first byte
STALL_SECONDS_MAX = 60  # for a client to read what waits for it
AHEAD_BYTES_MAX = 65_536  # of what a client sends before it has its answer; clients of Tephra's send nothing
JOIN_BYTES_MAX = 65_536  # a larger answer is given to the socket in its pieces
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
    """What a connection needs of its server."""

    calls: Calls

    def enter(self, connection: Connection) -> bool:
        """Whether there is room for it."""
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


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._call: asyncio.Task[None] | None = None
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

    # How.

    def _next(self) -> None:
        """Begin the next call, if there is a whole one and nothing before it."""
        if self._call is not None or self._stalled_s is not None or self._leaving:
            if self._reading and len(self._buffer) > AHEAD_BYTES_MAX:
                self._reading = False
                self._transport.pause_reading()
            return
        if len(self._buffer) >= LENGTH_BYTES:
            (size_bytes,) = _LENGTH.unpack_from(self._buffer)
            if not 0 < size_bytes <= FRAME_BYTES_MAX:
                self._refuse_stranger(size_bytes)
                return
            stop = LENGTH_BYTES + size_bytes
            if len(self._buffer) >= stop:
                frame = bytes(memoryview(self._buffer)[LENGTH_BYTES:stop])
                del self._buffer[:stop]
                self._house.hold(-stop)
                self._call = self._loop.create_task(self._answer(frame))
                return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()

    async def _answer(self, frame: bytes) -> None:
        try:
            header = read_header(frame)
            if header.kind != CALL:
                raise NoMessageError(f"message type {header.kind} is not a call")
            answer = await self._called(header, frame)
        except NoMessageError as error:
            self._refuse(INVALID_MESSAGE_TYPE, str(error))
            return
        self._call = None
        if self._transport.is_closing():
            return
        self._send(answer)
        self._since_s = self._loop.time()
        if self._leaving:
            self._transport.close()
        else:
            self._next()

    async def _called(self, header: Header, frame: bytes) -> list[bytes]:
        name, sequence = header.name, header.sequence
        method = METHODS.get(name)
        if method is None:
            self._house.answered("_other", "refused")
            return replies.exception(name, sequence, UNKNOWN_METHOD, f"there is no method {name!r}")
        calls = self._house.calls
        try:
            try:
                arguments = read_arguments(frame, header.arguments_start, method.arguments, calls.entries_max(method))
            except TooManyEntriesError as error:
                result = calls.too_many(method, error)
            else:
                result = await calls.answer(method, arguments)
            answer = replies.reply(name, sequence, result)
        except MalformedArgumentsError as error:
            self._house.answered(name, "refused")
            return replies.exception(name, sequence, PROTOCOL_ERROR, f"{name}: {error}")
        except ApplicationError as error:
            self._house.answered(name, "refused")
            return replies.exception(name, sequence, error.kind, str(error))
        except Exception:
            log.exception("%s failed", name)
            self._house.answered(name, "failed")
            return replies.exception(name, sequence, INTERNAL_ERROR, f"{name} failed; the server's log says why")
        self._house.answered(name, "answered")
        return answer

    def _send(self, pieces: list[bytes]) -> None:
        if sum(map(len, pieces)) <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

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
        self._send(replies.exception("", 0, kind, reason))
        self._turn_out(reason)

    def _turn_out(self, reason: str) -> None:
        self._house.refuse(self.peer, reason)
        self._leave()

    def _leave(self) -> None:
        self._leaving = True
        self._since_s = self._loop.time()
        self._transport.close()
