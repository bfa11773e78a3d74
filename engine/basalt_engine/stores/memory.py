"""The store that keeps its tables in memory: for trying Basalt out, embedded use without a disk, and tests. Its rows go with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from sortedcontainers import SortedDict

from basalt_engine.errors import FencedError, InputError, RowExistsError, StoreError
from basalt_engine.stores.shards import check_epochs, row_shard
from basalt_engine.table import (
    TABLE_NAMES,
    Columns,
    DeleteRange,
    Insert,
    Mutation,
    Put,
    Row,
    TableWrite,
    check_column_count,
    check_columns,
    check_key,
    check_mutation,
    check_table,
    limited,
)

SCAN_CHUNK_ROWS = 256  # a scan holds the lock for this many rows at a time, so that writers get their turn


class MemoryTable:
    """One table of a `MemoryStore`. Rows are replaced as a whole, never changed, so readers keep what they were given."""

    def __init__(self, name: str, store: MemoryStore, rows: SortedDict) -> None:
        self.name = name
        self._store = store
        self._rows = rows  # key: its columns, read-only

    def get(self, key: bytes) -> Columns | None:
        with self._store.locked():
            found: Columns | None = self._rows.get(key)
            return found

    def write(self, mutations: Sequence[Mutation]) -> None:
        """Apply the mutations in order, as one batch where the store is atomic."""
        self._store.write([TableWrite(self.name, mutations)])

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool = False,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        columns: Sequence[bytes] | None = None,
    ) -> Iterator[Row]:
        chunk_rows = SCAN_CHUNK_ROWS if rows_max is None else min(rows_max, SCAN_CHUNK_ROWS)
        rows = self._read(start, stop, reverse, chunk_rows)
        if columns is not None:
            rows = _narrowed(rows, columns)
        return limited(rows, rows_max, bytes_max)

    def _read(self, start: bytes, stop: bytes | None, reverse: bool, chunk_rows: int) -> Iterator[Row]:
        inclusive = (True, False)
        while stop is None or start < stop:
            with self._store.locked():
                keys = self._rows.irange(start, stop, inclusive, reverse)
                rows = [Row(key, self._rows[key]) for key in islice(keys, chunk_rows)]
            yield from rows
            if len(rows) < chunk_rows:
                return
            if reverse:
                stop = rows[-1].key
            else:
                start, inclusive = rows[-1].key, (False, False)

    def check_and_write(self, key: bytes, column: bytes, expected: bytes | None, columns: Columns) -> bool:
        check_key(key)
        check_columns(columns)
        with self._store.locked():
            self._store.check_owner(self.name, [key])
            row = self._rows.get(key, {})
            if row.get(column) != expected:
                return False
            self.replace(self.staged([Put(key, columns)], {}))
            return True

    def size_bytes(self, start: bytes, stop: bytes) -> int:
        """The bytes of the range's keys, names and values: exact, in time that grows with its rows."""
        rows = self._read(start, stop, False, SCAN_CHUNK_ROWS)
        return sum(row.size_bytes + sum(map(len, row.columns)) for row in rows)

    def staged(
        self, mutations: Sequence[Mutation], before: Mapping[bytes, Columns | None]
    ) -> dict[bytes, Columns | None]:
        """The rows as these mutations leave them after those staged `before`; None: deleted. The caller has the lock."""
        rows = dict(before)
        for mutation in mutations:
            check_mutation(mutation)
            if isinstance(mutation, DeleteRange):
                self._stage_range(rows, mutation)
                continue
            key = mutation.key
            row = rows[key] if key in rows else self._rows.get(key)
            if isinstance(mutation, Insert) and row is not None and mutation.first in row:
                raise RowExistsError(f"row {key.hex()} of table {self.name} is there already")
            if isinstance(mutation, Put | Insert):
                columns = {**(row or {}), **mutation.columns}
                check_column_count(len(columns))
            elif mutation.columns is None or row is None:
                columns = {}
            else:
                columns = {name: value for name, value in row.items() if name not in mutation.columns}
            rows[key] = MappingProxyType(columns) if columns else None
        return rows

    def _stage_range(self, rows: dict[bytes, Columns | None], mutation: DeleteRange) -> None:
        start, stop = mutation
        if start < stop:
            found = list(self._rows.irange(start, stop, (True, False)))
            self._store.check_owner(self.name, found)
            rows.update(dict.fromkeys(found))
            rows.update({key: None for key in rows if start <= key < stop})

    def replace(self, rows: Mapping[bytes, Columns | None]) -> None:
        """Put staged rows in place; the caller has the lock."""
        for key, columns in rows.items():
            if columns is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = columns


