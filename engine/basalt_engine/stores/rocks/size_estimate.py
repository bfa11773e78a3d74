"""How many bytes the rows of a key range take: counted while they are few, estimated from RocksDB's files beyond.

The binding offers no estimate of RocksDB's own for a range, and that would not know of the large values anyway. A packed
row tells the size of its row, so counting reads no payload. Past `ROWS_COUNTED_MAX` rows the files that overlap the rest
of the range say how many more there are, and these are taken to be as large as the counted ones. A file that holds rows
of other ranges too counts half, as does what is in memory: with files of 4 MiB that can be wrong by some 50,000 rows per
level in either direction, which matters little where it is used, on ranges with many more.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt_engine.stores.rocks.database import Database
from basalt_engine.stores.rocks.rows import row_bytes

ROWS_COUNTED_MAX = 20_000  # some 20 ms, the longest that an estimate may hold up an event loop
CHUNK_ROWS = 1_000  # are in memory at a time, or fewer with
CHUNK_BYTES = 1 << 20


class _Counted(NamedTuple):
    """The rows at the start of a range: their bytes, and the last key, or None when these were all."""

    size_bytes: int
    last_key: bytes | None


def estimated_bytes(database: Database, table: str, start: bytes, stop: bytes) -> int:
    """The bytes of keys and columns of all rows with start <= key < stop; may be wrong as the module says."""
    if start >= stop:
        return 0
    counted = _count(database, table, start, stop)
    if counted.last_key is None:
        return counted.size_bytes
    more_rows = _rows_in_files(database, table, counted.last_key, stop)
    return counted.size_bytes + counted.size_bytes * more_rows // ROWS_COUNTED_MAX


def _count(database: Database, table: str, start: bytes, stop: bytes) -> _Counted:
    total = rows = 0
    while True:
        chunk, more = database.read(database.rows(table), start, stop, rows_max=CHUNK_ROWS, bytes_max=CHUNK_BYTES)
        total += sum([len(key) + row_bytes(value) for key, value in chunk])
        rows += len(chunk)
        if not more:
            return _Counted(total, None)
        last_key = chunk[-1][0]
        if rows >= ROWS_COUNTED_MAX:
            return _Counted(total, last_key)
        start = last_key + b"\0"


def _rows_in_files(database: Database, table: str, start: bytes, stop: bytes) -> int:
    in_memory = database.entries_in_memory(table)
    in_files = max(database.rows_estimated(table) - in_memory, 0)
    files = database.table_files(database.rows(table))
    halves = 0
    for file in files:
        if file.last >= start and file.first < stop:
            inside = start <= file.first and file.last < stop
            halves += file.size_bytes * (2 if inside else 1)
    total_bytes = sum(file.size_bytes for file in files)
    return in_memory // 2 + in_files * halves // max(2 * total_bytes, 1)
