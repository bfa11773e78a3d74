"""The cell table: transactional tables, one row for each version of a cell. Format: docs/formats/cells.md.

A reader has a snapshot. Of each cell it gets the newest version whose writer belongs to the snapshot, and nothing where
that is a tombstone. It never waits: a version whose writer is still open is passed over, like one that failed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from basalt_engine.cells.keys import TableKeys, cell_of
from basalt_engine.cells.names import COLUMN_BYTES_MAX, ROW_BYTES_MAX, VALUE_BYTES_MAX
from basalt_engine.errors import CorruptionError, InputError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Columns, Put, Row, prefix_stop

CONTENT = b"c"
VALUE, TOMBSTONE = b"\x01", b"\0"  # the first byte of the content; nothing follows the second

CHUNK_ROWS = 512  # versions read at a time by a scan
CHUNK_BYTES = 1 << 20
FIRST_ROWS = 4  # versions that a look at one cell reads first: nearly always the newest one will do
NEAR_ROWS = 16  # versions from one cell to the next that cost no more to read over than a new seek
NEAR_BYTES = 64 << 10
PASSED_MAX = 16  # versions of one cell passed over one by one; beyond, a new seek costs less
ROW_CELLS_MAX = 100_000  # of one row that is read, where the caller sets no other limit
ROW_READ_BYTES_MAX = 64 << 20


class CellVersion(NamedTuple):
    """The version that one writer wrote of one cell; `value` is None where it deleted the cell."""

    row: bytes
    column: bytes
    write_pointer: int
    value: bytes | None


class LargeRowError(InputError):
    """A single row has more than one answer may hold."""


class PageLimits(NamedTuple):
    """The limits of a scan's page, which ends after the row that reaches one: cells, bytes, or versions looked at.

    `hard_cells_max` and `hard_bytes_max` are never exceeded: a page ends before the row that would, and where that is its
    first, or a row is read alone, it is a `LargeRowError`.
    """

    cells_max: int = 1_000
    bytes_max: int = 4 << 20
    versions_max: int = 20_000
    hard_cells_max: int = ROW_CELLS_MAX
    hard_bytes_max: int = ROW_READ_BYTES_MAX


class VersionsPage(NamedTuple):
    """Cells of whole rows, in order; `next` is the row from which there may be more, None at the end."""

    cells: list[CellVersion]
    next: bytes | None


class VisibleCells:
    """The judge of the versions that a reader gets. They come by in the order of their keys.

    With `all_own` it gets every version of its own transaction, tombstones too, and then what it would see of others.
    """

    def __init__(self, snapshot: TransactionSnapshot, *, all_own: bool = False) -> None:
        self._snapshot = snapshot
        self._all_own = all_own
        self._cell: tuple[bytes, bytes] | None = None
        self.newest = max(snapshot.read_pointer, *snapshot.own, 0)  # no later writer's version is seen
        self.done = False  # no older version of this cell is looked for
        self.passed = 0  # versions of this cell in a row that the reader does not get

    def shows(self, version: CellVersion) -> bool:
        """True when the reader gets this version. Call it with versions in the order of their keys: it keeps state."""
        cell = version[:2]
        if cell != self._cell:
            self._cell, self.done, self.passed = cell, False, 0
        shown = not self.done and self._judge(version)
        self.passed = 0 if shown else self.passed + 1
        return shown

    def _judge(self, version: CellVersion) -> bool:
        if self._all_own and version.write_pointer in self._snapshot.own:
            return True
        self.done = self._snapshot.is_visible(version.write_pointer)
        return self.done and version.value is not None


class CellRows(Protocol):
    """The part of a table that reading cells needs."""

    def scan(self, start: bytes, stop: bytes | None, *, rows_max: int, bytes_max: int | None = None) -> Iterator[Row]:
        """As `basalt_engine.table.Table` has it."""
        ...


class CellTable:
    """Encodes and reads cells; writing goes through the one group-commit writer."""

    name = "cell"

    def __init__(self, table: CellRows) -> None:
        self._table = table

    @staticmethod
    def put(keys: TableKeys, row: bytes, column: bytes, write_pointer: int, value: bytes) -> Put:
        """The mutation that sets a cell, in place of what the same writer wrote of it before."""
        assert len(value) <= VALUE_BYTES_MAX, len(value)
        return _mutation(keys, row, column, write_pointer, VALUE + value)

    @staticmethod
    def delete(keys: TableKeys, row: bytes, column: bytes, write_pointer: int) -> Put:
        """The mutation that deletes a cell: a tombstone, for older versions must stay for older readers."""
        return _mutation(keys, row, column, write_pointer, TOMBSTONE)

    def get(self, keys: TableKeys, row: bytes, column: bytes, snapshot: TransactionSnapshot) -> CellVersion | None:
        """The version of one cell that the reader sees; None when the cell is absent."""
        seen = VisibleCells(snapshot)
        return next(filter(seen.shows, self._named(keys, row, [column], seen)), None)

    def row(
        self,
        keys: TableKeys,
        row: bytes,
        snapshot: TransactionSnapshot,
        columns: Iterable[bytes] | None = None,
        *,
        all_own: bool = False,
        limits: PageLimits | None = None,
    ) -> list[CellVersion]:
        """The cells of a row that the reader sees, by column; only those of `columns`, if they are given."""
        seen = VisibleCells(snapshot, all_own=all_own)
        filling = _Filling(limits or PageLimits())
        if columns is None:
            start = keys.row_start(row)
            versions = self._looked_at(keys, start, _stop(start), seen)
        else:
            versions = self._named(keys, row, sorted(set(columns)), seen)
        for version in filter(seen.shows, versions):
            filling.add(version)
        return filling.cells

    def columns(self, keys: TableKeys, row: bytes, snapshot: TransactionSnapshot) -> Iterator[bytes]:
        """The columns of a row in which the reader sees a cell, in order. A row of any size can be walked so."""
        start = keys.row_start(row)
        seen = VisibleCells(snapshot)
        for version in filter(seen.shows, self._looked_at(keys, start, _stop(start), seen)):
            yield version.column

    def scan(
        self,
        keys: TableKeys,
        snapshot: TransactionSnapshot,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Iterable[bytes] | None = None,
        *,
        all_own: bool = False,
        limits: PageLimits | None = None,
    ) -> VersionsPage:
        """A page of the rows with start <= row < stop."""
        wanted = None if columns is None else frozenset(columns)
        seen = VisibleCells(snapshot, all_own=all_own)
        filling = _Filling(limits or PageLimits())
        last = _stop(keys.start) if stop is None else keys.bound(stop)
        for version in self._looked_at(keys, keys.bound(start), last, seen):
            if filling.ends_before(version):
                return VersionsPage(filling.cells, version.row)
            shown = seen.shows(version) and (wanted is None or version.column in wanted)
            if shown and not filling.add(version):
                return VersionsPage(filling.cells, version.row)
        return VersionsPage(filling.cells, None)

    def _named(self, keys: TableKeys, row: bytes, columns: list[bytes], seen: VisibleCells) -> Iterator[CellVersion]:
        """The versions of these cells of a row, for `seen` to judge each before the next; `columns` are sorted.

        Columns that lie close together are read in one go, with what is between them: more at a time while that finds
        some, and cell by cell where they are far apart.
        """
        if not columns or seen.newest <= 0:
            return
        row_offset, stop = len(keys.start), _stop(keys.cell_start(row, columns[-1]))
        start, number, rows_max, bytes_max = b"", 0, FIRST_ROWS, NEAR_BYTES
        while number < len(columns):
            start = max(start, keys.cell_key(row, columns[number], seen.newest))
            rows = list(self._table.scan(start, stop, rows_max=rows_max, bytes_max=bytes_max))
            if not rows:
                return
            start, before = rows[-1].key + b"\0", number
            for row_read in rows:
                version = decode_version(row_read, row_offset)
                number = bisect_left(columns, version.column, number)
                if number == len(columns):
                    return
                if version.column == columns[number]:
                    yield version
                    number += seen.done
                    if number == len(columns):
                        return
            passed = number - before
            if not passed:
                rows_max, bytes_max = CHUNK_ROWS, CHUNK_BYTES  # one cell of many versions
            elif passed > 1 and passed * NEAR_ROWS >= len(rows):
                rows_max, bytes_max = min(4 * rows_max, CHUNK_ROWS), NEAR_BYTES
            else:
                rows_max, bytes_max = FIRST_ROWS, NEAR_BYTES

    def _looked_at(self, keys: TableKeys, start: bytes, stop: bytes, seen: VisibleCells) -> Iterator[CellVersion]:
        """The versions with start <= key < stop, but for long runs in which `seen` has nothing to find."""
        row_offset = len(keys.start)
        while start < stop:
            rows = list(self._table.scan(start, stop, rows_max=CHUNK_ROWS, bytes_max=CHUNK_BYTES))
            if not rows:
                return
            start = rows[-1].key + b"\0"
            skipped_to = b""
            for row_read in rows:
                if row_read.key < skipped_to:
                    continue
                version = decode_version(row_read, row_offset)
                yield version
                if seen.passed >= PASSED_MAX:
                    skipped_to = _next_key(keys, version, seen)
            start = max(start, skipped_to)


class _Filling:
    """A page in the making, of whole rows."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._row: bytes | None = None
        self._row_at = self._bytes = self._versions = 0
        self.cells: list[CellVersion] = []

    def ends_before(self, version: CellVersion) -> bool:
        """True when the page is full and this version, the next one, begins another row: a row is not split."""
        if version.row != self._row:
            full = len(self.cells) >= self._limits.cells_max or self._bytes >= self._limits.bytes_max
            if self._row is not None and (full or self._versions >= self._limits.versions_max):
                return True
            self._row, self._row_at = version.row, len(self.cells)
        self._versions += 1
        return False

    def add(self, version: CellVersion) -> bool:
        """Take a cell; False when the page ends before its row, which does not fit: the row's cells are dropped."""
        self.cells.append(version)
        self._bytes += len(version.row) + len(version.column) + len(version.value or b"")
        cells_max, bytes_max = self._limits.hard_cells_max, self._limits.hard_bytes_max
        if len(self.cells) <= cells_max and self._bytes <= bytes_max:
            return True
        if self._row_at > 0:
            del self.cells[self._row_at :]
            return False
        raise LargeRowError(
            f"row {version.row.hex()} has more than {cells_max} cells or {bytes_max} bytes to read",
            field="columns",
            hint="name the columns that you want, fewer of them in a call",
        )


