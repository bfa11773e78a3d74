"""The message table: the order of every topic. Rows and columns: docs/formats/message-table.md.

One row is one publish (or several that met in one group commit). It is written once; only its column t changes, when its
writer is rolled back. On a store that writes several rows at once, neighbours without a writer may become one merged row.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import TopicKeys, position, position_fields
from basalt_engine.records import decode, first_position, is_merged, uncompressed_bytes
from basalt_engine.table import Columns, DeleteRange, Put, Row, Store, Table, limited

ROW_BYTES_MAX = 1 << 20  # rows are cut here; a single message may be larger and then is a row of its own
POSITION_BYTES = 10
PRODUCER_BYTES_MAX = 64
PRODUCER_MEMORY_BYTES = 200  # that one takes in a row that waits to be merged
# From the first to the last message of a merged row: so much longer than its TTL a message may take space.
MERGED_SPAN_MS_MAX = 60_000

WRITER = b"t"
BATCH = b"p"
REFERENCE = b"r"
EXPIRY = b"x"
PRODUCERS = b"d"

_NUMBERS = struct.Struct(">qI")
_REFERENCE = struct.Struct(">10s10sI")
_LONG = struct.Struct(">q")
_NO_POINTER = -(1 << 63)  # the one number that is no pointer negated


class Reference(NamedTuple):
    """The payload rows that a row without a batch publishes: positions of the first and last row, and the messages in them."""

    first: bytes
    last: bytes
    messages: int


# The number of a producer's last message of a row, and how many messages of the row are its own; by producer.
Numbers: TypeAlias = tuple[int, int]
ProducerNumbers: TypeAlias = dict[bytes, Numbers]


class MessageRow(NamedTuple):
    """One row of a topic. `position` is its publish time and the sequence of its last message, 10 bytes.

    `key` is where the row was read from; empty on a row that is yet to be written, and only such a one has its `producers`.
    """

    position: bytes
    written_by: int | None
    batch: bytes | None
    reference: Reference | None = None
    expire_ms: int | None = None
    key: bytes = b""
    producers: ProducerNumbers | None = None

    @property
    def size_bytes(self) -> int:
        """The row's approximate size in memory, uncompressed."""
        producers_bytes = 0 if self.producers is None else PRODUCER_MEMORY_BYTES * len(self.producers)
        return 200 + producers_bytes + (uncompressed_bytes(self.batch) if self.batch is not None else 0)

    @property
    def is_merged(self) -> bool:
        """True when its messages may lie in several milliseconds."""
        return self.batch is not None and is_merged(self.batch)

    @property
    def first(self) -> bytes:
        """The position of its first message; its own where it refers to payload rows."""
        return self.position if self.batch is None else first_position(self.batch, self.position)


