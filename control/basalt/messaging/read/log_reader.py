"""Reads a topic's log page by page, and decides where each page ends; also plain pages of rows, for those who look at rows.

Messages come as slices of record batches, their rows in order from the tail in memory, or from the store. A local store is
read on the event loop, where a look takes its turn with others; a remote one on a thread. The rules are those of
docs/reference/http-api.md, "What a reader may rely on".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.messaging.log.answers import StretchPart
from basalt.messaging.log.packing import StoredSize
from basalt.messaging.log.stored_log import PAGE_ROWS, LogPage, read_page
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.slices import NO_PAYLOAD_ROW, PayloadRows, Slice, row_slices
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import MESSAGE_ID_BYTES, position
from basalt_engine.messages import POSITION_BYTES, MessageRow, MessageTable, cut_rows
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.records import BatchSection, RecordKind, uncompressed_bytes
from basalt_engine.snapshot import TransactionSnapshot, Visibility
from basalt_engine.table import Store

NO_LIMIT = 1 << 62
ROWS_MAX = 10_000  # rows one fetch looks at: behind a long stretch of hidden rows it answers with what it has
LOOK_ROWS_MAX = 1_000  # read in one look, some 5 ms of small ones;
LOOK_BYTES_MAX = 4 << 20  # or some 10 ms of large ones; then others get their turn
REMOTE_BYTES_MAX = 16 << 20  # asked of a remote store at once, and in memory for each reader
FOREVER_MS = (1 << 63) - 1
_END_OF_ROW = b"\xff" * POSITION_BYTES  # after every message of a row


class Start(NamedTuple):
    """The point at which a reader begins: a message id (or any 20 bytes), and whether that message itself counts."""

    id: bytes
    inclusive: bool

    @property
    def position(self) -> bytes:
        """The lowest position at which a wanted message may lie."""
        if self.id[POSITION_BYTES:] == _END_OF_ROW:  # no message has this id: the row was passed as a whole
            return self.id[:POSITION_BYTES] + b"\0"
        return self.id[:POSITION_BYTES]

    def is_past(self, row: MessageRow) -> bool:
        """True when all messages of the row lie before the start, as its position and reference alone can tell.

        A reader that goes on from a row's last message need not decode the row again, nor wait for its writer.
        """
        if row.position != self.id[:POSITION_BYTES]:
            return False
        last = NO_PAYLOAD_ROW if row.reference is None else row.reference.last
        return self.id[POSITION_BYTES:] > last or (self.id[POSITION_BYTES:] == last and not self.inclusive)

    def within(self, row: MessageRow) -> MessageRow:
        """The row, referring to no payload rows that lie before the start."""
        if row.reference is None or row.position != self.id[:POSITION_BYTES]:
            return row
        first = max(row.reference.first, self.id[POSITION_BYTES:])
        return row._replace(reference=row.reference._replace(first=first))


def start_from(at: bytes | int | None, inclusive: bool) -> Start:
    """The start that an id, a time in milliseconds, or None (the oldest message) means."""
    if at is None:
        return Start(bytes(MESSAGE_ID_BYTES), True)
    if isinstance(at, int):
        return Start(position(at if inclusive else at + 1, 0) + NO_PAYLOAD_ROW, True)
    return Start(at, inclusive)


def not_before(start: Start, oldest_ms: int) -> Start:
    """The later of `start` and the first message published at or after `oldest_ms`."""
    if int.from_bytes(start.id[:8], "big") >= oldest_ms:
        return start
    return start_from(oldest_ms, True)


def end_of(row_position: bytes) -> bytes:
    """An id after every message of the row, and before those of the next."""
    return row_position + _END_OF_ROW


def before(place: bytes) -> bytes:
    """The last id, or position, before this one; empty when there is none."""
    number = int.from_bytes(place, "big")
    return (number - 1).to_bytes(len(place), "big") if number else b""


class SliceLimits(NamedTuple):
    """The limits of one page: it has `least` messages whatever their bytes, and none after the id `through`.

    Each message counts `message_bytes` beside its payload.
    """

    messages_max: int
    bytes_max: int
    least: int = 1
    through: bytes | None = None
    message_bytes: int = 0

    def end_before(self, row: MessageRow) -> bool:
        """True when all messages of the row, and so of those after it, come after `through`."""
        if self.through is None or row.position <= self.through[:POSITION_BYTES]:
            return False
        if row.batch is None:
            return True
        return row.first > self.through[:POSITION_BYTES]

    @property
    def stop(self) -> bytes | None:
        """Stop reading rows here, where none is merged: later ones have no message up to `through`. None: read to the end."""
        # A row lies at its last message, so the one in which a range ends may lie behind that, within the millisecond.
        return None if self.through is None else self.through[:8] + b"\xff\xff\0"


class Stopped(Enum):
    """The reason why a page, or a look, ends."""

    END = auto()  # nothing more is there, or up to `through`
    ENOUGH = auto()  # the page has as much as it is to have
    FULL = auto()  # a message did not fit the limits
    HELD = auto()  # at a row whose writer has not ended
    SPENT = auto()  # the budget is
    PAUSED = auto()  # others get their turn
    LOOKED = auto()  # through the rows in hand; there may be more


class ReadBudget:
    """The rows, and the bytes of rows and payload rows, that may still be read. The last one read may go beyond it."""

    __slots__ = ("bytes", "rows")

    def __init__(self, rows: int = NO_LIMIT, bytes_max: int = NO_LIMIT) -> None:
        self.rows = rows
        self.bytes = bytes_max

    @property
    def is_spent(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0


class Fetch(NamedTuple):
    """A page of messages. `next_id`: go on from here, exclusively; None when nothing was passed.

    A caller that asked for an encoding finds everything in `encoded`, not in `slices`.
    `full_at` is the id of the message that did not fit. `view_age_ms`: the age of the view by which `held_by` has not ended, where
    a newer one was asked for and did not come. A caller that asked for markers also gets the topic's
    generation and its property `tasks`.
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
    encoded: Sequence[Slice | StretchPart] = ()
    view_age_ms: float | None = None


