"""Plans for a table within a transaction: reads see what it wrote, and what it wrote waits here until the commit.

The table takes part in the transaction: its changes are told before a cell is written, so one that loses a
conflict has nothing on the server to hide. It writes earlier only at a checkpoint, and when it holds more than its transaction
keeps here (`buffer_bytes_max`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from basalt.api.bodies.tables import ScanRequest, TableInfo, WriteRequest
from basalt.api.bodies.transactions import TransactionInfo
from basalt.client.calls import tables
from basalt.client.calls.tables import ColumnValues, Name, RowPage, TableRow, Visibility, named, to_bytes
from basalt.client.plans import Steps, TableScope, id_of
from basalt.client.transaction.commit_protocol import tell_changes
from basalt.client.transaction.open_transaction import OpenTransaction, Participant, ParticipantMethod
from basalt.errors import BasaltError
from basalt_engine.cells.names import CELLS_MAX, change_key, check_column, check_row, check_value

CALL_BYTES_MAX = 4 * 1024 * 1024  # of rows, columns and values; a third more in base64, below a request's 10 MiB
CALL_DELETED_ROWS_MAX = 100  # each may have many cells, and the server writes a tombstone for every one
CELL_BYTES = 64  # what a cell costs beside its own bytes, so that very many small ones count


class TableInUse(Participant):
    """One table in one transaction: what was written to it, and what of that is on the server.

    Nothing is asked of the server before something is written. After a checkpoint, before which the buffer was flushed, the
    server writes under the new pointer.
    """

    def __init__(self, tx: OpenTransaction, scope: TableScope) -> None:
        self.tx = tx
        self.scope = scope
        self.name = f"table {scope}"
        self.buffer = TableBuffer()
        self.changed: dict[bytes, set[bytes]] = {}  # by row the columns, of all since the beginning
        self._known: TableInfo | None = None  # what it tells and what it writes are of one generation

    def ask(self, method: ParticipantMethod, *arguments: object) -> Steps[Any]:
        """Do what the method says. Writes that were not sent are dropped; the others the server hides with the abort."""
        if method == "tx_changes":
            return (yield from self.changes())
        if method in ("flush_tx", "commit_tx"):
            yield from self.flush()
        elif method == "rollback_tx":
            self.buffer.clear()
        return True

    def changes(self) -> Steps[Collection[bytes]]:
        """Rows or cells, as the table's conflict level says."""
        if not self.changed or self.tx.request.kind == "long":  # a long transaction takes no part in conflicts
            return []
        info = yield from self._facts()
        if info.conflict == "none":
            return []
        prefix = f"{self.scope.namespace}:~{self.scope.name}:".encode("ascii")
        if info.conflict == "row":
            return [change_key(prefix, info.generation, row) for row in self.changed]
        return [
            change_key(prefix, info.generation, row, column)
            for row, columns in self.changed.items()
            for column in columns
        ]

    def flush(self) -> Steps[None]:
        """Write what is buffered. Once more, after an answer that was lost, it changes nothing."""
        if not self.buffer:
            return
        info = yield from self._facts()
        try:
            for body in self.buffer.bodies(self.tx.described(), info.generation):
                yield from tables.send(self.scope, body)
        except BasaltError:
            self.tx.scope.table_facts.pop(self.scope, None)  # the table may be another one by now
            raise
        self.buffer.clear()

    def note(self, row: bytes, columns: Iterable[bytes]) -> None:
        """Cells of this row are being changed."""
        self.changed.setdefault(row, set()).update(columns)

    def _facts(self) -> Steps[TableInfo]:
        if self._known is None:
            self._known = yield from tables.facts(self.tx.scope, self.scope)
        return self._known

    def conflict(self) -> Steps[str]:
        """The table's conflict level."""
        return (yield from self._facts()).conflict


def in_use(tx: OpenTransaction, name: str, *, namespace: str | None = None) -> TableInUse:
    """A table as this transaction sees and changes it. Nothing is asked of the server."""
    tx.begun()
    scope = tx.scope.table(name, namespace=namespace)
    for participant in tx.participants:
        if isinstance(participant, TableInUse) and participant.scope == scope:
            return participant
    joining = TableInUse(tx, scope)
    tx.joins(joining)
    return joining


