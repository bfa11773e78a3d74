"""Plans for transactional tables: create, get, list, delete; and their cells, read and written. Routes: docs/reference/http-api.md.

Rows, columns and values are bytes; text is taken as UTF-8. Within `client.transaction()` use `tx.table(name)`, which sees its own writes
and keeps them until the commit (`transactional_table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from basalt.api.bodies import json
from basalt.api.bodies.tables import (
    Cell,
    CellPage,
    Cells,
    Conflict,
    CreateTable,
    ReadRequest,
    ScanRequest,
    TableInfo,
    WriteRequest,
)
from basalt.api.bodies.transactions import TransactionInfo
from basalt.client.plans import (
    Answer,
    Call,
    ClientScope,
    Effect,
    Steps,
    TableScope,
    ask,
    get_json,
    id_of,
    json_of,
    nothing,
    send_json,
)

Name: TypeAlias = bytes | str  # of a row or a column
Value: TypeAlias = bytes | str
ColumnValues: TypeAlias = Mapping[bytes, Value] | Mapping[str, Value]  # by column
Writes: TypeAlias = Mapping[bytes, Mapping[bytes, Value | None]] | Mapping[str, Mapping[str, Value | None]]  # by row
Visibility: TypeAlias = Literal["snapshot", "exclude_current"]


class TableRow(NamedTuple):
    """A row and its cells, by column."""

    row: bytes
    cells: dict[bytes, bytes]


class RowPage(NamedTuple):
    """Rows of one answer, and the row to go on from; None: there are no more."""

    rows: list[TableRow]
    next_row: bytes | None


def create(
    scope: ClientScope, name: str, *, conflict: Conflict = "row", namespace: str | None = None
) -> Steps[TableInfo]:
    """Create a table. `TableExistsError` when there is one of this name.

    `conflict` says what two transactions must both change for the second to fail: a row, a cell of it, or nothing ever.
    """
    table, parse = scope.table(name, namespace=namespace), json_of(TableInfo)
    try:
        body = CreateTable(conflict)
        return (yield from send_json("PUT", f"create table {table}", table.path(), parse, Effect.ONCE, body))
    finally:
        scope.table_facts.pop(table, None)  # it is another one from now on, or, when an answer was lost, may be


def get_info(scope: ClientScope, name: str, *, namespace: str | None = None) -> Steps[TableInfo]:
    """A table's properties. `TableNotFoundError` when there is none of this name."""
    table = scope.table(name, namespace=namespace)
    return get_json(TableInfo, f"get table {table}", table.path())


def names(scope: ClientScope, *, namespace: str | None = None) -> Steps[list[str]]:
    """The names of all tables of a namespace, sorted."""
    return get_json(list[str], f"list tables of {namespace or scope.namespace}", scope.path("tables", namespace))


def delete(scope: ClientScope, name: str, *, namespace: str | None = None) -> Steps[None]:
    """Delete a table with all its cells. Not repeated when its answer is lost."""
    table = scope.table(name, namespace=namespace)
    try:
        return (yield from ask(Call(f"delete table {table}", "DELETE", table.path(), nothing, Effect.ONCE)))
    finally:
        scope.table_facts.pop(table, None)


def facts(scope: ClientScope, table: TableScope) -> Steps[TableInfo]:
    """A table's properties, asked for once. A write says which generation it means, so a stale answer does no harm."""
    known: TableInfo | None = scope.table_facts.get(table)
    if known is None:
        known = scope.table_facts[table] = yield from get_json(TableInfo, f"get table {table}", table.path())
    return known


def get(
    scope: TableScope,
    row: Name,
    columns: Iterable[Name] | None = None,
    *,
    transaction: TransactionInfo | str | None = None,
    visibility: Visibility = "snapshot",
) -> Steps[dict[bytes, bytes]]:
    """The cells of a row by column, all or those named; empty when there are none.

    They are the committed cells, or those that an open transaction sees; `visibility="exclude_current"` leaves out its
    own writes since its last checkpoint.
    """
    key = to_bytes(row, "row")
    body = ReadRequest([key], named(columns), None if transaction is None else id_of(transaction), visibility)
    what, path = f"read a row of table {scope}", scope.path("read")
    rows = yield from send_json("POST", what, path, _rows, Effect.NONE, body)
    return rows[0].cells if rows else {}


def page(scope: TableScope, request: ScanRequest) -> Steps[RowPage]:
    """As many of the rows that are asked for as the server puts into one answer."""
    return send_json("POST", f"scan table {scope}", scope.path("scan"), _page, Effect.NONE, request)


def write(
    scope: TableScope, transaction: TransactionInfo | str, cells: Writes, *, delete_rows: Iterable[Name] = ()
) -> Steps[None]:
    """Write cells under an open transaction now: `{row: {column: value}}`, None deletes a cell. One request, all or nothing.

    The server learns nothing of conflicts: a caller that writes this way tells its changes
    (`client.transactions.changes`) before.
    """
    body = WriteRequest(id_of(transaction), delete_rows=[to_bytes(row, "row") for row in delete_rows])
    for row, columns in cells.items():
        key = to_bytes(row, "row")
        for column, value in columns.items():
            body.put(key, to_bytes(column, "column"), None if value is None else to_bytes(value, "value"))
    return send(scope, body)


def send(scope: TableScope, body: WriteRequest) -> Steps[None]:
    """Send one write; the same cells under the same pointer once more change nothing."""
    return send_json("POST", f"write to table {scope}", scope.path("write"), nothing, body=body)


def to_bytes(given: Name, field: str) -> bytes:
    """Bytes as they are, text as UTF-8. `TypeError` for what is neither."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"a {field} is bytes or text, not {type(given).__name__}; encode it first")


def named(columns: Iterable[Name] | None) -> list[bytes] | None:
    """The columns that a caller names; None: all. A single name is taken for one, not for its letters."""
    if columns is None:
        return None
    if isinstance(columns, bytes | str):
        return [to_bytes(columns, "column")]
    return [to_bytes(column, "column") for column in columns]


def _rows(answer: Answer) -> list[TableRow]:
    return _by_row(json.decode(answer.body, Cells).cells)


def _page(answer: Answer) -> RowPage:
    found = json.decode(answer.body, CellPage)
    return RowPage(_by_row(found.cells), found.next)


def _by_row(cells: list[Cell]) -> list[TableRow]:
    rows: list[TableRow] = []
    for cell in cells:
        if not rows or rows[-1].row != cell.row:
            rows.append(TableRow(cell.row, {}))
        assert cell.value is not None, "only a reader of all versions is told of deleted cells"
        rows[-1].cells[cell.column] = cell.value
    return rows
