"""Ranges of topics, for readers that read them again and must get the same: how far, how much, and cut into how many parts.

A range is (after, through]: two ids, any 20 bytes, the first exclusive and the second inclusive. Up to the stable end of
its topic, all that is asked about a range has one answer for ever, but for the TTL and truncation.
"""

from __future__ import annotations

from typing import NamedTuple

from basalt.api.markers import MarkerState
from basalt.catalog.topics import Topic, TopicName
from basalt.errors import BusyError, InputError
from basalt.messaging.log import stored_log
from basalt.messaging.log.stored_log import read_page
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.ranges.range_reading import Range, read_range, undecided
from basalt.messaging.ranges.range_scan import NO_LIMIT, Bounds, Walk, weight
from basalt.messaging.read.fetch import Limits, Start, end_of
from basalt.messaging.read.last_stable import Settled, StableEnds, before
from basalt.messaging.read.log_reads import LogReads
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.manager import Transactions
from basalt_engine.clock import Clock
from basalt_engine.keys import position
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.records import Kind
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

SPLITS_MAX = 1_000  # parts of one range: each costs reading a block or two


class StableEnd(NamedTuple):
    """Up to where a generation of a topic reads the same for ever; `id` is None where nothing is there yet."""

    id: bytes | None
    generation: int


class Advance(NamedTuple):
    """A run of a topic, up to `through`: its messages, and what the markers in it say by themselves.

    `at_end`: there is nothing more up to the stable end, or the bound that was given. `expired`: messages behind `after`
    were lost to the TTL or a truncation. `tasks_property` is the topic's own count of tasks.
    """

    through: bytes | None
    messages: int
    payload_bytes: int
    at_end: bool
    generation: int
    expired: bool
    said: MarkerState
    tasks_property: int | None


class Split(NamedTuple):
    """A part of a range, and what is in it."""

    after: bytes | None
    through: bytes
    messages: int
    payload_bytes: int


class Splits(NamedTuple):
    """A range in parts, in the order of the log."""

    splits: list[Split]
    generation: int


