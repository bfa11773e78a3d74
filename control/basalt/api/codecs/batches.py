"""A poll's answer as batches: the messages of a record batch side by side, as they are stored.

Neither side touches a message that nobody looks at: the server sends stretches of stored bytes, the client reads ids and
places out of a handful of frames. Format: docs/formats/message-batches.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, repeat

from basalt.api.bodies.messages import MESSAGE_ID_BYTES, RECORD_KINDS, Buffer, Carried
from basalt.errors import MalformedBodyError

START = b"\x01"  # the version
END = b"\x00"

SEQUENCE_AT = 8  # where in an id the number is that counts plain messages
PAYLOAD_SEQUENCE_AT = 18  # and the one that counts stored payloads

_RUN, _LIST, _MARKER, _CARRIED = 1, 2, 3, 4
_RUN_HEAD = struct.Struct(f">BIB{MESSAGE_ID_BYTES}sI")
_LIST_HEAD = struct.Struct(">BII")
_MARKER_HEAD = struct.Struct(f">BB{MESSAGE_ID_BYTES}sI")
_CARRIED_HEAD = struct.Struct(">BBI")
_EVENT_TIMES, _TTLS, _KEYS, _HEADERS = 1, 2, 4, 8  # flags: which sections there are
_SECTIONS = (
    (_EVENT_TIMES, "q", 8),
    (_TTLS, "Q", 8),
    (_KEYS, "I", 4),
    (_HEADERS, "I", 4),
)  # each message's bytes in them
_NO_KEY, _NO_EVENT_TIME = 0xFFFFFFFF, -(1 << 63)
_CARRIED_START = bytes([_CARRIED])
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
    `carried_at` is where the frame begins that says what they carry beside their payloads; None when that is nothing.
    """

    ids_at: int
    counted_at: int | None
    lengths: tuple[int, ...]
    payloads_at: int
    payload_bytes: int
    carried_at: int | None = None

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

    def carried(self, body: bytes) -> list[Carried] | None:
        """Read what each message carries beside its payload; None when no message of the frame carries anything."""
        return None if self.carried_at is None else _read_carried(body, self.carried_at, self.count)

    def ends(self) -> list[int]:
        """Offsets at which the first payload begins, and each one ends."""
        return list(accumulate(self.lengths, initial=self.payloads_at))


def encode_run_head(first_id: bytes, counted_at: int, count: int, payload_bytes: int) -> bytes:
    """Head of the lengths and payloads of messages whose ids differ in one number, which rises by one."""
    return _RUN_HEAD.pack(_RUN, count, _COUNTED.index(counted_at), first_id, payload_bytes)


def encode_list_head(count: int, payload_bytes: int) -> bytes:
    """Head of the ids, the lengths and the payloads of messages with any ids."""
    return _LIST_HEAD.pack(_LIST, count, payload_bytes)


def encode_list(ids: Sequence[bytes], payloads: Sequence[Buffer]) -> bytes:
    """A frame of messages with any ids, as many ids as payloads."""
    lengths = list(map(len, payloads))
    head = encode_list_head(len(ids), sum(lengths))
    return b"".join([head, *ids, struct.pack(f">{len(ids)}I", *lengths), *payloads])


def encode_carried(flags: int, sections: Sequence[Sequence[Buffer]]) -> bytes:
    """A frame of what the messages of the frame before it carry: the sections of each of their rows, which have these flags."""
    columns = [piece for column in zip(*sections, strict=True) for piece in column]
    return b"".join([_CARRIED_HEAD.pack(_CARRIED, flags, sum(map(len, columns))), *columns])


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
        offset = frame.payloads_at + frame.payload_bytes
        if body[offset : offset + 1] == _CARRIED_START:
            frame, offset = replace(frame, carried_at=offset), _carried_stop(body, offset, frame.count)
        frames.append(frame)
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


def _carried_head(body: bytes, at: int) -> tuple[int, int]:
    """The flags of a frame of what messages carry, and the bytes behind its head."""
    _, flags, size_bytes = _CARRIED_HEAD.unpack_from(body, at)
    return flags, size_bytes


def _carried_stop(body: bytes, at: int, count: int) -> int:
    """The end of a frame of what messages carry, which has all that it says."""
    try:
        flags, size_bytes = _carried_head(body, at)
    except struct.error:
        raise _refused(at, "a frame is cut short") from None
    stop = at + _CARRIED_HEAD.size + size_bytes
    fixed_bytes = count * sum(width for flag, _, width in _SECTIONS if flags & flag)
    if not 0 < flags < 16 or fixed_bytes > size_bytes or stop > len(body):
        raise _refused(at, f"flags {flags} and {size_bytes} bytes for what {count} messages carry")
    return stop


def _read_carried(body: bytes, at: int, count: int) -> list[Carried]:
    flags, size_bytes = _carried_head(body, at)
    columns: dict[int, Iterable[int]] = {}
    offset = at + _CARRIED_HEAD.size
    stop = offset + size_bytes
    for flag, letter, width in _SECTIONS:
        if flags & flag:
            columns[flag] = struct.unpack_from(f">{count}{letter}", body, offset)
            offset += width * count
    keys, headers = list[bytes | None](), list[tuple[tuple[str, bytes], ...]]()
    for length in columns.get(_KEYS, ()):
        key_stop = offset + (0 if length == _NO_KEY else length)
        keys.append(None if length == _NO_KEY else body[offset:key_stop])
        offset = key_stop
    for length in columns.get(_HEADERS, ()):
        headers.append(_read_headers(body, offset, min(offset + length, stop)))
        offset += length
    if offset != stop:
        raise _refused(at, f"keys and headers end at byte {offset}, expected {stop}")
    times = (None if time == _NO_EVENT_TIME else time for time in columns.get(_EVENT_TIMES, repeat(_NO_EVENT_TIME)))
    ttls = (ttl or None for ttl in columns.get(_TTLS, repeat(0)))
    return [
        Carried(*each)
        for each in zip(keys or repeat(None, count), headers or repeat((), count), times, ttls, strict=False)
    ]


def _read_headers(body: bytes, start: int, stop: int) -> tuple[tuple[str, bytes], ...]:
    headers, offset = list[tuple[str, bytes]](), start
    try:
        while offset < stop:
            name_at = offset + 2
            value_at = name_at + int.from_bytes(body[offset:name_at]) + 4
            offset = value_at + int.from_bytes(body[value_at - 4 : value_at])
            headers.append((body[name_at : value_at - 4].decode(), body[value_at:offset]))
    except UnicodeDecodeError:
        raise _refused(start, "the name of a header is not UTF-8") from None
    if offset > stop:
        raise _refused(start, f"headers end at byte {offset}, expected {stop}")
    return tuple(headers)


def _refused(at: int, what: str) -> MalformedBodyError:
    return MalformedBodyError(f"message batches, byte {at}: {what}", hint="Ask for Avro or JSON instead.")
