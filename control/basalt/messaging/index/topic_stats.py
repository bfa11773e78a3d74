"""Statistics of each topic that need no reading: messages, bytes, rates, and the first and last message.

Counts are kept from a topic's first row on, by its log, and saved now and then as a system entry (kind
`usage`, docs/formats/system-table.md) with the position up to which they count. What no saved count covers is read once.
A message counts while a reader without a snapshot would get it: until it expires, rolled back or not, until retention
removes it. One with a TTL of its own counts up to a 32nd of that TTL longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import NamedTuple

from basalt.catalog.topics import Topic, TopicName
from basalt.messaging.log import log_bounds
from basalt.messaging.log.counts import FINER, Buckets, Count, Part, RowCount, SavedCounts, TopicCounts, count_row
from basalt.messaging.log.row_pages import PAGE_BYTES, PAGE_ROWS, pages
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.read.log_reader import LogReader
from basalt.messaging.read.slices import Limits, row_slices, start_from
from basalt.runtime.group_commit import Group, GroupCommit
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import MessageId, position, position_fields
from basalt_engine.messages import MessageRow
from basalt_engine.payloads import PayloadRow
from basalt_engine.system import SystemTable
from basalt_engine.table import Store, prefix_stop

KIND = "usage"
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
        self, store: Store, clock: Clock, logs: TopicLogs, reads: LogReader, writer: GroupCommit, holds: FirstUnstable
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

    async def ready(self, log: TopicLog) -> None:
        """Count what is not counted yet, before a stage calls `remove`."""
        await self._complete(log)

    def remove(self, group: Group, log: TopicLog, rows: Sequence[tuple[bytes, RowCount]]) -> None:
        """In a stage that removes these rows (position and content): they count no more, and that is saved with it."""
        counts, topic = log.counts, log.topic
        name = log_bounds.entry_name(topic.keys.prefix)
        if counts is None or not counts.complete:
            group.add(SystemTable.name, SystemTable.delete(KIND, name))  # what is saved would count them
            log.counts = None
            return
        for where, counted in rows:
            counts.remove(where, counted)
        group.add(SystemTable.name, SystemTable.put(KIND, name, counts.body(topic.generation)))
        group.when_failed(partial(_forget, log))

    def count(self, topic: Topic, row: MessageRow) -> RowCount:
        """Count a row's messages; payload rows that it refers to are read from the store."""
        return count_row(row, lambda reference: self._reads.stored_rows(topic, reference), topic.ttl_ms)

    # What is asked.

    async def stats(self, title: TopicName) -> TopicStats:
        """The topic's figures; `TopicNotFoundError`."""
        log = await self._logs.open(title)
        topic = log.topic
        counts, oldest_ms, exact = await self._settled(log)
        now_ms = self._clock.now_ms()
        whole, part = counts.buckets.since(oldest_ms)
        parts = [whole, counts.own.alive(now_ms), part.estimate if part is not None else Count()]
        rate = counts.recent.per_second(now_ms)
        first = await self._reads.read(log, start_from(None, True), Limits(1, 1), None)
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
            oldest_open_write_pointer=(await self._holds.of_topic(log)).held_by,
        )

    # What the `stats` job does.

    async def save(self, topics_max: int | None = SAVE_TOPICS_MAX, *, everything: bool = False) -> int:
        """Save the counts of topics that changed much or long ago (`everything`: that changed); how many were saved."""
        now_ms = self._clock.now_ms()
        due = [
            log
            for log in self._logs.memory.detailed
            if log.counts is not None
            and (
                log.counts.unsaved_bytes >= SAVE_BYTES
                or (log.counts.changed_ms is not None and (everything or now_ms - log.counts.changed_ms >= SAVE_AGE_MS))
            )
        ]
        saved = 0
        logs = iter(due[:topics_max])
        while some := list(islice(logs, SAVE_GROUP_TOPICS)):
            for log in some:
                if not log.ended:
                    await self._complete(log)
            saved += await self._writer.run(partial(self._save, some))
            await asyncio.sleep(0)
        return saved

    def _save(self, logs: list[TopicLog], group: Group) -> int:
        saved = 0
        for log in logs:
            counts, topic = log.counts, log.topic
            if (
                counts is None or not counts.complete or log.ended
            ):  # a generation never writes over the one that followed
                continue
            name = log_bounds.entry_name(topic.keys.prefix)
            group.add(SystemTable.name, SystemTable.put(KIND, name, counts.body(topic.generation)))
            counts.saved()
            saved += 1
        return saved

    # How.

    async def _complete(self, log: TopicLog) -> TopicCounts:
        """The topic's counts, with all rows in them."""
        counts = log.present_counts()
        if counts.complete:
            return counts
        async with log.loading:
            counts = log.present_counts()
            if not counts.complete:
                counts.complete_with(await self._older(log, counts))
        return counts

    async def _older(self, log: TopicLog, counts: TopicCounts) -> TopicCounts:
        """The counts of all rows before those that were appended since: what was saved, and what was read to fill the gap."""
        topic = log.topic
        older = await self._call.about(None, self._saved, topic, counts.truncated_ms)
        start = older.counted_to + b"\0" if older.counted_to else b""
        start = max(start, position(counts.truncated_ms, 0))
        if log.unconfirmed:
            await log.confirm_or_delete()
        stop = log.durable_stop  # what comes after it is told to us
        async with aclosing(pages(self._call, self._reads.messages, topic.read_keys, start, stop)) as found:
            async for page in found:
                async with aclosing(self._counted(topic, page)) as parts:
                    async for row, counted in parts:
                        if counts.first and row.position >= counts.first:
                            return older
                        older.add(row.position, counted)
        return older

    async def _counted(self, topic: Topic, page: list[MessageRow]) -> AsyncGenerator[tuple[MessageRow, RowCount], None]:
        """The rows with what each holds, for which payload rows may have to be read.

        A row that refers to many comes several times, with a part of what it holds: a transaction may have stored more
        than fits into memory.
        """
        while page:
            counted, page = await self._call.about(topic.keys, self._count_some, topic, page)
            for each in counted:
                yield each
            if page:
                await asyncio.sleep(0)

    def _count_some(
        self, topic: Topic, rows: list[MessageRow]
    ) -> tuple[list[tuple[MessageRow, RowCount]], list[MessageRow]]:
        """What the first rows hold, as far as a page of payload rows reaches; and the rows that are left to count."""
        counted: list[tuple[MessageRow, RowCount]] = []
        page = _PayloadPage()

        def some(reference: MessageRow) -> Iterator[PayloadRow]:
            return page.some_of(self._reads.stored_rows(topic, reference))

        for index, row in enumerate(rows):
            if row.reference is None:
                counted.append((row, self.count(topic, row)))
                continue
            counted.append((row, count_row(row, some, topic.ttl_ms)))
            if page.last is not None:
                rest = row._replace(reference=row.reference._replace(first=page.last + b"\0"))
                return counted, [rest, *rows[index + 1 :]]
        return counted, []

    def _saved(self, topic: Topic, truncated_ms: int) -> TopicCounts:
        counts = TopicCounts(truncated_ms)
        gone_before_ms = log_bounds.expired_before_ms(self._system, topic)
        stored = log_bounds.read(self._system, KIND, topic, SavedCounts)
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

    async def _settled(self, log: TopicLog) -> tuple[TopicCounts, int, bool]:
        """The topic's counts, from which publish time on they count, and whether they do so to the message."""
        for _ in range(PART_TRIES):
            counts = await self._complete(log)
            oldest_ms = self._oldest_ms(log.topic, counts)
            if oldest_ms < counts.buckets.from_ms:  # the TTL was raised
                log.counts = None
                continue
            _, part = counts.buckets.since(oldest_ms)
            if part is None:
                return counts, oldest_ms, True
            if part.bucket_bytes > PART_BYTES_MAX:
                break
            if await self._refined(log.topic, counts, part):
                return counts, oldest_ms, True
        counts = await self._complete(log)
        return counts, self._oldest_ms(log.topic, counts), False

    async def _refined(self, topic: Topic, counts: TopicCounts, part: Part) -> bool:
        """Read the part and keep what it holds; False when rows of the topic were removed meanwhile."""
        removals = counts.removals
        finer = Buckets(FINER)
        start = position(part.start_ms, 0)
        stop = None if part.stop_ms is None else position(part.stop_ms, 0)
        found = True
        while found:
            found = False
            async for page in pages(self._call, self._reads.messages, topic.read_keys, start, stop):
                async for row, counted in self._counted(topic, page):
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
        stored = self._reads.stored_rows
        rows = self._reads.messages.scan(topic.read_keys, reverse=True, rows_max=LAST_ROWS_MAX)
        for row in islice(rows, LAST_ROWS_MAX):
            if position_fields(row.position)[0] < topic.oldest_ms(now_ms):
                return None
            # The last payload row first: nearly always the newest message is in it, and no other need be read.
            for whole in row_slices(row, lambda reference: stored(topic, reference, reverse=True), verify=True):
                living = whole.unexpired(now_ms)
                if living:
                    return living[-1].last_id()
        return None

    async def _stored_bytes(self, topic: Topic) -> int:
        total = await self._call(self._reads.messages.size_bytes, topic.read_keys)
        for salt in range(topic.keys.buckets):
            start = topic.keys.message_start(salt)  # payload rows begin alike, in any of the buckets
            total += await self._call.about(
                topic.keys, self._payload_rows.size_bytes, start, prefix_stop(start) or start
            )
            await asyncio.sleep(0)
        return total


class _PayloadPage:
    """The payload rows that are counted at a time, of one reference or of several."""

    def __init__(self) -> None:
        self.last: bytes | None = None  # the row with which the page was full
        self._rows = self._bytes = 0

    def some_of(self, stored: Iterable[PayloadRow]) -> Iterator[PayloadRow]:
        """Those of these rows that the page has room for."""
        for row in stored:
            yield row
            self._rows += 1
            self._bytes += len(row.batch)
            if self._rows >= PAGE_ROWS or self._bytes >= PAGE_BYTES:
                self.last = row.position
                return


def _forget(log: TopicLog) -> None:
    log.counts = None


def _publish_ms(message_id: bytes | None) -> int | None:
    return None if message_id is None else MessageId.decode(message_id).publish_ms
