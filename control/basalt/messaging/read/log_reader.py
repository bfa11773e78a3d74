"""The one reader of logs: pages of what a reader may see, and why each ends; and pages of rows for those who look at rows.

Rows come in order from the tail in memory, or from the store. A local store is read on the event loop, where a look takes
its turn with others; a remote one on a thread. The rules are those of docs/reference/http-api.md, "What a reader may rely on".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.messaging.log.row_pages import PAGE_ROWS, Page, read_page
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.slices import Limits, PayloadRows, Slice, Start, end_of, not_before, row_slices
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, MessageTable
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.records import Flag, Kind
from basalt_engine.snapshot import TransactionSnapshot, Visibility
from basalt_engine.table import Store

NO_LIMIT = 1 << 62
ROWS_MAX = 10_000  # rows one fetch looks at: behind a long stretch of hidden rows it answers with what it has
LOOK_ROWS_MAX = 1_000  # read in one look, some 5 ms of small ones;
LOOK_BYTES_MAX = 4 << 20  # or some 10 ms of large ones; then others get their turn
REMOTE_BYTES_MAX = 16 << 20  # asked of a remote store at once: so much is in memory for each reader
FOREVER_MS = (1 << 63) - 1


class Stopped(Enum):
    """The reason why a page, or a look, ends."""

    END = auto()  # nothing more is there, or up to `through`
    ENOUGH = auto()  # the page has as much as it is to have
    FULL = auto()  # a message did not fit the limits
    HELD = auto()  # at a row whose writer has not ended
    SPENT = auto()  # the budget is
    PAUSED = auto()  # others get their turn
    LOOKED = auto()  # through the rows in hand; there may be more


class Budget:
    """The rows, and the bytes of rows and payload rows, that may still be read. The last one read may go beyond it."""

    __slots__ = ("bytes", "rows")

    def __init__(self, rows: int = NO_LIMIT, bytes_max: int = NO_LIMIT) -> None:
        self.rows = rows
        self.bytes = bytes_max

    @property
    def is_spent(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0


class Enough(NamedTuple):
    """A page ends at the first row, or payload row, with which it has so much."""

    messages: int
    payload_bytes: int
    skipped: int = NO_LIMIT  # failed writers


class Fetch(NamedTuple):
    """A page of messages. `next_id`: go on from here, exclusively; None when nothing was passed.

    `full_at` is the id of the message that did not fit. Who asked for markers is told of which generation of the topic the
    page is, and the topic's property `tasks`.
    """

    slices: list[Slice]
    next_id: bytes | None
    held_by: int | None
    messages: int
    payload_bytes: int
    held_at: bytes | None = None
    generation: int | None = None
    tasks: int | None = None
    stopped: Stopped = Stopped.END
    full_at: bytes | None = None


class Reading:
    """One page in the making, look after look. Pure.

    Without a snapshot everything is visible that has not expired at `now_ms`. With `markers` these come in between, and
    count for no limit. A `whole` page ends where its limits say; another as soon as something was found and more would
    have to be read from elsewhere.
    """

    __slots__ = (
        "_enough", "_limits", "_markers", "_snapshot", "budget", "from_ms", "full_at", "held", "messages", "next_id",
        "now_ms", "payload_bytes", "skipped", "slices", "start", "until_ms", "whole",
    )  # fmt: skip

    def __init__(
        self, start: Start, limits: Limits, snapshot: TransactionSnapshot | None, now_ms: int, *,
        markers: bool = False, budget: Budget | None = None, enough: Enough | None = None, whole: bool = False,
    ) -> None:  # fmt: skip
        self.start = start
        self.now_ms = now_ms
        self.budget = budget or Budget(ROWS_MAX)
        self.whole = whole
        self._limits = limits
        self._snapshot = snapshot
        self._markers = markers
        self._enough = enough or Enough(limits.messages_max, limits.bytes_max)
        self.slices: list[Slice] = []
        self.messages = self.payload_bytes = 0
        self.next_id: bytes | None = None
        self.held: MessageRow | None = None
        self.full_at: bytes | None = None
        self.skipped: set[int] = set()  # failed writers whose rows were passed
        # A later reader finds the same messages from one time until another, for they may have TTLs of their own.
        self.from_ms, self.until_ms = 0, FOREVER_MS

    @property
    def stop(self) -> bytes | None:
        """No row from this position on is wanted."""
        return self._limits.stop

    @property
    def remote_bytes(self) -> int:
        """The bytes to ask a remote store for."""
        return min(self._enough.payload_bytes, REMOTE_BYTES_MAX) + ROW_BYTES_MAX

    def go_on(self, oldest_ms: int) -> Start:
        """The start of the next look; nothing is reached that was published before `oldest_ms`."""
        self.start = not_before(self.start if self.next_id is None else Start(self.next_id, False), oldest_ms)
        return self.start

    def look(
        self, rows: Iterable[MessageRow], payload_rows: PayloadRows, turn: Budget, *, verify: bool = True
    ) -> Stopped:
        """Take what is wanted of these rows, which begin at `start.position`, until the turn is over.

        `verify=False` trusts batches that never left this process.
        """
        start, limits, snapshot, budget = self.start, self._limits, self._snapshot, self.budget
        first = start.position
        for row in rows:
            if limits.through is not None and limits.end_before(row):
                self.next_id = limits.through
                return Stopped.END
            size_bytes = row.size_bytes
            turn.bytes -= size_bytes
            budget.bytes -= size_bytes
            if row.position != first or not start.is_past(row):
                seen = Visibility.VISIBLE if snapshot is None else snapshot.judge(row.written_by)
                if seen is Visibility.VISIBLE:
                    stopped = self._take_row(row, payload_rows, turn, verify)
                    if stopped is not None:
                        return stopped
                elif seen is Visibility.HOLD:
                    self.held = row
                    return Stopped.HELD
                elif row.written_by is not None and row.written_by > 0:
                    self.skipped.add(row.written_by)
            self.next_id = end_of(row.position)
            turn.rows -= 1
            budget.rows -= 1
            if self._has_enough():
                return Stopped.ENOUGH
            if limits.end_at(self.next_id):
                return Stopped.END
            if budget.rows <= 0 or budget.bytes <= 0:
                return Stopped.SPENT
            if turn.rows <= 0 or turn.bytes <= 0:
                return Stopped.PAUSED
        return Stopped.LOOKED

    def page(self, stopped: Stopped) -> Fetch:
        """The page, which ends here for this reason."""
        next_id, held_by, held_at, through = self.next_id, None, None, self._limits.through
        if next_id is not None and through is not None:
            next_id = min(next_id, through)
        if self.held is not None:
            held_by, held_at = self.held.written_by, self.held.position.ljust(MESSAGE_ID_BYTES, b"\0")
        return Fetch(
            self.slices, next_id, held_by, self.messages, self.payload_bytes, held_at,
            stopped=stopped, full_at=self.full_at,
        )  # fmt: skip

    def _has_enough(self) -> bool:
        messages, payload_bytes, skipped = self._enough
        return self.messages >= messages or self.payload_bytes >= payload_bytes or len(self.skipped) >= skipped

    def _take_row(self, row: MessageRow, payload_rows: PayloadRows, turn: Budget, verify: bool) -> Stopped | None:
        """Take what is wanted of the row; None when it was passed as a whole."""
        for whole in row_slices(self.start.within(row), payload_rows, verify, markers=self._markers):
            if not self._take(whole):
                passed = [self.slices[-1].last_id()] if self.slices else []
                self.next_id = max([*passed, self.next_id or b""]) or None
                return Stopped.FULL
            if row.reference is None:
                return None
            # One row may refer to a million messages: stop within it.
            passed_id, size_bytes = whole.last_id(), whole.batch.body_bytes
            turn.bytes -= size_bytes
            turn.rows -= 1
            self.budget.bytes -= size_bytes
            if passed_id <= self.start.id:
                continue
            stopped = (
                Stopped.ENOUGH if self._has_enough()
                else Stopped.END if self._limits.end_at(passed_id)
                else Stopped.SPENT if self.budget.is_spent
                else Stopped.PAUSED if turn.is_spent
                else None
            )  # fmt: skip
            if stopped is not None:
                self.next_id = passed_id
                return stopped
        return None

    def _take(self, whole: Slice) -> bool:
        """Take what the reader gets of these messages; False when one did not fit the limits."""
        limits = self._limits
        wanted = whole.after(self.start.id, self.start.inclusive)
        if limits.through is not None:
            wanted = wanted.through(limits.through)
        if whole.batch.flags & Flag.TTLS:
            self._note_expiry(whole)
        for part in wanted.unexpired(self.now_ms):
            if part.batch.kind is not Kind.USER:
                self.slices.append(part)
                continue
            least = 0 if self.messages else limits.least  # a first message comes whole, however large
            taken_bytes = self.payload_bytes + limits.message_bytes * self.messages
            cut = part.up_to(
                limits.messages_max - self.messages, limits.bytes_max - taken_bytes, least, limits.message_bytes
            )
            if cut.stop > cut.start:
                self.slices.append(cut)
                self.messages += cut.stop - cut.start
                self.payload_bytes += cut.payload_bytes
            if cut.stop < part.stop:
                self.full_at = part.id_at(cut.stop)
                return False
        return True

    def _note_expiry(self, whole: Slice) -> None:
        """A message with a TTL of its own counts only for a while."""
        for ttl_ms in set(whole.batch.ttls_ms() or ()) - {0}:
            expire_ms = whole.publish_ms + ttl_ms
            if expire_ms > self.now_ms:
                self.until_ms = min(self.until_ms, expire_ms)
            else:
                self.from_ms = max(self.from_ms, expire_ms)


class LogReader:
    """Reads the logs of one store."""

    def __init__(self, store: Store, clock: Clock, logs: TopicLogs) -> None:
        self.messages = MessageTable(store.table(MessageTable.name))
        self.payloads = PayloadTable(store.table(PayloadTable.name))
        self._remote = store.remote
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs

    async def read(
        self,
        log: TopicLog,
        start: Start,
        limits: Limits,
        snapshot: TransactionSnapshot | None,
        *,
        markers: bool = False,
    ) -> Fetch:
        """A page, past any stretch of rows that this reader may not see: empty only when nothing more can be read now."""
        return await self.go_on(log, Reading(start, limits, snapshot, self._clock.now_ms(), markers=markers))

    async def go_on(self, log: TopicLog, reading: Reading) -> Fetch:
        """Read until the page is as it should be."""
        while True:
            stopped = await self._look(log, reading)
            if stopped is Stopped.SPENT and not reading.whole and not reading.slices:
                reading.budget = Budget(ROWS_MAX)  # a reader gets something, or knows that there is nothing
            elif (stopped is Stopped.LOOKED and not reading.whole and reading.slices) or (
                stopped is not Stopped.PAUSED and stopped is not Stopped.LOOKED
            ):
                return reading.page(stopped)
            await asyncio.sleep(0)

    async def _look(self, log: TopicLog, reading: Reading) -> Stopped:
        """Look at the next rows: from the tail in memory, or from the store."""
        if log.unconfirmed:
            await log.confirm_or_delete()
        topic, passed = log.topic, reading.next_id
        start = reading.go_on(topic.oldest_ms(reading.now_ms))
        # The log belongs to the event loop: a thread gets what it says, and reads only the store.
        cached = self._logs.tails.rows(log.tail, start.position, LOOK_ROWS_MAX)
        threaded = self._remote and (cached is None or any(row.reference is not None for row in cached))
        # On a thread nobody waits for a turn, and a look is bounded by what one read brings.
        turn = Budget() if threaded else Budget(LOOK_ROWS_MAX, LOOK_BYTES_MAX)
        payload_rows = partial(self.stored_rows, topic)
        if cached is not None:
            look = partial(reading.look, cached, payload_rows, turn, verify=False)
        else:
            stops = (log.durable_stop if self._remote else log.in_flight_stop, reading.stop)
            look = partial(self._look_at_store, topic, reading, payload_rows, turn, _first_of(stops))
        stopped = await self._call.about(topic.keys, look) if threaded else look()
        if stopped is not Stopped.LOOKED:
            return stopped
        if cached is not None:
            return stopped if len(cached) >= LOOK_ROWS_MAX else Stopped.END
        return stopped if self._remote and reading.next_id is not passed else Stopped.END

    def _look_at_store(
        self, topic: Topic, reading: Reading, payload_rows: PayloadRows, turn: Budget, stop: bytes | None
    ) -> Stopped:
        bytes_max = reading.remote_bytes if self._remote else None
        rows = self.messages.scan(topic.read_keys, reading.start.position, stop, bytes_max=bytes_max)
        return reading.look(rows, payload_rows, turn)

    async def page(
        self, log: TopicLog, start: bytes = b"", stop: bytes | None = None, budget: Budget | None = None
    ) -> Page:
        """The first rows with start <= position < stop, whoever wrote them; go on with the page's `rest`.

        Rows that are written meanwhile may be among them, or not.
        """
        rows = self._logs.tails.rows(log.tail, start, PAGE_ROWS)
        if rows is None:
            page = await self._call(read_page, self.messages, log.topic.read_keys, start, stop)
        else:
            rest = rows[-1].position + b"\0" if len(rows) >= PAGE_ROWS else None
            if stop is not None and rows and rows[-1].position >= stop:
                rows, rest = [row for row in rows if row.position < stop], None
            page = Page(rows, rest)
        if budget is not None:
            budget.rows -= len(page.rows)
        if page.rest is not None:
            await asyncio.sleep(0)  # others get their turn on a long way
        return page

    def stored_rows(self, topic: Topic, row: MessageRow, *, reverse: bool = False) -> Iterable[PayloadRow]:
        """The payload rows that a reference publishes, in order, or the last one first."""
        assert row.reference is not None
        assert row.written_by is not None
        first, last, _ = row.reference
        return self.payloads.scan(topic.keys, abs(row.written_by), first, last, reverse=reverse)


def _first_of(stops: Iterable[bytes | None]) -> bytes | None:
    """The first of these positions; None: none of them is a stop."""
    return min((stop for stop in stops if stop is not None), default=None)
