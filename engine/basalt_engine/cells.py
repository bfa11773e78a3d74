"""The cell table: transactional tables, one row for each version of a cell. Format: docs/formats/cells.md.

A reader has a snapshot. Of each cell it gets the newest version whose writer belongs to the snapshot, and nothing where
that is a tombstone. It never waits: a version whose writer is still open is passed over, like one that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from basalt_engine.cell_keys import TableKeys, cell_of
from basalt_engine.cell_names import COLUMN_BYTES_MAX, ROW_BYTES_MAX, VALUE_BYTES_MAX
from basalt_engine.errors import CorruptionError, InputError
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Columns, Put, Row, Table, prefix_stop

CONTENT = b"c"
VALUE, TOMBSTONE = b"\x01", b"\0"  # the first byte of the content; nothing follows the second

CHUNK_ROWS = 512  # versions read at a time by a scan
CHUNK_BYTES = 1 << 20
FIRST_ROWS = 4  # versions that a look at one cell reads first: nearly always the newest one will do
PASSED_MAX = 16  # versions of one cell passed over one by one; beyond, a new seek costs less
ROW_CELLS_MAX = 100_000  # in one row, when it is read as a whole; name columns to read of a larger one
ROW_READ_BYTES_MAX = 64 << 20


class CellVersion(NamedTuple):
    """What one writer wrote of one cell; `value` is None where it deleted the cell."""

    row: bytes
    column: bytes
    write_pointer: int
    value: bytes | None


class PageLimits(NamedTuple):
    """After which row a page of a scan ends: with so many cells, so many bytes, or so many versions looked at."""

    cells_max: int = 1_000
    bytes_max: int = 4 << 20
    versions_max: int = 20_000


class Page(NamedTuple):
    """Cells of whole rows, in order; `next` is the row from which there may be more, None at the end."""

    cells: list[CellVersion]
    next: bytes | None


class VisibleCells:
    """Which of the versions that come by, in the order of their keys, a reader gets.

    With `all_own` it gets every version of its own transaction, tombstones too, and then what it would see of others.
    """

    def __init__(self, snapshot: TransactionSnapshot, *, all_own: bool = False) -> None:
        self._snapshot = snapshot
        self._all_own = all_own
        self._cell: tuple[bytes, bytes] | None = None
        self.newest = max(snapshot.read_pointer, *snapshot.own, 0)  # no later writer's version is seen
        self.done = False  # no older version of this cell is looked for
        self.passed = 0  # how many of this cell were not for the reader, one after the other

    def shows(self, version: CellVersion) -> bool:
        """Whether the reader gets this version."""
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


def visible(
    versions: Iterable[CellVersion], snapshot: TransactionSnapshot, *, all_own: bool = False
) -> Iterator[CellVersion]:
    """Of versions in the order of their keys, those that a reader gets."""
    return filter(VisibleCells(snapshot, all_own=all_own).shows, versions)


class CellTable:
    """Encodes and reads cells; writing goes through the one group-commit writer."""

    name = "cell"

    def __init__(self, table: Table) -> None:
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
        """What the reader sees of one cell; None when it is absent."""
        seen = VisibleCells(snapshot)
        for version in self._cell(keys, row, column, seen.newest):
            if seen.shows(version):
                return version
            if seen.done:
                return None
        return None

    def row(
        self,
        keys: TableKeys,
        row: bytes,
        snapshot: TransactionSnapshot,
        columns: Iterable[bytes] | None = None,
        *,
        all_own: bool = False,
    ) -> list[CellVersion]:
        """What the reader sees of a row, by column; of these columns only, if any are named."""
        if columns is None:
            start = keys.row_start(row)
            seen = VisibleCells(snapshot, all_own=all_own)
            filling = _Filling(PageLimits())
            for version in filter(seen.shows, self._looked_at(keys, start, _stop(start), seen)):
                filling.add(version)
            return filling.cells
        found: list[CellVersion] = []
        for column in sorted(set(columns)):
            if all_own:
                seen = VisibleCells(snapshot, all_own=True)
                found += filter(seen.shows, self._cell(keys, row, column, seen.newest))
                continue
            found_version = self.get(keys, row, column, snapshot)
            found += [] if found_version is None else [found_version]
        return found

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
    ) -> Page:
        """A page of the rows with start <= row < stop."""
        wanted = None if columns is None else frozenset(columns)
        seen = VisibleCells(snapshot, all_own=all_own)
        filling = _Filling(limits or PageLimits())
        last = _stop(keys.start) if stop is None else keys.bound(stop)
        for version in self._looked_at(keys, keys.bound(start), last, seen):
            if filling.ends_before(version):
                return Page(filling.cells, version.row)
            if seen.shows(version) and (wanted is None or version.column in wanted):
                filling.add(version)
        return Page(filling.cells, None)

    def _cell(self, keys: TableKeys, row: bytes, column: bytes, newest: int) -> Iterator[CellVersion]:
        """The versions of one cell, from the newest that may be seen on."""
        if newest <= 0:
            return
        start, stop = keys.cell_key(row, column, newest), _stop(keys.cell_start(row, column))
        rows_max = FIRST_ROWS
        while rows := list(self._table.scan(start, stop, rows_max=rows_max)):
            for found in rows:
                yield decode_version(found, len(keys.start))
            if len(rows) < rows_max:
                return
            start, rows_max = rows[-1].key + b"\0", CHUNK_ROWS

    def _looked_at(self, keys: TableKeys, start: bytes, stop: bytes, seen: VisibleCells) -> Iterator[CellVersion]:
        """The versions with start <= key < stop, but for long runs in which `seen` has nothing to find."""
        at = len(keys.start)
        while start < stop:
            rows = list(self._table.scan(start, stop, rows_max=CHUNK_ROWS, bytes_max=CHUNK_BYTES))
            if not rows:
                return
            start = rows[-1].key + b"\0"
            skipped_to = b""
            for found in rows:
                if found.key < skipped_to:
                    continue
                version = decode_version(found, at)
                yield version
                if seen.passed >= PASSED_MAX:
                    skipped_to = _next_key(keys, version, seen)
            start = max(start, skipped_to)


class _Filling:
    """A page in the making. A single row that is too large to be read as a whole is an `InputError`."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._row: bytes | None = None
        self._row_cells = self._row_bytes = self._bytes = self._versions = 0
        self.cells: list[CellVersion] = []

    def ends_before(self, version: CellVersion) -> bool:
        """Whether the page ends before this version, which was looked at next: a row is not split."""
        if version.row != self._row:
            full = len(self.cells) >= self._limits.cells_max or self._bytes >= self._limits.bytes_max
            if self._row is not None and (full or self._versions >= self._limits.versions_max):
                return True
            self._row, self._row_cells, self._row_bytes = version.row, 0, 0
        self._versions += 1
        return False

    def add(self, version: CellVersion) -> None:
        size_bytes = len(version.row) + len(version.column) + len(version.value or b"")
        self.cells.append(version)
        self._bytes += size_bytes
        self._row_bytes += size_bytes
        self._row_cells += 1
        if self._row_cells > ROW_CELLS_MAX or self._row_bytes > ROW_READ_BYTES_MAX:
            raise InputError(
                f"row {version.row.hex()} has more than {ROW_CELLS_MAX} cells or {ROW_READ_BYTES_MAX} bytes",
                field="row",
                hint="name the columns that you want",
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
    """Whether this is what a deleted cell's row holds; None when it holds what no row of the table does."""
    content = columns.get(CONTENT)
    if len(columns) != 1 or content is None or (content[:1] != VALUE and content != TOMBSTONE):
        return None
    return content == TOMBSTONE


def _stop(start: bytes) -> bytes:
    stop = prefix_stop(start)
    assert stop is not None, "a salt of 255 is followed by a prefix of names"
    return stop