class Reading:
    """One page in the making, look after look. Pure.

    Without a snapshot everything is visible that has not expired at `now_ms`. With `markers` these come in between, and
    count for no limit. It ends at the first row, or payload row, with which it has what is `enough`, or has passed rows of
    `skipped_max` failed writers. A `whole` page is filled up to its limits; another ends after the first look that found
    something.
    """

    __slots__ = (
        "_bytes_left", "_enough", "_limits", "_markers", "_rows_left", "_skipped_max", "_snapshot", "budget", "from_ms",
        "full_at", "held", "messages", "next_id", "now_ms", "payload_bytes", "skipped", "slices", "start", "stop", "until_ms", "whole",
    )  # fmt: skip

    def __init__(
        self, start: Start, limits: SliceLimits, snapshot: TransactionSnapshot | None, now_ms: int, *,
        markers: bool = False, budget: ReadBudget | None = None, enough: SliceLimits | None = None, skipped_max: int = NO_LIMIT,
        whole: bool = False,
    ) -> None:  # fmt: skip
        self.start = start
        self.now_ms = now_ms
        self.budget = budget  # None: what one look reads is not counted
        self.whole = whole
        self._limits = limits
        self._snapshot = snapshot
        self._markers = markers
        self._enough = enough or limits
        self._skipped_max = skipped_max
        self._rows_left = self._bytes_left = 0  # of this look
        self.stop = None if limits.through is None else limits.stop  # no row from this position on is wanted
        self.slices: list[Slice] = []
        self.messages = self.payload_bytes = 0
        self.next_id: bytes | None = None
        self.held: MessageRow | None = None
        self.full_at: bytes | None = None
        self.skipped: set[int] = set()  # failed writers whose rows were passed
        # A later reader finds the same messages from one time until another, for they may have TTLs of their own.
        self.from_ms, self.until_ms = 0, FOREVER_MS

    @property
    def has_found(self) -> bool:
        """True when the page has a message, or a marker."""
        return bool(self.slices)

    def remote_bytes(self, size: StoredSize) -> int:
        """The bytes to ask a remote store for, of rows like these."""
        messages = max(self._enough.messages_max - self.messages, 0)
        return size.bytes_for(messages, min(self._enough.bytes_max, REMOTE_BYTES_MAX))

    def go_on(self, oldest_ms: int) -> Start:
        """The start of the next look; nothing is reached that was published before `oldest_ms`."""
        self.start = not_before(self.start if self.next_id is None else Start(self.next_id, False), oldest_ms)
        return self.start

    def see(self, snapshot: TransactionSnapshot) -> None:
        """Go on under this snapshot, which is newer: what was taken so far it shows as well, and the row that stopped it is judged anew."""
        self._snapshot, self.held = snapshot, None

    def look(
        self, rows: Iterable[MessageRow], payload_rows: PayloadRows, verify: bool, rows_max: int = NO_LIMIT,
        bytes_max: int = NO_LIMIT,
    ) -> Stopped:  # fmt: skip
        """Take what is wanted of these rows, which begin at `start.position`; of so many at most, and of so many bytes.

        `verify=False` trusts batches that never left this process.
        """
        budget = self.budget
        if budget is not None:
            rows_max, bytes_max = min(rows_max, budget.rows), min(bytes_max, budget.bytes)
        self._rows_left, self._bytes_left = rows_max, bytes_max
        stopped = self._take_rows(rows, payload_rows, verify)
        if budget is None:
            return stopped
        budget.rows -= rows_max - self._rows_left
        budget.bytes -= bytes_max - self._bytes_left
        return Stopped.SPENT if stopped is Stopped.PAUSED and budget.is_spent else stopped

    def page(self, stopped: Stopped) -> Fetch:
        """The page, which ends here for this reason."""
        next_id, held_by, held_at, through = self.next_id, None, None, self._limits.through
        if next_id is not None and through is not None:
            next_id = min(next_id, through)
        if self.held is not None:
            held_by, held_at = self.held.written_by, self.held.position.ljust(MESSAGE_ID_BYTES, b"\0")
        return Fetch(
            self.slices, next_id, held_by, self.messages, self.payload_bytes, held_at, None, None, stopped, self.full_at
        )

    def _take_rows(self, rows: Iterable[MessageRow], payload_rows: PayloadRows, verify: bool) -> Stopped:
        start, limits, snapshot = self.start, self._limits, self._snapshot
        first, through = start.position, limits.through
        for row in rows:
            if through is not None and limits.end_before(row):
                self.next_id = through
                return Stopped.END
            row_position = row.position
            if row_position != first or not start.is_past(row):
                seen = Visibility.VISIBLE if snapshot is None else snapshot.judge(row.written_by)
                if seen is Visibility.VISIBLE:
                    stopped = self._take_row(row, payload_rows, verify)
                    if stopped is not None:
                        return stopped
                elif seen is Visibility.HOLD:
                    self.held = row
                    return Stopped.HELD
                elif row.written_by is not None and row.written_by > 0:
                    self.skipped.add(row.written_by)
            self.next_id = end_of(row_position)
            self._rows_left -= 1
            if row.batch is not None:
                self._bytes_left -= uncompressed_bytes(row.batch)
            stopped = self._stop_at(self.next_id)
            if stopped is not None:
                return stopped
        return Stopped.LOOKED

    def _take_row(self, row: MessageRow, payload_rows: PayloadRows, verify: bool) -> Stopped | None:
        """Take what is wanted of the row; None when it was passed as a whole."""
        for whole in row_slices(self.start.within(row), payload_rows, verify, markers=self._markers):
            if not self._take(whole):
                passed = self.slices[-1].last_id() if self.slices else b""
                self.next_id = max(passed, self.next_id or b"") or None
                return Stopped.FULL
            if row.reference is None:
                return None
            # One row may refer to a million messages: stop within it.
            passed = whole.last_id()
            if passed <= self.start.id:
                continue  # the look before ended here; a payload row that is read again counts once
            self._rows_left -= 1
            self._bytes_left -= whole.batch.body_bytes
            # A page that has all its bytes may still take a message without any from the same row.
            stopped = self._stop_at(passed, enough=self._enough is not self._limits)
            if stopped is not None:
                self.next_id = passed
                return stopped
        return None

    def _stop_at(self, passed: bytes, *, enough: bool = True) -> Stopped | None:
        """The reason to stop at an id, behind a row or between the messages of one; None when there is none."""
        if enough and (self.messages >= self._enough.messages_max or self.payload_bytes >= self._enough.bytes_max):
            return Stopped.ENOUGH
        if self._limits.through is not None and passed >= self._limits.through:
            return Stopped.END
        if len(self.skipped) >= self._skipped_max:
            return Stopped.ENOUGH
        return Stopped.PAUSED if self._rows_left <= 0 or self._bytes_left <= 0 else None

    def _take(self, whole: Slice) -> bool:
        """Take what the reader gets of these messages; False when one did not fit the limits."""
        limits = self._limits
        wanted = whole.after(self.start.id, self.start.inclusive)
        if limits.through is not None:
            wanted = wanted.through(limits.through)
        batch = whole.batch
        if batch.flags & BatchSection.TTLS:
            self._note_expiry(whole)
        if batch.kind is not RecordKind.USER:
            self.slices += [wanted] if wanted.count else []
            return True
        for part in wanted.unexpired(self.now_ms):
            least = 0 if self.messages else limits.least  # a first message comes whole, however large
            bytes_left = limits.bytes_max - self.payload_bytes - limits.message_bytes * self.messages
            cut = part.up_to(limits.messages_max - self.messages, bytes_left, least, limits.message_bytes)
            count = cut.stop - cut.start
            if count:
                self.slices.append(cut)
                self.messages += count
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


