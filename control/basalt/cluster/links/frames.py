"""Frames of a link: length(4), then msgpack [number, kind, body]. Pure. Format: docs/formats/links.md.

Bodies stay bytes until somebody who knows their type reads them: a frame that nobody waits for any more is not decoded.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from basalt.errors import (
    BY_CODE,
    BasaltError,
    CorruptionError,
    InputError,
    InternalError,
    ProtocolError,
    RetryError,
    TooLargeError,
)

FRAME_BYTES_MAX = (
    16 << 20
)  # a commit's messages are one frame, and a request's body has up to 10 MiB; more would hold up the beats
HELLO_BYTES_MAX = 1_024  # of a frame before the other side has proved who it is; ours have about 200
TEXT_MAX = 1_000  # characters of a message or a hint that are carried: an error must always find room in a frame

# What the library raises where bytes are not what they should be: text that is no UTF-8 and nesting without an end have errors of their own.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_LENGTH = struct.Struct(">I")

Q = TypeVar("Q")
A = TypeVar("A")


class Kind(enum.IntEnum):
    """The kinds of frames that a link has of its own. Calls have the numbers from 16; numbers are never given anew."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    ANSWER = 8
    ERROR = 9
    CANCEL = 10
    BYE = 11
    BEAT = 16
    FOLLOW = 20
    ENTRIES = 21
    ASK = 22
    JOIN = 23
    MOMENT = 24
    PREPARE = 30
    PLACE = 31
    ROLL_BACK = 32
    DROP = 33
    NOTE_ENDS = 34
    CLOSE = 35
    JOIN_OF = 36
    RELEASE = 40
    MAP = 41
    LEAVING = 42
    LEND = 50
    DECIDE_ONE_SHOTS = 51
    GIVE_BACK = 52
    PROPOSE = 60
    PLACED = 61
    ACKNOWLEDGE = 62
    REJECTED = 63
    CARRY = 64
    MAKE_TOPIC = 65
    HAVE_TOPIC = 66
    COMMIT = 67
    BEGIN = 68
    ACT = 69
    FIGURES = 70
    PASS = 80


CALLS_FROM = 16


class Frame(NamedTuple):
    """One frame: `number` is that of the call that it belongs to, 0 where there is none; `body` is msgpack."""

    number: int
    kind: int
    body: msgspec.Raw


class CallKind(Generic[Q, A]):
    """One kind of call: its number among frames, and the types of its question and its answer. `is_urgent`: somebody waits for the answer."""

    def __init__(self, number: int, name: str, question: type[Q], answer: type[A], *, is_urgent: bool = True) -> None:
        if number < CALLS_FROM:
            raise ValueError(f"a call has a number from {CALLS_FROM}, not {number}")
        self.number = int(number)  # a member of `Kind` is written slower
        self.name = name
        self.is_urgent = is_urgent
        self.question: msgspec.msgpack.Decoder[Q] = msgspec.msgpack.Decoder(question)
        self.answer: msgspec.msgpack.Decoder[A] = msgspec.msgpack.Decoder(answer)


class ErrorBody(msgspec.Struct, frozen=True, array_like=True):
    """An error of the tree of errors as it is carried. `next` is what the caller does next, where its side does not know the code."""

    code: str
    next: str
    message: str
    field: str | None = None
    hint: str | None = None
    retry_after_ms: int | None = None

    @classmethod
    def of(cls, error: BasaltError) -> ErrorBody:
        """The body that carries this error."""
        return cls(
            error.code, next((name for name, base in _NEXT.items() if isinstance(error, base)), ""), error.message[:TEXT_MAX],
            error.field, None if error.hint is None else error.hint[:TEXT_MAX], getattr(error, "retry_after_ms", None),
        )  # fmt: skip

    def error(self) -> BasaltError:
        """The error that was carried: of its own class, or of the one that says the same about what to do next."""
        base = BY_CODE.get(self.code) or _NEXT.get(self.next, InternalError)
        error = base(self.message, field=self.field, hint=self.hint)
        if isinstance(error, RetryError) and self.retry_after_ms is not None:
            error.retry_after_ms = self.retry_after_ms
        return error


_NEXT: dict[str, type[BasaltError]] = {"retry": RetryError, "fix": InputError, "give_up": CorruptionError}
_ERROR = msgspec.msgpack.Decoder(ErrorBody)
_ENCODER = msgspec.msgpack.Encoder()
_FRAME = msgspec.msgpack.Decoder(Frame)


def read_error(frame: Frame) -> BasaltError:
    """The error that a frame carries. `ProtocolError`"""
    try:
        return _ERROR.decode(frame.body).error()
    except UNREADABLE as error:
        raise ProtocolError(f"an error that came over a link cannot be read: {error}") from error


def append_frame(to: bytearray, number: int, kind: int, body: Any) -> None:
    """Write one frame behind what is there. `TooLargeError`, with nothing written, when it is over `FRAME_BYTES_MAX`."""
    start = len(to)
    to += b"\0\0\0\0"
    _ENCODER.encode_into((number, kind, body), to, start + _LENGTH.size)
    length = len(to) - start - _LENGTH.size
    if length > FRAME_BYTES_MAX:
        del to[start:]
        raise TooLargeError(
            f"a call between servers has {length} bytes, and a frame takes {FRAME_BYTES_MAX}",
            hint="send less at a time",
        )
    _LENGTH.pack_into(to, start, length)


def frame_bytes(number: int, kind: int, body: Any) -> bytes:
    """One frame by itself."""
    made = bytearray()
    append_frame(made, number, kind, body)
    return bytes(made)


class FrameReader:
    """Takes the bytes of a connection as they come, and gives the frames that are whole. It holds one frame at most, and what came with it."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max  # may be raised once the other side has proved who it is
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = _LENGTH.size  # no frame is whole before so many are here

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return self._held_bytes

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete, in their order. `ProtocolError`: nothing after it can be read."""
        self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            self._parts.append(data)
            return []
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts.clear()
        frames, at = self._whole(data)
        rest = data[at:] if at else data
        self._held_bytes = len(rest)
        if rest:
            self._parts.append(rest)
        return frames

    def _whole(self, data: bytes) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        at, view = 0, memoryview(data)
        while True:
            self._needed_bytes = _LENGTH.size
            if len(data) - at < _LENGTH.size:
                return frames, at
            (length,) = _LENGTH.unpack_from(data, at)
            if length > self.frame_bytes_max:
                raise ProtocolError(
                    f"a frame of {length} bytes came over a link, and {self.frame_bytes_max} is the most"
                )
            stop = at + _LENGTH.size + length
            if stop > len(data):
                self._needed_bytes = stop - at
                return frames, at
            frames.append(_decoded(view[at + _LENGTH.size : stop]))
            at = stop


def _decoded(content: memoryview) -> Frame:
    try:
        frame = _FRAME.decode(content)
    except UNREADABLE as error:
        raise ProtocolError(f"a frame that came over a link cannot be read: {error}") from error
    if frame.number < 0:
        raise ProtocolError(f"a frame that came over a link has the number {frame.number}")
    return frame
