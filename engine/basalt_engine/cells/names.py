"""A cell's row and column as bytes: their limits, and how they stand in keys and change sets. Format: docs/formats/cells.md.

Both may be any bytes. In a key each 00 becomes 00 ff and 00 01 ends the name, so that keys sort by row, then by column,
and no name is mistaken for the beginning of another.
"""

from __future__ import annotations

import re

from basalt_engine.errors import InputError

ROW_BYTES_MAX = 4_096
COLUMN_BYTES_MAX = 1_024
VALUE_BYTES_MAX = 1 << 20
CELLS_MAX = 10_000  # in one call that writes
END = b"\0\x01"  # behind a name in a key

_CHANGE = re.compile(rb"([\w.-]+):~([\w.-]+):.{4}(.+)", re.DOTALL)  # of `change_key`: namespace, table, row and column


def escaped(name: bytes) -> bytes:
    """The name as it stands in a key, without its end."""
    return name.replace(b"\0", b"\0\xff")


def unescaped(data: bytes) -> bytes | None:
    """The name that `escaped` made these bytes of; None when it made them of none."""
    if b"\0" not in data:
        return data
    if data.count(b"\0") != data.count(b"\0\xff"):
        return None
    return data.replace(b"\0\xff", b"\0")


def change_key(prefix: bytes, generation: int, row: bytes, column: bytes | None = None) -> bytes:
    """The entry of a change set for a write to this row, or to this cell of it: two equal entries are in conflict."""
    changed = prefix + generation.to_bytes(4, "big") + escaped(row)
    return changed if column is None else changed + END + escaped(column)


def change_text(key: bytes) -> str | None:
    """The row or cell of a key of `change_key`, for people: "row 'r' of table shop:stock"; None for other keys."""
    found = _CHANGE.fullmatch(key)
    if found is None:
        return None
    namespace, table, changed = found.groups()
    names = [unescaped(part) for part in changed.split(END)]
    if len(names) > 2 or not all(names):
        return None
    row, *column = [f"'{_printable(name)}'" for name in names if name]
    what = f"cell {column[0]} of row {row}" if column else f"row {row}"
    return f"{what} of table {namespace.decode('ascii')}:{table.decode('ascii')}"


def check_row(row: bytes) -> bytes:
    """The row itself; `InputError` when its length is out of bounds."""
    return _check("row", row, ROW_BYTES_MAX)


def check_column(column: bytes) -> bytes:
    """The column itself; `InputError` when its length is out of bounds."""
    return _check("column", column, COLUMN_BYTES_MAX)


def check_value(value: bytes) -> bytes:
    """The value itself; `InputError` when it is too long. It may be empty."""
    if len(value) > VALUE_BYTES_MAX:
        raise InputError(
            f"a value has {len(value)} bytes, the limit is {VALUE_BYTES_MAX}",
            field="value",
            hint="split it over several columns",
        )
    return value


def _printable(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def _check(field: str, name: bytes, bytes_max: int) -> bytes:
    if not 0 < len(name) <= bytes_max:
        raise InputError(
            f"a {field} has {len(name)} bytes; it must have 1 to {bytes_max}",
            field=field,
            hint=f"choose another {field}",
        )
    return name
