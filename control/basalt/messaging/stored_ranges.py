"""Reads ranges by the leader's permits, from the store alone: for a server that does not lead, and knows nothing of topics.

The rows are read after the view that judges them, and the topic's row after the rows. Whatever is not as the permit says makes an end of it,
and the leader is asked to read the range itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from basalt.catalog.topics import Topic, Topics
from basalt.messaging.log.packing import StoredSize
from basalt.messaging.ranges import Range, range_of, reading_of
from basalt.messaging.read.log_reader import Reading, Stopped
from basalt.messaging.read.range_permit import RangePermit
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import topic_prefix
from basalt_engine.messages import MessageRow, MessageTable
from basalt_engine.metadata import MetadataTable, TopicMetadata
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.table import Store


class _Look(NamedTuple):
    """The end of one look at rows; and of the last one, when no more rows are read, the topic's row as it is stored by then."""

    stopped: Stopped
    stored: TopicMetadata | None


class StoredRanges:
    """The ranges of one store's topics, as they are stored."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._messages = MessageTable.of(store)
        self._metadata = MetadataTable(store.table(MetadataTable.name))
        self._payloads = PayloadTable(store.table(PayloadTable.name))
        self._call = StoreCalls(store)
        self._store = store
        self._clock = clock

    async def read(self, permit: RangePermit) -> Range | None:
        """The messages of the range, or the first of them, as the leader would answer them.

        None: the topic has changed in such a way that the leader would answer something else, or a row is undecided against its word.
        """
        topic = Topics(self._store, self._clock, permit.buckets).at(permit.title, permit.stored())
        snapshot = None if permit.view is None else permit.view.snapshot()
        reading = reading_of(permit.after, permit.through, permit.bytes_max, snapshot, permit.now_ms)
        look = await self._look(topic, reading, permit.oldest_ms)
        if look.stopped is Stopped.HELD or not permit.still_holds(look.stored):
            return None
        return range_of(reading.page(look.stopped), permit.through)

    async def _look(self, topic: Topic, reading: Reading, oldest_ms: int) -> _Look:
        """Look at the rows, as many at a time as one read brings, until the page is complete."""
        size = StoredSize()
        while True:
            start = reading.go_on(oldest_ms).position
            wanted, size = reading.remote_bytes(size), StoredSize()
            look = await self._call.about(topic.keys, self._look_once, topic, reading, start, wanted, size)
            if look.stopped not in (Stopped.LOOKED, Stopped.PAUSED):
                return look
            await asyncio.sleep(0)  # others get their turn on a long way

    def _look_once(self, topic: Topic, reading: Reading, start: bytes, wanted: int, size: StoredSize) -> _Look:
        passed = reading.next_id
        rows = self._messages.stored(topic.read_keys, start, reading.stop, bytes_max=wanted)
        stopped = reading.look(size.counted(rows), partial(self._stored_rows, topic), True)
        if stopped is Stopped.LOOKED and reading.next_id is passed:
            stopped = Stopped.END
        if stopped in (Stopped.LOOKED, Stopped.PAUSED, Stopped.HELD):
            return _Look(stopped, None)
        # On the same thread: to have another one read it costs as much as the reading itself.
        return _Look(stopped, self._metadata.get(topic_prefix(*topic.title)))

    def _stored_rows(self, topic: Topic, row: MessageRow) -> Iterable[PayloadRow]:
        assert row.reference is not None
        assert row.written_by is not None
        first, last, _ = row.reference
        return self._payloads.scan(topic.keys, abs(row.written_by), first, last)
