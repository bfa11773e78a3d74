"""What a transaction has written to a table and not sent yet: pure, laid over what the server answers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from basalt.api.bodies.tables import WriteRequest
from basalt.client.calls.tables import RowPage, TableRow
from basalt_engine.cells.names import CELLS_MAX

CALL_BYTES_MAX = 4 * 1024 * 1024  # of rows, columns and values; a third more in base64, below a request's 10 MiB
CALL_DELETED_ROWS_MAX = 100  # each may have many cells, and the server writes a tombstone for every one
CELL_BYTES = 64  # what a cell costs beside its own bytes, so that very many small ones count


@dataclass(slots=True)
class RowWrites:
    """What was written to one row: first all of it deleted, if `deleted`, then these cells; None is one deleted."""

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
        """Forget all of it."""
        self._rows.clear()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._rows)

    def answers(self, row: bytes, columns: list[bytes] | None) -> bool:
        """Whether the buffer alone knows these columns of the row (None: all)."""
        writes = self._rows.get(row)
        if writes is None:
            return False
        return writes.deleted or (columns is not None and all(column in writes.cells for column in columns))

    def over(self, row: bytes, cells: Mapping[bytes, bytes], columns: list[bytes] | None) -> dict[bytes, bytes]:
        """The row as its writer sees it, given how the server has it; columns in order."""
        writes = self._rows.get(row)
        if writes is None:
            return dict(cells)
        merged: dict[bytes, bytes | None] = {} if writes.deleted else dict(cells)
        merged |= {column: value for column, value in writes.cells.items() if columns is None or column in columns}
        return {column: value for column, value in sorted(merged.items()) if value is not None}

    def over_page(self, page: RowPage, start: bytes, stop: bytes | None, columns: list[bytes] | None) -> RowPage:
        """A page of a scan that began at `start` as the writer sees it, with the rows in that range that only it knows."""
        end = page.next_row if page.next_row is not None else stop
        seen = {found.row: found.cells for found in page.rows}
        ordered = sorted(self._rows)
        last = len(ordered) if end is None else bisect_left(ordered, end)
        for row in {*seen, *ordered[bisect_left(ordered, start) : last]}:
            seen[row] = self.over(row, seen.get(row, {}), columns)
        return RowPage([TableRow(row, cells) for row, cells in sorted(seen.items()) if cells], page.next_row)

    def bodies(self, transaction: str, generation: int) -> Iterator[WriteRequest]:
        """The calls that write it all, in order. A row is deleted in the call of its first cell, or before."""
        body, count, size = WriteRequest(transaction, generation=generation), 0, 0
        for row, writes in self._rows.items():
            parts: list[tuple[bytes | None, bytes | None]] = [(None, None)] if writes.deleted else []
            parts += writes.cells.items()
            for column, value in parts:
                part_bytes = CELL_BYTES + len(row) + len(column or b"") + len(value or b"")
                full = count == CELLS_MAX or len(body.delete_rows) == CALL_DELETED_ROWS_MAX
                if count and (full or size + part_bytes > CALL_BYTES_MAX):
                    yield body
                    body, count, size = WriteRequest(transaction, generation=generation), 0, 0
                if column is None:
                    body.delete_rows.append(row)
                else:
                    body.put(row, column, value)
                count, size = count + 1, size + part_bytes
        if count:
            yield body

    def _writes(self, row: bytes) -> RowWrites:
        return self._rows.setdefault(row, RowWrites())
