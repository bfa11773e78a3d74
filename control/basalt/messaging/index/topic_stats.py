"""How much each topic holds, without reading it: messages, bytes, rates, and the first and last message.

Counts are kept from a topic's first row on, by what the appender tells, and saved now and then as a system entry (kind
`usage`, docs/formats/system-table.md) with the position up to which they count. What no saved count covers is read once.
A message counts while a reader without a snapshot would get it: until it expires, rolled back or not, until retention
removes it. One with a TTL of its own counts up to a 32nd of that TTL longer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from itertools import islice
from typing import NamedTuple

from basalt.catalog.topics import Topic, TopicName, Topics, title_of
from basalt.errors import TopicNotFoundError
from basalt.messaging.index.counts import FINER, Buckets, Count, Part, RowCount, count_row
from basalt.messaging.index.topic_counts import SavedCounts, TopicCounts
from basalt.messaging.log import log_bounds as removed
from basalt.messaging.log.append import Appended
from basalt.messaging.log.tail import TopicKey
from basalt.messaging.log.topic_locks import TopicLocks
from basalt.messaging.publish import Messaging
from basalt.messaging.read.fetch import Limits, row_slices, start_from
from basalt.messaging.read.first_unstable import Holds
from basalt.messaging.read.row_pages import pages
from basalt.runtime.group_commit import Group, GroupCommit
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import MessageId, position, position_fields
from basalt_engine.messages import MessageRow
from basalt_engine.records import Flag, Kind
from basalt_engine.system import SystemTable
from basalt_engine.table import Store, prefix_stop

KIND = "usage"
TOPICS_MAX = 10_000  # topics whose counts are in memory, some 5 KiB each; the least recently used go
PART_BYTES_MAX = 64 << 20  # a larger oldest bucket (joined from others) is estimated, not read
PART_TRIES = 3
LAST_ROWS_MAX = 100  # rows without a message that are passed in search of the newest one
SAVE_BYTES = 16 << 20  # counts are saved after so many bytes, for a crash costs reading them again,
SAVE_AGE_MS = 5 * 60_000  # or this long after they changed
SAVE_TOPICS_MAX = 500  # topics saved by one run, so that ten thousand busy ones do not write all the time
SAVE_GROUP_TOPICS = 50


class TopicStats(NamedTuple):
    """A topic's figures. Ids are 20 bytes; None where there is no message. Rates are of the last minute.

    `exact` is false where the oldest part was estimated by time. `oldest_open_write_pointer` is the writer at which
    readers of committed messages stop, when that was found without a long search.
    """

    messages: int
    payload_bytes: int
    exact: bool
    oldest_id: bytes | None
    oldest_ms: int | None
    newest_id: bytes | None
    newest_ms: int | None
    published_per_second: float
    stored_bytes: int
    oldest_open_write_pointer: int | None


class Usage:
    """The figures of all topics of one store."""

    def __init__(
        self, store: Store, clock: Clock, topics: Topics, messaging: Messaging, writer: GroupCommit, holds: Holds
    ) -> None:
        self._system = SystemTable(store.table(SystemTable.name))
        self._payload_rows = store.table("payload")
        self._call = StoreCalls(store)
        self._clock = clock
        self._topics = topics
        self._messaging = messaging
        self._writer = writer
        self._holds = holds
        self._counts: OrderedDict[TopicKey, TopicCounts] = OrderedDict()  # the least recently used first
        self._loading = TopicLocks()
        messaging.appender.observers.append(self.observe)
        messaging.appender.doubts.append(self.forget)
        topics.when_deleted.append(lambda topic: self.forget(topic.keys[:2]))

    # What is told.

    def observe(self, appended: Appended) -> None:
        """A row became durable."""
        topic, row = appended.topic, appended.row
        counted = self._count_appended(appended)
        counts = self._of(topic)
        counts.observe(row.position, counted, self._clock.now_ms())

    def forget(self, topic: TopicKey) -> None:
        """Nothing is known of the topic's rows any more; what was saved of them still holds."""
        self._counts.pop(topic, None)

    def expired(self, topic: Topic, before_ms: int) -> None:
        """All rows published before this time were removed; that they were is durable."""
        counts = self._counts.get(topic.keys[:2])
        if counts is not None:
            counts.expired(before_ms)

    async def ready(self, topic: Topic) -> None:
        """Count what is not counted yet, before a stage calls `remove`."""
        await self._complete(topic)

    def remove(self, group: Group, topic: Topic, rows: Sequence[tuple[bytes, RowCount]]) -> None:
        """In a stage that removes these rows (position and content): they count no more, and that is saved with it."""
        key = topic.keys[:2]
        counts = self._counts.get(key)
        name = removed.entry_name(topic.keys.prefix)
        if counts is None or not counts.complete:
            group.add(SystemTable.name, SystemTable.delete(KIND, name))  # what is saved would count them
            self.forget(key)
            return
        for where, counted in rows:
            counts.remove(where, counted)
        group.add(SystemTable.name, SystemTable.put(KIND, name, counts.body(topic.generation)))
        group.when_failed(lambda: self.forget(key))

    def _count_appended(self, appended: Appended) -> RowCount:
        row = appended.row
        publish_ms = position_fields(row.position)[0]
        if row.batch is not None and row.batch[1] != Kind.USER:
            return RowCount(publish_ms, 0, 0)
        if row.batch is not None and row.batch[2] & Flag.TTLS:
            return self.count(appended.topic, row)
        return RowCount(publish_ms, appended.messages, appended.payload_bytes)

    def count(self, topic: Topic, row: MessageRow) -> RowCount:
        """What a row holds."""
        return count_row(row, lambda reference: self._messaging.stored_rows(topic, reference), topic.ttl_ms)

    # What is asked.

    async def stats(self, title: TopicName) -> TopicStats:
        """The topic's figures; `TopicNotFoundError`."""
        topic = await self._topics.get(title)
        counts, oldest_ms, exact = await self._settled(topic)
        now_ms = self._clock.now_ms()
        whole, part = counts.buckets.since(oldest_ms)
        parts = [whole, counts.own.alive(now_ms), part.estimate if part is not None else Count()]
        rate = counts.recent.per_second(now_ms)
        first = await self._messaging.read(topic, start_from(None, True), Limits(1, 1), None)
        newest = await self._call(self._newest_id, topic)
        oldest = first.slices[0].ids()[0] if first.slices else None
        return TopicStats(
            messages=sum(count.messages for count in parts),
            payload_bytes=sum(count.payload_bytes for count in parts),
            exact=exact,
            oldest_id=oldest,
            oldest_ms=_publish_ms(oldest),
            newest_id=newest,
            newest_ms=_publish_ms(newest),
            published_per_second=rate,
            stored_bytes=await self._stored_bytes(topic),
            oldest_open_write_pointer=(await self._holds.first(topic)).held_by,
        )

    # What the `stats` job does.

    async def save(self, topics_max: int | None = SAVE_TOPICS_MAX, *, everything: bool = False) -> int:
        """Save the counts of topics that changed much or long ago (`everything`: that changed); how many were saved."""
        now_ms = self._clock.now_ms()
        due = [
            key
            for key, counts in self._counts.items()
            if counts.unsaved_bytes >= SAVE_BYTES
            or (counts.changed_ms is not None and (everything or now_ms - counts.changed_ms >= SAVE_AGE_MS))
        ]
        saved = 0
        keys = iter(due[:topics_max])
        while some := list(islice(keys, SAVE_GROUP_TOPICS)):
            topics = [topic for key in some if (topic := await self._current(key)) is not None]
            for topic in topics:
                await self._complete(topic)
            saved += await self._writer.run(lambda group, topics=topics: self._save(group, topics))  # type: ignore[misc]
            await asyncio.sleep(0)
        return saved

    def _save(self, group: Group, topics: list[Topic]) -> int:
        saved = 0
        for topic in topics:
            counts = self._counts.get(topic.keys[:2])
            if counts is None or not counts.complete or not self._topics.lives(topic):
                continue
            name = removed.entry_name(topic.keys.prefix)
            group.add(SystemTable.name, SystemTable.put(KIND, name, counts.body(topic.generation)))
            counts.saved()
            saved += 1
        return saved

    async def _current(self, key: TopicKey) -> Topic | None:
        try:
            topic = await self._topics.get(title_of(key[0]))
        except TopicNotFoundError:
            topic = None
        if topic is None or topic.generation != key[1]:
            self.forget(key)
            return None
        return topic

    # How.

    def _of(self, topic: Topic) -> TopicCounts:
        key = topic.keys[:2]
        counts = self._counts.get(key)
        if counts is not None:
            counts = self._counts[key] = counts.truncated(topic.truncated_before_ms)
        else:
            counts = self._counts[key] = TopicCounts(topic.truncated_before_ms)
            if len(self._counts) > TOPICS_MAX:
                self._counts.popitem(last=False)
        self._counts.move_to_end(key)
        return counts

    async def _complete(self, topic: Topic) -> TopicCounts:
        """The topic's counts, with all rows in them."""
        counts = self._of(topic)
        if counts.complete:
            return counts
        async with self._loading.of(topic.keys[:2]):
            counts = self._of(topic)
            if not counts.complete:
                counts.complete_with(await self._older(topic, counts))
        return counts

    async def _older(self, topic: Topic, counts: TopicCounts) -> TopicCounts:
        """The counts of all rows before those that were observed: what was saved, and what was read to fill the gap."""
        older = await self._call.about(None, self._saved, topic, counts.truncated_ms)
        start = older.counted_to + b"\0" if older.counted_to else b""
        start = max(start, position(counts.truncated_ms, 0))
        stop = await self._messaging.durable_stop(topic)  # what comes after it is told to us
        async with aclosing(pages(self._call, self._messaging.messages, topic.read_keys, start, stop)) as found:
            async for page in found:
                for row, counted in await self._counted(topic, page):
                    if counts.first and row.position >= counts.first:
                        return older
                    older.add(row.position, counted)
        return older

    async def _counted(self, topic: Topic, page: list[MessageRow]) -> list[tuple[MessageRow, RowCount]]:
        """The rows with what each holds, for which payload rows may have to be read."""
        return await self._call.about(topic.keys, lambda: [(row, self.count(topic, row)) for row in page])

    def _saved(self, topic: Topic, truncated_ms: int) -> TopicCounts:
        counts = TopicCounts(truncated_ms)
        gone_before_ms = removed.expired_before_ms(self._system, topic)
        stored = removed.read(self._system, KIND, topic, SavedCounts)
        if stored is not None and stored.generation == topic.generation:
            found = TopicCounts.of(stored)
            if found.own and found.truncated_ms < truncated_ms:
                return counts  # nobody knows which of these are older
            if found.buckets.from_ms <= max(topic.oldest_ms(self._clock.now_ms()), gone_before_ms):
                counts = found  # else the TTL was raised, and rows count again that were left out
        counts.expired(gone_before_ms)
        return counts

    def _oldest_ms(self, topic: Topic, counts: TopicCounts) -> int:
        return max(topic.oldest_ms(self._clock.now_ms()), counts.gone_before_ms)

    async def _settled(self, topic: Topic) -> tuple[TopicCounts, int, bool]:
        """The topic's counts, from which publish time on they count, and whether they do so to the message."""
        for _ in range(PART_TRIES):
            counts = await self._complete(topic)
            oldest_ms = self._oldest_ms(topic, counts)
            if oldest_ms < counts.buckets.from_ms:  # the TTL was raised
                self.forget(topic.keys[:2])
                continue
            _, part = counts.buckets.since(oldest_ms)
            if part is None:
                return counts, oldest_ms, True
            if part.bucket_bytes > PART_BYTES_MAX:
                break
            if await self._refined(topic, counts, part):
                return counts, oldest_ms, True
        counts = await self._complete(topic)
        return counts, self._oldest_ms(topic, counts), False

    async def _refined(self, topic: Topic, counts: TopicCounts, part: Part) -> bool:
        """Read the part and keep what it holds; False when rows of the topic were removed meanwhile."""
        removals = counts.removals
        finer = Buckets(FINER)
        start = position(part.start_ms, 0)
        stop = None if part.stop_ms is None else position(part.stop_ms, 0)
        found = True
        while found:
            found = False
            async for page in pages(self._call, self._messaging.messages, topic.read_keys, start, stop):
                for row, counted in await self._counted(topic, page):
                    if row.position <= counts.counted_to:  # later ones are told to us, and added then
                        finer.add(counted.publish_ms, counted.messages, counted.payload_bytes)
                        start, found = row.position + b"\0", True
            found = found and stop is None and start <= counts.counted_to  # others came while a remote store was read
        if counts.removals != removals:
            return False
        counts.buckets.refine(part, finer)
        return True

    def _newest_id(self, topic: Topic) -> bytes | None:
        now_ms = self._clock.now_ms()
        stored = self._messaging.stored_rows
        rows = self._messaging.messages.scan(topic.read_keys, reverse=True, rows_max=LAST_ROWS_MAX)
        for row in islice(rows, LAST_ROWS_MAX):
            if position_fields(row.position)[0] < topic.oldest_ms(now_ms):
                return None
            slices = row_slices(row, lambda reference: stored(topic, reference), verify=True)
            living = [part for whole in slices for part in whole.unexpired(now_ms)]
            if living:
                return living[-1].last_id()
        return None

    async def _stored_bytes(self, topic: Topic) -> int:
        total = await self._call(self._messaging.messages.size_bytes, topic.read_keys)
        for salt in range(topic.keys.buckets):
            start = topic.keys.message_start(salt)  # payload rows begin alike, in any of the buckets
            total += await self._call.about(
                topic.keys, self._payload_rows.size_bytes, start, prefix_stop(start) or start
            )
            await asyncio.sleep(0)
        return total


def _publish_ms(message_id: bytes | None) -> int | None:
    return None if message_id is None else MessageId.decode(message_id).publish_ms
