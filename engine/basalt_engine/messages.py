"""The message table: the order of every topic. Rows and columns: docs/formats/message-table.md.

One row is one publish (or several that met in one group commit). It is written once; only its column t changes, when its
writer is rolled back.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from typing import NamedTuple

from basalt_engine.errors import CorruptionError
from basalt_engine.keys import TopicKeys, position_fields
from basalt_engine.table import Columns, DeleteRange, Put, Row, Table, limited

ROW_BYTES_MAX = 1 << 20  # rows are cut here; a single message may be larger and then is a row of its own
POSITION_BYTES = 10

WRITER = b"t"
BATCH = b"p"
REFERENCE = b"r"
EXPIRY = b"x"

_REFERENCE = struct.Struct(">10s10sI")
_LONG = struct.Struct(">q")
_NO_POINTER = -(1 << 63)  # the one number that is no pointer negated


class Reference(NamedTuple):
    """The payload rows that a row without a batch publishes: positions of the first and last row, and the messages in them."""

    first: bytes
    last: bytes
    messages: int


class MessageRow(NamedTuple):
    """One row of a topic. `position` is its publish time and the sequence of its last message, 10 bytes.

    `key` is where the row was read from; empty on a row that is yet to be written.
    """

    position: bytes
    written_by: int | None
    batch: bytes | None
    reference: Reference | None = None
    expire_ms: int | None = None
    key: bytes = b""

    @property
    def size_bytes(self) -> int:
        """The row's approximate size in memory."""
        return 200 + (len(self.batch) if self.batch is not None else 0)


class MessageTable:
    """Reads and encodes message rows; writing goes through the one group-commit writer."""

    name = "message"

    def __init__(self, table: Table) -> None:
        self._table = table

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

        Ends after `rows_max` rows, or after the row with which keys and values reach `bytes_max` bytes.
        """
        rows = self._rows(keys, start, stop, reverse=reverse, rows_max=rows_max, bytes_max=bytes_max)
        return (decode_row(row) for row in rows if not is_husk(row.columns))

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
        """The newest row of the generation."""
        stop = None
        while (row := next(self._rows(keys, b"", stop, reverse=True, rows_max=1), None)) and is_husk(row.columns):
            stop = row.key[-POSITION_BYTES:]
        return None if row is None else decode_row(row)

    def first(self, keys: TopicKeys, start: bytes = b"", stop: bytes | None = None) -> MessageRow | None:
        """The oldest row with start <= position < stop."""
        while (row := next(self._rows(keys, start, stop, reverse=False, rows_max=1), None)) and is_husk(row.columns):
            start = row.key[-POSITION_BYTES:] + b"\0"
        return None if row is None else decode_row(row)

    def size_bytes(self, keys: TopicKeys) -> int:
        """An estimate of what the generation takes in the store."""
        salts = keys.scanned()
        return sum(self._table.size_bytes(keys.message_start(salt), keys.message_stop(salt)) for salt in salts)


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
