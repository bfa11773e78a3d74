"""Transactional tables: created, deleted, and created again as a new generation.

A table's row lies in the metadata table beside those of topics, under a name that no topic can have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from basalt.catalog.catalog import Catalog, EntryName, check_name
from basalt.cluster.shard_gate import ShardGate
from basalt.errors import CorruptionError, InvalidPropertyError, TableExistsError, TableNotFoundError
from basalt.runtime.group_commit import NotLoadedError
from basalt_engine.cells.keys import TableKeys
from basalt_engine.clock import Clock
from basalt_engine.keys import is_table_prefix, table_prefix
from basalt_engine.metadata import TopicMetadata
from basalt_engine.retention import OnInvalid
from basalt_engine.stores.shards import shard_of
from basalt_engine.table import Store

CONFLICTS = ("row", "cell", "none")  # what two transactions must both change for the second to fail
CONFLICT_DEFAULT = "row"
FOREVER_MS = (1 << 63) - 1
KIND = "table"


class TableName(EntryName):
    """A namespace and a table's name in it; make it with `table_name`, which checks both."""

    __slots__ = ()


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


class TableCatalog(Catalog[TableName, HostedTable]):
    """The tables of one store. An entry that was read stays in memory: only the owner of its shard changes a table."""

    word = "table"
    absent_error, exists_error = TableNotFoundError, TableExistsError
    exists_hint = "delete it first, or use it as it is"

    def __init__(self, store: Store, clock: Clock, buckets: int, gate: ShardGate | None = None) -> None:
        super().__init__(store, clock, buckets)
        self.gate = gate or ShardGate(clock)
        self._known: dict[TableName, HostedTable] = {}

    async def create(self, title: TableName, conflict: str = CONFLICT_DEFAULT) -> HostedTable:
        """A new table, or a new and empty generation of one that was deleted; `TableExistsError` when it is there."""
        if conflict not in CONFLICTS:
            raise InvalidPropertyError(
                f"conflict is {conflict[:40]!r}", field="conflict", hint=f"give one of {', '.join(CONFLICTS)}"
            )

        def describe(generation: int, now_ms: int) -> TopicMetadata:
            others = {"kind": KIND, "conflict": conflict}
            return TopicMetadata(generation, FOREVER_MS, OnInvalid.DROP, 1, 1, now_ms, now_ms, others)

        async with self.gate.visit(self._prefix(title)), self.changing(title):
            table = self._known[title] = await self._create(title, describe)
            return table

    async def get(self, title: TableName) -> HostedTable:
        """The table; `TableNotFoundError` when it does not exist or was deleted."""
        known = self._known.get(title)
        if known is not None:
            return known
        async with self.gate.visit(self._prefix(title)), self.changing(title):
            return await self._get(title)

    def is_known(self, table: HostedTable) -> bool:
        """True while this is how memory has the table: it was neither changed nor forgotten since it was got."""
        return self._known.get(table.title) is table

    def loaded(self, title: TableName) -> HostedTable:
        """In a stage, before it changes anything: the same at once. `NotLoadedError` when it is to be read first."""
        known = self._known.get(title)
        if known is None:
            raise NotLoadedError(partial(self._load, title))
        return known

    async def delete(self, title: TableName) -> HostedTable:
        """Delete the table. Its cells are out of reach at once, and are removed by retention later."""
        async with self.gate.visit(self._prefix(title)), self.changing(title):
            table = await self._get(title)
            try:
                await self._delete(table)
            finally:
                self._known.pop(title, None)  # also after a write that failed: it may have taken effect
            return table

    def forget(self, shards: Collection[int]) -> None:
        """Whoever needs a table of these shards comes to the gate from now on."""
        for title in [title for title, table in self._known.items() if shard_of(table.keys.prefix) in shards]:
            del self._known[title]

    def at(self, title: TableName, metadata: TopicMetadata) -> HostedTable:
        """The table that this metadata describes; a deleted one under its last generation."""
        return HostedTable(title, metadata, TableKeys(self._prefix(title), abs(metadata.generation), self.buckets))

    async def _load(self, title: TableName) -> Callable[[], None]:
        await self.get(title)
        return _keep_all

    async def _get(self, title: TableName) -> HostedTable:
        """The table; its lock is held."""
        table = self._known.get(title)
        if table is None:
            table = self._known[title] = await self.read(title)
        return table

    def _prefix(self, title: EntryName) -> bytes:
        return table_prefix(*title)

    def _title_of(self, prefix: bytes) -> TableName:
        return table_title_of(prefix)

    def _scan(self, start: bytes, namespace: str | None) -> Iterator[tuple[bytes, TopicMetadata]]:
        return self._table.scan_tables(start, namespace)


def _keep_all() -> None:
    """Tables that were read stay in memory until they are deleted."""


def table_title_of(prefix: bytes) -> TableName:
    """The names in a table prefix; `CorruptionError` when it is none."""
    if not is_table_prefix(prefix):
        raise CorruptionError(f"{prefix.hex()} is no table prefix")
    namespace, name = prefix.decode("ascii").split(":")[:2]
    return TableName(namespace, name.removeprefix("~"))
