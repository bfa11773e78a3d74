"""JSON bodies of the calls on tables. Rows, columns and values are any bytes, in base64. Described in docs/reference/http-api.md."""

from __future__ import annotations

from basalt.api.bodies.tables import Cell, TableInfo, Visibility
from basalt.catalog.tables import HostedTable
from basalt.transactions.rules.states import VisibilityLevel
from basalt_engine.cells.table import CellVersion

LEVELS: dict[Visibility, VisibilityLevel] = {
    "snapshot": VisibilityLevel.SNAPSHOT,
    "exclude_current": VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT,
    "all": VisibilityLevel.SNAPSHOT_ALL,
}


def table_shown(table: HostedTable) -> TableInfo:
    """A table as its calls answer it."""
    return TableInfo(table.title.name, table.conflict, table.generation, table.metadata.created_ms)


def cells_shown(cells: list[CellVersion]) -> list[Cell]:
    """Cells as its calls answer them."""
    return [Cell(cell.row, cell.column, cell.value, cell.write_pointer) for cell in cells]
