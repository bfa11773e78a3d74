"""Record batches: the messages of one publish to one topic, as one value. Format: docs/formats/record-batch.md.

    batch := version(1) kind(1) flags(1) compression(1) count(4) body crc32c(4)
    body  := payload lengths (4 each) [positions (10 each)] [event times (8 each)] [TTLs (8 each)] [key lengths (4 each)]
             [header lengths (4 each)] payloads [keys] [headers]
    With compression, body is its uncompressed length (4), then the compressed bytes.

A batch of plain payloads pays nothing for the optional sections. Decoding slices: no object per message until asked. Several
batches of one topic become one by `merge`: then each message says where it is.
"""

from __future__ import annotations

import enum
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import is_not, itemgetter
from typing import NamedTuple, TypeVar

import zstandard
from crc32c import crc32c

from basalt_engine.errors import CorruptionError

VERSION = 1
BATCH_MESSAGES_MAX = 65_536  # a batch that is not merged lies within one millisecond, whose sequences are 16 bits
BATCH_BYTES_MAX = 64 << 20  # no stored batch comes near; a corrupt length must not make us allocate more
ZSTD_LEVEL = 1  # the fastest: the writer runs on the path of every publish

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes], ...]

_HEADER = struct.Struct(">BBBBI")
_IS_ZSTD = b"\x01"  # the header's byte 3
_PLACE = struct.Struct(">QH")  # of a position
_ONE_LENGTH = struct.Struct(">I")
_CRC_BYTES = 4
_NO_KEY = 0xFFFFFFFF
_NO_EVENT_TIME = -(1 << 63)


class RecordKind(enum.IntEnum):
    """The kind of all messages of a batch: a user's, or one kind of marker. The numbers are in the batch's header."""

    USER = 0
    WATERMARK = 1
    END_OF_STREAM = 2


_KINDS = tuple(RecordKind)  # by number: a call of the enumeration costs as much as a small batch


class Compression(enum.IntEnum):
    """The compression of a batch's body."""

    NONE = 0
    ZSTD = 1


class BatchSection:
    """The optional sections of a batch; plain numbers, for an enumeration's `&` costs more than the rest of a decode."""

    EVENT_TIMES = 1
    TTLS = 2
    KEYS = 4
    HEADERS = 8
    POSITIONS = 16


_CARRIED = 15  # flags of the sections of what messages carry beside their payloads
_ALL_FLAGS = 31
_LENGTH_BYTES = 4
_POSITION_BYTES = 10
_SECTION_BYTES = (  # each message's, before the payloads
    (BatchSection.EVENT_TIMES, 8),
    (BatchSection.TTLS, 8),
    (BatchSection.KEYS, _LENGTH_BYTES),
    (BatchSection.HEADERS, _LENGTH_BYTES),
)


class Extras(NamedTuple):
    """The optional fields of one message beside its payload. Times in milliseconds; `ttl_ms` counts from publishing."""

    key: bytes | None = None
    headers: Headers = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None


NO_EXTRAS = Extras()

# The bytes per message of the sections that batches with these flags have before their payloads.
_FIXED_BYTES = [
    sum(width for flag, width in (*_SECTION_BYTES, (BatchSection.POSITIONS, _POSITION_BYTES)) if flags & flag)
    for flags in range(_ALL_FLAGS + 1)
]


def encode(
    payloads: Sequence[Buffer],
    extras: Sequence[Extras] | None = None,
    *,
    kind: RecordKind = RecordKind.USER,
    compression: Compression = Compression.NONE,
) -> bytes:
    """The batch of these messages; `extras`, where given, has one entry per payload."""
    count = len(payloads)
    assert 0 < count <= BATCH_MESSAGES_MAX, count
    lengths = struct.pack(f">{count}I", *map(len, payloads))
    flags, fixed, blobs = (0, [], []) if extras is None else _encode_extras(extras)
    body: list[Buffer] = [lengths, *fixed, *payloads, *blobs]
    if compression is Compression.ZSTD:
        body, compression = _compressed(b"".join(body))
    return _sealed(kind, flags, compression, count, body)


