"""Which transactional tables there are: created, deleted, and created again as a new generation.

A table's row lies in the metadata table beside those of topics, under a name that no topic can have. This server is the
only one that changes tables, so what it has read once it may keep in memory. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from basalt.catalog.topics import check_name
from basalt.errors import (
    ConflictError,
    CorruptionError,
    InvalidPropertyError,
    TableExistsError,
    TableNotFoundError,
)
from basalt.runtime.group_commit import NotLoadedError
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.cells.keys import TableKeys
from basalt_engine.clock import Clock
from basalt_engine.keys import GENERATION_MAX, is_table_prefix, table_prefix
from basalt_engine.metadata import MetadataTable, TopicMetadata
from basalt_engine.retention import OnInvalid
from basalt_engine.table import Store

CONFLICTS = ("row", "cell", "none")  # what two transactions must both change for the second to fail
CONFLICT_DEFAULT = "row"
FOREVER_MS = (1 << 63) - 1
KIND = "table"


class TableName(NamedTuple):
    """A namespace and a table's name in it; make it with `table_name`, which checks both."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"


def table_name(namespace: str, name: str) -> TableName:
    """The checked pair; `InvalidNameError` when one of them is no name."""
    return TableName(check_name(namespace, "namespace"), check_name(name, "table"))


class HostedTable(NamedTuple):
    """One generation of a table."""

    title: TableName
    metadata: TopicMetadata
    keys: TableKeys

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def conflict(self) -> str:
        """At which level the changes of two transactions collide: one of `CONFLICTS`."""
        return self.metadata.others.get("conflict", CONFLICT_DEFAULT)


class Catalog:
    """The tables of one store."""

    def __init__(self, store: Store, clock: Clock, buckets: int) -> None:
        self._rows = MetadataTable(store.table(MetadataTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._buckets = buckets
        self._known: dict[TableName, HostedTable] = {}
        self._locks: WeakValueDictionary[TableName, asyncio.Lock] = WeakValueDictionary()

    async def create(self, title: TableName, conflict: str = CONFLICT_DEFAULT) -> HostedTable:
        """A new table, or a new and empty generation of one that was deleted; `TableExistsError` when it is there."""
        if conflict not in CONFLICTS:
            raise InvalidPropertyError(
                f"conflict is {conflict[:40]!r}", field="conflict", hint=f"give one of {', '.join(CONFLICTS)}"
            )
        prefix = table_prefix(*title)
        async with self._changing(title):
            old = await self._call(self._rows.get, prefix)
            if old is not None and old.generation > 0:
                raise _exists(title)
            generation = 1 if old is None else -old.generation + 1
            if generation > GENERATION_MAX:
                raise ConflictError(f"table {title} was created {GENERATION_MAX} times; choose another name")
            now_ms = self._clock.now_ms()
            others = {"kind": KIND, "conflict": conflict}
            new = TopicMetadata(generation, FOREVER_MS, OnInvalid.DROP, 1, 1, now_ms, now_ms, others)
            if not await self._call(self._rows.replace, prefix, old, new):
                raise _exists(title)
            return self._remember(title, new)

    async def get(self, title: TableName) -> HostedTable:
        """The table; `TableNotFoundError` when it does not exist or was deleted."""
        known = self._known.get(title)
        if known is not None:
            return known
        async with self._changing(title):
            return await self._read(title)

    def known(self, title: TableName) -> HostedTable:
        """In a stage, before it changes anything: the same at once. `NotLoadedError` when it is to be read first."""
        known = self._known.get(title)
        if known is None:
            raise NotLoadedError(partial(self._load, title))
        return known

    async def _load(self, title: TableName) -> Callable[[], None]:
        await self.get(title)
        return _keep_all

    async def delete(self, title: TableName) -> HostedTable:
        """Delete the table. Its cells are out of reach at once, and are removed by retention later."""
        async with self._changing(title):
            table = await self._read(title)
            new = table.metadata._replace(generation=-table.generation, updated_ms=self._clock.now_ms())
            try:
                deleted = await self._call(self._rows.replace, table_prefix(*title), table.metadata, new)
            finally:
                self._known.pop(title, None)  # also after a write that failed: it may have taken effect
            if not deleted:
                raise ConflictError(f"table {title} was changed by another call at the same time", hint="try again")
            return table

    async def list(self, namespace: str) -> list[str]:
        """Names of the tables in a namespace, sorted."""
        check_name(namespace, "namespace")
        rows = await self._call(lambda: list(self._rows.scan_tables(namespace=namespace)))
        return sorted(table_title_of(prefix).name for prefix, metadata in rows if metadata.generation > 0)

    def _changing(self, title: TableName) -> asyncio.Lock:
        """Held while a table is changed or read: a read that takes long must not bring back what was changed meanwhile."""
        lock = self._locks.get(title)
        if lock is None:
            lock = self._locks[title] = asyncio.Lock()
        return lock

    async def _read(self, title: TableName) -> HostedTable:
        known = self._known.get(title)
        return known or self._found(title, await self._call(self._rows.get, table_prefix(*title)))

    def _found(self, title: TableName, metadata: TopicMetadata | None) -> HostedTable:
        if metadata is None or metadata.generation < 0:
            raise TableNotFoundError(
                f"table {title} does not exist", field="table", hint="create it, or check the name"
            )
        return self._remember(title, metadata)

    def _remember(self, title: TableName, metadata: TopicMetadata) -> HostedTable:
        keys = TableKeys(table_prefix(*title), metadata.generation, self._buckets)
        table = self._known[title] = HostedTable(title, metadata, keys)
        return table


def _keep_all() -> None:
    """Tables that were read stay in memory until they are deleted."""


def table_title_of(prefix: bytes) -> TableName:
    """The names in a table prefix; `CorruptionError` when it is none."""
    if not is_table_prefix(prefix):
        raise CorruptionError(f"{prefix.hex()} is no table prefix")
    namespace, name = prefix.decode("ascii").split(":")[:2]
    return TableName(namespace, name.removeprefix("~"))


def _exists(title: TableName) -> TableExistsError:
    return TableExistsError(f"table {title} exists already", field="table", hint="delete it first, or use it as it is")
