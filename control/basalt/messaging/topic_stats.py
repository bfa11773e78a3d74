"""Statistics of each topic that need no reading: messages, bytes, rates, and the first and last message.

They come from the topic's index (`basalt.messaging.index`), which its log keeps up to date from the first row on. Its sums
are saved now and then with the position up to which they count; what no saved sum covers is read once.
A message counts while a reader without a snapshot would get it: until it expires, rolled back or not, until retention
removes it. One with a TTL of its own counts up to a 32nd of that TTL longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import NamedTuple

from basalt.catalog.topics import Topic, TopicName
from basalt.messaging.index import FINER, SAVED, Buckets, Count, PartialBucket, RowCount, TopicIndex
from basalt.messaging.log import stored_log
from basalt.messaging.log.stored_log import PAGE_BYTES, counted, pages
from basalt.messaging.log.topic_log import TopicLog, prefix_of
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.read.log_reader import LogReader, SliceLimits, before, start_from
from basalt.messaging.read.slices import row_slices
from basalt.runtime.group_commit import Group
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.clock import Clock
from basalt_engine.keys import MessageId, position, position_fields
from basalt_engine.messages import POSITION_BYTES, MessageRow
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

PART_BYTES_MAX = 64 << 20  # a larger oldest bucket (joined from others) is estimated, not read
PART_TRIES = 3
LAST_ROWS_MAX = 100  # rows, and pages of payload rows, without a message that are passed in search of the newest one
SAVE_BYTES = 16 << 20  # an index is saved after so many bytes, for a crash costs reading them again,
SAVE_AGE_MS = 5 * 60_000  # or this long after it changed
SAVE_TOPICS_MAX = 500  # topics saved by one run, so that ten thousand busy ones do not write all the time
SAVE_GROUP_TOPICS = 50


class TopicFigures(NamedTuple):
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


class TopicSums(NamedTuple):
    """The part of a topic's figures that its index alone tells; `oldest_ms` is that of the bucket of the oldest message."""

    messages: int
    payload_bytes: int
    exact: bool
    oldest_ms: int | None
    newest_ms: int | None
    published_per_second: float


class _NewestSearch(NamedTuple):
    """The position before which the search for the newest message goes on; None: it has not begun.

    Of the last of these, the payload rows after `payload_stop` have been passed.
    """

    stop: bytes | None
    payload_stop: bytes | None = None
    found: bytes | None = None

    def left(self, row: MessageRow) -> MessageRow:
        """The row, referring to no payload rows that were passed."""
        if self.payload_stop is None or row.reference is None or row.position + b"\0" != self.stop:
            return row
        return row._replace(reference=row.reference._replace(last=self.payload_stop))


