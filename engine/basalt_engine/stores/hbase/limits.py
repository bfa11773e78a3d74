"""What one row, and one call, may hold in HBase, beyond the limits of every store."""

from __future__ import annotations

from basalt_engine.errors import InputError
from basalt_engine.table import Columns

CELL_BYTES_MAX = 10 << 20  # hbase.client.keyvalue.maxsize and hbase.server.keyvalue.maxsize, as they are by default
CELL_OVERHEAD_BYTES = 64  # HBase counts a cell's key, its family, its timestamp and the lengths of all of them too
ROW_BYTES_MAX = 32 << 20  # a gateway takes calls of 100 MiB, but holds each several times in a heap of 1 GiB


def check_put(key: bytes, columns: Columns) -> None:
    """`InputError` when HBase, as it is by default, would refuse a cell or the row."""
    row_bytes = 0
    for name, value in columns.items():
        cell_bytes = len(key) + len(name) + len(value) + CELL_OVERHEAD_BYTES
        row_bytes += cell_bytes
        if cell_bytes > CELL_BYTES_MAX:
            raise InputError(
                f"column {name!r} has {len(value)} bytes; with its key it must stay within {CELL_BYTES_MAX} bytes",
                hint="HBase refuses larger cells; send less at once",
            )
    if row_bytes > ROW_BYTES_MAX:
        raise InputError(f"a row would have {row_bytes} bytes; the limit is {ROW_BYTES_MAX}")


def row_bytes(key: bytes, columns: Columns) -> int:
    """What the row takes on its way, roughly."""
    return sum(len(key) + len(name) + len(value) + CELL_OVERHEAD_BYTES for name, value in columns.items())
