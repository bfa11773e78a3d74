"""The tables service: cells written under transactions, and read under their snapshots. What it promises: docs/reference/http-api.md.

Nothing here undoes anything: a transaction that has written cells ends committed or invalid, and readers pass over what is
not theirs to see. So a writer and a reader never wait for each other.

Cells have no order, and a row that the view leaves open is passed over, not waited for. So at a member, which learns late what was begun and
decided, each call asks the coordinator once before it looks: docs/decisions/0076-tables-at-their-owners.md. A write need not, whose client says
what would be asked for: docs/decisions/0087-fewer-words-between-owner-and-coordinator.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple, TypeVar

from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import HostedTable, TableCatalog, TableName
from basalt.cluster.reigns import Phase
from basalt.cluster.shard_gate import SEND_AGAIN
from basalt.errors import ConflictError, InputError, ShardMovingError, TooLargeError
from basalt.runtime.group_commit import Group
from basalt.runtime.store_calls import Keys, StoreCalls
from basalt.tables.garbage_cells import CellActivity
from basalt.transactions.log_state import LogState
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.rules.transaction import TableJoin, Transaction, VisibilityLevel
from basalt_engine.cells.names import CELLS_MAX, VALUE_BYTES_MAX, check_column, check_row
from basalt_engine.cells.table import (
    CHUNK_ROWS,
    CellRows,
    CellTable,
    CellVersion,
    LargeRowError,
    PageLimits,
    VersionsPage,
)
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.stores.shards import shard_of
from basalt_engine.table import Put, Row, Store

READ_CELLS_MAX = 10_000  # of one answer
READ_BYTES_MAX = 8 * 1024 * 1024  # rows, columns and values of one answer: it is as large as a request may be
READ_ROWS_MAX = 1_000  # named in one call: each is a range of its own
LOOKUPS_MAX = 10_000  # rows x columns named in one call: each may be a range scan of its own
DELETED_CELLS_MAX = 100_000  # by the rows that one call deletes: a tombstone takes some hundred bytes of the group
DELETED_BYTES_MAX = 8 * 1024 * 1024  # names of those cells, their rows' with them

SHORT_SCANS_MAX = 16  # of a look on the event loop: it is over within some milliseconds
SHORT_ROWS_MAX = CHUNK_ROWS
SHORT_BYTES_MAX = 4 << 20
LONG_LOOKS_MAX = 2  # at once on a local store: they keep processors busy, and writes need threads too

ANSWER = PageLimits(
    cells_max=READ_CELLS_MAX, bytes_max=READ_BYTES_MAX, hard_cells_max=READ_CELLS_MAX, hard_bytes_max=READ_BYTES_MAX
)

T = TypeVar("T")
CellRead = Callable[[CellTable], T]


class CellWrites(NamedTuple):
    """The changes of one call: rows to delete come first, then puts, then cells to delete."""

    puts: Collection[CellPut] = ()
    deletes: Collection[tuple[bytes, bytes]] = ()
    delete_rows: Collection[bytes] = ()


class Tables:
    """The cells of all tables of one store."""

    def __init__(
        self, store: Store, catalog: TableCatalog, manager: LogState, pointers: OpenPointers, activity: CellActivity
    ) -> None:  # fmt: skip
        self._cell_reads = CellReads(store)
        self.catalog = catalog
        self._manager = manager
        self.pointers = pointers
        self.activity = activity

    async def write(
        self, title: TableName, transaction_id: int, writes: CellWrites, generation: int | None = None,
        write_pointer: int | None = None,
    ) -> None:  # fmt: skip
        """Change cells under the transaction's current pointer; returns once that is durable. Repeating it changes nothing.

        `generation` is the one that the client knows; `ConflictError` when the table was created again since. `write_pointer` is the
        transaction's newest pointer, of a client that knows it.
        `TransactionEndedError`, `TransactionConflictError`, `TooLargeError`: nothing was written.
        """
        async with self._at(title) as table:
            _check_generation(table, generation)
            _check_writes(writes)
            await self._manager.ensure_known()
            if writes.delete_rows or not self._knows(transaction_id, write_pointer):  # deleting a row reads it
                await self._manager.ask()
            await self._write(table, transaction_id, writes)

    async def _write(self, table: HostedTable, transaction_id: int, writes: CellWrites) -> None:
        of_rows = await self._cells_of_rows(table, transaction_id, writes.delete_rows)

        def stage(group: Group) -> None:
            _check_generation(self.catalog.loaded(table.title), table.generation)
            pointer = self._manager.state.get(transaction_id).write_pointer
            self.pointers.join_table(group, pointer, TableJoin(table.keys.prefix, table.generation))
            for call in (group.when_durable, group.when_failed):  # not before: a pass in between finds nothing yet
                call(lambda: self.activity.wrote(table.keys.prefix, table.generation))
            group.add(CellTable.name, *_mutations(table, pointer, writes, of_rows))

        put_bytes = sum(len(put.value) + len(put.row) + len(put.column) for put in writes.puts)
        deleted_bytes = sum(len(row) + len(column) for row, column in (*writes.deletes, *of_rows))
        await self._manager.lanes.topics.lane_of(table.keys.prefix).run(stage, put_bytes + deleted_bytes)

    async def read(
        self, title: TableName, rows: Collection[bytes], columns: Collection[bytes] | None = None,
        transaction_id: int | None = None, level: VisibilityLevel = VisibilityLevel.SNAPSHOT,
    ) -> list[CellVersion]:  # fmt: skip
        """The cells of these rows, sorted by row and column: all of them, or those of the columns named.

        Under a transaction's snapshot with its own writes, or (without one) what is committed now.
        """
        if len(rows) > READ_ROWS_MAX:
            raise TooLargeError(
                f"{len(rows)} rows in one call, the limit is {READ_ROWS_MAX}", field="rows", hint="read them in turn"
            )
        wanted = [check_row(row) for row in sorted(set(rows))]
        named = _check_columns(columns)
        lookups = len(wanted) * (1 if named is None else len(named))
        if lookups > LOOKUPS_MAX:
            raise TooLargeError(
                f"{len(wanted)} rows with {len(named or ())} columns each are {lookups} cells to look up in one call,"
                f" the limit is {LOOKUPS_MAX}",
                field="columns",
                hint="name fewer rows or fewer columns in a call",
            )
        async with self._at(title) as table:
            await self._know()
            with self._reader(transaction_id, level) as snapshot:
                return await self._read_cells(
                    table,
                    lambda cells: _look_at_rows(cells, table, wanted, named, snapshot, level),
                    short=lookups <= SHORT_SCANS_MAX,
                )

    async def scan(
        self, title: TableName, start: bytes = b"", stop: bytes | None = None,
        columns: Collection[bytes] | None = None, cells: int = READ_CELLS_MAX, transaction_id: int | None = None,
        level: VisibilityLevel = VisibilityLevel.SNAPSHOT,
    ) -> VersionsPage:  # fmt: skip
        """Cells of whole rows with start <= row < stop, in order, and the row to go on from.

        About `cells` of them: more only where one row has more. A page without cells may have a next one. A row that is too
        large for an answer begins a page of its own, which is a `TooLargeError`.
        """
        named = _check_columns(columns)
        limits = ANSWER._replace(cells_max=min(cells, READ_CELLS_MAX))
        all_own = level is VisibilityLevel.SNAPSHOT_ALL
        async with self._at(title) as table:
            await self._know()
            with self._reader(transaction_id, level) as snapshot:
                return await self._read_cells(
                    table,
                    lambda cells: cells.scan(table.keys, snapshot, start, stop, named, all_own=all_own, limits=limits),
                    short=False,
                )

    async def _cells_of_rows(
        self, table: HostedTable, transaction_id: int, rows: Collection[bytes]
    ) -> list[tuple[bytes, bytes]]:
        """The cells of these rows that the transaction sees: what it deletes when it deletes the rows."""
        if not rows:
            return []
        with self._reader(transaction_id, VisibilityLevel.SNAPSHOT) as snapshot:
            return await self._read_cells(
                table, lambda cells: _look_at_columns(cells, table, rows, snapshot), short=len(rows) <= SHORT_SCANS_MAX
            )

    async def _read_cells(self, table: HostedTable, cell_read: CellRead[T], *, short: bool) -> T:
        try:
            return await self._cell_reads(table.keys, cell_read, short=short)
        except LargeRowError as error:
            raise TooLargeError(error.message, field=error.field, hint=error.hint) from None

    @asynccontextmanager
    async def _at(self, title: TableName) -> AsyncIterator[HostedTable]:
        """The table, whose shard does not move meanwhile. `ShardMovingError` where it was lost all the same: to whom it went may have deleted the table."""
        gate = self.catalog.gate
        while True:
            table = await self.catalog.get(title)
            async with gate.visit(table.keys.prefix) as reign:
                if self.catalog.is_known(table):  # else it was another server's while this waited
                    yield table
                    break
        shard = shard_of(table.keys.prefix)
        if gate.reigns[shard].epoch != reign.epoch or gate.reigns[shard].phase is Phase.ABSENT:
            raise ShardMovingError(f"shard {shard} was given to another server during the call", hint=SEND_AGAIN)

    async def _know(self) -> None:
        """Know what was begun, checkpointed and decided before this call: at a member that is asked for. `CoordinatorUnavailableError`"""
        await self._manager.ensure_known()
        await self._manager.ask()

    def _knows(self, transaction_id: int, write_pointer: int | None) -> bool:
        """True when the transaction is known here with its newest pointer, by what its client says. Whether it is open, the stage finds out."""
        if write_pointer is None:
            return False
        known = self._manager.state.find(transaction_id)
        return known is not None and known.write_pointer >= write_pointer

    @contextmanager
    def _reader(self, transaction_id: int | None, level: VisibilityLevel) -> Iterator[TransactionSnapshot]:
        """The snapshot to read under. While it is held, nothing that it shows is dropped."""
        if transaction_id is None:
            if level is not VisibilityLevel.SNAPSHOT:
                raise InputError(
                    "only a transaction has writes of its own to see or leave out",
                    field="visibility",
                    hint="name the transaction, or leave visibility out",
                )
            snapshot = self._manager.current()
        else:
            snapshot = _seen_by(self._manager.state.get(transaction_id), level)
        with self._manager.reading(snapshot):
            yield snapshot


def _look_at_columns(
    cells: CellTable, table: HostedTable, rows: Collection[bytes], snapshot: TransactionSnapshot
) -> list[tuple[bytes, bytes]]:
    cell_names: list[tuple[bytes, bytes]] = []
    names_bytes = 0
    for row in sorted(set(rows)):
        for column in cells.columns(table.keys, row, snapshot):
            cell_names.append((row, column))
            names_bytes += len(row) + len(column)
            if len(cell_names) > DELETED_CELLS_MAX or names_bytes > DELETED_BYTES_MAX:
                raise TooLargeError(
                    f"the rows to delete have more than {DELETED_CELLS_MAX} cells or {DELETED_BYTES_MAX} bytes of names",
                    field="deleteRows",
                    hint="delete fewer rows in a call; of one so large, delete its cells in several calls",
                )
    return cell_names


def _look_at_rows(
    cells: CellTable, table: HostedTable, rows: list[bytes], columns: frozenset[bytes] | None,
    snapshot: TransactionSnapshot, level: VisibilityLevel,
) -> list[CellVersion]:  # fmt: skip
    all_own = level is VisibilityLevel.SNAPSHOT_ALL
    versions: list[CellVersion] = []
    versions_bytes = 0
    for row in rows:
        in_row = cells.row(table.keys, row, snapshot, columns, all_own=all_own, limits=ANSWER)
        versions += in_row
        versions_bytes += sum(len(cell.row) + len(cell.column) + len(cell.value or b"") for cell in in_row)
        if len(versions) > READ_CELLS_MAX or versions_bytes > READ_BYTES_MAX:
            raise TooLargeError(
                f"these rows of table {table.title} have more than {READ_CELLS_MAX} cells or {READ_BYTES_MAX} bytes",
                field="rows",
                hint="read fewer rows at a time, or name the columns",
            )
    return versions


def _seen_by(transaction: Transaction, level: VisibilityLevel) -> TransactionSnapshot:
    """The call says what it wants of the transaction's own writes, whatever the transaction itself was begun with."""
    leave_out = level is VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT
    return transaction.snapshot()._replace(excluded=transaction.write_pointer if leave_out else None)