def _next_key(keys: TableKeys, version: CellVersion, seen: VisibleCells) -> bytes:
    """The first key behind this version at which there may be something for the reader."""
    if seen.done:
        return _stop(keys.cell_start(version.row, version.column))
    if version.write_pointer > seen.newest > 0:
        return keys.cell_key(version.row, version.column, seen.newest)
    return b""


def _mutation(keys: TableKeys, row: bytes, column: bytes, write_pointer: int, content: bytes) -> Put:
    assert 0 < len(row) <= ROW_BYTES_MAX, len(row)
    assert 0 < len(column) <= COLUMN_BYTES_MAX, len(column)
    return Put(keys.cell_key(row, column, write_pointer), {CONTENT: content})


def decode_version(found: Row, start: int) -> CellVersion:
    """The version in a row whose prefix and generation end at `start`; `CorruptionError` when it is none."""
    deleted = is_tombstone(found.columns)
    if deleted is None:
        raise CorruptionError(f"cell {found.key.hex()} must have one column c, with a value or a tombstone")
    return CellVersion(*cell_of(found.key, start), None if deleted else found.columns[CONTENT][1:])


def is_tombstone(columns: Columns) -> bool | None:
    """True for the row of a deleted cell, False for that of a value; None for content that no row of the table has."""
    content = columns.get(CONTENT)
    if len(columns) != 1 or content is None or (content[:1] != VALUE and content != TOMBSTONE):
        return None
    return content == TOMBSTONE


def _stop(start: bytes) -> bytes:
    stop = prefix_stop(start)
    assert stop is not None, "a salt of 255 is followed by a prefix of names"
    return stop
