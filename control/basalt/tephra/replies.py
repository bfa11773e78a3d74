"""Frames as they are answered: a message header, a result struct or a TApplicationException, and the length in front."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from basalt.tephra.arguments import EXCEPTION, I32, REPLY, STOP, STRING, VERSION_1

# What kind of TApplicationException; the numbers are Thrift's.
UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, INTERNAL_ERROR, PROTOCOL_ERROR = 1, 2, 6, 7

# What the transport of Tephra's clients reads at most (TFramedTransport's own default, which they do not change).
ANSWER_BYTES_MAX = 16_384_000
RESULT_BYTES_MAX = ANSWER_BYTES_MAX - 4_096  # the rest is the message's header

Pieces = Sequence[bytes]  # of one result; a transaction's bytes may be long, and are not copied

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">HHi")
_FIELD = struct.Struct(">bh")


class ApplicationError(Exception):
    """A call that its method has no exception for is refused: it is answered as a TApplicationException."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def reply(name: str, sequence: int, result: Pieces) -> list[bytes]:
    """The frame of a result. `ApplicationError` when no client would read it."""
    size_bytes = sum(map(len, result))
    if size_bytes > RESULT_BYTES_MAX:
        raise ApplicationError(
            INTERNAL_ERROR,
            f"the answer is {size_bytes} bytes, and Tephra's clients read {ANSWER_BYTES_MAX}: the invalid list is too long,"
            " prune it",
        )
    return _framed(_message(REPLY, name, sequence), *result)


def exception(name: str, sequence: int, kind: int, message: str) -> list[bytes]:
    """The frame of a TApplicationException."""
    return _framed(unframed_exception(kind, message, name, sequence))


def unframed_exception(kind: int, message: str, name: str = "", sequence: int = 0) -> bytes:
    """A TApplicationException as a client without frames reads it."""
    text = message.encode("utf-8", "replace")
    fields = (
        _FIELD.pack(STRING, 1) + _LENGTH.pack(len(text)) + text,
        _FIELD.pack(I32, 2) + _LENGTH.pack(kind),
        bytes((STOP,)),
    )
    return b"".join((_message(EXCEPTION, name, sequence), *fields))


def _message(kind: int, name: str, sequence: int) -> bytes:
    encoded = name.encode("ascii")
    return _HEADER.pack(VERSION_1, kind, len(encoded)) + encoded + _LENGTH.pack(sequence)


def _framed(head: bytes, *pieces: bytes) -> list[bytes]:
    size_bytes = len(head) + sum(map(len, pieces))
    return [_LENGTH.pack(size_bytes) + head, *pieces]
