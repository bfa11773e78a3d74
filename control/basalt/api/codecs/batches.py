"""A poll's answer as batches: the messages of a record batch side by side, as they are stored.

Neither side touches a message that nobody looks at: the server sends stretches of stored bytes, the client reads ids and
places out of a handful of frames. Format: docs/formats/message-batches.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from basalt.api.bodies.messages import MESSAGE_ID_BYTES, RECORD_KINDS, Buffer
from basalt.errors import MalformedBodyError

START = b"\x01"  # the version
END = b"\x00"

SEQUENCE_AT = 8  # where in an id the number is that counts plain messages
PAYLOAD_SEQUENCE_AT = 18  # and the one that counts stored payloads

_RUN, _LIST, _MARKER = 1, 2, 3
_RUN_HEAD = struct.Struct(f">BIB{MESSAGE_ID_BYTES}sI")
_LIST_HEAD = struct.Struct(">BII")
_MARKER_HEAD = struct.Struct(f">BB{MESSAGE_ID_BYTES}sI")
_COUNTED = (SEQUENCE_AT, PAYLOAD_SEQUENCE_AT)
_NUMBERS = 1 << 16


@dataclass(frozen=True, slots=True)
class MarkerFrame:
    """A marker between messages: its kind (one of `MARKER_KINDS`), id and payload."""

    kind: str
    id: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class BatchFrame:
    """Neighbouring messages of an answer. Offsets are into the answer's bytes.

    `counted_at` is where in the ids the number is that rises by one; None when each message's id is in the answer.
    """

    ids_at: int
    counted_at: int | None
    lengths: tuple[int, ...]
    payloads_at: int
    payload_bytes: int

    @property
    def count(self) -> int:
        return len(self.lengths)

    def ids(self, body: bytes) -> tuple[bytes, ...]:
        """The 20-byte id of each message."""
        each = struct.Struct(f"{MESSAGE_ID_BYTES}s" * self.count)
        if self.counted_at is None:
            return each.unpack_from(body, self.ids_at)
        # Laid out as bytes, and cut at once: a third of what it costs to join them one by one.
        template = body[self.ids_at : self.ids_at + MESSAGE_ID_BYTES]
        first = int.from_bytes(template[self.counted_at : self.counted_at + 2], "big")
        numbers = struct.pack(f">{self.count}H", *range(first, first + self.count))
        laid_out = bytearray(template) * self.count
        laid_out[self.counted_at :: MESSAGE_ID_BYTES] = numbers[0::2]
        laid_out[self.counted_at + 1 :: MESSAGE_ID_BYTES] = numbers[1::2]
        return each.unpack(laid_out)

    def payloads(self, body: bytes) -> Iterable[bytes]:
        """The payload of each message."""
        size = self.lengths[0]
        if self.lengths.count(size) == self.count:  # then they are cut at once too
            return struct.unpack_from(f"{size}s" * self.count, body, self.payloads_at)
        return (body[start:stop] for start, stop in pairwise(self.ends()))

    def ends(self) -> list[int]:
        """Offsets at which the first payload begins, and each one ends."""
        return list(accumulate(self.lengths, initial=self.payloads_at))


def encode_run_head(first_id: bytes, counted_at: int, count: int, payload_bytes: int) -> bytes:
    """Head of the lengths and payloads of messages whose ids differ in one number, which rises by one."""
    return _RUN_HEAD.pack(_RUN, count, _COUNTED.index(counted_at), first_id, payload_bytes)


def encode_list(ids: Sequence[bytes], payloads: Sequence[Buffer]) -> bytes:
    """A frame of messages with any ids, as many ids as payloads."""
    lengths = list(map(len, payloads))
    head = _LIST_HEAD.pack(_LIST, len(ids), sum(lengths))
    return b"".join([head, *ids, struct.pack(f">{len(ids)}I", *lengths), *payloads])


def encode_marker(kind: str, marker_id: bytes, payload: Buffer) -> bytes:
    return _MARKER_HEAD.pack(_MARKER, RECORD_KINDS.index(kind), marker_id, len(payload)) + bytes(payload)


def decode(body: bytes) -> list[BatchFrame]:
    """The frames of an answer without markers; `MalformedBodyError` when it is anything but one whole answer."""
    frames = list[BatchFrame]()
    for frame in decode_marked(body):
        if isinstance(frame, MarkerFrame):
            raise _refused(0, "a marker that nobody asked for")
        frames.append(frame)
    return frames


def decode_marked(body: bytes) -> list[BatchFrame | MarkerFrame]:
    """The frames of an answer, markers among them; `MalformedBodyError` when it is anything but one whole answer."""
    if body[:1] != START:
        raise _refused(0, f"version {body[0] if body else 'missing'}; this Basalt reads version {START[0]}")
    frames: list[BatchFrame | MarkerFrame] = []
    offset = len(START)
    while body[offset : offset + 1] != END:
        try:
            if body[offset] == _MARKER:
                marker = _marker(body, offset)
                frames.append(marker)
                offset += _MARKER_HEAD.size + len(marker.payload)
                continue
            frame = _frame(body, offset)
        except (struct.error, IndexError):
            raise _refused(offset, "a frame is cut short") from None
        frames.append(frame)
        offset = frame.payloads_at + frame.payload_bytes
    if offset + len(END) != len(body):
        raise _refused(offset + len(END), f"{len(body) - offset - len(END)} bytes follow the end")
    return frames


def _marker(body: bytes, at: int) -> MarkerFrame:
    _, kind, marker_id, payload_bytes = _MARKER_HEAD.unpack_from(body, at)
    payload = body[at + _MARKER_HEAD.size :][:payload_bytes]
    if not 1 <= kind < len(RECORD_KINDS) or len(payload) < payload_bytes:
        raise _refused(at, f"a marker of kind {kind} and {payload_bytes} bytes")
    return MarkerFrame(RECORD_KINDS[kind], marker_id, payload)


def _frame(body: bytes, frame_start: int) -> BatchFrame:
    counted_at: int | None = None
    kind = body[frame_start]
    if kind == _RUN:
        _, count, field, first_id, payload_bytes = _RUN_HEAD.unpack_from(body, frame_start)
        ids_at = frame_start + 6
        lengths_at = frame_start + _RUN_HEAD.size
        if field >= len(_COUNTED):
            raise _refused(frame_start, f"number {field} of an id does not count messages")
        counted_at = _COUNTED[field]
        if int.from_bytes(first_id[counted_at : counted_at + 2], "big") + count > _NUMBERS:
            raise _refused(frame_start, f"{count} messages count beyond {_NUMBERS - 1}")
    elif kind == _LIST:
        _, count, payload_bytes = _LIST_HEAD.unpack_from(body, frame_start)
        ids_at = frame_start + _LIST_HEAD.size
        lengths_at = ids_at + count * MESSAGE_ID_BYTES
    else:
        raise _refused(frame_start, f"a frame of kind {kind}")
    payloads_at = lengths_at + 4 * count
    # Checked first: a count that nothing stands behind must not make us allocate.
    if payloads_at + payload_bytes > len(body):
        raise _refused(frame_start, f"{count} messages of {payload_bytes} bytes in {len(body) - frame_start} bytes")
    if not count:
        raise _refused(frame_start, "a frame without messages")
    lengths: tuple[int, ...] = struct.unpack_from(f">{count}I", body, lengths_at)
    if sum(lengths) != payload_bytes:
        raise _refused(frame_start, f"payloads of {sum(lengths)} bytes, expected {payload_bytes}")
    return BatchFrame(ids_at, counted_at, lengths, payloads_at, payload_bytes)


def _refused(at: int, what: str) -> MalformedBodyError:
    return MalformedBodyError(f"message batches, byte {at}: {what}", hint="Ask for Avro or JSON instead.")