def _mutations(
    table: HostedTable, write_pointer: int, writes: CellWrites, of_rows: Collection[tuple[bytes, bytes]]
) -> list[Put]:
    # One mutation for each cell: on stores that write row by row, two of one row would depend on their order.
    cells: dict[tuple[bytes, bytes], bytes | None] = dict.fromkeys(of_rows)
    cells |= {(put.row, put.column): put.value for put in writes.puts}
    cells |= dict.fromkeys(writes.deletes)
    return [
        CellTable.delete(table.keys, row, column, write_pointer)
        if value is None
        else CellTable.put(table.keys, row, column, write_pointer, value)
        for (row, column), value in cells.items()
    ]


def _check_writes(writes: CellWrites) -> None:
    cells = len(writes.puts) + len(writes.deletes)
    if cells > CELLS_MAX or len(writes.delete_rows) > READ_ROWS_MAX:
        raise TooLargeError(
            f"{cells} cells and {len(writes.delete_rows)} rows to delete in one call, the limits are {CELLS_MAX} and {READ_ROWS_MAX}",
            field="puts" if cells > CELLS_MAX else "deleteRows",
            hint="send them in several calls of the same transaction",
        )
    if not (writes.puts or writes.deletes or writes.delete_rows):
        raise InputError("there is nothing to write", field="puts", hint="give puts, deletes or rows to delete")
    _check_each("puts", writes.puts, _check_put)
    _check_each("deletes", writes.deletes, lambda cell: (check_row(cell[0]), check_column(cell[1])))
    _check_each("deleteRows", writes.delete_rows, check_row)