class MessageTable:
    """Reads and encodes message rows; writing goes through the one group-commit writer."""

    name = "message"

    def __init__(self, table: Table, *, may_be_merged: bool = True) -> None:
        self._table = table
        self._may_be_merged = may_be_merged

    @classmethod
    def of(cls, store: Store) -> MessageTable:
        """The message table of a store; one that writes row by row has no merged rows."""
        return cls(store.table(cls.name), may_be_merged=store.atomic)

    @staticmethod
    def put(keys: TopicKeys, row: MessageRow) -> Put:
        """The mutation that appends a row."""
        columns = {}
        if row.batch is not None:
            columns[BATCH] = row.batch
        if row.reference is not None:
            columns[REFERENCE] = _REFERENCE.pack(*row.reference)
        if row.written_by is not None:
            columns[WRITER] = _LONG.pack(row.written_by)
        if row.expire_ms is not None:
            columns[EXPIRY] = _LONG.pack(row.expire_ms)
        if row.producers is not None:
            columns[PRODUCERS] = encode_producers(row.producers)
        return Put(keys.message_key(*position_fields(row.position)), columns)

    @staticmethod
    def roll_back(key: bytes, written_by: int) -> Put:
        """The mutation that hides a row from every snapshot: its write pointer, negated."""
        assert written_by > 0, written_by
        return Put(key, {WRITER: _LONG.pack(-written_by)})

    @staticmethod
    def whole_generations(keys: TopicKeys, salt: int, stop_generation: int) -> DeleteRange:
        """Every row of the topic in this bucket with a generation below `stop_generation`."""
        oldest = keys._replace(generation=0).message_start(salt)
        return DeleteRange(oldest, keys._replace(generation=stop_generation).message_start(salt))

    @staticmethod
    def before(keys: TopicKeys, salt: int, publish_ms: int) -> DeleteRange:
        """Every row of this generation in this bucket that was published before `publish_ms`."""
        start = keys.message_start(salt)
        return DeleteRange(start, start + publish_ms.to_bytes(8, "big"))

    def scan(
        self,
        keys: TopicKeys,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        reverse: bool = False,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> Iterator[MessageRow]:
        """Rows with start <= position < stop in the topic's order, over all the buckets it may lie in.

        A merged row comes as rows of one millisecond each, with no message outside of the range. Ends after `rows_max` stored rows,
        or after the one with which keys and values reach `bytes_max` bytes.
        """
        limits = math.inf if rows_max is None else rows_max, math.inf if bytes_max is None else bytes_max
        rows = self._rows(keys, start, stop, reverse=reverse, rows_max=rows_max, bytes_max=bytes_max)
        if not self._may_be_merged:
            return _decoded(rows)
        return self._published(keys, rows, start, stop, *limits, reverse=reverse)

    def stored(
        self, keys: TopicKeys, start: bytes = b"", stop: bytes | None = None, *, bytes_max: int | None = None
    ) -> Iterator[MessageRow]:
        """Rows with start <= position < stop as they are stored: a merged one lies at its last message.

        So the first may hold messages before `start`, and messages before `stop` may be in the row behind the last. No message
        comes twice: a row that was merged while others of its run were read comes cut, as rows of one millisecond each.
        """
        rows = _decoded(self._rows(keys, start, stop, reverse=False, rows_max=None, bytes_max=bytes_max))
        return _once(rows) if self._may_be_merged else rows

    def _published(
        self, keys: TopicKeys, rows: Iterator[Row], start: bytes, stop: bytes | None, rows_left: float, bytes_left: float,
        *, reverse: bool,
    ) -> Iterator[MessageRow]:  # fmt: skip
        if reverse and stop is not None:
            # Looked for once the scan has begun: what is merged after that is not missed, but passed twice, and cut here.
            newest = next(rows, None)
            behind = self.astride(keys, stop)
            if behind is not None:
                yield from cut_rows(behind, start, stop, reverse=True)
                stop = min(stop, behind.first)
            rows = rows if newest is None else chain([newest], rows)
        for row in rows:
            rows_left -= 1
            bytes_left -= row.size_bytes
            if not is_husk(row.columns):
                whole = decode_row(row)
                if whole.is_merged or (reverse and stop is not None and whole.position >= stop):
                    yield from cut_rows(whole, start, stop, reverse=reverse)
                else:
                    yield whole
                if not reverse:
                    start = max(start, whole.position + b"\0")
        if not reverse and stop is not None and rows_left > 0 and bytes_left > 0:
            behind = self.astride(keys, stop)
            if behind is not None:
                yield from cut_rows(behind, start, stop)

    def astride(self, keys: TopicKeys, stop: bytes) -> MessageRow | None:
        """The merged row that has messages on both sides of a position; None when there is none."""
        if not self._may_be_merged:
            return None
        last_ms = int.from_bytes(stop[:8].ljust(8, b"\0"), "big") + MERGED_SPAN_MS_MAX
        if last_ms >= 1 << 64:
            return None
        row = next(self._rows(keys, stop, position(last_ms + 1, 0), reverse=False, rows_max=1), None)
        found = None if row is None or is_husk(row.columns) else decode_row(row)
        return found if found is not None and found.is_merged and found.first < stop else None

    def _rows(
        self,
        keys: TopicKeys,
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool,
        rows_max: int | None,
        bytes_max: int | None = None,
    ) -> Iterator[Row]:
        scans = []
        for salt in keys.scanned():
            first = keys.message_start(salt)
            last = first + stop if stop is not None else keys.message_stop(salt)
            scans.append(self._table.scan(first + start, last, reverse=reverse, rows_max=rows_max, bytes_max=bytes_max))
        if len(scans) == 1:
            return scans[0]
        merged = heapq.merge(*scans, key=lambda row: row.key[-POSITION_BYTES:], reverse=reverse)
        return limited(merged, rows_max, bytes_max)  # each bucket was read up to them as well, so no row is missing

    def last(self, keys: TopicKeys) -> MessageRow | None:
        """The newest stored row of the generation."""
        stop = None
        while (row := next(self._rows(keys, b"", stop, reverse=True, rows_max=1), None)) and is_husk(row.columns):
            stop = row.key[-POSITION_BYTES:]
        return None if row is None else decode_row(row)

    def first(self, keys: TopicKeys, start: bytes = b"", stop: bytes | None = None) -> MessageRow | None:
        """The oldest stored row with start <= position < stop."""
        while (row := next(self._rows(keys, start, stop, reverse=False, rows_max=1), None)) and is_husk(row.columns):
            start = row.key[-POSITION_BYTES:] + b"\0"
        return None if row is None else decode_row(row)

    def numbered(self, keys: TopicKeys, after: bytes) -> Iterator[tuple[bytes, ProducerNumbers]]:
        """Position and column d of each row behind a position that has one, bucket by bucket; no payload is read."""
        for salt in keys.scanned():
            start = keys.message_start(salt) + after + b"\0" if after else keys.message_start(salt)
            for row in self._table.scan(start, keys.message_stop(salt), columns=(PRODUCERS,)):
                try:
                    yield row.key[-POSITION_BYTES:], decode_producers(row.columns[PRODUCERS])
                except CorruptionError as error:
                    raise CorruptionError(f"message row {row.key.hex()}: {error.message}") from None

    def size_bytes(self, keys: TopicKeys) -> int:
        """An estimate of what the generation takes in the store."""
        salts = keys.scanned()
        return sum(self._table.size_bytes(keys.message_start(salt), keys.message_stop(salt)) for salt in salts)


def _decoded(rows: Iterator[Row]) -> Iterator[MessageRow]:
    return (decode_row(row) for row in rows if not is_husk(row.columns))


def _once(rows: Iterator[MessageRow]) -> Iterator[MessageRow]:
    """The rows without what came before: a store is read in steps, between which another thread may write a merged row."""
    passed = b""
    for row in rows:
        if passed and row.is_merged and row.first <= passed:
            yield from cut_rows(row, passed + b"\0", None)
        else:
            yield row
        passed = row.position


def cut_rows(
    row: MessageRow, start: bytes, stop: bytes | None, *, reverse: bool = False, verify: bool = True
) -> list[MessageRow]:
    """A merged row as the rows of one millisecond each with start <= position < stop; another row as it is, if it lies there."""
    if row.batch is None or not is_merged(row.batch):
        return [row] if stop is None or row.position < stop else []
    batch = decode(row.batch, verify=verify)
    first, last = batch.index_of(start), batch.count if stop is None else batch.index_of(stop)
    rows = [
        row._replace(position=position(*batch.place(run_stop - 1)), batch=batch.part(run_start, run_stop))
        for run_start, run_stop in batch.runs(first, max(first, last))
    ]
    return rows[::-1] if reverse else rows


def is_husk(columns: Columns) -> bool:
    """True for what a roll back leaves of a row that the store had dropped meanwhile: a negated writer, no message."""
    return len(columns) == 1 and columns.get(WRITER, b"")[:1] >= b"\x80"


def decode_row(row: Row) -> MessageRow:
    """The row in these columns; `CorruptionError` when one has a length or a value that it cannot have."""
    key, columns = row
    batch, writer, expiry, packed = columns.get(BATCH), columns.get(WRITER), columns.get(EXPIRY), columns.get(REFERENCE)
    reference = None
    try:
        written_by = None if writer is None else _LONG.unpack(writer)[0]
        expire_ms = None if expiry is None else _LONG.unpack(expiry)[0]
        if packed is not None:
            reference = Reference(*_REFERENCE.unpack(packed))
    except struct.error as error:
        raise CorruptionError(f"message row {key.hex()} has a column of a wrong length: {error}") from None
    if written_by == 0 or written_by == _NO_POINTER or (expire_ms is not None and expire_ms < 0):
        raise CorruptionError(f"message row {key.hex()} has write pointer {written_by} and expiry {expire_ms}")
    if (batch is None) == (reference is None):
        raise CorruptionError(f"message row {key.hex()} must have either a batch or a reference to payload rows")
    return MessageRow(key[-POSITION_BYTES:], written_by, batch, reference, expire_ms, key)


def encode_producers(producers: ProducerNumbers) -> bytes:
    """Column d of a row with messages of these producers, at least one."""
    if len(producers) == 1:  # most rows
        ((name, numbers),) = producers.items()
        return bytes((len(name),)) + name + _NUMBERS.pack(*numbers)
    pack = _NUMBERS.pack
    return b"".join([b"%c%b%b" % (len(name), name, pack(*producers[name])) for name in sorted(producers)])


def decode_producers(data: bytes) -> ProducerNumbers:
    """The producers in column d; `CorruptionError` where it is none."""
    producers: ProducerNumbers = {}
    at, before = 0, b""
    while at < len(data):
        stop = at + 1 + data[at]
        name = data[at + 1 : stop]
        at = stop + _NUMBERS.size
        if at > len(data) or not before < name or len(name) > PRODUCER_BYTES_MAX:
            raise CorruptionError("its column d is cut, or names a producer of no length, too long or out of order")
        last, messages = producers[name] = _NUMBERS.unpack_from(data, stop)
        if not 0 < messages <= last + 1:
            raise CorruptionError(f"its column d has {messages} messages of a producer up to number {last}")
        before = name
    if not producers:
        raise CorruptionError("its column d is empty")
    return producers


def add_numbers(producers: ProducerNumbers, name: bytes, last: int, messages: int) -> None:
    """Messages of a producer, up to this number, come behind those. One that was forgotten may begin anew."""
    before = producers.get(name)
    if before is not None and before[0] < last:
        messages += before[1]
    producers[name] = (last, messages)


def merged_producers(rows: Iterable[MessageRow]) -> ProducerNumbers | None:
    """The producers of the row that these, which are in their order, become; None where none has one."""
    merged: ProducerNumbers = {}
    for row in rows:
        if row.producers is not None:
            for name, (last, messages) in row.producers.items():
                add_numbers(merged, name, last, messages)
    return merged or None
