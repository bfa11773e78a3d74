"""Where the messages of a poll's answer lie in its bytes; found without making an object for any of them.

Format: docs/formats/avro-bodies.md, "Messages". The answer comes from a server that encodes it right, over a transport that
knows when it is cut short; so this checks what keeps it from reading wrongly, and leaves strictness to `basalt.api.codecs.avro`.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.api.bodies.work import MESSAGE_ID_BYTES

_ID_LENGTH_BYTE = 2 * MESSAGE_ID_BYTES  # its zigzag varint
_VARINT_BYTES_MAX = 10
_RUN_MESSAGES_MIN = 8  # below that, comparing columns costs more than walking


class MessageIndex(NamedTuple):
    """Offsets into the body, one of each per message. An id is the 20 bytes from its offset."""

    ids: list[int]
    starts: list[int]
    stops: list[int]


def index_messages(body: bytes) -> MessageIndex:
    """Where the ids and payloads lie. ValueError or IndexError when the body is not an array of messages."""
    index = MessageIndex([], [], [])
    position = 0
    while True:
        count, position = _read_long(body, position)
        if count == 0:
            break
        if count < 0:  # then the size of the block follows, for readers that skip it
            count = -count
            _, position = _read_long(body, position)
        if count > len(body):
            raise ValueError(f"a block of {count} messages in {len(body)} bytes")
        after_run = _index_run(body, position, count, index) if count >= _RUN_MESSAGES_MIN else None
        position = _walk_block(body, position, count, index) if after_run is None else after_run
    if position != len(body):
        raise ValueError(f"{len(body) - position} bytes follow the end of the messages")
    return index


def _index_run(body: bytes, position: int, count: int, index: MessageIndex) -> int | None:
    """Index a block whose payloads are all as long as its first, in no time at all; None when they are not."""
    length_at = position + 1 + MESSAGE_ID_BYTES
    length, payload_at = _read_long(body, length_at)
    stride = payload_at - position + length
    stop = position + count * stride
    if length < 0 or stop > len(body):
        return None
    # If the lengths at these places are equal, then by induction these places are where messages begin.
    for offset in (0, *range(length_at - position, payload_at - position)):
        column = body[position + offset : stop : stride]
        if column != column[:1] * count:
            return None
    if body[position] != _ID_LENGTH_BYTE:
        return None
    index.ids.extend(range(position + 1, stop, stride))
    index.starts.extend(range(payload_at, payload_at + count * stride, stride))
    index.stops.extend(range(position + stride, stop + stride, stride))
    return stop


def _walk_block(body: bytes, position: int, count: int, index: MessageIndex) -> int:
    """Index a block message by message. Lengths of one and two bytes (up to 8 KiB) are read in line."""
    ids, starts, stops = index
    for _ in range(count):
        if body[position] != _ID_LENGTH_BYTE:
            raise ValueError(f"byte {position}: a message id is not {MESSAGE_ID_BYTES} bytes long")
        ids.append(position + 1)
        position += 1 + MESSAGE_ID_BYTES
        length = body[position]
        if length < 0x80:
            position += 1
        elif body[position + 1] < 0x80:
            length = (length & 0x7F) | (body[position + 1] << 7)
            position += 2
        else:
            length, position = _read_long(body, position)
            length *= 2
        if length < 0 or length & 1:
            raise ValueError(f"byte {position}: a payload has a negative length")
        starts.append(position)
        position += length >> 1
        stops.append(position)
    if position > len(body):
        raise ValueError("the last payload is cut short")
    return position


def _read_long(body: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and the offset after it."""
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise ValueError(f"byte {position}: a number of more than {_VARINT_BYTES_MAX} bytes")