def _check_put(put: CellPut) -> None:
    check_row(put.row)
    check_column(put.column)
    if len(put.value) > VALUE_BYTES_MAX:
        raise TooLargeError(
            f"the value has {len(put.value)} bytes, the limit is {VALUE_BYTES_MAX}",
            field="value",
            hint="split it over several columns",
        )


def _check_each(place: str, items: Collection[T], check: Callable[[T], object]) -> None:
    """Check each; the error tells which it was."""
    for number, item in enumerate(items):
        try:
            check(item)
        except InputError as error:
            error.field = f"{place}[{number}].{error.field}"
            raise


def _check_columns(columns: Collection[bytes] | None) -> frozenset[bytes] | None:
    if columns is None:
        return None
    if not columns or len(columns) > CELLS_MAX:
        raise InputError(
            f"{len(columns)} columns are named, it must be 1 to {CELLS_MAX}",
            field="columns",
            hint="leave columns out to read all",
        )
    return frozenset(check_column(column) for column in columns)


def _check_generation(table: HostedTable, generation: int | None) -> None:
    if generation is not None and table.generation != generation:
        raise ConflictError(
            f"table {table.title} was deleted and created again: it is generation {table.generation} now, not {generation}",
            field="generation",
            hint="begin another transaction",
        )


class _LongLook(Exception):  # noqa: N818  # no error: the look goes on elsewhere
    """More is to be looked at than the event loop has time for."""