class TopicStatistics:
    """The figures of all topics of one store."""

    def __init__(
        self, store: Store, clock: Clock, logs: TopicLogs, reads: LogReader, writer: TopicLanes, holds: FirstUnstable
    ) -> None:
        self._system = SystemTable(store.table(SystemTable.name))
        self._payload_rows = store.table("payload")
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs
        self._reads = reads
        self._writer = writer
        self._holds = holds

    # What retention does.

    def remove(self, group: Group, log: TopicLog, rows: Sequence[tuple[bytes, RowCount]]) -> None:
        """In a stage that removes these rows (position and content): they count no more, and that is saved with it."""
        index, topic = log.index, log.topic
        if index is None or not index.complete:
            group.add(SystemTable.name, SAVED.delete(stored_log.entry_name(topic.keys.prefix)))  # it would count them
            log.index = None
            return
        for where, content in rows:
            index.remove(where, content)
        stored_log.put_entry(group, SAVED, topic, index.to_save(topic.generation))
        group.when_failed(log.forget_sums)

    # What is asked.

    async def stats(self, title: TopicName) -> TopicFigures:
        """The topic's figures; `TopicNotFoundError`."""
        log = await self._logs.open(title)
        topic = log.topic
        index, oldest_ms, exact = await self._counted(log)
        now_ms = self._clock.now_ms()
        whole, part = index.buckets.since(oldest_ms)
        parts = [whole, index.own.alive(now_ms), part.estimate if part is not None else Count()]
        rate = index.recent.per_second(now_ms)
        first = await self._reads.read(log, start_from(None, True), SliceLimits(1, 1), None)
        newest = await self._newest_id(log)
        oldest = first.slices[0].ids()[0] if first.slices else None
        return TopicFigures(
            messages=sum(count.messages for count in parts),
            payload_bytes=sum(count.payload_bytes for count in parts),
            exact=exact and index.estimated_until_ms <= now_ms,
            oldest_id=oldest,
            oldest_ms=_publish_ms(oldest),
            newest_id=newest,
            newest_ms=_publish_ms(newest),
            published_per_second=rate,
            stored_bytes=await self._stored_bytes(topic),
            oldest_open_write_pointer=(await self._holds.of_topic_now(log)).held_by,
        )

    async def sums(self, title: TopicName) -> TopicSums:
        """The sums of the topic's index, which is read where it is not in memory; `TopicNotFoundError`."""
        log = await self._logs.open(title)
        return self._sums(log, await self.ready(log))

    def known_sums(self, title: TopicName) -> TopicSums | None:
        """The same, where it is in memory: for lists of many topics, which read nothing and keep nothing there."""
        log = self._logs.memory.recent.get(title)
        index = None if log is None or not log.live else log.index
        return None if log is None or index is None or not index.complete else self._sums(log, index)

    def _sums(self, log: TopicLog, index: TopicIndex) -> TopicSums:
        now_ms, buckets = self._clock.now_ms(), index.buckets
        lower_ms = max(self._oldest_ms(log, index), buckets.from_ms)
        whole, part = buckets.since(lower_ms)
        parts = (whole, index.own.alive(now_ms), part.estimate if part is not None else Count())
        messages = sum(count.messages for count in parts)
        first_ms = next(
            (start for start, count in zip(buckets.starts, buckets.messages, strict=True) if count), lower_ms
        )
        return TopicSums(
            messages,
            sum(count.payload_bytes for count in parts),
            part is None and index.estimated_until_ms <= now_ms,
            max(first_ms, lower_ms) if messages else None,
            max(buckets.newest_ms, lower_ms) if messages else None,
            index.recent.per_second(now_ms),
        )

    # What the `stats` job does.

    async def save(self, *, everything: bool = False, among: Collection[TopicLog] | None = None) -> int:
        """Save the counts of topics that changed much or long ago (`everything`: that changed), of all or `among` these; how many."""
        now_ms = self._clock.now_ms()
        due = [
            log
            for log in list(self._logs.memory.detailed if among is None else among)
            if (index := log.index) is not None
            and (
                index.unsaved_bytes >= SAVE_BYTES
                or (index.changed_ms is not None and (everything or now_ms - index.changed_ms >= SAVE_AGE_MS))
            )
        ]
        saved = 0
        logs = iter(due if everything else due[:SAVE_TOPICS_MAX])
        while some := list(islice(logs, SAVE_GROUP_TOPICS)):
            for log in some:
                if not log.ended:
                    await self.ready(log)
            for lane, part in self._writer.split(some, prefix_of).items():
                saved += await lane.run(partial(self._save, part))
            await asyncio.sleep(0)
        return saved

    def _save(self, logs: list[TopicLog], group: Group) -> int:
        # A generation never writes over the one that followed.
        due = [(log, log.index) for log in logs if not log.unknown and log.index is not None and log.index.complete]
        for log, index in due:
            stored_log.put_entry(group, SAVED, log.topic, index.to_save(log.topic.generation))
        return len(due)

    # Counting.

    async def ready(self, log: TopicLog) -> TopicIndex:
        """The topic's index, with all rows counted; to be called before a stage calls `remove`."""
        index = log.present_index()
        log.memory.touch_details(log)
        if index.complete:
            return index
        async with log.locks.loading:
            index = log.present_index()
            if not index.complete:
                index.complete_with(await self._older(log, index))
        return index

    async def _older(self, log: TopicLog, index: TopicIndex) -> TopicIndex:
        """The counts of all rows before those that were appended since: what was saved, and what was read to fill the gap."""
        topic = log.topic
        oldest_ms = log.oldest_ms(self._clock.now_ms())
        older = await self._call.about(None, self._saved, topic, index.truncated_ms, oldest_ms)
        start = older.counted_to + b"\0" if older.counted_to else b""
        start = max(start, position(index.truncated_ms, 0))
        if log.unconfirmed:
            await log.confirm_or_delete()
        # What comes after it is told to us; a merged row may hold what was read here and what was told.
        stop = min(log.durable_stop, index.first) if index.first else log.durable_stop
        async with aclosing(pages(self._call, self._reads.messages, topic.read_keys, start, stop)) as found:
            async for page in found:
                async with aclosing(counted(self._call, self._reads.payloads, topic, page)) as contents:
                    async for row, content in contents:
                        if index.first and row.position >= index.first:
                            return older
                        older.add(row.position, content)
        return older

    def _saved(self, topic: Topic, truncated_ms: int, oldest_ms: int) -> TopicIndex:
        index = TopicIndex(topic.metadata.ttl_ms, truncated_ms)
        gone_before_ms = stored_log.expired_before_ms(self._system, topic)
        stored = stored_log.read_entry(SAVED, self._system, topic)
        if stored is None or max(oldest_ms, gone_before_ms) < stored.from_ms:
            pass  # the TTL was raised, and rows count again that were left out
        else:
            saved = TopicIndex.of(stored, topic.metadata.ttl_ms)
            if stored.truncated_ms >= truncated_ms or saved.truncate(truncated_ms):
                index = saved
        index.expired(gone_before_ms)
        return index

    def _oldest_ms(self, log: TopicLog, index: TopicIndex) -> int:
        return max(log.oldest_ms(self._clock.now_ms()), index.gone_before_ms)

    async def _counted(self, log: TopicLog) -> tuple[TopicIndex, int, bool]:
        """The topic's index, from which publish time on it counts, and whether it does so to the message."""
        for _ in range(PART_TRIES):
            index = await self.ready(log)
            oldest_ms = self._oldest_ms(log, index)
            if oldest_ms < index.buckets.from_ms:  # the TTL was raised
                log.index = None
                continue
            _, part = index.buckets.since(oldest_ms)
            if part is None:
                return index, oldest_ms, True
            if part.bucket_bytes > PART_BYTES_MAX:
                break
            if await self._refined(log.topic, index, part):
                return index, oldest_ms, True
        index = await self.ready(log)
        return index, self._oldest_ms(log, index), False

    async def _refined(self, topic: Topic, index: TopicIndex, part: PartialBucket) -> bool:
        """Read the part and keep what it holds; False when rows of the topic were removed meanwhile."""
        removals = index.removals
        finer = Buckets(FINER)
        start = position(part.start_ms, 0)
        stop = None if part.stop_ms is None else position(part.stop_ms, 0)
        found = True
        while found:
            found = False
            async for page in pages(self._call, self._reads.messages, topic.read_keys, start, stop):
                async for row, content in counted(self._call, self._reads.payloads, topic, page):
                    if row.position <= index.counted_to:  # later ones are told to us, and added then
                        finer.add(content.publish_ms, content.messages, content.payload_bytes, content.own_bytes)
                        start, found = row.position + b"\0", True
            found = found and stop is None and start <= index.counted_to  # others came while a remote store was read
        if index.removals != removals:
            return False
        index.buckets.refine(part, finer)
        return True

    # What is read.

    async def _newest_id(self, log: TopicLog) -> bytes | None:
        """The id of the newest message; None also where what came last has none for too long."""
        search: _NewestSearch | None = _NewestSearch(None)
        for _ in range(LAST_ROWS_MAX):
            if search is None or search.found is not None:
                break
            now_ms = self._clock.now_ms()
            search = await self._call(self._search_newest, log.topic, search, now_ms, log.oldest_ms(now_ms))
            await asyncio.sleep(0)
        return None if search is None else search.found

    def _search_newest(self, topic: Topic, search: _NewestSearch, now_ms: int, oldest_ms: int) -> _NewestSearch | None:
        """Look at one page, from the end; None when there is nothing more to look at."""
        passed_bytes = 0
        rows = self._reads.messages.scan(topic.read_keys, b"", search.stop, reverse=True, rows_max=LAST_ROWS_MAX)
        for row in islice(rows, LAST_ROWS_MAX):
            if position_fields(row.position)[0] < oldest_ms:
                return None
            # The last payload row first: nearly always the newest message is in it, and no other need be read.
            payload_rows = partial(self._reads.stored_rows, topic, reverse=True)
            for whole in row_slices(search.left(row), payload_rows, verify=True):
                living = whole.unexpired(now_ms)
                if living:
                    return _NewestSearch(row.position, None, living[-1].last_id())
                passed_bytes += whole.batch.body_bytes
                if passed_bytes >= PAGE_BYTES and row.reference is not None:
                    return _NewestSearch(row.position + b"\0", before(whole.last_id()[POSITION_BYTES:]))
            if passed_bytes >= PAGE_BYTES:
                return _NewestSearch(row.position)
        return None

    async def _stored_bytes(self, topic: Topic) -> int:
        total = await self._call(self._reads.messages.size_bytes, topic.read_keys)
        for salt in range(topic.keys.buckets):
            # Payload rows begin like those of messages, in any of the buckets.
            start, stop = topic.keys.message_start(salt), topic.keys.message_stop(salt)
            total += await self._call.about(topic.keys, self._payload_rows.size_bytes, start, stop)
            await asyncio.sleep(0)
        return total


def _publish_ms(message_id: bytes | None) -> int | None:
    return None if message_id is None else MessageId.decode(message_id).publish_ms
