"""Rows as RocksDB keys and values, and mutations of them as one batch. Format and a worked example: docs/formats/rocks-store.md.

A row is one key with one *packed row*. In tables that hold message payloads its large values lie back to back under the
same key in a second column family, and the packed row says how long each is and what their CRC-32C must be. So a row's
small columns are read, changed and counted without touching its payload, and a payload is read without being copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c
from rocksdict import WriteBatch

from basalt_engine.errors import CorruptionError, RowExistsError
from basalt_engine.stores.rocks.database import LARGE_TABLES, Database, large_name
from basalt_engine.table import (
    Columns,
    Delete,
    DeleteRange,
    Insert,
    Mutation,
    Put,
    TableWrite,
    check_column_count,
    check_mutation,
    check_table,
)

FORMAT_VERSION = 1
LARGE_VALUE_BYTES_MIN = 4 << 10  # from here on a value costs less in a blob file than in every compaction

_HEADER_BYTES = 3  # version, inline columns, large columns
_LENGTH_BYTES = 4
_CRC_BYTES = 4
_NO_LARGE: dict[bytes, int] = {}  # shared by all rows without; nobody changes it


class PackedRow(NamedTuple):
    """A row as its packed value describes it.

    `inline` are the columns kept in the packed value itself; `large` the length in bytes of each other column, in the
    order in which their values follow one another; `large_crc32c` is over all of these.
    """

    inline: dict[bytes, bytes]
    large: dict[bytes, int]
    large_crc32c: int

    @property
    def column_count(self) -> int:
        return len(self.inline) + len(self.large)

    def split(self, large_values: bytes | None) -> dict[bytes, bytes] | None:
        """The large columns, given their values back to back; None when these are not what the row was written with."""
        if large_values is None or len(large_values) != sum(self.large.values()):
            return None
        if crc32c(large_values) != self.large_crc32c:
            return None
        columns = {}
        at = 0
        for name, length in self.large.items():
            # The slice of a whole bytes object is that object: the usual single payload is not copied.
            columns[name] = large_values[at : at + length]
            at += length
        return columns


def packed(inline: Mapping[bytes, bytes], large: Mapping[bytes, int], large_crc32c: int) -> bytes:
    """The packed value of a row with these inline columns and these large ones."""
    parts = [bytes((FORMAT_VERSION, len(inline), len(large)))]
    for name, value in inline.items():
        parts += (bytes((len(name),)), name, len(value).to_bytes(_LENGTH_BYTES), value)
    for name, length in large.items():
        parts += (bytes((len(name),)), name, length.to_bytes(_LENGTH_BYTES))
    if large:
        parts.append(large_crc32c.to_bytes(_CRC_BYTES))
    return b"".join(parts)


def joined(large_values: Mapping[bytes, bytes]) -> tuple[bytes, int]:
    """The large values back to back (a single one is not copied), and their CRC-32C."""
    joined_values = b"".join(large_values.values())
    return joined_values, crc32c(joined_values)


def unpack(value: bytes) -> PackedRow:
    """The row in a packed value; `CorruptionError` when it is none."""
    try:
        if value[0] != FORMAT_VERSION:
            raise CorruptionError(f"a packed row has format {value[0]}, this program reads {FORMAT_VERSION}")
        inline_count, large_count = value[1], value[2]
        offset = _HEADER_BYTES
        inline: dict[bytes, bytes] = {}
        for _ in range(inline_count):
            name_stop = offset + 1 + value[offset]
            start = name_stop + _LENGTH_BYTES
            stop = start + int.from_bytes(value[name_stop:start])
            inline[value[offset + 1 : name_stop]] = value[start:stop]
            offset = stop
        if not large_count and offset == len(value) and len(inline) == inline_count:
            return PackedRow(inline, _NO_LARGE, 0)
        large: dict[bytes, int] = {}
        for _ in range(large_count):
            name_stop = offset + 1 + value[offset]
            stop = name_stop + _LENGTH_BYTES
            large[value[offset + 1 : name_stop]] = int.from_bytes(value[name_stop:stop])
            offset = stop
    except IndexError:
        raise CorruptionError(f"a packed row of {len(value)} bytes ends too early") from None
    # A slice past the end is silently short, so only the total tells whether every part was there.
    if offset + _CRC_BYTES != len(value) or len(inline) != inline_count or len(large) != large_count or not large:
        raise CorruptionError(f"a packed row of {len(value)} bytes does not end where its lengths say")
    return PackedRow(inline, large, int.from_bytes(value[offset:]))


def row_bytes(value: bytes) -> int:
    """The bytes of a packed row and its large values. Only a row with several large values is unpacked for it."""
    if not value[2]:
        return len(value)
    if value[2] == 1:  # the one length lies before the checksum
        return len(value) + int.from_bytes(value[-_CRC_BYTES - _LENGTH_BYTES : -_CRC_BYTES])
    return len(value) + sum(unpack(value).large.values())


_ABSENT = PackedRow({}, {}, 0)


class _Row(NamedTuple):
    """A row in the middle of a write; `large_values` only where this write has set them."""

    row: PackedRow
    large_values: bytes | None = None


_NO_ROW = _Row(_ABSENT)


class StagedWrite:
    """A batch in the making. The caller has the store's write lock, so that what is read here stays as it is."""

    def __init__(self, database: Database) -> None:
        self.batch = WriteBatch(raw_mode=True)
        self._database = database
        self._rows: dict[tuple[str, bytes], _Row] = {}  # rows that this write has changed
        self._deleted: dict[str, list[tuple[bytes, bytes]]] = {}  # ranges that it has deleted, by table

    def add(self, write: TableWrite) -> None:
        """Add the mutations of one table; `InputError` when one of them is over a limit."""
        table, mutations = write
        check_table(table)
        for mutation in mutations:
            self._add(table, mutation)

    def _add(self, table: str, mutation: Mutation) -> None:
        check_mutation(mutation)
        if isinstance(mutation, Put):
            self._put(table, mutation.key, mutation.columns, self._row(table, mutation.key))
        elif isinstance(mutation, Delete):
            self._delete(table, mutation)
        elif isinstance(mutation, Insert):
            found, first = self._row(table, mutation.key), mutation.first
            if first in found.row.inline or first in found.row.large:
                raise RowExistsError(f"row {mutation.key.hex()} of table {table} is there already")
            self._put(table, mutation.key, mutation.columns, found)
        else:
            self._delete_range(table, mutation)

    def column(self, table: str, key: bytes, name: bytes) -> bytes | None:
        """The value of a row's column as this write leaves it so far; None where it is absent."""
        found = self._row(table, key)
        if name in found.row.large:
            return self._large_columns(table, key, found)[name]
        return found.row.inline.get(name)

    def _row(self, table: str, key: bytes) -> _Row:
        found = self._rows.get((table, key))
        if found is not None:
            return found
        if self._deleted and any(start <= key < stop for start, stop in self._deleted.get(table, ())):
            return _NO_ROW
        value = self._database.get(self._database.rows(table), key)
        return _NO_ROW if value is None else _Row(unpack(value))

    def _large_columns(self, table: str, key: bytes, found: _Row) -> dict[bytes, bytes]:
        if not found.row.large:
            return {}
        values = found.large_values
        if values is None:
            values = self._database.get(self._database.large(table), key)
        columns = found.row.split(values)
        if columns is None:
            raise CorruptionError(f"the large values of row {key.hex()} of table {table} are missing or damaged")
        return columns

    def _put(self, table: str, key: bytes, columns: Columns, found: _Row) -> None:
        if found is _NO_ROW and (
            table not in LARGE_TABLES or max(map(len, columns.values()), default=0) < LARGE_VALUE_BYTES_MIN
        ):
            if columns:  # most rows are new, and small: there is nothing to merge, and their columns were counted
                self.batch.put(key, packed(columns, _NO_LARGE, 0), self._database.handle(table))
                self._rows[table, key] = _Row(PackedRow(dict(columns), _NO_LARGE, 0))
            return
        inline = dict(found.row.inline)
        new_large: dict[bytes, bytes] = {}
        for name, value in columns.items():
            if len(value) >= LARGE_VALUE_BYTES_MIN and table in LARGE_TABLES:
                inline.pop(name, None)
                new_large[name] = value
            else:
                inline[name] = value
        self._change(table, key, found, inline, [name for name in found.row.large if name not in columns], new_large)

    def _delete(self, table: str, mutation: Delete) -> None:
        key, names = mutation
        found = self._row(table, key)
        inline: dict[bytes, bytes] = {}
        kept: list[bytes] = []
        if names is not None:
            inline = {name: value for name, value in found.row.inline.items() if name not in names}
            kept = [name for name in found.row.large if name not in names]
        self._change(table, key, found, inline, kept, {})

    def _change(
        self,
        table: str,
        key: bytes,
        found: _Row,
        inline: dict[bytes, bytes],
        kept: list[bytes],
        large: dict[bytes, bytes],
    ) -> None:
        """Leave the row with these inline columns, those of its large ones that are kept, and new large ones."""
        old = found.row
        if large or len(kept) < len(old.large):
            before = self._large_columns(table, key, found) if kept else {}
            self._replace(table, key, old, inline, {name: before[name] for name in kept} | large)
        elif inline or kept:
            self._set(table, key, _Row(PackedRow(inline, old.large, old.large_crc32c), found.large_values))
        elif old.inline:
            self._replace(table, key, old, {}, {})

    def _delete_range(self, table: str, mutation: DeleteRange) -> None:
        start, stop = mutation
        if start >= stop:
            return
        self._deleted.setdefault(table, []).append((start, stop))
        for changed in [item for item in self._rows if item[0] == table and start <= item[1] < stop]:
            self._rows[changed] = _NO_ROW
        for family in self._families(table):
            self.batch.delete_range(start, stop, self._database.handle(family))

    def _replace(
        self, table: str, key: bytes, old: PackedRow, inline: dict[bytes, bytes], large: Mapping[bytes, bytes]
    ) -> None:
        """Put these inline and large columns in place of the old row's; a row with neither is deleted."""
        if large:
            values, crc = joined(large)
            self.batch.put(key, values, self._database.handle(large_name(table)))
            lengths = {name: len(value) for name, value in large.items()}
            self._set(table, key, _Row(PackedRow(inline, lengths, crc), values))
            return
        if old.large:
            self.batch.delete(key, self._database.handle(large_name(table)))
        self._set(table, key, _Row(PackedRow(inline, {}, 0)))

    def _set(self, table: str, key: bytes, changed: _Row) -> None:
        row = changed.row
        columns = row.column_count
        check_column_count(columns)
        handle = self._database.handle(table)
        if columns:
            self.batch.put(key, packed(row.inline, row.large, row.large_crc32c), handle)
        else:
            self.batch.delete(key, handle)
        self._rows[table, key] = changed

    @staticmethod
    def _families(table: str) -> list[str]:
        return [table, large_name(table)] if table in LARGE_TABLES else [table]
