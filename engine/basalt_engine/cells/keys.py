"""Row keys of the cell table, one for each version of a cell. Format: docs/formats/cells.md.

Keys sort by row, then column, then version, the newest first. All versions of a table's generation lie in one bucket,
the base bucket of the table's prefix, so that a scan in key order is a scan of the table.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from basalt_engine.cells.names import COLUMN_BYTES_MAX, END, ROW_BYTES_MAX, escaped, unescaped
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import NAME_EXPRESSION, TABLE_MARK, base_bucket
from basalt_engine.snapshot import POINTER_MAX

POINTER_BYTES = 8  # at the end of a key; what is before them names the cell
_GENERATION_BYTES = 4
_SALTED_PREFIX = re.compile(f".{NAME_EXPRESSION}:{TABLE_MARK}{NAME_EXPRESSION}:".encode(), re.DOTALL)


class TableKeys(NamedTuple):
    """The keys of the rows of one generation of one table."""

    prefix: bytes
    generation: int
    buckets: int

    @property
    def generation_key(self) -> tuple[bytes, int]:
        return self[:2]

    @property
    def salt(self) -> int:
        """The bucket in which all of its rows lie."""
        return base_bucket(self.prefix, self.buckets)

    @property
    def start(self) -> bytes:
        """The prefix of all keys of this generation: salt, table prefix, generation number."""
        return bytes([self.salt]) + self.prefix + self.generation.to_bytes(_GENERATION_BYTES, "big")

    def row_start(self, row: bytes) -> bytes:
        """The prefix of the keys of all versions of all cells in this row."""
        return self.start + escaped(row) + END

    def cell_start(self, row: bytes, column: bytes) -> bytes:
        """The key of any version of this cell, but for the write pointer at its end."""
        return self.row_start(row) + escaped(column) + END

    def cell_key(self, row: bytes, column: bytes, write_pointer: int) -> bytes:
        """The key of the version that this writer wrote of the cell."""
        return self.cell_start(row, column) + inverted(write_pointer)

    def bound(self, row: bytes) -> bytes:
        """The first key that rows from `row` on can have; `row` may be empty, or longer than a row may be."""
        return self.start + escaped(row)


class CellKey(NamedTuple):
    """A key of the cell table, taken apart."""

    salt: int
    prefix: bytes
    generation: int
    row: bytes
    column: bytes
    write_pointer: int

    @classmethod
    def decode(cls, key: bytes) -> CellKey:
        """`CorruptionError` when the bytes are no key of the cell table."""
        found = _SALTED_PREFIX.match(key)
        if found is None or len(key) < found.end() + _GENERATION_BYTES:
            raise CorruptionError(f"cell key {key.hex()} has no prefix of a table and generation")
        end = found.end() + _GENERATION_BYTES
        generation = int.from_bytes(key[found.end() : end], "big")
        return cls(key[0], key[1 : found.end()], generation, *cell_of(key, end))

    def encode(self) -> bytes:
        start = bytes([self.salt]) + self.prefix + self.generation.to_bytes(_GENERATION_BYTES, "big")
        return start + escaped(self.row) + END + escaped(self.column) + END + inverted(self.write_pointer)


def inverted(write_pointer: int) -> bytes:
    """The end of a key: a later writer's sorts first."""
    assert 0 < write_pointer <= POINTER_MAX, write_pointer
    return (POINTER_MAX - write_pointer).to_bytes(POINTER_BYTES, "big")


def cell_of(key: bytes, start: int) -> tuple[bytes, bytes, int]:
    """Row, column and write pointer of a key whose prefix and generation end at `start`; `CorruptionError` otherwise."""
    # Within a name 00 is always followed by ff, so the first 00 01 is its end.
    row_end = key.find(END, start)
    column_end = key.find(END, row_end + len(END)) if row_end >= 0 else -1
    if column_end < 0 or len(key) != column_end + len(END) + POINTER_BYTES:
        raise CorruptionError(
            f"cell key {key.hex()} does not have a row, a column and {POINTER_BYTES} bytes behind them"
        )
    row, column = unescaped(key[start:row_end]), unescaped(key[row_end + len(END) : column_end])
    write_pointer = POINTER_MAX - int.from_bytes(key[-POINTER_BYTES:], "big")
    if not row or len(row) > ROW_BYTES_MAX or not column or len(column) > COLUMN_BYTES_MAX or write_pointer <= 0:
        raise CorruptionError(f"cell key {key.hex()} has a row, a column or a writer that there cannot be")
    return row, column, write_pointer