def get(
    table: TableInUse, row: Name, columns: Iterable[Name] | None = None, *, visibility: Visibility = "snapshot"
) -> Steps[dict[bytes, bytes]]:
    """The cells of a row by column, all or those named: as of the transaction's beginning, with what it wrote since.

    `visibility="exclude_current"` leaves out what it wrote since its last checkpoint.
    """
    info = table.tx.begun()
    key, wanted = to_bytes(row, "row"), named(columns)
    own = visibility == "snapshot"
    if own and table.buffer.answers(key, wanted):
        return table.buffer.with_own_writes(key, {}, wanted)
    cells = yield from tables.get(table.scope, key, wanted, transaction=info, visibility=visibility)
    return table.buffer.with_own_writes(key, cells, wanted) if own else cells


def put(table: TableInUse, row: Name, cells: ColumnValues) -> Steps[None]:
    """Set cells of a row: `put("alice", {"balance": b"5"})`; its other cells stay. Kept here until the commit."""
    table.tx.begun()
    key = check_row(to_bytes(row, "row"))
    changed = {
        check_column(to_bytes(column, "column")): check_value(to_bytes(value, "value"))
        for column, value in cells.items()
    }
    table.note(key, changed)
    table.buffer.put(key, changed)
    yield from _make_room(table)


def delete(table: TableInUse, row: Name, columns: Iterable[Name]) -> Steps[None]:
    """Delete these cells of a row. Deleting what is not there succeeds."""
    table.tx.begun()
    key = check_row(to_bytes(row, "row"))
    gone = [check_column(column) for column in named(columns) or ()]
    table.note(key, gone)
    table.buffer.put(key, dict.fromkeys(gone))
    yield from _make_room(table)


def delete_row(table: TableInUse, row: Name) -> Steps[None]:
    """Delete all cells of a row that the transaction sees."""
    table.tx.begun()
    key = check_row(to_bytes(row, "row"))
    if (yield from table.conflict()) == "cell":  # which cells these are must be known, to tell of them
        yield from delete(table, key, (yield from get(table, key)))
        return
    table.note(key, ())
    table.buffer.delete_row(key)
    yield from _make_room(table)


def _make_room(table: TableInUse) -> Steps[None]:
    """Past its limit the buffer goes to the server at once; what it changes is told before."""
    if table.buffer.size_bytes >= table.tx.buffer_bytes_max:
        yield from tell_changes(table.tx)
        yield from table.flush()


class RowCursor:
    """The place of a scan of a table: pages of rows from `start` to before `stop`, with a transaction's own writes in them."""

    def __init__(self, scope: TableScope, request: ScanRequest, own: TableInUse | None = None) -> None:
        self.done = False
        self._scope = scope
        self._request = request  # of the next page
        self._own = own

    def next_items(self) -> Steps[list[TableRow]]:
        """Ask for the next page of rows."""
        asked = self._request
        page = yield from tables.page(self._scope, asked)
        if self._own is not None:
            page = self._own.buffer.page_with_own_writes(page, asked.start, asked.stop, asked.columns)
        self.done = page.next_row is None
        self._request = structs.replace(asked, start=page.next_row or asked.start)
        return page.rows


def scan(
    table: TableInUse,
    start: Name = b"",
    stop: Name | None = None,
    *,
    columns: Iterable[Name] | None = None,
    visibility: Visibility = "snapshot",
) -> RowCursor:
    """The rows with start <= row < stop in order, as of the transaction's beginning, with what it wrote since."""
    info = table.tx.begun()
    own = table if visibility == "snapshot" else None
    return RowCursor(table.scope, _scan_request(start, stop, columns, info, visibility), own)


def scan_committed(
    scope: TableScope,
    start: Name = b"",
    stop: Name | None = None,
    *,
    columns: Iterable[Name] | None = None,
    transaction: TransactionInfo | str | None = None,
    visibility: Visibility = "snapshot",
) -> RowCursor:
    """The rows with start <= row < stop in order: what is committed, or what an open transaction sees.

    Without a transaction each page shows the moment in which it was asked for; scan within one to see a single moment.
    """
    return RowCursor(scope, _scan_request(start, stop, columns, transaction, visibility))


