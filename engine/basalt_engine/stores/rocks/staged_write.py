"""Turns mutations into one RocksDB batch: each sees the rows as the ones before it leave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rocksdict import WriteBatch

from basalt_engine.errors import CorruptionError, RowExistsError
from basalt_engine.stores.limits import check_column_count, check_mutation, check_table
from basalt_engine.stores.rocks.database import LARGE_TABLES, Database, large_name
from basalt_engine.stores.rocks.rows import LARGE_VALUE_BYTES_MIN, PackedRow, joined, packed, unpack
from basalt_engine.table import Delete, DeleteRange, Insert, Mutation, Put, TableWrite

_ABSENT = PackedRow({}, {}, 0)


class _Row(NamedTuple):
    """A row in the middle of a write; `large_values` only where this write has set them."""

    row: PackedRow
    large_values: bytes | None = None


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
            self._put(table, mutation)
        elif isinstance(mutation, Delete):
            self._delete(table, mutation)
        elif isinstance(mutation, Insert):
            if self.column(table, mutation.key, mutation.first) is not None:
                raise RowExistsError(f"row {mutation.key.hex()} of table {table} is there already")
            self._put(table, Put(*mutation))
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
        if any(start <= key < stop for start, stop in self._deleted.get(table, ())):
            return _Row(_ABSENT)
        value = self._database.get(self._database.rows(table), key)
        return _Row(_ABSENT if value is None else unpack(value))

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

    def _put(self, table: str, mutation: Put) -> None:
        key, columns = mutation
        found = self._row(table, key)
        old = found.row
        inline = dict(old.inline)
        new_large: dict[bytes, bytes] = {}
        for name, value in columns.items():
            if len(value) >= LARGE_VALUE_BYTES_MIN and table in LARGE_TABLES:
                inline.pop(name, None)
                new_large[name] = value
            else:
                inline[name] = value
        kept = [name for name in old.large if name not in columns]
        if new_large or len(kept) < len(old.large):
            large = self._large_columns(table, key, found) if kept else {}
            self._replace(table, key, old, inline, {name: large[name] for name in kept} | new_large)
        elif inline:
            self._set(table, key, _Row(PackedRow(inline, old.large, old.large_crc32c), found.large_values))

    def _delete(self, table: str, mutation: Delete) -> None:
        key, names = mutation
        found = self._row(table, key)
        old = found.row
        if not old.column_count:
            return
        if names is None:
            self._replace(table, key, old, {}, {})
            return
        inline = {name: value for name, value in old.inline.items() if name not in names}
        kept = [name for name in old.large if name not in names]
        if len(kept) < len(old.large):
            large = self._large_columns(table, key, found) if kept else {}
            self._replace(table, key, old, inline, {name: large[name] for name in kept})
        elif inline or kept:
            self._set(table, key, _Row(PackedRow(inline, old.large, old.large_crc32c), found.large_values))
        else:
            self._replace(table, key, old, {}, {})

    def _delete_range(self, table: str, mutation: DeleteRange) -> None:
        start, stop = mutation
        if start >= stop:
            return
        self._deleted.setdefault(table, []).append((start, stop))
        for changed in [item for item in self._rows if item[0] == table and start <= item[1] < stop]:
            self._rows[changed] = _Row(_ABSENT)
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
        check_column_count(row.column_count)
        handle = self._database.handle(table)
        if row.column_count:
            self.batch.put(key, packed(row.inline, row.large, row.large_crc32c), handle)
        else:
            self.batch.delete(key, handle)
        self._rows[table, key] = changed

    @staticmethod
    def _families(table: str) -> list[str]:
        return [table, large_name(table)] if table in LARGE_TABLES else [table]
