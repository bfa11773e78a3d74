"""Transactional tables and their cells. Rows, columns and values are any bytes: base64 in JSON."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Conflict: TypeAlias = Literal["row", "cell", "none"]
Visibility: TypeAlias = Literal["snapshot", "exclude_current", "all"]
LIMIT_CELLS_DEFAULT = 1_000


class CreateTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of a new table. `conflict`: what two transactions must both change for the second to fail."""

    conflict: Conflict = "row"


class TableInfo(Struct, frozen=True, rename="camel"):
    """A table. `generation` rises each time that it is deleted and created again."""

    name: str
    conflict: str
    generation: int
    created_ms: int


class ListedTable(Struct, frozen=True, rename="camel"):
    """A table in a list of all namespaces."""

    namespace: str
    name: str
    conflict: str
    generation: int
    created_ms: int


class TablePage(Struct, frozen=True):
    """Tables, in the order of the store. `next` is the `after` of the page behind it, and null in the last one."""

    tables: list[ListedTable]
    next: str | None


class CellPut(Struct, frozen=True, forbid_unknown_fields=True):
    """A cell's new value."""

    row: bytes
    column: bytes
    value: bytes


class CellDelete(Struct, frozen=True, forbid_unknown_fields=True):
    row: bytes
    column: bytes


class WriteRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Cells to change under an open transaction: rows are deleted first, then puts, then deletes are applied.

    `generation` is that of the table as the client knows it; the write is refused if the table is of another. `write_pointer` is the newest
    pointer of the transaction, of a client that knows it: whoever answers need not ask whether there is one that is newer.
    """

    transaction: str
    puts: list[CellPut] = []
    deletes: list[CellDelete] = []
    delete_rows: list[bytes] = []
    generation: int | None = None
    write_pointer: int | None = None

    def put(self, row: bytes, column: bytes, value: bytes | None) -> None:
        """Add one cell; None deletes it."""
        if value is None:
            self.deletes.append(CellDelete(row, column))
        else:
            self.puts.append(CellPut(row, column, value))


class ReadRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rows to read, as the transaction sees them; without one, as they are committed now."""

    rows: list[bytes]
    columns: list[bytes] | None = None
    transaction: str | None = None
    visibility: Visibility = "snapshot"


class ScanRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Rows to read from `start` to before `stop`, as the transaction sees them; without one, as they are committed now."""

    start: bytes = b""
    stop: bytes | None = None
    columns: list[bytes] | None = None
    limit_cells: int = LIMIT_CELLS_DEFAULT
    transaction: str | None = None
    visibility: Visibility = "snapshot"


class Cell(Struct, frozen=True, rename="camel"):
    """A cell as the reader sees it. `value` is null where a reader of all versions finds that it was deleted."""

    row: bytes
    column: bytes
    value: bytes | None
    write_pointer: int


class Cells(Struct, frozen=True):
    """Cells, sorted by row and column."""

    cells: list[Cell]


class CellPage(Struct, frozen=True):
    """Cells of whole rows, and the row to go on from; null: there are no more."""

    cells: list[Cell]
    next: bytes | None
