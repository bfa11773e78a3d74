"""Rows as the gateway has them: a list of cells, all in the one family, each under its column's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from basalt_engine.stores.hbase.connection import types
from basalt_engine.table import Columns, Delete, Row

FAMILY = b"m"
SYNC_WAL = types.TDurability.SYNC_WAL  # whatever the table's default is

Attributes = Mapping[bytes, bytes]


def put(key: bytes, columns: Columns, timestamp: int, attributes: Attributes) -> Any:
    """The gateway's put of these columns."""
    cells = [types.TColumnValue(family=FAMILY, qualifier=name, value=value) for name, value in columns.items()]
    return types.TPut(
        row=key, columnValues=cells, timestamp=timestamp, attributes=attributes or None, durability=SYNC_WAL
    )


def delete(mutation: Delete, timestamp: int, attributes: Attributes) -> Any:
    """The gateway's delete of the row, or of its named columns: of all versions up to the timestamp."""
    columns = None
    if mutation.columns is not None:
        columns = [types.TColumn(family=FAMILY, qualifier=name, timestamp=timestamp) for name in mutation.columns]
    return types.TDelete(
        row=mutation.key,
        columns=columns,
        timestamp=timestamp,
        deleteType=types.TDeleteType.DELETE_COLUMNS,
        attributes=attributes or None,
        durability=SYNC_WAL,
    )


def get(key: bytes, names: Iterable[bytes] | None = None) -> Any:
    """The gateway's get of a row, or of some of its columns."""
    columns = None if names is None else [types.TColumn(family=FAMILY, qualifier=name) for name in names]
    return types.TGet(row=key, columns=columns)


def columns_of(result: Any) -> dict[bytes, bytes]:
    """The columns of a row as they were read; empty when there is no such row."""
    return {cell.qualifier: cell.value for cell in result.columnValues}


def row_of(result: Any) -> Row:
    """A row of a scan."""
    return Row(result.row, columns_of(result))
