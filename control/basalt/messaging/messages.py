"""The messages of topics: publish, store, roll back, and fetch with its wait for new ones (long poll), as docs/reference/http-api.md promises them.

A publish takes four hops: the HTTP face parses, `Messages.publish` checks, a stage of the group commit gives places
(`TopicLog.append`), and the store writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX, PublishResponse, RecordIn
from basalt.api.codecs.encoded import Encoding
from basalt.catalog.topics import TopicName
from basalt.errors import BasaltError, InputError, TooLargeError, UnknownOutcomeError
from basalt.messaging.log.append import Cut, Placed, RecordColumns, cuts
from basalt.messaging.log.roll_back import RollBacks
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.producers import Producers, Sequenced
from basalt.messaging.read.answer_reader import AnswerReader, AnswerReading, Encoded
from basalt.messaging.read.log_reader import Fetch, LogReader, ReadBudget, Reading, SliceLimits, Start, start_from
from basalt.messaging.read.views import Views
from basalt.runtime.group_commit import Group, GroupCommit, Waiter
from basalt.runtime.write_lanes import TopicLanes
from basalt.transactions.manager import Transactions
from basalt.transactions.open_pointers import OpenPointers
from basalt_engine.clock import Clock
from basalt_engine.keys import position
from basalt_engine.records import Buffer, Extras
from basalt_engine.snapshot import POINTER_MAX, POINTERS_PER_MS, TransactionSnapshot

T = TypeVar("T")


class Messages:
    """Publishes to all topics of one store, and fetches from them."""

    def __init__(
        self, clock: Clock, logs: TopicLogs, reader: LogReader, roll_backs: RollBacks, writer: TopicLanes, writers: Transactions,
        views: Views, pointers: OpenPointers, markers: TopicMarkers, producers: Producers, *, limits: SliceLimits,
        lifetime_ms_max: int,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._logs = logs
        self._reader = reader
        self._answer_reader = AnswerReader(reader, logs.tails.answers)
        self._roll_backs = roll_backs
        self._writer = writer
        self._writers = writers
        self._views = views
        self._pointers = pointers
        self._markers = markers
        self._producers = producers
        self.limits = limits  # of one fetch, which reads them when it begins; they may change while the server runs
        self._lifetime_ms_max = lifetime_ms_max
        self.stopping = False  # those who wait are to be answered with what there is
        self.fetched_messages_total = 0
        self.fetched_bytes_total = 0

    async def publish(
        self, title: TopicName, messages: Sequence[Buffer], write_pointer: int | None = None, *,
        extras: Sequence[Extras] | None = None,
    ) -> PublishResponse:  # fmt: skip
        """Append messages; with a write pointer and no messages, what that writer has stored.

        Returns once they are durable; `TopicNotFoundError`, `TopicEndedError`, `TransactionEndedError`, `TooLargeError` change
        nothing.
        """
        log = self._logs.find(title) or await self._logs.open(title)
        self._check(messages, write_pointer)
        if write_pointer is None:
            placed = await self._lane(log).run(
                lambda group: self._open_log(log).append(group, messages, extras), sum(map(len, messages))
            )
        else:
            if not messages:
                await self._logs.staged.ready(log, [write_pointer])
            placed = await self._lane(log).run(
                lambda group: self._publish_under(group, log, messages, extras, write_pointer), sum(map(len, messages))
            )
        return PublishResponse(write_pointer, *placed)

    async def publish_numbered(
        self, title: TopicName, messages: Sequence[Buffer], asked: Sequenced, extras: Sequence[Extras] | None = None
    ) -> Placed | None:
        """Append those of a producer's messages that are not there yet; None: all are. What was there before is durable too.

        `SequenceGapError`, `ProducerUnknownError`, `ProducerFencedError`: nothing was written.
        """
        log = self._logs.find(title) or await self._logs.open(title)
        self._check(messages, None)
        if self._logs.memory.atomic:
            stage = partial(self._publish_numbered, log, messages, extras, asked)
            return await self._lane(log).run(stage, sum(map(len, messages)))
        last: Placed | None = None
        # A row at a time, each durable before the next: of several that are written at once, any could be lost.
        for part in cuts(messages, extras):
            theirs = None if extras is None else extras[part.start : part.stop]
            first = asked.first + part.start
            each = asked._replace(first=first, after=first - 1 if part.start else asked.after)
            stage = partial(self._publish_numbered, log, messages[part.start : part.stop], theirs, each)
            last = await self._write_part(log, stage, part) or last
        return last

    def submit_publish(
        self, waiter: Waiter[Placed | None], title: TopicName, messages: Sequence[Buffer],
        extras: Sequence[Extras] | None = None, asked: Sequenced | None = None,
    ) -> bool:  # fmt: skip
        """As `publish` without a write pointer, or `publish_numbered`, told to the waiter.

        False, and nothing is done, where the topic is first to be read, or one stage is not enough.
        """
        log = self._logs.find(title)
        if log is None:
            return False
        self._check(messages, None)
        if asked is not None:
            if not self._logs.memory.atomic and len(messages) > 1 and len(cuts(messages, extras)) > 1:
                return False
            stage = partial(self._publish_numbered, log, messages, extras, asked)
            self._lane(log).submit(stage, waiter, sum(map(len, messages)))
            return True
        self._lane(log).submit(
            lambda group: self._open_log(log).append(group, messages, extras), waiter, sum(map(len, messages))
        )
        return True

    def _lane(self, log: TopicLog) -> GroupCommit:
        return self._writer.lane_of(log.topic.keys.prefix)

    async def publish_records(
        self, title: TopicName, records: Sequence[RecordIn], write_pointer: int | None = None
    ) -> PublishResponse:
        """Append messages that carry a key, headers, an event time or a TTL of their own."""
        payloads, extras = RecordColumns.of(records)
        return await self.publish(title, payloads, write_pointer, extras=extras)

    async def store(
        self, title: TopicName, messages: Sequence[Buffer], write_pointer: int, extras: Sequence[Extras] | None = None,
        before: int | None = None,
    ) -> bool:  # fmt: skip
        """Keep messages aside under a transaction; its commit publishes them, its abort removes them.

        With `before`, how many of the writer's messages are stored in the topic before these and not published, those of them
        that are there already are passed over: False, all are. `SequenceGapError`: nothing was stored.
        """
        log = self._logs.find(title) or await self._logs.open(title)
        self._check(messages, write_pointer)
        await self._logs.staged.ready(log, [write_pointer])
        if before is None or self._logs.memory.atomic:
            stage = partial(self._store, log, messages, extras, write_pointer, before, len(messages))
            return await self._lane(log).run(stage, sum(map(len, messages)))
        stored = False
        for part in cuts(messages, extras):  # a row at a time, as `publish_numbered` does
            stage = partial(self._store, log, messages, extras, write_pointer, before, part.stop)
            stored |= await self._write_part(log, stage, part)
        return stored

    async def _write_part(self, log: TopicLog, stage: Callable[[Group], T], part: Cut) -> T:
        """Run the stage of one row of several. Behind the first a refusal is none of the call: rows of it are there."""
        try:
            return await self._lane(log).run(stage, part.payload_bytes)
        except BasaltError as error:
            if not part.start or isinstance(error, UnknownOutcomeError):
                raise
            raise UnknownOutcomeError(
                f"the first {part.start} messages are there, and the rest was refused: {error}",
                hint="send the same again, with the same numbers: what is there is passed over",
            ) from error

    async def store_records(self, title: TopicName, records: Sequence[RecordIn], write_pointer: int) -> None:
        """Keep aside messages that carry more than a payload."""
        payloads, extras = RecordColumns.of(records)
        await self.store(title, payloads, write_pointer, extras)

    async def roll_back(self, title: TopicName, published: PublishResponse) -> None:
        """Hide the rows of the publish's own write pointer within its range; again: no change."""
        log = await self._logs.open(title)
        assert published.write_pointer is not None
        check_age(published.write_pointer, self._clock.now_ms(), self._lifetime_ms_max)
        await self._lane(log).run(partial(self._pointers.check_open, write_pointer=published.write_pointer))
        start = position(published.start_ms, published.start_sequence)
        # A row lies at its last sequence, so the range's own rows end within it.
        stop = position(published.end_ms, published.end_sequence) + b"\0"
        await self._roll_backs.roll_back(log, [published.write_pointer], start, stop)

    async def fetch(
        self, title: TopicName, start: bytes | int | None, inclusive: bool, *, messages_max: int | None = None,
        bytes_max: int | None = None, snapshot: TransactionSnapshot | None = None, committed: bool = False,
        markers: bool = False, wait_ms: int = 0, encoding: Encoding | None = None,
    ) -> Fetch:  # fmt: skip
        """Messages from a position on; waits up to `wait_ms` until there is one.

        `committed` reads under the manager's newest snapshot (stopped by one that may be old, it asks once for a newer one), `snapshot`
        under the one given, neither sees everything. With `markers` these come in between; they are waited for as messages are.
        With an `encoding` the page is in `encoded`, in part as messages that are encoded so already. `BusyError`: too many wait.
        """
        limits = SliceLimits(
            min(messages_max or self.limits.messages_max, self.limits.messages_max),
            min(bytes_max or self.limits.bytes_max, self.limits.bytes_max),
        )
        begin = start_from(start, inclusive)
        deadline_ms, asks = self._clock.monotonic_ms() + wait_ms, committed
        while True:
            log = self._logs.find_in_doubt(title) or await self._logs.open(title)
            arrival = log.waiter() if wait_ms else None
            try:
                seen = self._writers.current() if committed else snapshot
                kind = Reading if encoding is None else AnswerReading
                reading = kind(begin, limits, seen, self._clock.now_ms(), markers=markers)
                found = await self._page(log, reading, encoding, committed=committed)
                if committed and found.held_by is not None:
                    found, asks = await self._held(log, reading, found, encoding, asks=asks), False
                if markers:
                    found = found._replace(generation=log.topic.generation, tasks=log.topic.tasks)
                if found.slices or found.encoded:
                    self.fetched_messages_total += found.messages
                    self.fetched_bytes_total += found.payload_bytes
                    return found
                if found.next_id is not None:
                    begin = Start(found.next_id, False)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if arrival is None or left_ms <= 0 or self.stopping:
                    return found._replace(next_id=begin.id if not begin.inclusive else None)
                if committed and found.held_by is not None:
                    self._views.note_held(log, found.held_by)
                timer = asyncio.get_running_loop().call_later(left_ms / 1_000, _arrive, arrival)
                try:
                    await arrival
                finally:
                    timer.cancel()
                if self._logs.is_moving(log):  # whoever serves it next has not begun
                    return found._replace(next_id=begin.id if not begin.inclusive else None)
            finally:
                if arrival is not None:
                    arrival.cancel()

    async def read_committed(
        self, log: TopicLog, after: bytes, limits: SliceLimits, encoding: Encoding | None = None, *, whole: bool = False
    ) -> Fetch:
        """A page of committed messages behind an id, as `fetch` without waiting. A `whole` one is filled up to its limits."""
        seen, begin, now_ms = self._writers.current(), Start(after, False), self._clock.now_ms()
        if encoding is not None and limits.through is None:
            found = await self._page(log, AnswerReading(begin, limits, seen, now_ms), encoding, committed=True)
        else:  # up to a place, which a stretch may lie on both sides of
            budget = ReadBudget() if whole else None
            found = await self._reader.go_on(log, Reading(begin, limits, seen, now_ms, budget=budget, whole=whole))
            if encoding is not None:
                found = found._replace(slices=[], encoded=found.slices)
        if found.held_by is not None:
            self._views.note_held(log, found.held_by)
        self.fetched_messages_total += found.messages
        self.fetched_bytes_total += found.payload_bytes
        return found

    async def _page(self, log: TopicLog, reading: Reading, encoding: Encoding | None, *, committed: bool) -> Fetch:
        """The rest of a page in the making."""
        if encoding is None:
            return await self._reader.go_on(log, reading)
        assert isinstance(reading, AnswerReading)
        return await self._answer_reader.read(log, reading, Encoded(encoding, committed))

    async def _held(
        self, log: TopicLog, reading: Reading, found: Fetch, encoding: Encoding | None, *, asks: bool
    ) -> Fetch:
        """The page of a reader whom the view stops at a row: with more in it, where a newer view has the end of that row's writer."""
        if asks and self._views.may_be_old:
            if await self._views.newer():
                reading.see(self._writers.current())
                found = await self._page(log, reading, encoding, committed=True)
            else:
                found = found._replace(view_age_ms=self._views.age_ms)
        if found.held_by is not None and not (found.slices or found.encoded):
            self._writers.check_view()  # or it would look like the topic's end
        return found

    def stop_waiting(self) -> None:
        """Answer the fetches that wait, now and from now on, with what there is."""
        self.stopping = True
        self._logs.wake_all()

    def _check(self, messages: Sequence[Buffer], write_pointer: int | None) -> None:
        if len(messages) > PUBLISH_MESSAGES_MAX:
            raise TooLargeError(
                f"{len(messages)} messages in one call, the limit is {PUBLISH_MESSAGES_MAX}",
                field="messages",
                hint="send them in several calls, or under one transaction",
            )
        if write_pointer is not None:
            check_age(write_pointer, self._clock.now_ms(), self._lifetime_ms_max)

    def _open_log(self, log: TopicLog) -> TopicLog:
        """In a stage: the log that takes messages; refused where its stream has ended."""
        log = self._logs.present(log)
        if log.marked:
            self._markers.admit([log])
        return log

    def _publish_numbered(
        self, log: TopicLog, messages: Sequence[Buffer], extras: Sequence[Extras] | None, asked: Sequenced, group: Group
    ) -> Placed | None:
        log = self._logs.present(log)
        passed = self._producers.admit(group, log, asked, len(messages))
        if passed == len(messages):
            return None  # also where the stream has ended since
        if log.marked:
            self._markers.admit([log])
        return self._producers.append(group, log, messages, extras, asked, passed)

    def _publish_under(
        self, group: Group, log: TopicLog, messages: Sequence[Buffer], extras: Sequence[Extras] | None, writer: int
    ) -> Placed:
        log = self._open_log(log)
        if not messages:
            self._logs.staged.require({log: [writer]})
        self._pointers.join(group, writer, log.topic, log.newest_ms)
        before = log.newest
        placed = self._place_under(group, log, messages, extras, writer)
        log.note_uncommitted(writer, before, log.newest)
        return placed

    def _place_under(
        self, group: Group, log: TopicLog, messages: Sequence[Buffer], extras: Sequence[Extras] | None, writer: int
    ) -> Placed:
        if messages:
            return log.append(group, messages, extras, writer)
        staged = self._logs.staged
        reference = staged.unpublished(log, writer)
        if reference is None:
            return log.skip(group)
        placed = log.refer(group, reference, writer, *staged.unpublished_counts(log, writer))
        staged.publish_up_to(group, log, writer, reference, placed)
        return placed

    def _store(
        self, log: TopicLog, messages: Sequence[Buffer], extras: Sequence[Extras] | None, writer: int, before: int | None,
        stop: int, group: Group,
    ) -> bool:  # fmt: skip
        """Store the messages up to `stop` that are not there yet."""
        log = self._logs.present(log)
        staged = self._logs.staged
        staged.require({log: [writer]})
        if before is not None:
            self._pointers.check_open(group, writer)
            passed = staged.already(group, log, writer, before, len(messages))
            if passed >= stop:
                return False
            messages, extras = messages[passed:stop], None if extras is None else extras[passed:stop]
        self._pointers.join(group, writer, log.topic, log.newest_ms)
        staged.store(group, log, writer, messages, extras)
        return True


def _arrive(arrival: asyncio.Future[None]) -> None:
    """Let go on who waits, for the time is up."""
    if not arrival.done():
        arrival.set_result(None)


def check_age(write_pointer: int, now_ms: int, lifetime_ms_max: int) -> None:
    """Refuse a write pointer that no transaction alive today can have: retention may forget what it writes."""
    if not 0 < write_pointer <= POINTER_MAX:
        raise InputError(
            f"write pointer {write_pointer} is not a positive 64-bit number",
            field="transactionWritePointer",
            hint="use the writePointer of a transaction",
        )
    if write_pointer // POINTERS_PER_MS < now_ms - lifetime_ms_max:
        raise InputError(
            f"write pointer {write_pointer} is older than a transaction may become ({lifetime_ms_max} ms)",
            field="transactionWritePointer",
            hint="begin a new transaction",
        )