def _cells(section: Buffer, width: int) -> tuple[bytes, ...]:
    """The parts of each message in a section of so many bytes a message."""
    return struct.unpack(f"{width}s" * (len(section) // width), section)


def _sealed(kind: int, flags: int, compression: Compression, count: int, body: Sequence[Buffer]) -> bytes:
    data = b"".join([_HEADER.pack(VERSION, kind, flags, compression, count), *body])
    return data + crc32c(data).to_bytes(_CRC_BYTES, "big")


def can_merge(data: Buffer) -> bool:
    """True when `merge` takes this batch: messages of users, without TTLs, that were not merged before."""
    return data[1] == RecordKind.USER and not data[2] & (BatchSection.TTLS | BatchSection.POSITIONS)


def is_merged(data: Buffer) -> bool:
    """True when the messages of an encoded batch have positions of their own, from its header alone."""
    return bool(int.from_bytes(data[2:3], "big") & BatchSection.POSITIONS)


def merge(batches: Sequence[tuple[bytes, RecordBatch]]) -> bytes:
    """Several batches as one, which has the position of each message; they come with those of their last ones, ascending.

    All carry the same sections, and `can_merge` takes each of them.
    """
    count, flags = sum(batch.count for _, batch in batches), batches[0][1].flags
    assert count <= BATCH_MESSAGES_MAX, count
    positions: list[Buffer] = []
    columns: list[tuple[list[Buffer], list[Buffer], list[Buffer]]] = []
    for last, batch in batches:
        assert batch.flags == flags, (batch.flags, flags)
        first = int.from_bytes(last[8:], "big") - batch.count + 1
        positions += [last[:8] + number.to_bytes(2, "big") for number in range(first, first + batch.count - 1)]
        positions.append(last)
        fixed, blobs = batch._carried(0, batch.count) if flags else ([], [])
        lengths, payloads = batch.span(0, batch.count)
        columns.append(([lengths], [*fixed], [payloads, *blobs]))
    lengths_of, fixed_of, blobs_of = zip(*columns, strict=True)
    body: list[Buffer] = [*chain(*lengths_of), *positions]
    for same in (fixed_of, blobs_of):  # section by section, in each of them batch by batch
        body += chain(*zip(*same, strict=True))
    return _sealed(RecordKind.USER, flags | BatchSection.POSITIONS, Compression.NONE, count, body)


def _compressed(body: Buffer) -> tuple[list[Buffer], Compression]:
    if len(body) > BATCH_BYTES_MAX:  # one very large message: what reads it would refuse to decompress as much
        return [body], Compression.NONE
    return [len(body).to_bytes(_LENGTH_BYTES, "big"), _ZSTD.compressor.compress(body)], Compression.ZSTD


def compressed(data: bytes) -> bytes:
    """The same batch with its body compressed. One with a body beyond `BATCH_BYTES_MAX` stays as it is."""
    version, kind, flags, compression, count = _HEADER.unpack_from(data)
    assert (version, compression) == (VERSION, Compression.NONE)
    body, compression = _compressed(memoryview(data)[_HEADER.size : -_CRC_BYTES])
    return _sealed(kind, flags, compression, count, body) if compression else data


def compressed_share(data: bytes, sample_bytes: int) -> float:
    """The share of its bytes that so many from the middle of an uncompressed batch, where payloads lie, take when compressed."""
    at = max(0, (len(data) - sample_bytes) // 2)
    sample = data[at : at + sample_bytes]
    return len(_ZSTD.compressor.compress(sample)) / len(sample)


def taker(indexes: Sequence[int]) -> Callable[[Sequence[T]], Sequence[T]]:
    """Make what takes the items at these indexes out of a column, in one step for all of them."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda column: [column[index] for index in indexes]


def uncompressed_bytes(data: Buffer) -> int:
    """The size of an encoded batch before it was compressed, from its header alone: nothing is checked."""
    if data[3:4] != _IS_ZSTD:
        return len(data)
    return _HEADER.size + int.from_bytes(data[_HEADER.size : _HEADER.size + _LENGTH_BYTES], "big") + _CRC_BYTES


class _Zstd(threading.local):
    """One thread's contexts of the library: to make one takes longer than a small batch."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_ZSTD = _Zstd()


def _encode_extras(extras: Sequence[Extras]) -> tuple[int, list[bytes], list[bytes]]:
    flags, fixed, blobs, count = 0, list[bytes](), list[bytes](), len(extras)
    keys, headers, times, ttls = zip(*extras, strict=True)  # by columns: most of them are empty, which is soon seen
    if any(map(is_not, times, repeat(None))):
        flags |= BatchSection.EVENT_TIMES
        fixed.append(struct.pack(f">{count}q", *(_NO_EVENT_TIME if time is None else time for time in times)))
    if any(map(is_not, ttls, repeat(None))):
        flags |= BatchSection.TTLS
        fixed.append(struct.pack(f">{count}Q", *(ttl or 0 for ttl in ttls)))
    if any(map(is_not, keys, repeat(None))):
        flags |= BatchSection.KEYS
        fixed.append(struct.pack(f">{count}I", *(_NO_KEY if key is None else len(key) for key in keys)))
        blobs.extend(key for key in keys if key is not None)
    if any(headers):
        flags |= BatchSection.HEADERS
        encoded = list(map(encode_headers, headers))
        fixed.append(struct.pack(f">{count}I", *map(len, encoded)))
        blobs.extend(encoded)
    return flags, fixed, blobs


def encode_headers(headers: Headers) -> bytes:
    """Each header as name length (2), name in UTF-8, value length (4), value; no headers are no bytes."""
    parts = []
    for name, value in headers:
        encoded = name.encode()
        parts += [len(encoded).to_bytes(2, "big"), encoded, len(value).to_bytes(4, "big"), value]
    return b"".join(parts)


def decode_headers(data: Buffer) -> Headers:
    """Decode what `encode_headers` wrote; `CorruptionError` when it is cut."""
    headers, offset = [], 0
    view = memoryview(data)
    try:
        while offset < len(view):
            (name_bytes,) = struct.unpack_from(">H", view, offset)
            name = str(view[offset + 2 : offset + 2 + name_bytes], "utf-8")
            offset += 2 + name_bytes
            (value_bytes,) = struct.unpack_from(">I", view, offset)
            headers.append((name, bytes(view[offset + 4 : offset + 4 + value_bytes])))
            offset += 4 + value_bytes
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(f"message headers do not decode at byte {offset}: {error}") from None
    if offset != len(view):
        raise CorruptionError(f"message headers end at byte {len(view)}, expected {offset}")
    return tuple(headers)


class RecordBatch:
    """A decoded batch: offsets into bytes that it does not copy.

    `flags` are those of what messages carry beside their payloads; `positions` those of a merged batch, 10 bytes each.
    """

    __slots__ = (
        "_data",
        "_extras_at",
        "_made_blob_ends",
        "_made_blobs",
        "_made_columns",
        "_made_ends",
        "_made_extras",
        "_payloads_at",
        "count",
        "flags",
        "kind",
        "payload_bytes",
        "positions",
    )

    def __init__(self, kind: RecordKind, flags: int, count: int, body: memoryview) -> None:
        self.kind = kind
        self.flags = flags & _CARRIED
        self.count = count
        self.positions: memoryview | None = None
        self._data = body
        self._extras_at = 4 * count
        self._payloads_at = 4 * count + _FIXED_BYTES[flags] * count
        if flags & BatchSection.POSITIONS:
            self._extras_at += _POSITION_BYTES * count
            self.positions = body[4 * count : self._extras_at]
        self._made_ends: list[int] | None = None
        self._made_blob_ends: list[list[int]] | None = None
        self._made_blobs: dict[int, list[bytes]] = {}
        self._made_columns: tuple[list[Sequence[Buffer]], list[Sequence[Buffer]]] | None = None
        self._made_extras: list[Extras] | None = None
        # Without flags nothing follows the payloads, so that nobody need add up their lengths.
        self.payload_bytes = sum(self.lengths()) if self.flags else len(body) - self._payloads_at

    def lengths(self) -> tuple[int, ...]:
        """The bytes of each payload."""
        lengths: tuple[int, ...] = struct.unpack_from(f">{self.count}I", self._data)
        return lengths

    @property
    def body_bytes(self) -> int:
        """The bytes of everything that the messages carry, uncompressed."""
        return len(self._data)

    @property
    def payloads_stop(self) -> int:
        """The offset in the body at which the last payload ends."""
        return self._payloads_at + self.payload_bytes

    @property
    def _ends(self) -> list[int]:
        # Made when a payload is looked for: a reader of whole batches never does.
        if self._made_ends is None:
            self._made_ends = list(accumulate(self.lengths(), initial=self._payloads_at))
        return self._made_ends

    @property
    def _blob_ends(self) -> list[list[int]]:
        # Of keys, of headers: made when some messages of many are read, and kept, for who reads one reads the others, too.
        if self._made_blob_ends is None:
            self._made_blob_ends, at, blobs_at = [], self._extras_at, self.payloads_stop
            for flag, width in _SECTION_BYTES:
                if self.flags & flag and width == _LENGTH_BYTES:
                    self._made_blob_ends.append(list(accumulate(self._stored_lengths(at), initial=blobs_at)))
                    blobs_at = self._made_blob_ends[-1][-1]
                at += width * self.count if self.flags & flag else 0
        return self._made_blob_ends

    def _stored_lengths(self, at: int) -> Iterable[int]:
        """The bytes of each message in a section, whose lengths stand at this offset."""
        lengths = struct.unpack_from(f">{self.count}I", self._data, at)
        return lengths if _NO_KEY not in lengths else [0 if length == _NO_KEY else length for length in lengths]

    def bytes_between(self, start: int, stop: int) -> int:
        """The bytes of the payloads in start <= index < stop."""
        if start == 0 and stop == self.count:
            return self.payload_bytes
        return self._ends[stop] - self._ends[start]

    def stop_within(self, start: int, bytes_max: int) -> int:
        """The largest stop for which the payloads in start <= index < stop are at most `bytes_max` bytes."""
        if start == 0 and self.payload_bytes <= bytes_max:
            return self.count
        return bisect_right(self._ends, self._ends[start] + bytes_max, start) - 1

    def payloads(self, start: int = 0, stop: int | None = None) -> list[memoryview]:
        """The payloads in start <= index < stop, as slices."""
        stop = self.count if stop is None else stop
        if (
            start == 0 and stop == self.count == 1
        ):  # as in most rows of single messages, and then no offsets need be made
            return [self._data[self._payloads_at : self.payloads_stop]]
        data, ends = self._data, self._ends
        return [data[first:last] for first, last in zip(ends[start:stop], ends[start + 1 : stop + 1], strict=True)]

    def span(self, start: int, stop: int) -> tuple[memoryview, memoryview]:
        """The lengths (4 bytes each) and the payloads in start <= index < stop, each as one stretch of stored bytes."""
        if start == 0 and stop == self.count:
            return self._data[: 4 * stop], self._data[self._payloads_at : self.payloads_stop]
        return self._data[4 * start : 4 * stop], self._data[self._ends[start] : self._ends[stop]]

    def sections(self, start: int, stop: int) -> list[memoryview]:
        """Sections of what the messages in start <= index < stop carry, in the order of the format, each as one stretch of stored bytes."""
        fixed, blobs = self._carried(start, stop)
        return fixed + blobs

    def _carried(self, start: int, stop: int) -> tuple[list[memoryview], list[memoryview]]:
        """The sections that lie before the payloads, and those behind them."""
        data, at, blobs_at = self._data, self._extras_at, self.payloads_stop
        ends_of_each = None if start == 0 and stop == self.count else iter(self._blob_ends)
        fixed, blobs = list[memoryview](), list[memoryview]()
        for flag, width in _SECTION_BYTES:
            if not self.flags & flag:
                continue
            fixed.append(data[at + width * start : at + width * stop])
            if width == _LENGTH_BYTES and ends_of_each is not None:
                ends = next(ends_of_each)
                blobs.append(data[ends[start] : ends[stop]])
            elif width == _LENGTH_BYTES:
                blobs_stop = blobs_at + sum(self._stored_lengths(at))
                blobs.append(data[blobs_at:blobs_stop])
                blobs_at = blobs_stop
            at += width * self.count
        return fixed, blobs

    def place(self, index: int) -> tuple[int, int]:
        """The time and the sequence of a message of a merged batch."""
        assert self.positions is not None
        publish_ms, sequence = _PLACE.unpack_from(self.positions, _POSITION_BYTES * index)
        return publish_ms, sequence

    def index_of(self, position: bytes) -> int:
        """The index of the first message of a merged batch that does not lie before this position."""
        positions = self.positions
        assert positions is not None
        return bisect_left(range(self.count), position, key=lambda at: bytes(positions[10 * at : 10 * at + 10]))

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The messages in start <= index < stop of a merged batch, cut where a position is not the next of its millisecond."""
        assert self.positions is not None
        if start == stop:
            return []
        places = list(_PLACE.iter_unpack(self.positions[_POSITION_BYTES * start : _POSITION_BYTES * stop]))
        ends = [at for at in range(1, stop - start) if places[at] != (places[at - 1][0], places[at - 1][1] + 1)]
        return [(start + first, start + last) for first, last in pairwise([0, *ends, stop - start])]

    def part(self, start: int, stop: int) -> bytes:
        """The messages in start <= index < stop as a batch of their own, without positions."""
        fixed, blobs = self._carried(start, stop)
        lengths, payloads = self.span(start, stop)
        return _sealed(self.kind, self.flags, Compression.NONE, stop - start, [lengths, *fixed, payloads, *blobs])

    def _blobs(self, number: int) -> Sequence[bytes]:
        """The parts of each message in the section of this number among those behind the payloads."""
        known = self._made_blobs.get(number)
        if known is None:
            ends = self._blob_ends[number]
            first = ends[0]
            blob = bytes(self._data[first : ends[-1]])  # slices of bytes cost half of those of a view
            known = self._made_blobs[number] = [blob[start - first : stop - first] for start, stop in pairwise(ends)]
        return known

    @property
    def _columns(self) -> tuple[list[Sequence[Buffer]], list[Sequence[Buffer]]]:
        """The parts of each message in the sections up to the payloads, and from them on: made once for all who pick some messages."""
        if self._made_columns is None:
            data, ends, at, count = self._data, self._ends, self._extras_at, self.count
            fixed: list[Sequence[Buffer]] = [_cells(data[: _LENGTH_BYTES * count], _LENGTH_BYTES)]
            blobs: list[Sequence[Buffer]] = [[data[start:stop] for start, stop in pairwise(ends)]]
            for flag, width in _SECTION_BYTES:
                if self.flags & flag:
                    fixed.append(_cells(data[at : at + width * count], width))
                    at += width * count
            blobs += map(self._blobs, range(len(self._blob_ends)))
            self._made_columns = fixed, blobs
        return self._made_columns

    def picked(self, indexes: Sequence[int], positions: bytes) -> RecordBatch:
        """The messages at these indexes as a batch in memory, in which each has a position of its own."""
        (lengths, *fixed), blobs = self._columns
        take = taker(indexes)
        body = b"".join([*take(lengths), positions, *chain.from_iterable(map(take, (*fixed, *blobs)))])
        return RecordBatch(self.kind, self.flags | BatchSection.POSITIONS, len(indexes), memoryview(body))

    def ttls_ms(self) -> tuple[int, ...] | None:
        """The TTL of each message, 0 where it has none; None when no message of the batch has one."""
        if not self.flags & BatchSection.TTLS:
            return None
        at = self._extras_at + (8 * self.count if self.flags & BatchSection.EVENT_TIMES else 0)
        ttls: tuple[int, ...] = struct.unpack_from(f">{self.count}Q", self._data, at)
        return ttls

    def keys(self) -> Sequence[bytes | None]:
        """The key of each message."""
        if not self.flags & BatchSection.KEYS:
            return [None] * self.count
        widths = [width for flag, width in _SECTION_BYTES if self.flags & flag and flag < BatchSection.KEYS]
        lengths = struct.unpack_from(f">{self.count}I", self._data, self._extras_at + sum(widths) * self.count)
        keys = self._blobs(0)
        if _NO_KEY not in lengths:
            return keys
        return [None if each == _NO_KEY else key for each, key in zip(lengths, keys, strict=True)]

    def extras(self) -> list[Extras]:
        """The optional fields of each message, in order; decoded at the first call."""
        if self._made_extras is None:
            self._made_extras = self._read_extras()
        return self._made_extras

    def _read_extras(self) -> list[Extras]:
        count, offset = self.count, self._extras_at
        if not self.flags:
            return [NO_EXTRAS] * count
        times: Sequence[int] = [_NO_EVENT_TIME] * count
        ttls: Sequence[int] = [0] * count
        key_lengths: Sequence[int] = [_NO_KEY] * count
        header_lengths: Sequence[int] = [0] * count
        if self.flags & BatchSection.EVENT_TIMES:
            times, offset = struct.unpack_from(f">{count}q", self._data, offset), offset + 8 * count
        if self.flags & BatchSection.TTLS:
            ttls, offset = struct.unpack_from(f">{count}Q", self._data, offset), offset + 8 * count
        if self.flags & BatchSection.KEYS:
            key_lengths, offset = struct.unpack_from(f">{count}I", self._data, offset), offset + 4 * count
        if self.flags & BatchSection.HEADERS:
            header_lengths = struct.unpack_from(f">{count}I", self._data, offset)
        offset, keys = self.payloads_stop, list[bytes | None]()
        for length in key_lengths:
            keys.append(None if length == _NO_KEY else bytes(self._data[offset : offset + length]))
            offset += 0 if length == _NO_KEY else length
        headers = list[Headers]()
        for length in header_lengths:
            headers.append(decode_headers(self._data[offset : offset + length]))
            offset += length
        if offset != len(self._data):
            raise CorruptionError(f"a record batch's keys and headers end at byte {offset} of {len(self._data)}")
        return [
            Extras(key, header, None if time == _NO_EVENT_TIME else time, ttl or None)
            for key, header, time, ttl in zip(keys, headers, times, ttls, strict=True)
        ]


def first_position(data: Buffer, last: bytes) -> bytes:
    """The position of the first message of an encoded batch whose last one has the position `last`; nothing is checked."""
    if is_merged(data):
        if data[3] == Compression.ZSTD:
            return bytes((decode(data, verify=False).positions or b"")[:_POSITION_BYTES])
        at = _HEADER.size + 4 * count_messages(data)
        return bytes(data[at : at + _POSITION_BYTES])
    first = int.from_bytes(last[8:], "big") - count_messages(data) + 1
    return last[:8] + max(0, first).to_bytes(2, "big")


def count_messages(data: Buffer) -> int:
    """The number of messages in an encoded batch, from its header alone: nothing is checked."""
    return int.from_bytes(data[4:8], "big")


def count_counted(data: Buffer) -> int:
    """The number of messages of users in an encoded batch whose ids count up, from its header alone; 0 for every other batch."""
    return 0 if data[1] != RecordKind.USER or data[2] & BatchSection.POSITIONS else count_messages(data)


def plain_span(data: bytes, *, verify: bool) -> tuple[tuple[int, ...], memoryview] | None:
    """The lengths of the payloads, and the payloads as one stretch, of an uncompressed batch of users' messages that carry nothing else.

    None for every other batch, and for one that `decode` would refuse: ask that. `verify` is as there.
    """
    size_bytes = len(data)
    if size_bytes < _HEADER.size + _CRC_BYTES:
        return None
    version, kind, flags, compression, count = _HEADER.unpack_from(data)
    end, payloads_at = size_bytes - _CRC_BYTES, _HEADER.size + _LENGTH_BYTES * count
    if version != VERSION or kind or flags or compression or not 0 < count <= BATCH_MESSAGES_MAX or payloads_at > end:
        return None
    view = memoryview(data)
    lengths: tuple[int, ...] = (
        _ONE_LENGTH.unpack_from(data, _HEADER.size)
        if count == 1
        else struct.unpack_from(f">{count}I", data, _HEADER.size)
    )
    if verify and (sum(lengths) != end - payloads_at or crc32c(view[:end]) != int.from_bytes(data[end:], "big")):
        return None
    return lengths, view[payloads_at:end]


def decode(data: Buffer, *, verify: bool = True) -> RecordBatch:
    """The batch in these bytes; `CorruptionError` when they are not what `encode` wrote.

    `verify=False` skips the checksum, for bytes that this process encoded itself and only kept in memory.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size + _CRC_BYTES:
        raise CorruptionError(f"a record batch is at least {_HEADER.size + _CRC_BYTES} bytes, this is {len(view)}")
    version, kind, flags, compression, count = _HEADER.unpack_from(view)
    end = len(view) - _CRC_BYTES
    if verify and crc32c(view[:end]) != int.from_bytes(view[end:], "big"):
        raise CorruptionError(f"the checksum of a record batch of {len(view)} bytes does not match")
    if version != VERSION:
        raise CorruptionError(f"a record batch has version {version}; this Basalt reads version {VERSION}")
    if (
        kind > RecordKind.END_OF_STREAM
        or flags > _ALL_FLAGS
        or (flags & BatchSection.POSITIONS and (kind != RecordKind.USER or flags & BatchSection.TTLS))
        or compression > Compression.ZSTD
        or not 0 < count <= BATCH_MESSAGES_MAX
    ):
        raise CorruptionError(
            f"a record batch has kind {kind}, flags {flags}, compression {compression}, {count} messages"
        )
    body = view[_HEADER.size : end]
    if compression == Compression.ZSTD:
        body = _decompress(body)
    try:
        batch = RecordBatch(_KINDS[kind], flags, count, body)
        # Lengths that do not fill the body are no bytes of ours, and what comes from memory is.
        wrong = (
            batch.payloads_stop > len(body) if batch.flags else verify and sum(batch.lengths()) != batch.payload_bytes
        )
    except struct.error:
        raise CorruptionError(f"a record batch of {count} messages has only {len(body)} bytes") from None
    if wrong:
        raise CorruptionError(f"a record batch's lengths reach byte {batch._ends[-1]} of {len(body)}")
    return batch


def _decompress(body: memoryview) -> memoryview:
    size = int.from_bytes(body[:4], "big")
    if not 0 < size <= BATCH_BYTES_MAX:
        raise CorruptionError(f"a record batch claims {size} bytes uncompressed, expected 1 to {BATCH_BYTES_MAX}")
    try:
        # Checked first, for the library allocates what the frame claims, whatever limit it is given.
        if zstandard.frame_content_size(body[4:]) != size:
            raise CorruptionError(f"a record batch's compressed frame does not hold the {size} bytes that it should")
        return memoryview(_ZSTD.decompressor.decompress(body[4:], allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise CorruptionError(f"a record batch does not decompress: {error}") from None
