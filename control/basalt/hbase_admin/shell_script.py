"""The same installation as lines for `hbase shell`, for operators whose Thrift gateways may not make tables.

In single quotes Ruby leaves backslashes and dollars alone. The shell itself reads `\\x0A` in a split key as a byte, with
upper-case digits only; in double quotes Ruby would make a character of it, and of one over 0x7F two bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from basalt_engine.stores.hbase.tables import FAMILY, FAMILY_OPTIONS, TableLayout

_BARE = {"VERSIONS", "MIN_VERSIONS"}  # numbers to the shell; the rest is text
_FOREVER = "2147483647"


def create_lines(layouts: Sequence[TableLayout]) -> list[str]:
    """One `create` for each table."""
    return [create_line(layout.name, layout.attributes, layout.splits) for layout in layouts]


def create_line(table: str, attributes: Mapping[str, str], splits: Sequence[bytes]) -> str:
    """The `create` of one table with Basalt's family."""
    options = ", ".join(f"{name} => {_option(name, value)}" for name, value in FAMILY_OPTIONS.items())
    parts = [f"METADATA => {{{_pairs(attributes)}}}"]
    if splits:
        parts.insert(0, f"SPLITS => [{', '.join(split_key(split) for split in splits)}]")
    return f"create {quoted(table)}, {{NAME => {quoted(FAMILY)}, {options}}}, {{{', '.join(parts)}}}"


def alter_line(table: str, attributes: Mapping[str, str]) -> str:
    """An `alter` that sets these attributes of a table and leaves the others.

    METADATA, and not the shell's own `'coprocessor' => …`, which would add a second coprocessor to the first.
    """
    return f"alter {quoted(table)}, {{METADATA => {{{_pairs(attributes)}}}}}"


def quoted(text: str) -> str:
    """A Ruby string that means exactly `text`."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def split_key(key: bytes) -> str:
    """A Ruby string that the shell reads as these bytes."""
    return "'" + "".join(f"\\x{byte:02X}" for byte in key) + "'"


def _pairs(attributes: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} => {quoted(value)}" for name, value in attributes.items())


def _option(name: str, value: str) -> str:
    if name in _BARE:
        return value
    return quoted("FOREVER" if value == _FOREVER else value)
