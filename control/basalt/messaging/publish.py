"""The messaging service: publish, store, roll back and fetch, as docs/reference/http-api.md promises them.

A publish takes four hops: the HTTP face parses, `Messaging.publish` checks, a stage of the group commit gives places
(`Appender.append`), and the store writes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence

from basalt.api.bodies.work import PUBLISH_MESSAGES_MAX, PublishResponse, RecordIn
from basalt.catalog.topics import Topic, TopicName, Topics
from basalt.errors import TooLargeError
from basalt.messaging.log import garbage_ranges as hidden
from basalt.messaging.log import log_bounds as removed
from basalt.messaging.log.append import Appender, Placed
from basalt.messaging.log.rolled_back import RolledBack
from basalt.messaging.log.staged_payloads import StoredPayloads
from basalt.messaging.log.tail import TailCache, TopicKey
from basalt.messaging.log.topic_locks import TopicLocks
from basalt.messaging.log.uncommitted_rows import EarlyRows
from basalt.messaging.log.waiting_fetches import Arrivals
from basalt.messaging.log.writers import Writers, check_age
from basalt.messaging.read.fetch import ROWS_MAX, Fetch, Limits, Start, fetch, not_before, start_from
from basalt.runtime.group_commit import Group, GroupCommit
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, MessageTable
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.records import Buffer, Extras
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Store

ROLL_BACK_ROWS_MAX = 1_000  # rows hidden by one group, so that a long roll back does not hold up publishing


class Messaging:
    """The logs of all topics of one store."""

    def __init__(
        self, store: Store, clock: Clock, topics: Topics, writer: GroupCommit, writers: Writers, *,
        tail: TailCache, arrivals: Arrivals, appender: Appender, stored: StoredPayloads, limits: Limits, lifetime_ms_max: int,
    ) -> None:  # fmt: skip
        self.messages = MessageTable(store.table(MessageTable.name))
        self.payloads = PayloadTable(store.table(PayloadTable.name))
        self.tail = tail
        self.arrivals = arrivals
        self.appender = appender
        self.early = EarlyRows()
        self.changes = TopicLocks()
        self.writers = writers
        self._call = StoreCalls(store)
        self._remote = store.remote
        self._store_drops = store.applies_retention
        self._clock = clock
        self._topics = topics
        self._writer = writer
        self.stored = stored
        self.limits = limits
        self._lifetime_ms_max = lifetime_ms_max
        self._stopping = False
        self.roll_backs: list[Callable[[TopicKey, RolledBack], None]] = []  # told of rows that count no more
        self.fetched_messages_total = 0
        self.fetched_bytes_total = 0

    async def publish(
        self, title: TopicName, messages: Sequence[Buffer], write_pointer: int | None = None, *,
        extras: Sequence[Extras] | None = None,
    ) -> PublishResponse:  # fmt: skip
        """Append messages; with a write pointer and no messages, what that writer has stored.

        Returns once they are durable; `TopicNotFoundError`, `TransactionEndedError`, `TooLargeError` change nothing.
        """
        topic = await self._topics.get(title)
        self._check(messages, write_pointer)
        await self.appender.ready(topic)
        if write_pointer is None:
            placed = await self._writer.run(
                lambda group: self.appender.append(group, self._topics.known(title), messages, extras),
                sum(map(len, messages)),
            )
        else:
            await self.stored.ready(topic, write_pointer)
            placed = await self._writer.run(
                lambda group: self._publish_under(group, title, messages, extras, write_pointer),
                sum(map(len, messages)),
            )
        return PublishResponse(write_pointer, *placed)

    async def publish_records(
        self, title: TopicName, records: Sequence[RecordIn], write_pointer: int | None = None
    ) -> PublishResponse:
        """Append messages that carry a key, headers, an event time or a TTL of their own."""
        extras = [
            Extras(
                None if record.key is None else bytes(record.key),
                tuple((name, bytes(value)) for name, value in record.headers),
                record.event_time_ms,
                record.ttl_ms,
            )
            for record in records
        ]
        return await self.publish(title, [record.payload for record in records], write_pointer, extras=extras)

    async def store(
        self, title: TopicName, messages: Sequence[Buffer], write_pointer: int, extras: Sequence[Extras] | None = None
    ) -> None:
        """Keep messages aside under a transaction; its commit publishes them, its abort removes them."""
        topic = await self._topics.get(title)
        self._check(messages, write_pointer)
        await self.appender.ready(topic)
        await self.stored.ready(topic, write_pointer)
        await self._writer.run(
            lambda group: self._store(group, title, messages, extras, write_pointer), sum(map(len, messages))
        )

    async def roll_back(self, title: TopicName, published: PublishResponse) -> None:
        """Hide the rows of the publish's own write pointer within its range; again: no change."""
        topic = await self._topics.get(title)
        assert published.write_pointer is not None
        check_age(published.write_pointer, self._clock.now_ms(), self._lifetime_ms_max)
        self.writers.check_open(published.write_pointer)
        start = position(published.start_ms, published.start_sequence)
        # A row lies at its last sequence, so the range's own rows end within it.
        stop = position(published.end_ms, published.end_sequence) + b"\0"
        await self.hide(topic, [published.write_pointer], start, stop)

    async def hide(self, topic: Topic, write_pointers: list[int], start: bytes, stop: bytes | None) -> None:
        """Negate column t of these writers' rows with start <= position < stop, a bounded number at a time."""
        writers, first = frozenset(write_pointers), start
        while True:
            durable_stop = await self.durable_stop(topic)  # it is ready, so that no row of theirs comes after it
            async with self.changes.of(topic.keys[:2]):
                rows = await self._call(self._rows_of, topic, writers, start, stop)
                if not rows:
                    # Told here, and not of each write: one that failed may have come late, and left nothing to write.
                    known_stop = durable_stop if stop is None else min(stop, durable_stop)
                    self.gone(topic.keys[:2], RolledBack(writers, first, known_stop))
                    return
                for row in self._vanishing(rows):
                    assert row.written_by is not None
                    await self.stored.ready(topic, row.written_by)
                await self._writer.run(lambda group, rows=rows: self._hide(group, topic, write_pointers, rows))  # type: ignore[misc]
            start = rows[-1].position + b"\0"

    def gone(self, key: TopicKey, rolled_back: RolledBack) -> None:
        """Tell the observers of rows that were rolled back, or removed; before their writers are ended, or forgotten."""
        for observe in self.roll_backs:
            observe(key, rolled_back)

    async def fetch(
        self,
        title: TopicName,
        start: bytes | int | None,
        inclusive: bool,
        *,
        messages_max: int | None = None,
        bytes_max: int | None = None,
        snapshot: TransactionSnapshot | None = None,
        committed: bool = False,
        markers: bool = False,
        wait_ms: int = 0,
    ) -> Fetch:
        """Messages from a position on; waits up to `wait_ms` until there is one.

        `committed` reads under the manager's newest snapshot, `snapshot` under the one given, neither sees everything.
        With `markers` these come in between; they are waited for as messages are.
        """
        limits = Limits(
            min(messages_max or self.limits.messages_max, self.limits.messages_max),
            min(bytes_max or self.limits.bytes_max, self.limits.bytes_max),
        )
        begin = start_from(start, inclusive)
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            topic = await self._topics.get(title)
            arrival = self.arrivals.waiter(topic.keys[:2]) if wait_ms else None
            try:
                seen = self.writers.current() if committed else snapshot
                found = await self.read(topic, begin, limits, seen, markers=markers)
                if markers:
                    found = found._replace(generation=topic.generation, tasks=topic.tasks)
                if found.slices:
                    self.fetched_messages_total += found.messages
                    self.fetched_bytes_total += found.payload_bytes
                    return found
                if found.next_id is not None:
                    begin = Start(found.next_id, False)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if arrival is None or left_ms <= 0 or self._stopping:
                    return found._replace(next_id=begin.id if not begin.inclusive else None)
                await asyncio.wait([arrival], timeout=left_ms / 1_000)
            finally:
                if arrival is not None:
                    arrival.cancel()

    @property
    def stopping(self) -> bool:
        """Whether those who wait are to be answered with what there is."""
        return self._stopping

    def stop_waiting(self) -> None:
        """Answer the fetches that wait, now and from now on, with what there is."""
        self._stopping = True
        self.arrivals.notify_all()

    async def read(
        self, topic: Topic, begin: Start, limits: Limits, seen: TransactionSnapshot | None, *, markers: bool = False
    ) -> Fetch:
        """One look at the log, past any stretch of rows that this reader may not see."""
        passed: bytes | None = None
        look = functools.partial(self._look, markers=markers)
        while True:
            if topic.keys[:2] in self.appender.doubtful:
                await self.appender.settle(topic)
            now_ms = self._clock.now_ms()
            begin = not_before(begin, topic.oldest_ms(now_ms))
            # The tail and the appender belong to the event loop: a thread gets what they say, and reads only the store.
            cached = self.tail.rows(topic.keys[:2], begin.position, ROWS_MAX)
            if not self._remote:
                found = look(topic, begin, limits, seen, now_ms, cached, self._in_flight_stop(topic))
            elif cached is None:
                stop = await self.durable_stop(topic)
                found = await self._call(look, topic, begin, limits, seen, now_ms, None, stop)
            elif any(row.reference is not None for row in cached):
                found = await self._call(look, topic, begin, limits, seen, now_ms, cached, None)
            else:
                found = look(topic, begin, limits, seen, now_ms, cached, None)
            passed = found.next_id or passed
            if found.slices or found.held_by is not None or found.next_id is None or limits.end_at(found.next_id):
                return found._replace(next_id=passed)
            begin = Start(found.next_id, False)
            await asyncio.sleep(0)  # others get their turn on a long way through hidden rows

    async def durable_stop(self, topic: Topic) -> bytes:
        """The position before which all rows are durable, and known to observers, at the moment of the answer.

        While a thread reads a remote store, the next group may begin to be written, its rows in any order.
        """
        await self.appender.ready(topic)
        return self._in_flight_stop(topic) or self.appender.newest(topic) + b"\0"

    def _in_flight_stop(self, topic: Topic) -> bytes | None:
        durable = self.appender.in_flight.get(topic.keys[:2])
        return None if durable is None else durable + b"\0"

    def _look(
        self, topic: Topic, begin: Start, limits: Limits, seen: TransactionSnapshot | None, now_ms: int,
        cached: list[MessageRow] | None, stop: bytes | None, *, markers: bool,
    ) -> Fetch:  # fmt: skip
        rows: Iterable[MessageRow] | None = cached
        if rows is None:
            bytes_max = limits.bytes_max + ROW_BYTES_MAX if self._remote else None
            rows = self.messages.scan(topic.read_keys, begin.position, stop, bytes_max=bytes_max)
        verify = cached is None
        return fetch(
            rows, lambda row: self.stored_rows(topic, row), begin, limits, seen, now_ms, verify=verify, markers=markers
        )

    def stored_rows(self, topic: Topic, row: MessageRow) -> Iterable[PayloadRow]:
        """The payload rows that a reference publishes."""
        assert row.reference is not None
        assert row.written_by is not None
        return self.payloads.scan(topic.keys, abs(row.written_by), row.reference.first, row.reference.last)

    def _check(self, messages: Sequence[Buffer], write_pointer: int | None) -> None:
        if len(messages) > PUBLISH_MESSAGES_MAX:
            raise TooLargeError(
                f"{len(messages)} messages in one call, the limit is {PUBLISH_MESSAGES_MAX}",
                field="messages",
                hint="send them in several calls, or under one transaction",
            )
        if write_pointer is not None:
            check_age(write_pointer, self._clock.now_ms(), self._lifetime_ms_max)

    def _publish_under(
        self, group: Group, title: TopicName, messages: Sequence[Buffer], extras: Sequence[Extras] | None, writer: int
    ) -> Placed:
        topic = self._topics.known(title)
        self.writers.join(group, writer, topic, self.newest_ms(topic))
        before = self.appender.newest(topic)
        placed = self._place_under(group, topic, messages, extras, writer)
        self.early.note(topic.keys[:2], writer, before, self.appender.newest(topic))
        return placed

    def _place_under(
        self, group: Group, topic: Topic, messages: Sequence[Buffer], extras: Sequence[Extras] | None, writer: int
    ) -> Placed:
        if messages:
            return self.appender.append(group, topic, messages, extras, writer)
        reference = self.stored.unbound(topic, writer)
        if reference is None:
            return self.appender.skip(group, topic)
        placed = self.appender.refer(group, topic, reference, writer, self.stored.unbound_bytes(topic, writer))
        self.stored.bind(group, topic, writer, reference, placed)
        return placed

    def _store(
        self, group: Group, title: TopicName, messages: Sequence[Buffer], extras: Sequence[Extras] | None, writer: int
    ) -> None:
        topic = self._topics.known(title)
        self.writers.join(group, writer, topic, self.newest_ms(topic))
        self.stored.store(group, topic, writer, messages, extras)

    def newest_ms(self, topic: Topic) -> int:
        """No row that is appended from now on has an earlier publish time."""
        newest = self.appender.newest(topic)
        return position_fields(newest)[0] if newest else 0

    def _rows_of(
        self, topic: Topic, write_pointers: frozenset[int], start: bytes, stop: bytes | None
    ) -> list[MessageRow]:
        rows = []
        for row in self.messages.scan(topic.read_keys, start, stop):
            if row.written_by in write_pointers:
                rows.append(row._replace(batch=None))
                if len(rows) == ROLL_BACK_ROWS_MAX:
                    break
        return rows

    async def rows_after(self, topic: Topic, start: bytes, write_pointer: int) -> dict[int, list[bytes]]:
        """Of each writer after this pointer that has rows at or after a position: their positions, ascending."""
        return await self._call(self._rows_after, topic, start, write_pointer)

    def _rows_after(self, topic: Topic, start: bytes, write_pointer: int) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        for row in self.messages.scan(topic.read_keys, start, None):
            if row.written_by is not None and row.written_by > write_pointer:
                found.setdefault(row.written_by, []).append(row.position)
        return found

    def note_hidden(self, group: Group, topic: Topic, write_pointers: list[int], start: bytes, last: bytes) -> None:
        """In a stage: leave a note of rows that no snapshot shows any more, so that retention finds them.

        A store that drops rows itself may drop the newest one with them; its place must not be given out again.
        """
        hidden.note(group, topic, write_pointers, start, last)
        if self._store_drops:
            removed.note_newest(group, topic, self.appender.newest(topic))

    def _hide(self, group: Group, topic: Topic, write_pointers: list[int], rows: list[MessageRow]) -> None:
        if not self._topics.lives(topic):
            return  # nobody reads them any more, and the notes are about the next generation
        for row in self._vanishing(rows):
            assert row.written_by is not None
            self.stored.confirm(group, topic, row.written_by, row.position)
        for row in rows:
            assert row.written_by is not None
            group.add(MessageTable.name, MessageTable.roll_back(row.key, row.written_by))
        self.note_hidden(group, topic, write_pointers, rows[0].position, rows[-1].position)
        group.when_durable(lambda: self._hidden(topic, rows))
        group.when_failed(lambda: self.tail.forget(topic.keys[:2]))

    def _vanishing(self, rows: list[MessageRow]) -> list[MessageRow]:
        """The references that the store may drop by itself once they are rolled back."""
        return [row for row in rows if row.reference is not None] if self._store_drops else []

    def _hidden(self, topic: Topic, rows: list[MessageRow]) -> None:
        for row in rows:
            self.tail.roll_back(topic.keys[:2], row.position)
        self.arrivals.notify(topic.keys[:2])
