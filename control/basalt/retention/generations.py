"""Removes the rows of past generations, of topics that were deleted or created again.

Their readers are long gone: a generation is out of reach from the moment its topic is deleted. Up to which generation a
topic was swept is kept as a system entry (kind `swept`, docs/formats/system-table.md), so that nothing is done twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import msgspec

from basalt.catalog.topics import TopicName
from basalt.errors import TopicNotFoundError
from basalt.messaging import markers
from basalt.messaging.index import topic_stats as usage
from basalt.messaging.log import log_bounds
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.runtime.group_commit import Group, GroupCommit
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.keys import TopicKeys, topic_prefix
from basalt_engine.messages import MessageTable
from basalt_engine.metadata import TopicMetadata
from basalt_engine.payloads import PayloadTable
from basalt_engine.system import SystemRecord, SystemTable
from basalt_engine.table import DeleteRange, Store

TABLES = (MessageTable.name, PayloadTable.name)
TOPICS_MAX = 1_000  # topics swept by one run; each costs a read in each bucket of two tables
TOPICS_REMEMBERED_MAX = 100_000


class Swept(msgspec.Struct, frozen=True):
    """Every row of a generation below this one is gone."""

    generation: int


SWEPT = SystemRecord("swept", "", Swept)  # by the prefix of a topic or table


class OldGenerations:
    """Finds and removes the rows of past generations."""

    def __init__(self, store: Store, logs: TopicLogs, writer: GroupCommit) -> None:
        self._store = store
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._logs = logs
        self._writer = writer
        self._swept: dict[bytes, int] = {}
        self._left = 0

    def begin(self) -> None:
        """Before the first `sweep` of a run."""
        self._left = TOPICS_MAX

    async def sweep(self, described: Iterable[tuple[TopicName, TopicMetadata]], counts: Counter[str]) -> None:
        """Look at some topics and remove what lies in their past generations."""
        for title, metadata in described:
            # The first generation that may live: the present one, or the next when the topic is deleted.
            living = metadata.generation if metadata.generation > 0 else 1 - metadata.generation
            prefix = topic_prefix(*title)
            if living > 1 and self._left > 0 and await self._swept_to(prefix) < living:
                self._left -= 1
                await self._remove(title, prefix, living, deleted=metadata.generation < 0)
                counts["old_generations"] += 1
                await asyncio.sleep(0)

    async def _swept_to(self, prefix: bytes) -> int:
        known = self._swept.get(prefix)
        if known is None:
            swept = await self._call(SWEPT.get, self._system, log_bounds.entry_name(prefix))
            known = 0 if swept is None else swept.generation
            self._remember(prefix, known)
        return known

    def _remember(self, prefix: bytes, generation: int) -> None:
        if len(self._swept) >= TOPICS_REMEMBERED_MAX:
            self._swept.clear()
        self._swept[prefix] = generation

    async def _remove(self, title: TopicName, prefix: bytes, living: int, *, deleted: bool) -> None:
        # A store that applies the retention rule itself removes them when it compacts.
        ranges = [] if self._store.applies_retention else await self._call(self._ranges, prefix, living)
        # Nothing is rolled back in a past generation any more: see `RollBacks`.
        await self._writer.run(lambda group: self._stage(group, prefix, living, ranges, title if deleted else None))
        self._remember(prefix, living)

    def _ranges(self, prefix: bytes, living: int) -> list[tuple[str, DeleteRange]]:
        """The ranges in which there is anything: a range delete of nothing would be a burden all the same."""
        keys = TopicKeys(prefix, 0, self._logs.catalog.buckets)
        found = []
        for table in TABLES:
            for salt in range(self._logs.catalog.buckets):  # whatever its spread was then
                whole = MessageTable.whole_generations(keys, salt, living)
                if next(self._store.table(table).scan(whole.start, whole.stop, rows_max=1), None) is not None:
                    found.append((table, whole))
        return found

    def _stage(
        self, group: Group, prefix: bytes, living: int, ranges: list[tuple[str, DeleteRange]], deleted: TopicName | None
    ) -> None:
        is_there = deleted is None or self._is_there(deleted)
        for table, mutation in ranges:
            group.add(table, mutation)
        name = log_bounds.entry_name(prefix)
        group.add(SystemTable.name, SWEPT.put(Swept(living), name))
        if is_there:
            return
        log_bounds.forget(group, prefix)
        for kind in (usage.KIND, markers.KIND):
            group.add(SystemTable.name, SystemTable.delete(kind, name))

    def _is_there(self, deleted: TopicName) -> bool:
        """True when it was created again meanwhile: what is kept of it may be of that generation."""
        try:
            self._logs.loaded(deleted)
        except TopicNotFoundError:
            return False
        return True