def _scan_request(
    start: Name,
    stop: Name | None,
    columns: Iterable[Name] | None,
    transaction: TransactionInfo | str | None,
    visibility: Visibility,
) -> ScanRequest:
    stop_row = None if stop is None else to_bytes(stop, "stop")
    seen_by = None if transaction is None else id_of(transaction)
    return ScanRequest(to_bytes(start, "start"), stop_row, named(columns), transaction=seen_by, visibility=visibility)


@dataclass(slots=True)
class RowWrites:
    """The writes to one row: first all of it deleted, if `deleted`, then these cells; None is one deleted."""

    deleted: bool = False
    cells: dict[bytes, bytes | None] = field(default_factory=dict)


class TableBuffer:
    """The writes to one table, by row."""

    def __init__(self) -> None:
        self._rows: dict[bytes, RowWrites] = {}
        self.size_bytes = 0

    def put(self, row: bytes, cells: Mapping[bytes, bytes | None]) -> None:
        """Cells of a row; None deletes one."""
        writes = self._writes(row)
        for column, value in cells.items():
            before = writes.cells.get(column)
            if column in writes.cells:
                self.size_bytes -= len(before or b"")
            else:
                self.size_bytes += CELL_BYTES + len(row) + len(column)
            writes.cells[column] = value
            self.size_bytes += len(value or b"")

    def delete_row(self, row: bytes) -> None:
        """All cells of a row, those written before too."""
        writes = self._writes(row)
        for column, value in writes.cells.items():
            self.size_bytes -= CELL_BYTES + len(row) + len(column) + len(value or b"")
        if not writes.deleted:
            self.size_bytes += CELL_BYTES + len(row)
        writes.deleted = True
        writes.cells.clear()

    def clear(self) -> None:
        self._rows.clear()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._rows)

    def answers(self, row: bytes, columns: list[bytes] | None) -> bool:
        """True if the buffer alone knows these columns of the row (None: all)."""
        writes = self._rows.get(row)
        if writes is None:
            return False
        return writes.deleted or (columns is not None and all(column in writes.cells for column in columns))

    def with_own_writes(
        self, row: bytes, cells: Mapping[bytes, bytes], columns: list[bytes] | None
    ) -> dict[bytes, bytes]:
        """The row as its writer sees it, given how the server has it; columns in order."""
        writes = self._rows.get(row)
        if writes is None:
            return dict(cells)
        merged: dict[bytes, bytes | None] = {} if writes.deleted else dict(cells)
        merged |= {column: value for column, value in writes.cells.items() if columns is None or column in columns}
        return {column: value for column, value in sorted(merged.items()) if value is not None}

    def page_with_own_writes(
        self, page: RowPage, start: bytes, stop: bytes | None, columns: list[bytes] | None
    ) -> RowPage:
        """A page of a scan that began at `start` as the writer sees it, with the rows in that range that only it knows."""
        end = page.next_row if page.next_row is not None else stop
        seen = {found.row: found.cells for found in page.rows}
        ordered = sorted(self._rows)
        last = len(ordered) if end is None else bisect_left(ordered, end)
        for row in {*seen, *ordered[bisect_left(ordered, start) : last]}:
            seen[row] = self.with_own_writes(row, seen.get(row, {}), columns)
        return RowPage([TableRow(row, cells) for row, cells in sorted(seen.items()) if cells], page.next_row)

    def bodies(self, transaction: TransactionInfo, generation: int) -> Iterator[WriteRequest]:
        """The calls that write it all, in order. A row is deleted in the call of its first cell, or before."""

        def begin() -> tuple[WriteRequest, int, int]:
            return WriteRequest(transaction.id, generation=generation, write_pointer=transaction.write_pointer), 0, 0

        body, count, size = begin()
        for row, writes in self._rows.items():
            parts: list[tuple[bytes | None, bytes | None]] = [(None, None)] if writes.deleted else []
            parts += writes.cells.items()
            for column, value in parts:
                part_bytes = CELL_BYTES + len(row) + len(column or b"") + len(value or b"")
                full = count == CELLS_MAX or len(body.delete_rows) == CALL_DELETED_ROWS_MAX
                if count and (full or size + part_bytes > CALL_BYTES_MAX):
                    yield body
                    body, count, size = begin()
                if column is None:
                    body.delete_rows.append(row)
                else:
                    body.put(row, column, value)
                count, size = count + 1, size + part_bytes
        if count:
            yield body

    def _writes(self, row: bytes) -> RowWrites:
        return self._rows.setdefault(row, RowWrites())
