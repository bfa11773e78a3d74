"""Frames as they are answered: a message header, a result struct or a TApplicationException, and the length in front."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from basalt.thrift.arguments import EXCEPTION, I32, STOP, STRING, message_head

# What kind of TApplicationException; the numbers are Thrift's.
UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, INTERNAL_ERROR, PROTOCOL_ERROR = 1, 2, 6, 7

# What the transport of Tephra's clients reads at most (TFramedTransport's own default, which they do not change).
ANSWER_BYTES_MAX = 16_384_000
RESULT_BYTES_MAX = ANSWER_BYTES_MAX - 4_096  # the rest is the message's header

JOIN_BYTES_MAX = 65_536  # a larger answer is given to the socket in its pieces

Pieces = Sequence[bytes]  # of one result; a transaction's bytes may be long, and are not copied

NO_SEQUENCE = bytes(4)  # of what answers no call in particular

_LENGTH = struct.Struct(">i")
_FIELD = struct.Struct(">bh")


class ApplicationError(Exception):
    """A call that its method has no exception for is refused: it is answered as a TApplicationException."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def reply(head: bytes, sequence: bytes, result: Pieces) -> Pieces:
    """The frame of a result, whose message begins with `head`. `ApplicationError` when no client would read it."""
    size_bytes = len(result[0]) if len(result) == 1 else sum(map(len, result))
    if size_bytes > RESULT_BYTES_MAX:
        raise ApplicationError(
            INTERNAL_ERROR,
            f"the answer is {size_bytes} bytes, and Tephra's clients read {ANSWER_BYTES_MAX}: the invalid list is too long,"
            " prune it",
        )
    start = _LENGTH.pack(len(head) + len(sequence) + size_bytes)
    if size_bytes <= JOIN_BYTES_MAX:
        return (b"".join((start, head, sequence, *result)),)
    return start + head + sequence, *result


def exception(name: str, sequence: bytes, kind: int, message: str) -> Pieces:
    """The frame of a TApplicationException."""
    body = unframed_exception(kind, message, name, sequence)
    return (_LENGTH.pack(len(body)) + body,)


def unframed_exception(kind: int, message: str, name: str = "", sequence: bytes = NO_SEQUENCE) -> bytes:
    """A TApplicationException as a client without frames reads it."""
    text = message.encode("utf-8", "replace")
    fields = (
        _FIELD.pack(STRING, 1) + _LENGTH.pack(len(text)) + text,
        _FIELD.pack(I32, 2) + _LENGTH.pack(kind),
        bytes((STOP,)),
    )
    return b"".join((message_head(EXCEPTION, name), sequence, *fields))