class RowsAhead(NamedTuple):
    """The next rows of a log: `cached` where they are in its tail. `rows` are those, or are read from a local store as they are taken."""

    cached: list[MessageRow] | None
    rows: Iterable[MessageRow] | None


class LogReader:
    """Reads the logs of one store."""

    def __init__(self, store: Store, clock: Clock, logs: TopicLogs) -> None:
        self.messages = MessageTable.of(store)
        self.payloads = PayloadTable(store.table(PayloadTable.name))
        self._remote = store.remote
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs

    async def read(
        self, log: TopicLog, start: Start, limits: SliceLimits, snapshot: TransactionSnapshot | None, *, markers: bool = False
    ) -> Fetch:  # fmt: skip
        """A page, past any stretch of rows that this reader may not see: empty only when nothing more can be read now."""
        return await self.go_on(log, Reading(start, limits, snapshot, self._clock.now_ms(), markers=markers))

    async def go_on(self, log: TopicLog, reading: Reading) -> Fetch:
        """Read until the page is complete."""
        while True:
            if log.is_in_doubt_before(reading.go_on(log.oldest_ms(reading.now_ms)).position):
                await log.confirm_or_delete()
            page = await self.turn(log, reading, self.rows_ahead(log, reading))
            if page is not None and not (page.stopped is Stopped.END and await log.goes_on(reading.has_found)):
                return page

    def rows_ahead(self, log: TopicLog, reading: Reading) -> RowsAhead:
        """The rows from `reading.start` on, to be read in this turn of the event loop."""
        start = reading.start.position
        cached = self._logs.tails.rows(log.tail, start, LOOK_ROWS_MAX)
        if cached is not None or self._remote:
            return RowsAhead(cached, cached)
        # To the end of the log, row by row: the one in which a range ends may be a merged one, that lies behind it.
        return RowsAhead(None, self.messages.stored(log.topic.read_keys, start, log.in_flight_stop))

    async def turn(
        self, log: TopicLog, reading: Reading, ahead: RowsAhead, rows_max: int = LOOK_ROWS_MAX
    ) -> Fetch | None:
        """Look at the rows ahead, and let others have their turn; the page, when it is complete."""
        cached = ahead.cached
        if self._remote and (cached is None or any(row.reference is not None for row in cached)):
            stopped = await self._look_remotely(log, log.topic, reading, cached)
        else:
            stopped = self._look(log.topic, reading, ahead, rows_max)
        if stopped is not Stopped.PAUSED:
            needs_more = stopped is Stopped.LOOKED or (stopped is Stopped.SPENT and not reading.whole)
            if not needs_more or (reading.has_found and not reading.whole):
                return reading.page(stopped)
        if reading.budget is None or stopped is Stopped.SPENT:
            reading.budget = ReadBudget(ROWS_MAX)  # a reader gets something, or knows that there is nothing
        await asyncio.sleep(0)  # others get their turn on a long way
        return None

    def _look(self, topic: Topic, reading: Reading, ahead: RowsAhead, rows_max: int) -> Stopped:
        """Look at the next rows, in the tail or in a local store."""
        cached, rows = ahead
        assert rows is not None
        payload_rows = partial(self.stored_rows, topic)
        stopped = reading.look(rows, payload_rows, cached is None, rows_max, LOOK_BYTES_MAX)
        is_end = stopped is Stopped.LOOKED and (cached is None or len(cached) < LOOK_ROWS_MAX)
        return Stopped.END if is_end else stopped

    async def _look_remotely(
        self, log: TopicLog, topic: Topic, reading: Reading, cached: list[MessageRow] | None
    ) -> Stopped:
        """Look at the next rows on a thread, as many as one read brings."""
        # The log belongs to the event loop: a thread gets what it says, and reads only the store.
        start, passed = reading.start.position, reading.next_id
        stop = log.durable_stop if reading.stop is None else min(log.durable_stop, reading.stop)

        wanted, size = reading.remote_bytes(log.packing.read or StoredSize()), StoredSize()

        def look() -> Stopped:
            rows: Iterable[MessageRow] | None = cached
            if rows is None:
                rows = size.counted(self.messages.stored(topic.read_keys, start, stop, bytes_max=wanted))
            return reading.look(rows, partial(self.stored_rows, topic), cached is None)

        stopped = await self._call.about(topic.keys, look)
        if size.messages:
            log.packing.read = size
        return Stopped.END if stopped is Stopped.LOOKED and reading.next_id is passed else stopped

    async def page(
        self, log: TopicLog, start: bytes = b"", stop: bytes | None = None, budget: ReadBudget | None = None
    ) -> LogPage:
        """The first rows with start <= position < stop, whoever wrote them; go on with the page's `rest`.

        Rows that are written meanwhile may be among them, or not.
        """
        rows = self._logs.tails.rows(log.tail, start, PAGE_ROWS)
        if rows is None:
            page = await self._call(read_page, self.messages, log.topic.read_keys, start, stop)
        else:
            rest = rows[-1].position + b"\0" if len(rows) >= PAGE_ROWS else None
            if stop is not None and rows and rows[-1].position >= stop:
                rest = None
            page = LogPage([each for row in rows for each in cut_rows(row, start, stop, verify=False)], rest)
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