class Ranges:
    """The ranges of one store's topics."""

    def __init__(
        self, store: Store, clock: Clock, logs: TopicLogs, reads: LogReads, writers: Transactions, ends: StableEnds, *,
        look: Limits,
    ) -> None:  # fmt: skip
        """`look`: how much one look at a log reads."""
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._store_drops = store.applies_retention
        self._clock = clock
        self._logs = logs
        self._reads = reads
        self._writers = writers
        self._look = look
        self._ends = ends

    async def stable_end(self, title: TopicName, committed: bool = True) -> StableEnd:
        """The highest id such that nothing at or below it can still appear or change who sees it.

        For readers that are not `committed`: after the newest durable row.
        """
        log = await self._logs.open(title)
        settled = await self._settled(log, committed)
        return StableEnd(settled.id or None, log.topic.generation)

    async def read(
        self, log: TopicLog, after: bytes | None, through: bytes, bytes_max: int, *, committed: bool
    ) -> Range:
        """The messages of a range, or the first of them. `through` must not be beyond what is decided."""
        snapshot = self._writers.current() if committed else None
        return await read_range(self._reads, log, after, through, bytes_max, self._look, snapshot)

    async def advance(
        self, title: TopicName, after: bytes | None, *, through: bytes | None = None, messages_max: int | None = None,
        bytes_max: int | None = None, committed: bool = True,
    ) -> Advance:  # fmt: skip
        """The longest run behind `after` within the limits, of which the first message is always a part.

        It ends at the stable end, or at `through` where that is less. Less than that is answered where more would have to be
        read than one call should: go on from there.
        """
        log = await self._logs.open(title)
        topic, settled = log.topic, await self._settled(log, committed)
        end = settled.id
        end = max(after or b"", end if through is None else min(end, through))
        bounds = Bounds(messages_max or NO_LIMIT, bytes_max or NO_LIMIT)
        walk = self._walk(log, settled, after or b"", end, bounds, committed=committed)
        await self._go(walk, log, end)
        expired = await self._has_expired(log, after or b"", settled)
        tally, at_end = walk.tally, walk.at == end
        return Advance(
            walk.at or None,
            tally.messages,
            tally.payload_bytes,
            at_end,
            topic.generation,
            expired,
            tally.said,
            topic.tasks,
        )

    async def splits(
        self, title: TopicName, after: bytes | None, through: bytes, count: int, *, committed: bool = True
    ) -> Splits:
        """The range in at most `count` parts that are about equally much work; where they are cut depends on nothing else.

        `ConflictError`: the range is not settled yet. `BusyError`: a long stretch is being read for the first time.
        """
        log = await self._logs.open(title)
        topic, settled = log.topic, await self._settled(log, committed)
        end = settled.id
        if (after or b"") > through:
            raise InputError(
                "the range ends before it begins", field="through", hint="give an id that is not before `after`"
            )
        if through > max(end, after or b""):
            raise undecided(through)
        whole = self._walk(log, settled, after or b"", through, Bounds(), committed=committed)
        await self._go(whole, log, through)
        while whole.is_tired and not committed:  # no try gets further than the one before
            whole.rest()
            await self._go(whole, log, through)
        if whole.is_tired:
            raise BusyError(
                f"a long stretch of topic {title} is being read for the first time, up to {whole.at.hex()} so far",
                hint="send the same call again; or split the topic in shorter ranges",
            )
        found: list[Split] = []
        at = after or b""
        left = weight(whole.tally.messages, whole.tally.payload_bytes)
        while at < through:
            parts_left = count - len(found)
            bounds = Bounds() if parts_left == 1 else Bounds(weight=-(-left // parts_left))
            walk = self._walk(log, settled, at, through, bounds, committed=committed)
            while walk.at < through and not walk.is_full:
                walk.rest()
                await self._go(walk, log, through)
            tally = walk.tally
            found.append(Split(at or None, walk.at, tally.messages, tally.payload_bytes))
            left -= weight(tally.messages, tally.payload_bytes)
            at = walk.at
        return Splits(found, topic.generation)

    def forget_all(self) -> None:
        """An operator has decided anew about writers that had been decided about: nothing that was read holds any more."""
        self._logs.memory.forget_all_blocks()

    async def _settled(self, log: TopicLog, committed: bool) -> Settled:
        if not committed:
            return Settled(await self._ends.newest_row(log), None)
        self._writers.current()  # refuses where transactions are managed elsewhere
        return await self._ends.settled(log)

    def _walk(
        self, log: TopicLog, settled: Settled, after: bytes, end: bytes, bounds: Bounds, *, committed: bool
    ) -> Walk:
        """A walk from behind an id on, past what has expired."""
        topic, now_ms = log.topic, self._clock.now_ms()
        oldest = before(position(topic.oldest_ms(now_ms), 0))
        floor = end_of(oldest) if oldest else b""
        index = None
        if committed:
            index = log.present_index().blocks
            index.drop_before(floor)
        begin = min(max(after, floor), end)
        return Walk(self._call, self._reads, log, settled.snapshot, now_ms, index, begin, bounds)

    async def _go(self, walk: Walk, log: TopicLog, end: bytes) -> None:
        try:
            await walk.to(end)
        finally:
            log.memory.touch_details(log)

    async def _has_expired(self, log: TopicLog, after: bytes, settled: Settled) -> bool:
        """True when the TTL, or a truncation, has taken messages behind `after`, as far as anybody can tell now.

        Where a store drops rows by itself nobody sees them go: if what is out of reach begins behind `after`, there may have been some.
        """
        topic = log.topic
        floor = position(topic.oldest_ms(self._clock.now_ms()), 0)
        if self._store_drops:
            return _end(after) < min(floor, log.newest)
        known = await self._call.about(None, stored_log.expired, self._system, topic)
        if known is not None:
            # Of what is gone only the newest row is known; in an entry from before that was noted, not even that.
            last = before(position(known.before_ms, 0)) if known.last is None else bytes.fromhex(known.last)
            if _end(after) < last:
                return True
        return _end(after) < floor and await self._call(self._is_there, topic, Start(after, False), floor, settled)

    def _is_there(self, topic: Topic, start: Start, stop: bytes, settled: Settled) -> bool:
        """True when readers would have seen a message up to `stop`, or there are more rows than one page holds."""
        page = read_page(self._reads.messages, topic.read_keys, start.position, stop)
        return page.rest is not None or any(
            not start.is_past(row)
            and row.expire_ms is None  # it was to be gone sooner
            and (row.batch is None or row.batch[1] == Kind.USER)
            and (settled.snapshot is None or settled.snapshot.is_visible(row.written_by))
            for row in page.rows
        )


def _end(after: bytes) -> bytes:
    """The position up to which all was passed by who stands at this id: of a row that it is in the midst of, not the row's."""
    tail = after[POSITION_BYTES:]
    return (
        after[:POSITION_BYTES] if not tail.strip(b"\0") or not tail.strip(b"\xff") else before(after[:POSITION_BYTES])
    )
