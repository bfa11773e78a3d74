"""Ranges of topics, for readers that read them again and must get the same: how far, how much, and cut into how many parts.

A range is (after, through]: two ids, any 20 bytes, the first exclusive and the second inclusive. Up to the stable end of
its topic, all that is asked about a range has one answer for ever, but for the TTL and truncation: what lies between two ids
is the same whoever reads it and how often. The blocks of the sparse index are sums of what reading finds, and are not read
again; where a limit falls into a block, it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from basalt.api.bodies.json import HexMessageId, message_id
from basalt.api.bodies.ranges import Split, Splits, StableEnd
from basalt.api.markers import NOTHING_KNOWN, MarkerState, apply, merged
from basalt.catalog.topics import TopicName
from basalt.errors import BusyError, ConflictError, InputError, InternalError
from basalt.messaging.index import BLOCK_BYTES, BLOCK_MESSAGES, BLOCK_SKIPPED_MAX, FOREVER_MS, Block, Blocks
from basalt.messaging.log import stored_log
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.first_unstable import FirstUnstable, share_of
from basalt.messaging.read.last_stable import Settled, StableEnds
from basalt.messaging.read.log_reader import (
    NO_LIMIT,
    Fetch,
    LogReader,
    ReadBudget,
    Reading,
    SliceLimits,
    Start,
    Stopped,
    before,
    end_of,
    start_from,
)
from basalt.messaging.read.range_permit import Asked, RangePermit, View
from basalt.messaging.read.slices import Slice
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.manager import Transactions
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.clock import Clock
from basalt_engine.keys import position
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.records import RecordKind
from basalt_engine.snapshot import NO_INVALID, POINTER_MAX, TransactionSnapshot
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

MESSAGES_MAX = 131_072  # of one answer: very small messages take many times their own bytes in memory
MESSAGE_WEIGHT_BYTES = 64  # what a message costs a reader beside its payload, roughly: many small ones are work too
SCAN_ROWS_MAX = 100_000  # that one scan reads at most; half a second where they are small,
SCAN_BYTES_MAX = 256 << 20  # or where they are large
SKIPS_MAX = 500  # known blocks that are passed before others get their turn: a millisecond or two
STRETCHES_TURN = 50  # stretches that are counted before others get their turn
SPLITS_MAX = 1_000  # parts of one range: each costs reading a block or two

_UNLIMITED = SliceLimits(NO_LIMIT, NO_LIMIT)


class RangeAdvance(NamedTuple):
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
    marker_state: MarkerState
    tasks_property: int | None


class Range(NamedTuple):
    """The messages of a range, or the first of them: then `next_id` is where to go on, exclusively."""

    slices: list[Slice]
    next_id: bytes | None
    messages: int
    payload_bytes: int


class Counted(NamedTuple):
    """The messages of some stretches: so many, or so many at least (not `exact`), for whoever asks before `until_ms`."""

    messages: int
    exact: bool
    until_ms: int


class BlockedReaders(NamedTuple):
    """Readers of a topic stop at the message `at`; None when the search was given up before a row was found.

    `messages` come after it: all that may be shown once every writer has ended (`exact` is false where there may be more).
    `waiting` long polls wait in the topic.
    """

    topic: TopicName
    at: bytes | None
    messages: int
    exact: bool
    waiting: int


class RangeScan:
    """One way through a range, from behind an id on, counting what a reader sees of it. Known stretches are not read.

    `snapshot` is that of the stable end up to which it goes; None sees everything. `limits`: the most that it counts. Beyond
    the stable end, `decided` is the snapshot that tells which rows are: a stretch without others is known from then on.
    """

    def __init__(
        self, reader: LogReader, log: TopicLog, snapshot: TransactionSnapshot | None, now_ms: int,
        index: Blocks | None, after: bytes, limits: SliceLimits, decided: TransactionSnapshot | None = None,
    ) -> None:  # fmt: skip
        self._reader = reader
        self._log = log
        self._snapshot = snapshot
        self._now_ms = now_ms
        self._index = index
        self._limits = limits
        self._decided = decided
        self.at = after  # what lies up to here was passed
        self.messages = 0
        self.payload_bytes = 0
        self.marker_state: MarkerState = NOTHING_KNOWN
        self.is_full = False  # it ends right before the first message that is over the limits
        self.until_ms = FOREVER_MS  # until then, no message that was counted expires by a TTL of its own
        self.renew_budget()

    def renew_budget(self) -> None:
        """Reset the budget to that of one call."""
        self.budget = ReadBudget(SCAN_ROWS_MAX, SCAN_BYTES_MAX)

    @property
    def weight(self) -> int:
        """The cost of reading what it has counted, in bytes."""
        return _weight(self, MESSAGE_WEIGHT_BYTES)

    async def to(self, end: bytes) -> None:
        """Go on up to this id, or until a limit is reached, or the budget spent."""
        skipped = 0
        while self.at < end and not self.is_full and not self.budget.is_spent:
            known = self._known()
            if known is not None and known.through <= end and self._admits(known):
                self._count(known, known.marker_summary, known.until_ms)
                self.at = known.through
                skipped += 1
                if skipped % SKIPS_MAX == 0:
                    await asyncio.sleep(0)
                continue
            read = await self._read(end if self._index is None else self._index.bound(self.at, end))
            if self._index is not None and known is not None and known.after < self.at < known.through:
                self._index.split(known, self.at, read.messages, read.payload_bytes)

    def _known(self) -> Block | None:
        """The block that begins here, if one is known that still holds."""
        block = None if self._index is None else self._index.at(self.at)
        if block is None or self._index is None:
            return None
        if not block.is_valid(self._now_ms, NO_INVALID if self._snapshot is None else self._snapshot.invalid):
            self._index.drop(block)
            return None
        return block

    def _admits(self, block: Block) -> bool:
        """True when the whole block can be counted within the limits."""
        left = self._left(None)
        return block.messages <= left.messages_max and _weight(block, left.message_bytes) <= left.bytes_max

    def _left(self, through: bytes | None) -> SliceLimits:
        """The limits that are left: at least one message, whatever its bytes, while it has counted none."""
        limits = self._limits
        messages_left = limits.messages_max - self.messages
        bytes_left = limits.bytes_max - _weight(self, limits.message_bytes)
        return SliceLimits(messages_left, bytes_left, 0 if self.messages else 1, through, limits.message_bytes)

    def _count(self, part: Block | Fetch, marker_state: MarkerState, until_ms: int) -> None:
        self.until_ms = min(self.until_ms, until_ms)
        self.messages += part.messages
        self.payload_bytes += part.payload_bytes
        self.marker_state = merged(self.marker_state, marker_state)

    async def _read(self, end: bytes) -> Fetch:
        """Read a block, or what lies up to this id."""
        reading = Reading(
            Start(self.at, False), self._left(end), self._snapshot, self._now_ms, markers=True, budget=self.budget,
            enough=SliceLimits(BLOCK_MESSAGES, BLOCK_BYTES), skipped_max=BLOCK_SKIPPED_MAX, whole=True,
        )  # fmt: skip
        page = await self._reader.go_on(self._log, reading)
        if page.held_at is not None:
            raise InternalError(f"row {page.held_at.hex()} is undecided, and lies before the stable end of its topic")
        after, marker_state = self.at, NOTHING_KNOWN
        for part in page.slices:
            # A rolled back marker counts for nobody; a message does for those who see everything.
            if part.batch.kind is not RecordKind.USER and (part.written_by is None or part.written_by > 0):
                marker_state = apply(marker_state, part.marker(), part.publish_ms)
        if page.full_at is not None:
            # Whatever was read or skipped on the way here, the scan ends right before what did not fit.
            self.at, self.is_full = before(page.full_at), True
        else:
            self.at = end if page.stopped is Stopped.END else page.next_id or after
        self._count(page, marker_state, reading.until_ms)
        decided = self._decided
        is_decided = decided is None or all(decided.is_visible(part.written_by) for part in page.slices)
        if self._index is not None and is_decided:
            skipped, times = frozenset(reading.skipped), (reading.from_ms, reading.until_ms)
            self._index.add(Block(after, self.at, page.messages, page.payload_bytes, marker_state, skipped, *times))
        return page


def _weight(part: RangeScan | Block, message_bytes: int) -> int:
    return part.payload_bytes + message_bytes * part.messages


class Ranges:
    """The ranges of one store's topics."""

    def __init__(
        self, store: Store, clock: Clock, logs: TopicLogs, reader: LogReader, writers: Transactions, ends: StableEnds,
        first_unstable: FirstUnstable,
    ) -> None:  # fmt: skip
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._store_drops = store.applies_retention
        self._clock = clock
        self._logs = logs
        self._reader = reader
        self._writers = writers
        self._ends = ends
        self._first_unstable = first_unstable

    async def stable_end(self, title: TopicName, committed: bool = True) -> StableEnd:
        """The highest id such that nothing at or below it can still appear or change who sees it.

        For readers that are not `committed`: after the newest durable row.
        """
        log = await self._logs.open(title)
        return StableEnd(message_id((await self._settled(log, committed)).id or None), log.topic.generation)

    async def read(
        self, log: TopicLog, after: bytes | None, through: bytes, bytes_max: int, *, committed: bool
    ) -> Range:
        """The messages of a range, or the first of them: at least one, if there is one.

        `ConflictError`: `through` is beyond what is decided.
        """
        snapshot = self._writers.current() if committed else None
        page = await self._reader.go_on(log, reading_of(after, through, bytes_max, snapshot, self._clock.now_ms()))
        if page.held_by is not None:
            raise undecided(through)
        return range_of(page, through)

    def permit(self, log: TopicLog, asked: Asked, coordinator: str, *, committed: bool) -> RangePermit | None:
        """The permit to read a range that ends at or before the stable end, for a server that reads it from the store.

        None: the view is too long to be sent along.
        """
        view = View.of(self._writers.current()) if committed else None
        if committed and view is None:
            return None
        now_ms = self._clock.now_ms()
        oldest_ms = log.oldest_ms(now_ms)
        return RangePermit.of(log.topic, asked, view, coordinator=coordinator, now_ms=now_ms, oldest_ms=oldest_ms)

    async def advance(
        self, title: TopicName, after: bytes | None, *, through: bytes | None = None, messages_max: int | None = None,
        bytes_max: int | None = None, committed: bool = True,
    ) -> RangeAdvance:  # fmt: skip
        """The longest run behind `after` within the limits, of which the first message is always a part.

        It ends at the stable end, or at `through` where that is less. Less than that is answered where more would have to be
        read than one call should: go on from there.
        """
        log = await self._logs.open(title)
        topic, settled = log.topic, await self._settled(log, committed)
        end = max(after or b"", settled.id if through is None else min(settled.id, through))
        limits = SliceLimits(messages_max or NO_LIMIT, bytes_max or NO_LIMIT)
        scan = self._scan(log, settled, after or b"", end, limits, committed=committed)
        await self._go(scan, log, end)
        expired = await self._has_expired(log, after or b"", settled)
        return RangeAdvance(
            scan.at or None, scan.messages, scan.payload_bytes, scan.at == end, topic.generation, expired, scan.marker_state,
            topic.tasks,
        )  # fmt: skip

    async def splits(
        self, title: TopicName, after: bytes | None, through: bytes, count: int, *, committed: bool = True
    ) -> Splits:
        """The range in at most `count` parts that are about equally much work; where they are cut depends on nothing else.

        `ConflictError`: the range is not settled yet. `BusyError`: a long stretch is being read for the first time.
        """
        log = await self._logs.open(title)
        topic, settled = log.topic, await self._settled(log, committed)
        if (after or b"") > through:
            raise InputError(
                "the range ends before it begins", field="through", hint="give an id that is not before `after`"
            )
        if through > max(settled.id, after or b""):
            raise undecided(through)
        whole = self._scan(log, settled, after or b"", through, _UNLIMITED, committed=committed)
        await self._go(whole, log, through)
        while whole.budget.is_spent and not committed:  # no try gets further than the one before
            whole.renew_budget()
            await self._go(whole, log, through)
        if whole.at < through:
            raise BusyError(
                f"a long stretch of topic {title} is being read for the first time, up to {whole.at.hex()} so far",
                hint="send the same call again; or split the topic in shorter ranges",
            )
        parts: list[Split] = []
        at, weight_left = after or b"", whole.weight
        while at < through:
            parts_left = count - len(parts)
            limits = _UNLIMITED
            if parts_left > 1:
                limits = SliceLimits(NO_LIMIT, -(-weight_left // parts_left), message_bytes=MESSAGE_WEIGHT_BYTES)
            part = self._scan(log, settled, at, through, limits, committed=committed)
            while part.at < through and not part.is_full:
                part.renew_budget()
                await self._go(part, log, through)
            parts.append(Split(message_id(at or None), HexMessageId(part.at), part.messages, part.payload_bytes))
            weight_left -= part.weight
            at = part.at
        return Splits(parts, topic.generation)

    async def settled(self, log: TopicLog) -> Settled:
        """Up to where readers of committed messages find all decided, and the snapshot that says how."""
        return await self._settled(log, True)

    async def count(
        self, log: TopicLog, settled: Settled, stretches: Iterable[tuple[bytes, bytes]], budget: ReadBudget
    ) -> Counted:
        """The messages that readers of committed ones get of these stretches (after, through], none beyond what is settled.

        It gives up where the budget is spent; what was read by then is known the next time.
        """
        messages, until_ms = 0, FOREVER_MS
        for number, (after, through) in enumerate(stretches, 1):
            # The first block of all begins with no id, as readers do who have none.
            scan = self._scan(log, settled, after if any(after) else b"", through, _UNLIMITED, committed=True)
            scan.budget = budget
            await self._go(scan, log, through)
            messages, until_ms = messages + scan.messages, min(until_ms, scan.until_ms)
            if scan.at < through:
                return Counted(messages, False, until_ms)
            if number % STRETCHES_TURN == 0:
                await asyncio.sleep(0)
        return Counted(messages, True, until_ms)

    async def blocked_by(self, transaction: Transaction, budget: ReadBudget) -> list[BlockedReaders]:
        """The topics in which a transaction blocks readers, in the order of its joins. Searches and counts use up the budget."""
        found: list[BlockedReaders] = []
        for join in transaction.topics:
            first = await self._first_unstable.of_transaction(transaction, join, budget)
            if first is not None:
                log, where, first_id = first
                messages, exact = (0, False) if where is None else await self._behind(log, end_of(where), budget)
                found.append(BlockedReaders(log.topic.title, first_id, messages, exact, log.waiting))
        return found

    async def _behind(self, log: TopicLog, after: bytes, budget: ReadBudget) -> tuple[int, bool]:
        """The messages behind an id, but for those of failed writers, and whether these are all."""
        decided, end = self._first_unstable.known_transactions.snapshot(), end_of(await self._ends.newest_row(log))
        all_committed = TransactionSnapshot(POINTER_MAX, invalid=NO_INVALID if decided is None else decided.invalid)
        settled = Settled(end[:POSITION_BYTES], all_committed)
        scan = self._scan(log, settled, after, end, _UNLIMITED, committed=decided is not None, decided=decided)
        share = scan.budget = share_of(budget, SCAN_BYTES_MAX)
        await self._go(scan, log, end)
        budget.rows += share.rows
        return scan.messages, scan.at >= end

    async def _settled(self, log: TopicLog, committed: bool) -> Settled:
        if not committed:
            return Settled(await self._ends.newest_row(log), None)
        self._writers.current()  # refuses where transactions are managed elsewhere
        return await self._ends.settled(log)

    def _scan(
        self, log: TopicLog, settled: Settled, after: bytes, end: bytes, limits: SliceLimits, *, committed: bool,
        decided: TransactionSnapshot | None = None,
    ) -> RangeScan:  # fmt: skip
        """A scan from behind an id on, past what has expired."""
        now_ms = self._clock.now_ms()
        oldest = before(position(log.oldest_ms(now_ms), 0))
        floor = end_of(oldest) if oldest else b""
        index = None
        if committed:
            index = log.present_index().blocks
            index.drop_before(floor)
        begin = min(max(after, floor), end)
        return RangeScan(self._reader, log, settled.snapshot, now_ms, index, begin, limits, decided)

    async def _go(self, scan: RangeScan, log: TopicLog, end: bytes) -> None:
        try:
            await scan.to(end)
        finally:
            log.memory.touch_details(log)

    async def _has_expired(self, log: TopicLog, after: bytes, settled: Settled) -> bool:
        """True when the TTL, or a truncation, has taken messages behind `after`, as far as anybody can tell now.

        Where a store drops rows by itself nobody sees them go: if what is out of reach begins behind `after`, there may have been some.
        """
        topic = log.topic
        floor = position(log.oldest_ms(self._clock.now_ms()), 0)
        if self._store_drops:
            return _end(after) < min(floor, log.newest)
        known = await self._call.about(None, stored_log.expired, self._system, topic)
        if known is not None:
            # Of what is gone only the newest row is known; in an entry from before that was noted, not even that.
            last = before(position(known.before_ms, 0)) if known.last is None else bytes.fromhex(known.last)
            if _end(after) < last:
                return True
        return _end(after) < floor and await self._is_there(log, Start(after, False), floor, settled)

    async def _is_there(self, log: TopicLog, start: Start, stop: bytes, settled: Settled) -> bool:
        """True when readers would have seen a message up to `stop`, or there are more rows than one page holds."""
        page = await self._reader.page(log, start.position, stop)
        return page.rest is not None or any(
            not start.is_past(row)
            and row.expire_ms is None  # it was to be gone sooner
            and (row.batch is None or row.batch[1] == RecordKind.USER)
            and (settled.snapshot is None or settled.snapshot.is_visible(row.written_by))
            for row in page.rows
        )


def _end(after: bytes) -> bytes:
    """The position up to which all was passed by who stands at this id: of a row that it is in the midst of, not the row's."""
    tail = after[POSITION_BYTES:]
    is_whole = not tail.strip(b"\0") or not tail.strip(b"\xff")
    return after[:POSITION_BYTES] if is_whole else before(after[:POSITION_BYTES])


def reading_of(
    after: bytes | None, through: bytes, bytes_max: int, snapshot: TransactionSnapshot | None, now_ms: int
) -> Reading:
    """The reading of a range, or of its beginning."""
    limits = SliceLimits(MESSAGES_MAX, bytes_max, 1, through)
    return Reading(start_from(after, after is None), limits, snapshot, now_ms, budget=ReadBudget(), whole=True)


def range_of(page: Fetch, through: bytes) -> Range:
    """The range, or the beginning of it, that was read."""
    is_end = page.stopped is Stopped.END or page.next_id == through
    return Range(page.slices, None if is_end else page.next_id, page.messages, page.payload_bytes)


def undecided(through: bytes) -> ConflictError:
    """The refusal of a range that could still change."""
    return ConflictError(
        f"the range ends at {through.hex()}, beyond the topic's stable end: what it holds could still change",
        field="through",
        hint="End it at what stable-end or advance answers.",
    )
