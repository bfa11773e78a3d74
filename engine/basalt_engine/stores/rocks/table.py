"""One table of the RocksDB store: reading and scanning rows, and estimating how many bytes they take.

The binding offers no estimate of RocksDB's own for a range, and that would not know of the large values anyway. So rows
are counted while they are few; a packed row tells the size of its row, so counting reads no payload. Past
`ROWS_COUNTED_MAX` rows the files that overlap the rest of the range say how many more there are, and these are taken to
be as large as the counted ones. With files of 4 MiB that can be wrong by some 50,000 rows per level in either direction,
which matters little where it is used, on ranges with many more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.rocks.damage import RESTORE
from basalt_engine.stores.rocks.database import Database
from basalt_engine.stores.rocks.rows import PackedRow, row_bytes, unpack
from basalt_engine.table import Columns, Mutation, Row, TableWrite

T = TypeVar("T")

# A scan reads ahead in chunks and keeps no iterator between them: an iterator would hold back the removal of files for
# as long as its reader takes. Large values are not in a chunk; they are read as their rows are handed out.
CHUNK_ROWS_FIRST = 16
CHUNK_ROWS_MAX = 1_024
CHUNK_BYTES_MAX = 1 << 20

READ_TRIES = 8  # a row with large values is read in two steps; a writer may change it in between

ROWS_COUNTED_MAX = 20_000  # some 20 ms, the longest that an estimate may hold up an event loop
COUNTED_CHUNK_ROWS = 1_000  # are in memory at a time, or fewer with
COUNTED_CHUNK_BYTES = 1 << 20


class Access(Protocol):
    """The store of a table: `RocksStore` or `ReadOnlyRocksStore`."""

    def reading(self, read: Callable[[Database], T]) -> T:
        """Call `read` with the open database; once more when the store has reopened it meanwhile."""
        ...

    def write(self, writes: Sequence[TableWrite]) -> None:
        """As the SPI says."""
        ...

    def check_and_write(self, table: str, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        """As the SPI says, for a row of the table."""
        ...


class RocksTable:
    """One ordered map of rows."""

    def __init__(self, name: str, store: Access) -> None:
        self.name = name
        self._store = store

    def get(self, key: bytes) -> Columns | None:
        value = self._store.reading(lambda database: database.get(database.rows(self.name), key))
        if value is None:
            return None
        row = self._unpacked(key, value)
        return self._with_large(key, value, row) if row.large else row.inline

    def write(self, mutations: Sequence[Mutation]) -> None:
        self._store.write([TableWrite(self.name, mutations)])

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool = False,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        columns: Sequence[bytes] | None = None,
    ) -> Iterator[Row]:
        chunk_rows = CHUNK_ROWS_FIRST
        rows = read_bytes = 0
        more = rows_max is None or rows_max > 0
        while more and (stop is None or start < stop):
            wanted = chunk_rows if rows_max is None else min(chunk_rows, rows_max - rows)
            chunk, more = self._chunk(start, stop, reverse, wanted)
            passed = chunk[-1][0] if chunk else b""
            for key, value in chunk:
                row = self._unpacked(key, value)
                found = self._with_large(key, value, row) if _needs_large(row, columns) else row.inline
                if found is None:
                    # What took its place may lie ahead, in a row of this chunk as it is now: look at them anew.
                    passed, more = key, True
                    break
                if columns is not None:
                    found = {name: found[name] for name in columns if name in found}
                    if not found:
                        continue
                yield Row(key, found)
                rows += 1
                if bytes_max is not None:
                    read_bytes += len(key) + sum(map(len, found.values()))
                    if read_bytes >= bytes_max:
                        return
            more = more and rows != rows_max
            if more and reverse:
                stop = passed
            elif more:
                start = passed + b"\0"
            chunk_rows = min(4 * chunk_rows, CHUNK_ROWS_MAX)

    def _chunk(
        self, start: bytes, stop: bytes | None, reverse: bool, rows_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Keys and packed rows from one end of the range, and whether there may be more."""

        def read(database: Database) -> tuple[list[tuple[bytes, bytes]], bool]:
            family = database.rows(self.name)
            return database.read(family, start, stop, reverse=reverse, rows_max=rows_max, bytes_max=CHUNK_BYTES_MAX)

        return self._store.reading(read)

    def _with_large(self, key: bytes, value: bytes, row: PackedRow) -> Columns | None:
        """The columns of a row with this packed value, as it is now; None when it was deleted since."""
        try:
            return self._read_large(key, value, row)
        except CorruptionError as error:
            suspect = self._store.reading(lambda database: database.suspect(self.name, key))
            message = f"row {key.hex()} of table {self.name} cannot be read, {suspect}: {error.message}"
            raise CorruptionError(message, hint=RESTORE) from error

    def _read_large(self, key: bytes, value: bytes, row: PackedRow) -> Columns | None:
        for _ in range(READ_TRIES):
            large = row.split(self._store.reading(lambda database: database.get(database.large(self.name), key)))
            if large is not None:
                return {**row.inline, **large}
            now = self._store.reading(lambda database: database.get(database.rows(self.name), key))
            if now is None:
                return None
            if now == value:
                break
            value, row = now, self._unpacked(key, now)
        # RocksDB's own check of the value tells more of what is wrong with it, and raises that.
        values = self._store.reading(lambda database: database.get(database.large(self.name), key, checked=True))
        large = row.split(values)
        if large is None:
            raise CorruptionError("its large values are missing" if values is None else "its large values are damaged")
        return {**row.inline, **large}

    def _unpacked(self, key: bytes, value: bytes) -> PackedRow:
        try:
            return unpack(value)
        except CorruptionError as error:
            raise CorruptionError(f"row {key.hex()} of table {self.name}: {error}", hint=RESTORE) from None

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        return self._store.check_and_write(self.name, key, column, expected, columns)

    def size_bytes(self, start: bytes, stop: bytes) -> int:
        """An estimate of the range's bytes: exact up to some thousand rows."""
        return self._store.reading(lambda database: _estimated_bytes(database, self.name, start, stop))


def _needs_large(row: PackedRow, columns: Sequence[bytes] | None) -> bool:
    """True when one of these columns (None: all) is among the row's large ones."""
    return bool(row.large) and (columns is None or any(name in row.large for name in columns))


def _estimated_bytes(database: Database, table: str, start: bytes, stop: bytes) -> int:
    """The bytes of keys and columns of all rows with start <= key < stop; may be wrong as the module says."""
    family = database.rows(table)
    total = rows = 0
    more = start < stop
    while more and rows < ROWS_COUNTED_MAX:
        chunk, more = database.read(family, start, stop, rows_max=COUNTED_CHUNK_ROWS, bytes_max=COUNTED_CHUNK_BYTES)
        total += sum([len(key) + row_bytes(value) for key, value in chunk])
        rows += len(chunk)
        if more:
            start = chunk[-1][0] + b"\0"
    return total + total * database.rows_estimated(table, start, stop) // rows if more else total