class CellReads:
    """Runs looks at the cells of one store. A look may be run twice, and changes nothing."""

    def __init__(self, store: Store) -> None:
        self._table = store.table(CellTable.name)
        self._remote = store.remote
        self._call = StoreCalls(store)
        self._turns = asyncio.Semaphore(LONG_LOOKS_MAX)

    async def __call__(self, keys: Keys, cell_read: CellRead[T], *, short: bool) -> T:
        """The look's result; `keys` are those of its table, `short`: it may well be over soon."""
        if self._remote:
            return await self._call.about(keys, cell_read, CellTable(self._table))
        if short:
            try:
                return cell_read(CellTable(_ShortTable(self._table)))
            except _LongLook:
                pass
        async with self._turns:
            return await asyncio.to_thread(cell_read, CellTable(self._table))


class _ShortTable:
    """The cell table for one short look."""

    def __init__(self, table: CellRows) -> None:
        self._table = table
        self._scans = self._rows = self._bytes = 0

    def scan(self, start: bytes, stop: bytes | None, *, rows_max: int, bytes_max: int | None = None) -> Iterator[Row]:
        """As the table's, until the look has become long."""
        self._scans += 1
        if self._scans > SHORT_SCANS_MAX:
            raise _LongLook
        for row in self._table.scan(start, stop, rows_max=rows_max, bytes_max=bytes_max):
            self._rows += 1
            self._bytes += sum(map(len, row.columns.values()))
            if self._rows > SHORT_ROWS_MAX or self._bytes > SHORT_BYTES_MAX:
                raise _LongLook
            yield row
