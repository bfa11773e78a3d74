"""JSON bodies of the calls on tables. Rows, columns and values are any bytes, in base64. Described in docs/reference/http-api.md."""

from __future__ import annotations

from typing import Literal

import msgspec

from basalt.catalog.tables import HostedTable
from basalt.transactions.rules.states import VisibilityLevel
from basalt_engine.cells.table import CellVersion

Visibility = Literal["snapshot", "exclude_current", "all"]
LEVELS: dict[Visibility, VisibilityLevel] = {
    "snapshot": VisibilityLevel.SNAPSHOT,
    "exclude_current": VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT,
    "all": VisibilityLevel.SNAPSHOT_ALL,
}


class CreateTable(msgspec.Struct, forbid_unknown_fields=True):
    """The properties of a new table: at which level two transactions that change the same are in conflict."""

    conflict: Literal["row", "cell", "none"] = "row"


class TableShown(msgspec.Struct, rename="camel"):
    """A table. `generation` rises when it is deleted and created again. Times in ms since 1970."""

    name: str
    conflict: str
    generation: int
    created_ms: int


class PutShape(msgspec.Struct, forbid_unknown_fields=True):
    """A cell's new value."""

    row: bytes
    column: bytes
    value: bytes


class DeleteShape(msgspec.Struct, forbid_unknown_fields=True):
    """A cell to delete."""

    row: bytes
    column: bytes


class WriteRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """What to change under an open transaction. `generation`: of the table as the client knows it; refused if it is another."""

    transaction: str
    puts: list[PutShape] = []
    deletes: list[DeleteShape] = []
    delete_rows: list[bytes] = []
    generation: int | None = None


class ReadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Rows to read; without a transaction what is committed now."""

    rows: list[bytes]
    columns: list[bytes] | None = None
    transaction: str | None = None
    visibility: Visibility = "snapshot"


class ScanRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Rows to read from `start` to before `stop`; without a transaction what is committed now."""

    start: bytes = b""
    stop: bytes | None = None
    columns: list[bytes] | None = None
    limit_cells: int = 1_000
    transaction: str | None = None
    visibility: Visibility = "snapshot"


class CellShown(msgspec.Struct, rename="camel"):
    """A cell as the reader sees it. `value` is null where a transaction that asks for all its versions deleted it."""

    row: bytes
    column: bytes
    value: bytes | None
    write_pointer: int


class CellsShown(msgspec.Struct):
    """Cells, sorted by row and column."""

    cells: list[CellShown]


class CellPage(msgspec.Struct):
    """Cells of whole rows, and the row to go on from; null: there are no more."""

    cells: list[CellShown]
    next: bytes | None


def table_shown(table: HostedTable) -> TableShown:
    """A table as its calls answer it."""
    return TableShown(table.title.name, table.conflict, table.generation, table.metadata.created_ms)


def cells_shown(cells: list[CellVersion]) -> list[CellShown]:
    """Cells as its calls answer them."""
    return [CellShown(cell.row, cell.column, cell.value, cell.write_pointer) for cell in cells]