def _narrowed(rows: Iterator[Row], columns: Sequence[bytes]) -> Iterator[Row]:
    for row in rows:
        kept = {name: row.columns[name] for name in columns if name in row.columns}
        if kept:
            yield Row(row.key, kept)


class _Shared:
    """The rows, and the epochs of leader and shards, shared by all handles of the same tables."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows = {name: SortedDict() for name in TABLE_NAMES}
        self.epoch = 0  # of the newest leader
        self.shards: dict[int, int] = {}  # epoch of the newest owner, by shard


class MemoryStore:
    """A set of tables in memory. With `atomic=False` it promises no more than HBase does: one row at a time."""

    kind = "memory"
    remote = False
    applies_retention = False
    busy = False

    def __init__(self, atomic: bool = True) -> None:
        self.atomic = atomic
        self._open(_Shared())

    def _open(self, shared: _Shared) -> None:
        self._shared = shared
        self._epoch = 0
        self._shards: dict[int, int] = {}
        self._lock = shared.lock
        self._tables = {name: MemoryTable(name, self, rows) for name, rows in shared.rows.items()}
        self._closed = False

    def another(self) -> MemoryStore:
        """The same tables as a second process would have them open, which leads or is led on its own."""
        made = MemoryStore.__new__(MemoryStore)
        made.atomic = self.atomic
        made._open(self._shared)
        return made

    def lead(self, epoch: int) -> None:
        """Write as the leader of this epoch; writes of other handles with a lower one are refused."""
        with self.locked():
            if epoch < self._shared.epoch:
                raise FencedError(f"epoch {epoch} is over: the store's leader has epoch {self._shared.epoch}")
            self._epoch = self._shared.epoch = epoch

    def take(self, epochs: Mapping[int, int]) -> None:
        """Write rows of these shards under these epochs; writes of other handles under lower ones are refused."""
        check_epochs(epochs)
        with self.locked():
            for shard, epoch in epochs.items():
                if epoch < self._shared.shards.get(shard, 0):
                    raise FencedError(self._over(shard, epoch))
            self._shards.update(epochs)
            self._shared.shards.update(epochs)

    def _over(self, shard: int, epoch: int) -> str:
        return f"epoch {epoch} of shard {shard} is over: its owner has epoch {self._shared.shards[shard]}"

    def check_owner(self, table: str, keys: Iterable[bytes]) -> None:
        """`FencedError` when another handle leads, or owns one of these rows, with a higher epoch; the caller has the lock.

        A handle that never led and took no shard is no owner's, and writes: else nobody could take the lease record over.
        """
        if not self._epoch and not self._shards:
            return
        for key in keys:
            shard = row_shard(table, key)
            if shard is None:
                if 0 < self._epoch < self._shared.epoch:
                    raise FencedError(f"epoch {self._epoch} is over: the store's leader has epoch {self._shared.epoch}")
            elif shard not in self._shards:
                raise FencedError(f"row {key.hex()} is of shard {shard}, which this server has not taken")
            elif self._shards[shard] < self._shared.shards[shard]:
                raise FencedError(self._over(shard, self._shards[shard]))

    def locked(self) -> threading.Lock:
        """The lock to hold while rows are read or changed; `StoreError` when the store is closed."""
        if self._closed:
            raise StoreError("the memory store is closed, and its rows are gone", hint="open a new store")
        return self._lock

    def table(self, name: str) -> MemoryTable:
        check_table(name)
        self.locked()
        return self._tables[name]

    def write(self, writes: Sequence[TableWrite]) -> None:
        """Apply the writes in order: all or nothing when `atomic`, else row by row up to the first that is refused."""
        if self.atomic:
            self._apply(writes)
            return
        for name, mutations in writes:
            for mutation in mutations:
                self._apply([TableWrite(name, [mutation])])

    def _apply(self, writes: Sequence[TableWrite]) -> None:
        staged: dict[MemoryTable, dict[bytes, Columns | None]] = {}
        with self.locked():
            for name, mutations in writes:
                self.check_owner(name, (each.key for each in mutations if not isinstance(each, DeleteRange)))
                table = self.table(name)
                staged[table] = table.staged(mutations, staged.get(table, {}))
            for table, rows in staged.items():
                table.replace(rows)

    def checkpoint(self, directory: Path) -> None:
        """`InputError`: there are no files to copy."""
        raise InputError(
            f"a memory store cannot be copied into {directory}", hint="use the store `rocks` for what is to be kept"
        )

    def close(self) -> None:
        """Forget all rows; closing twice is fine."""
        self._closed = True
        self._tables = {}
