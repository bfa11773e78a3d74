"""The SPI's limits on tables, keys and columns, checked in the same way by every store before it writes anything."""

from __future__ import annotations

from basalt_engine.errors import InputError
from basalt_engine.table import COLUMNS_MAX, KEY_BYTES_MAX, TABLE_NAMES, Columns, DeleteRange, Insert, Mutation, Put

COLUMN_NAME_BYTES_MAX = 255  # the embedded row format keeps a name's length in one byte
VALUE_BYTES_MAX = (1 << 31) - 1  # one row must fit into one write of every store


def check_table(name: str) -> None:
    """`InputError` unless the SPI names such a table."""
    if name not in TABLE_NAMES:
        raise InputError(f"there is no table {name!r}", hint=f"the tables are {', '.join(TABLE_NAMES)}")


def check_mutation(mutation: Mutation) -> None:
    """`InputError` when the mutation's key, a column's name or a value is out of bounds."""
    if isinstance(mutation, DeleteRange):
        return
    check_key(mutation.key)
    if isinstance(mutation, Put | Insert):
        check_columns(mutation.columns)
    if isinstance(mutation, Insert) and not (mutation.columns and mutation.columns[mutation.first]):
        raise InputError(f"row {mutation.key.hex()} is to be inserted with nothing, or nothing in its first column")


def check_key(key: bytes) -> None:
    """`InputError` unless the key has 1 to `KEY_BYTES_MAX` bytes."""
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise InputError(f"a row key has {len(key)} bytes; it must have 1 to {KEY_BYTES_MAX}")


def check_columns(columns: Columns) -> None:
    """`InputError` when there are too many columns, or a name or a value is too long, or a name is empty."""
    check_column_count(len(columns))
    for name, value in columns.items():
        if not 0 < len(name) <= COLUMN_NAME_BYTES_MAX:
            raise InputError(f"a column name has {len(name)} bytes; it must have 1 to {COLUMN_NAME_BYTES_MAX}")
        if len(value) > VALUE_BYTES_MAX:
            raise InputError(f"column {name!r} has {len(value)} bytes; the limit is {VALUE_BYTES_MAX}")


def check_column_count(columns: int) -> None:
    """`InputError` when one row would have more than `COLUMNS_MAX` columns."""
    if columns > COLUMNS_MAX:
        raise InputError(f"a row would have {columns} columns; the limit is {COLUMNS_MAX}")
