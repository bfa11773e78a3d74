"""The job `retention`: topics over their size, expired ranges, past generations, garbage rows, and versions of cells, one after the other.

How much each of them does at a time stands in its own file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice

from basalt.catalog.topics import title_of
from basalt.commits.coordinator import Coordinator
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.producers import Producers
from basalt.messaging.read.first_unstable import KnownTransactions
from basalt.messaging.topic_stats import TopicStatistics
from basalt.messaging.truncation import Truncation
from basalt.retention.cells import CellVersions
from basalt.retention.expired import ExpiredRows, OldGenerations
from basalt.retention.garbage import GarbageRows
from basalt.retention.oversized import OversizedTopics
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt.tables.garbage_cells import CellActivity
from basalt_engine.clock import Clock
from basalt_engine.keys import is_table_prefix
from basalt_engine.metadata import MetadataTable, TopicMetadata
from basalt_engine.stores.shards import shard_of
from basalt_engine.table import Store

TOPICS_PAGE = 256  # topics and tables whose metadata is read at once: about a millisecond


class RetentionJob:
    """Gives back the space of messages and cells that no reader can see any more, of topics and tables that this server owns."""

    def __init__(
        self, store: Store, clock: Clock, logs: TopicLogs, statistics: TopicStatistics, producers: Producers,
        writer: TopicLanes, known_transactions: KnownTransactions, lifetime_ms_max: int, transactions: Coordinator,
        activity: CellActivity, truncation: Truncation, noted: NotedWriters,
    ) -> None:  # fmt: skip
        self._metadata = MetadataTable(store.table(MetadataTable.name))
        self._call = StoreCalls(store)
        self._gate = logs.gate
        self._oversized = OversizedTopics(logs, statistics, truncation)
        self._expired = ExpiredRows(store, clock, logs, producers, writer, lifetime_ms_max)
        self._generations = OldGenerations(store, logs, writer)
        self._garbage = GarbageRows(store, logs, statistics, writer, known_transactions, lifetime_ms_max, noted)
        self._cells = CellVersions(store, logs.catalog.buckets, transactions, writer, activity, noted, logs.gate)

    async def run(self) -> dict[str, int]:
        """Go through all topics, notes and tables. The report counts what was done by reason: ranges by topic, single rows by row."""
        counts: Counter[str] = Counter()
        self._oversized.begin()
        await self._expired.begin()
        self._generations.begin()
        start = b""
        tables: list[tuple[bytes, TopicMetadata]] = []
        while page := await self._call(self._describe, start):
            held = [row for row in page if self._gate.is_held(shard_of(row[0]))]  # others are cared for by their owners
            topics = [(title_of(prefix), metadata) for prefix, metadata in held if not is_table_prefix(prefix)]
            tables += [row for row in held if is_table_prefix(row[0])]
            topics = await self._oversized.sweep(topics, counts)
            await self._expired.sweep(topics, counts)
            await self._generations.sweep(topics, counts)
            start = page[-1][0] + b"\0"
            await asyncio.sleep(0)
        await self._garbage.sweep(counts)
        await self._cells.sweep(tables, counts)
        return {reason: count for reason, count in sorted(counts.items()) if count}

    def _describe(self, start: bytes) -> list[tuple[bytes, TopicMetadata]]:
        return list(islice(self._metadata.scan_all(start), TOPICS_PAGE))
