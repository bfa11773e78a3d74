"""Removes whole ranges of rows: messages and payloads that expired or were truncated, and those of past generations.

A store that applies the retention rule itself removes them when it compacts; the job then only notes that they are
gone.

The job remembers the oldest row of each topic, and does not read the topic again before that row can have expired. A
past generation is out of reach from the moment its topic is deleted. Up to which one a topic was swept is kept as a
system entry (kind `swept`, docs/formats/system-table.md), so that nothing is done twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from basalt.catalog.topics import Topic, TopicName
from basalt.errors import TopicNotFoundError
from basalt.messaging import index
from basalt.messaging.log import stored_log
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.producers import Producers
from basalt.runtime.group_commit import Group
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.clock import Clock
from basalt_engine.keys import PayloadKey, TopicKeys, position, position_fields, topic_prefix
from basalt_engine.messages import MessageTable
from basalt_engine.metadata import TopicMetadata
from basalt_engine.payloads import PayloadTable
from basalt_engine.retention import CLOCK_SET_BACK_MS, payloads_expired_ms
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.system import SystemRecord, SystemTable
from basalt_engine.table import DeleteRange, Store, prefix_stop

# A range delete costs every later read of the range a little until it is compacted away, so it waits until there is
# something to gain: an eighth of the TTL, or ten minutes.
SLACK_PART = 8
SLACK_MS_MAX = 600_000
TOPICS_REMEMBERED_MAX = 100_000
GROUP_TOPICS = 32  # topics in one write; each range delete in it is looked at again for each row written behind it
PAYLOAD_LOOKS_MAX = 1_000  # topics whose payload rows one run looks for: a read in each bucket
_TABLES = (MessageTable.name, PayloadTable.name)
# Topics whose past generations are removed by one run; each costs a read in each bucket of two tables.
OLD_TOPICS_MAX = 1_000


@dataclass(slots=True)
class _Known:
    """No row of the topic is older than this: publish time, and time of the write pointer."""

    oldest_ms: int = 0
    oldest_pointer_ms: int = 0


class _Expired(NamedTuple):
    """Rows published before a time, of which the one at `last` is the newest."""

    before_ms: int
    last: bytes


class _Plan(NamedTuple):
    topic: Topic
    messages: _Expired | None
    payloads: bool


class ExpiredRows:
    """Finds and removes what has expired."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        logs: TopicLogs,
        producers: Producers,
        writer: TopicLanes,
        lifetime_ms_max: int,
    ) -> None:
        self._store = store
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs
        self._producers = producers
        self._messages = MessageTable.of(store)
        self._writer = writer
        self._lifetime_ms = lifetime_ms_max
        self._known: dict[tuple[bytes, int], _Known] = {}  # by topic prefix and generation
        self._payload_looks = 0

    async def begin(self) -> None:
        """Before the first `sweep` of a run."""
        table = self._store.table(PayloadTable.name)
        any_payload = await self._call(lambda: next(table.scan(b"", None, rows_max=1), None))
        self._payload_looks = 0 if any_payload is None else PAYLOAD_LOOKS_MAX

    async def sweep(self, described: Iterable[tuple[TopicName, TopicMetadata]], counts: Counter[str]) -> None:
        """Look at some topics and remove what has expired in them."""
        plans: list[_Plan] = []
        for title, metadata in described:
            plan = None if metadata.generation < 0 else await self._plan(self._logs.catalog.at(title, metadata))
            if plan is not None:
                plans.append(plan)
            if len(plans) == GROUP_TOPICS:
                await self._remove(plans, counts)
                plans = []
        if plans:
            await self._remove(plans, counts)

    async def _plan(self, topic: Topic) -> _Plan | None:
        key = topic.keys.generation_key
        oldest = self._known.get(key)
        if oldest is None:
            if len(self._known) >= TOPICS_REMEMBERED_MAX:
                self._known.clear()
            oldest = self._known[key] = _Known()
        now_ms = self._clock.now_ms()
        ttl_ms, truncated_ms = topic.metadata.ttl_ms, self._truncated_ms(topic)
        slack_ms = min(ttl_ms // SLACK_PART, SLACK_MS_MAX)
        due_ms = max(now_ms - ttl_ms - slack_ms, truncated_ms - 1)  # what somebody truncated goes without delay
        messages = oldest.oldest_ms <= due_ms
        if messages:
            oldest.oldest_ms = await self._call(self._oldest_ms, topic, now_ms)
            messages = oldest.oldest_ms <= due_ms
            await asyncio.sleep(0)
        expired_ms = max(now_ms - ttl_ms, truncated_ms - 1)
        payloads_due_ms = payload_writers_expired_ms(expired_ms, self._lifetime_ms) - slack_ms
        payloads = self._payload_looks > 0 and oldest.oldest_pointer_ms <= payloads_due_ms
        if payloads:
            self._payload_looks -= 1
            oldest.oldest_pointer_ms = await self._call(self._oldest_pointer_ms, topic, now_ms)
            payloads = oldest.oldest_pointer_ms <= payloads_due_ms
            await asyncio.sleep(0)
        if not messages and not payloads:
            return None
        return _Plan(topic, await self._call(self._expired, topic, now_ms) if messages else None, payloads)

    def _truncated_ms(self, topic: Topic) -> int:
        """Before which time truncation lets rows go; a store that drops them itself knows it as well."""
        return 0 if self._store.applies_retention else topic.metadata.truncated_before_ms

    def _expired(self, topic: Topic, now_ms: int) -> _Expired:
        before_ms = max(now_ms - topic.metadata.ttl_ms + 1, self._truncated_ms(topic))
        # A merged row goes as a whole. What of it has expired counts as gone no sooner: were the TTL raised, it would be read again.
        astride = self._messages.astride(topic.read_keys, position(max(before_ms, 0), 0))
        if astride is not None:
            before_ms = position_fields(astride.first)[0]
        rows = self._messages.scan(topic.read_keys, b"", position(max(before_ms, 0), 0), reverse=True)
        newest = next(iter(rows), None)
        log_start = stored_log.expired(self._system, topic)
        last = bytes.fromhex(log_start.last or "") if log_start is not None else b""
        return _Expired(before_ms, last if newest is None else newest.position)

    def _oldest_ms(self, topic: Topic, now_ms: int) -> int:
        row = self._messages.first(topic.read_keys)
        return now_ms if row is None else position_fields(row.position)[0]

    def _oldest_pointer_ms(self, topic: Topic, now_ms: int) -> int:
        oldest_ms = now_ms - self._lifetime_ms - CLOCK_SET_BACK_MS  # of a transaction that is open now
        for start in _payload_starts(topic):
            for row in self._store.table(PayloadTable.name).scan(start, prefix_stop(start), rows_max=1):
                oldest_ms = min(oldest_ms, PayloadKey.decode(row.key).write_pointer // POINTERS_PER_MS)
        return oldest_ms

    async def _remove(self, plans: Sequence[_Plan], counts: Counter[str]) -> None:
        async with AsyncExitStack() as locks:
            plans_by_log: list[tuple[TopicLog, _Plan]] = []
            for plan in plans:
                with suppress(TopicNotFoundError):
                    log = await self._logs.open(plan.topic.title)
                    if log.topic.generation == plan.topic.generation:
                        await locks.enter_async_context(log.locks.rows)
                        await self._producers.ready(log)  # what the rows say of them goes with the rows
                        plans_by_log.append((log, plan))
            for lane, part in self._writer.split(plans_by_log, lambda each: each[0].topic.keys.prefix).items():
                await lane.run(partial(self._stage, plans=part, counts=counts))

    def _stage(self, group: Group, plans: Sequence[tuple[TopicLog, _Plan]], counts: Counter[str]) -> None:
        """Add the range deletes to the group, and what others must know of them."""
        ranges: list[tuple[str, DeleteRange]] = []
        for log, plan in plans:
            if log.live:  # else it was deleted, or changed: the next run looks at it again
                ranges += self._message_ranges(group, log, plan.messages, counts)
                ranges += self._payload_ranges(group, log.topic, counts) if plan.payloads else []
        if not self._store.applies_retention:
            for table, mutation in ranges:
                group.add(table, mutation)

    def _message_ranges(
        self, group: Group, log: TopicLog, expired: _Expired | None, counts: Counter[str]
    ) -> list[tuple[str, DeleteRange]]:
        """The ranges, unless the TTL has become longer since the topic was looked at, or its producers are not known: then the
        next run looks again.
        """
        topic = log.topic
        removable_ms = max(group.now_ms - topic.metadata.ttl_ms + 1, self._truncated_ms(topic))
        if expired is None or not 0 < expired.before_ms <= removable_ms or not self._producers.save_with(group, log):
            return []
        before_ms = expired.before_ms
        counts["expired_topics"] += 1
        stored_log.note_newest(group, topic, log.newest)
        stored_log.note_expired(group, topic, before_ms, expired.last)
        group.when_durable(lambda: self._gone(log, before_ms))
        group.when_failed(lambda: self._logs.tails.drop(log))
        before = [MessageTable.before(topic.read_keys, salt, before_ms) for salt in topic.read_keys.scanned()]
        return [(MessageTable.name, mutation) for mutation in before]

    def _gone(self, log: TopicLog, before_ms: int) -> None:
        key = log.topic.keys.generation_key
        self._logs.tails.remove_before(log, position(before_ms, 0))
        if log.index is not None:
            log.present_index().expired(
                before_ms
            )  # by the present truncation, while the sums of what it took are there
        if key in self._known:
            self._known[key].oldest_ms = before_ms

    def _payload_ranges(self, group: Group, topic: Topic, counts: Counter[str]) -> list[tuple[str, DeleteRange]]:
        expired_ms = max(group.now_ms - topic.metadata.ttl_ms, self._truncated_ms(topic) - 1)
        before_ms = payload_writers_expired_ms(expired_ms, self._lifetime_ms)
        if before_ms <= 0:
            return []
        counts["expired_payload_topics"] += 1
        stop = (before_ms * POINTERS_PER_MS).to_bytes(8, "big")
        return [(PayloadTable.name, DeleteRange(start, start + stop)) for start in _payload_starts(topic)]


def payload_writers_expired_ms(messages_expired_ms: int, lifetime_ms_max: int) -> int:
    """Writers that began up to this time have only payload rows that expired: `last_payload_key` has."""
    return payloads_expired_ms(messages_expired_ms, lifetime_ms_max) - lifetime_ms_max - CLOCK_SET_BACK_MS


def last_payload_key(keys: TopicKeys, write_pointer: int, lifetime_ms_max: int) -> PayloadKey:
    """The key of the last payload row that the writer may have: it may live so long, and the clock be set back meanwhile."""
    last_ms = write_pointer // POINTERS_PER_MS + lifetime_ms_max + CLOCK_SET_BACK_MS
    return PayloadKey(0, keys.prefix, keys.generation, write_pointer, last_ms, 0)


def _payload_starts(topic: Topic) -> list[bytes]:
    """The prefix of this generation's payload rows in each bucket; the write pointer follows it."""
    return [topic.keys.message_start(salt) for salt in range(topic.keys.buckets)]


class Swept(msgspec.Struct, frozen=True):
    """Every row of a generation below this one is gone."""

    generation: int


SWEPT = SystemRecord("swept", "", Swept)  # by the prefix of a topic or table


class OldGenerations:
    """Finds and removes the rows of past generations."""

    def __init__(self, store: Store, logs: TopicLogs, writer: TopicLanes) -> None:
        self._store = store
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._logs = logs
        self._writer = writer
        self._swept: dict[bytes, int] = {}
        self._left = 0

    def begin(self) -> None:
        """Before the first `sweep` of a run."""
        self._left = OLD_TOPICS_MAX

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
        generation = self._swept.get(prefix)
        if generation is None:
            swept = await self._call(SWEPT.get, self._system, stored_log.entry_name(prefix))
            generation = 0 if swept is None else swept.generation
            self._remember(prefix, generation)
        return generation

    def _remember(self, prefix: bytes, generation: int) -> None:
        if len(self._swept) >= TOPICS_REMEMBERED_MAX:
            self._swept.clear()
        self._swept[prefix] = generation

    async def _remove(self, title: TopicName, prefix: bytes, living: int, *, deleted: bool) -> None:
        # A store that applies the retention rule itself removes them when it compacts.
        ranges = [] if self._store.applies_retention else await self._call(self._ranges, prefix, living)
        # Nothing is rolled back in a past generation any more: see `RollBacks`.
        await self._writer.lane_of(prefix).run(
            lambda group: self._stage(group, prefix, living, ranges, title if deleted else None)
        )
        self._remember(prefix, living)

    def _ranges(self, prefix: bytes, living: int) -> list[tuple[str, DeleteRange]]:
        """The ranges in which there is anything: a range delete of nothing would be a burden all the same."""
        keys = TopicKeys(prefix, 0, self._logs.catalog.buckets)
        ranges = []
        for table in _TABLES:
            for salt in range(self._logs.catalog.buckets):  # whatever its spread was then
                whole = MessageTable.whole_generations(keys, salt, living)
                if next(self._store.table(table).scan(whole.start, whole.stop, rows_max=1), None) is not None:
                    ranges.append((table, whole))
        return ranges

    def _stage(
        self, group: Group, prefix: bytes, living: int, ranges: list[tuple[str, DeleteRange]], deleted: TopicName | None
    ) -> None:
        self._logs.gate.require([prefix])
        is_there = deleted is None or self._is_there(deleted)
        for table, mutation in ranges:
            group.add(table, mutation)
        name = stored_log.entry_name(prefix)
        group.add(SystemTable.name, SWEPT.put(Swept(living), name))
        if is_there:
            return
        stored_log.forget(group, prefix)
        for record in (index.SAVED, stored_log.MARKERS, stored_log.PRODUCERS):
            group.add(SystemTable.name, record.delete(name))

    def _is_there(self, deleted: TopicName) -> bool:
        """True when it was created again meanwhile: what is kept of it may be of that generation."""
        try:
            self._logs.loaded(deleted)
        except TopicNotFoundError:
            return False
        return True
