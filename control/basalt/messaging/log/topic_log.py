"""One live generation of a topic: all that this process knows of it, in one object.

Messages are appended here, inside the group commit, so that every reader sees one order. There is one object for a
generation while anybody holds it: `TopicLogs` opens it, finds it inside a stage, and ends it when the topic is deleted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

from basalt.catalog.topics import Topic, TopicName
from basalt.errors import BusyError
from basalt.messaging.index import Blocks, TopicIndex, TtlCounts, count_row, count_staged
from basalt.messaging.log.append import (
    EMPTY_LOG,
    LogPosition,
    Numbered,
    Placed,
    PlacedCut,
    PositionRange,
    RowBuilder,
    before_one_millisecond,
    last_of,
    lone_cut,
    next_place,
    placed_cuts,
    places,
)
from basalt.messaging.log.packing import Packing
from basalt.messaging.log.staged_writers import StagedWriter, StagedWriters
from basalt.messaging.log.tails import Tail, TailOwner, Tails
from basalt.messaging.rows_in_doubt import RowsInDoubt
from basalt.runtime.group_commit import Group
from basalt.transactions.protocol import JoinedTransaction
from basalt_engine.errors import BasaltError
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import MessageRow, MessageTable, Reference
from basalt_engine.records import BATCH_MESSAGES_MAX, Buffer, Extras, RecordKind
from basalt_engine.snapshot import POINTER_MAX
from basalt_engine.stores.shards import shard_of
from basalt_engine.table import Store

LOGS_MAX = 100_000  # that stay in memory while nobody uses them; beyond, the least recently used is read again
DETAILED_MAX = 10_000  # of them with markers or an index in memory: some 5 KiB each, without its blocks
BLOCK_ENTRIES_MAX = 131_072  # in the blocks of all indexes together: 40 MB
WRITERS_MAX = 100_000  # (topic, writer) pairs kept in memory; beyond, the least recently used is read again
WAITING_MAX = 100_000  # fetches that wait at the same time, over all topics


class LogLimits(NamedTuple):
    """The most that stays in memory of logs, and the most fetches that may wait."""

    logs: int = LOGS_MAX
    detailed: int = DETAILED_MAX
    writers: int = WRITERS_MAX
    waiting: int = WAITING_MAX
    block_entries: int = BLOCK_ENTRIES_MAX


LOG_LIMITS = LogLimits()

Range = tuple[bytes, bytes | None]  # positions, half-open; None: to the end


class RolledBack(NamedTuple):
    """All rows of these writers with start <= position < stop: in the store, none of them is theirs any more."""

    write_pointers: Set[int]
    start: bytes
    stop: bytes

    def has(self, written_by: int | None, position: bytes) -> bool:
        """True when a row of this writer at this position is one of those that were rolled back."""
        return written_by in self.write_pointers and self.start <= position < self.stop


class LogLocks:
    """The locks of one log, made when the first of them is needed."""

    __slots__ = ("confirming", "loading", "producers", "rows", "staging")

    def __init__(self) -> None:
        # Held by a job that reads rows and then changes or removes what it found. A row that is rolled back gets a new
        # value in one of its columns. Were it removed after it was found, and before that is written, a row with this
        # one column would come into being. Appending needs no lock: it changes no row that is there.
        self.rows = asyncio.Lock()
        # Held while something that memory lacks is read: one at a time, so that what was read is never older than what
        # is kept.
        self.loading = asyncio.Lock()
        # The same for what writers have staged: a commit must not wait for a long search for markers.
        self.staging = asyncio.Lock()
        self.confirming = asyncio.Lock()
        # The same for the numbers of producers.
        self.producers = asyncio.Lock()


def prefix_of(log: TopicLog) -> bytes:
    """The prefix of the log's topic, by which its write lane is known."""
    return log.topic.keys.prefix


class TopicLog(TailOwner):
    """One live generation of a topic. What appends or looks at the end is called from stages of the group commit."""

    __slots__ = (
        "__weakref__", "_locks", "_waiting", "divided_at", "end", "ended", "in_flight", "index", "is_caught_up", "live", "marked", "markers", "memory", "newest_row",
        "packing", "pending", "producers", "reigns", "roll_backs_seen", "shard", "stable", "staged", "topic", "uncommitted", "unconfirmed", "unknown", "unknown_up_to",
        "writing",
    )  # fmt: skip

    def __init__(
        self, topic: Topic, end: LogPosition, memory: LogMemory, *, marked: bool = False, unknown_up_to: int = 0
    ) -> None:
        self.memory = memory
        self.shard = shard_of(topic.keys.prefix)
        self.ended = False
        self._waiting: set[asyncio.Future[None]] | None = None
        self._locks: LogLocks | None = None
        self.roll_backs_seen: list[RolledBack] | None = None  # while markers are read: what was rolled back meanwhile
        self.writing = False
        self.pending = 0  # what of a group has changed the log and is not durable yet
        self.reigns = 0
        self._know_nothing()
        self.start(topic, end, marked=marked, unknown_up_to=unknown_up_to)

    def start(self, topic: Topic, end: LogPosition, *, marked: bool, unknown_up_to: int) -> None:
        """A reign of this server begins for the log, with what was read for it: all else is to be read when it is asked for."""
        self.reigns += 1
        self.is_caught_up = (
            False  # at a member that follows the coordinator: its view is as new as any of the owners before
        )
        self.topic = topic  # with the present properties
        self.end = end  # the newest place given out
        self.marked = marked  # it may have markers; most logs have none, and nobody looks for any
        self.unknown_up_to = unknown_up_to  # transactions up to this one may have rows that were not noted
        self.live = True  # else it has ended, or its properties are to be read again
        self.unknown = False  # a reign is over, and another one has not begun: nothing here counts

    def _know_nothing(self) -> None:
        """Set whatever else is known of the log, and belongs to one reign, to what it is while nothing is known."""
        self.divided_at = b""  # an empty place; rows before it and behind it never become one
        # The position after which the rows come that are being written. While a thread writes, the store may show rows
        # that a power failure would still take back: readers stop there.
        self.in_flight: bytes | None = None
        # Keys of rows whose write failed, and may still take effect later: until it is decided, they stay in flight.
        self.unconfirmed: tuple[bytes, ...] = ()
        self.packing = Packing()
        self.tail: Tail | None = None
        # Where rows of open writers lie (start, stop), by write pointer.
        self.uncommitted: dict[int, tuple[bytes, bytes]] | None = None
        self.staged: dict[int, StagedWriter] | None = None
        # What readers know of the log. Rows that become durable are noted once it is not None.
        self.newest_row: bytes | None = None  # empty: there is none, or it is being read
        self.stable = b""  # up to this position all is decided, and stays so
        self.markers: Any = None  # of `basalt.messaging.markers`
        self.producers: Any = None  # of `basalt.messaging.producers`
        self.index: TopicIndex | None = None

    # The end.

    @property
    def newest(self) -> bytes:
        """The position of the newest place given out; empty when there is none."""
        return b"" if self.end is EMPTY_LOG else position(*self.end)

    @property
    def newest_ms(self) -> int:
        """No row that is appended from now on has an earlier publish time."""
        return max(self.end.ms, 0)

    def oldest_ms(self, now_ms: int) -> int:
        """The publish time before which no reader reaches a message: its TTL is over, or the topic was truncated."""
        stored = self.topic.metadata
        return max(now_ms - stored.ttl_ms + 1, stored.truncated_before_ms, 0)

    @property
    def in_flight_stop(self) -> bytes | None:
        """The position before which all rows are durable while some are not; None when all are."""
        return None if self.in_flight is None else self.in_flight + b"\0"

    @property
    def durable_stop(self) -> bytes:
        """The position before which all rows are durable, and counted.

        While a thread reads a remote store, the next group may begin to be written, its rows in any order.
        """
        return self.newest + b"\0" if self.in_flight is None else self.in_flight + b"\0"

    def is_in_doubt_before(self, start: bytes) -> bool:
        """True when rows in doubt lie before this position: who reads from there passes them."""
        return bool(self.unconfirmed) and self.in_flight is not None and start > self.in_flight

    async def confirm_or_delete(self) -> None:
        """Decide about rows in doubt: those that are there stay, the others are deleted before anyone can have seen them."""
        async with self.locks.confirming:
            rows = self.unconfirmed
            if not rows:
                return
            await self.memory.rows_in_doubt.decide(rows)
            # A later group may have failed meanwhile, or the topic be gone.
            self.unconfirmed = self.unconfirmed[len(rows) :]
            if self.unconfirmed:
                return
            self.memory.with_unconfirmed.discard(self)
            if not self.writing:
                self.in_flight = None
        self.notify()

    async def goes_on(self, has_found: bool) -> bool:
        """Decide about rows in doubt at which a reader has come to the end; True when there may be more to read then.

        It takes a write. While the store refuses it, what a reader has found before them is a page, and one that has found nothing is
        refused: nobody knows whether this is the end.
        """
        if not self.unconfirmed:
            return False
        try:
            await self.confirm_or_delete()
        except BasaltError:
            if not has_found:
                raise
            return False
        return True

    # Appending.

    def append(
        self, group: Group, payloads: Sequence[Buffer], extras: Sequence[Extras] | None = None, written_by: int | None = None,
        numbered: Numbered | None = None,
    ) -> Placed:  # fmt: skip
        """Add messages at the end; at most `BATCH_MESSAGES_MAX`. Cannot fail."""
        assert 0 < len(payloads) <= BATCH_MESSAGES_MAX, len(payloads)
        end = self.end
        passed = 0
        if extras is None and len(payloads) == 1:  # most publishes
            assert not self.unknown, "a stage looks for the present log before it appends"
            self.end = place = next_place(end, self._earliest_ms(group))
            parts: Iterable[PlacedCut] = [(*place, payloads, None, lone_cut(len(payloads[0])))]
            placed = Placed(*place, *place)
        else:
            ranges = self._take(group, len(payloads))
            parts, placed = placed_cuts(ranges, payloads, extras), Placed.of(ranges)
        rows = self._rows(group)
        for ms, last, messages, theirs, cut in parts:
            newest = rows.newest.get(self)
            if newest is None or not newest.can_take(ms, last - len(messages) + 1, written_by, cut, theirs):
                before = end if newest is None else LogPosition(newest.ms, newest.last)
                newest = RowBuilder(self.topic, written_by, b"" if before is EMPTY_LOG else position(*before), ms)
                rows.begin(self, newest)
            newest.extend(messages, theirs, cut, last)
            if numbered is not None:
                if not self.memory.atomic:
                    rows.numbered.add((self, numbered[0]))
                passed += len(messages)
                newest.number(numbered[0], numbered[1] + passed - 1, len(messages))
        return placed

    def has_numbered(self, group: Group, producer: bytes) -> bool:
        """True when the group appends messages of this producer already."""
        return (self, producer) in self._rows(group).numbered

    def leave_millisecond(self, group: Group, count: int) -> None:
        """See to it that so many messages, appended next, get places of one millisecond, and so can be one row."""
        self.end = before_one_millisecond(self.end, self._earliest_ms(group), count)

    def append_marker(self, group: Group, kind: RecordKind, payload: Buffer, written_by: int | None) -> Placed:
        """Add a marker at the end: a row of its own, which counts as no message. Cannot fail."""
        assert kind is not RecordKind.USER
        builder, placed = self._begin_row(group, written_by)
        builder.kind = kind
        builder.payloads.append(payload)
        return placed

    def refer(
        self, group: Group, reference: Reference, written_by: int, payload_bytes: int, own_ttls: TtlCounts | None
    ) -> Placed:
        """Add a row that publishes staged payloads, which have so many bytes, some with TTLs of their own (None: too many)."""
        builder, placed = self._begin_row(group, written_by)
        builder.reference = reference
        builder.messages = reference.messages
        builder.payload_bytes = payload_bytes
        builder.own_ttls = own_ttls
        return placed

    def skip(self, group: Group) -> Placed:
        """Take a place that stays empty, for a publish of nothing: no later row may turn up under its answer."""
        return Placed.of(self._take(group, 1))

    def divide(self, group: Group) -> None:
        """Take a place that stays empty: what was appended so far never becomes one row with what follows."""
        self.skip(group)
        self.divided_at = self.newest

    def go_on_behind(self, position: bytes) -> None:
        """Give out no place up to this one, of which something was noted."""
        if position:
            self.end = max(self.end, LogPosition(*position_fields(position)))

    def _take(self, group: Group, count: int) -> list[PositionRange]:
        assert not self.unknown, "a stage looks for the present log before it appends"
        ranges = places(self.end, self._earliest_ms(group), count)
        self.end = last_of(ranges)
        return ranges

    def _earliest_ms(self, group: Group) -> int:
        # Not before the time of a truncation, even if the clock was set back since: nobody would ever read it there.
        return max(group.now_ms, self.topic.metadata.truncated_before_ms)

    def _begin_row(self, group: Group, written_by: int | None) -> tuple[RowBuilder, Placed]:
        before = self.newest
        ranges = self._take(group, 1)
        builder = RowBuilder(self.topic, written_by, before, ranges[0].ms)
        builder.last = ranges[0].start
        self._rows(group).begin(self, builder)
        return builder, Placed.of(ranges)

    def _rows(self, group: Group) -> GroupRows:
        memory = self.memory
        return group.part(memory, lambda: GroupRows(memory))

    # What rows become.

    def count(self, builder: RowBuilder, row: MessageRow, now_ms: int) -> None:
        """A row became durable."""
        memory, messages, payload_bytes = self.memory, builder.messages, builder.payload_bytes
        memory.messages_total += messages
        memory.payload_bytes_total += payload_bytes
        if self.newest_row is not None:
            self.newest_row = row.position
        own_ttls = builder.own_ttls if row.batch is None or builder.extras is None else count_staged(row.batch)
        if own_ttls is None:
            self.index = None  # read anew, with the payloads
        elif not self.ended:
            counted = count_row(builder.ms, messages, payload_bytes, own_ttls, self.topic.metadata.ttl_ms)
            index = self.present_index()
            index.observe(row.position, counted, now_ms, index.first or row.first)
        if memory.meter is not None:
            memory.meter(self.topic.title, messages, payload_bytes)

    def present_index(self) -> TopicIndex:
        """The index as far as it is known, by the topic's present TTL and truncation."""
        stored, index = self.topic.metadata, self.index
        if index is None:
            index = self.index = TopicIndex(stored.ttl_ms, stored.truncated_before_ms)
            self.memory.touch_details(self)
        elif index.ttl_ms != stored.ttl_ms or index.truncated_ms < stored.truncated_before_ms:
            index = self.index = index.under(stored.ttl_ms, stored.truncated_before_ms)
        return index

    def roll_back(self, gone: RolledBack) -> None:
        """Note that rows were rolled back, or removed, in the store; nothing is rolled back here.

        Call it before their writers end or are forgotten: else what is kept of them would pass for committed.
        """
        if self.markers is not None:
            self.markers.drop(gone)
        if self.roll_backs_seen is not None:
            self.roll_backs_seen.append(gone)

    def forget_sums(self) -> None:
        """Rows were written, or not: the next caller reads."""
        self.index = self.markers = None

    def forget_details(self) -> None:
        """Forget what is known beyond the end: it can be read again."""
        self.index = self.markers = self.newest_row = None
        if self not in self.memory.with_unsaved:
            self.forget_producers()

    def forget_producers(self) -> None:
        """Rows with numbers were written, or not: only the store knows, once rows in doubt are decided about."""
        state, self.producers = self.producers, None
        self.memory.with_unsaved.discard(self)
        if state is not None:
            state.dropped(self)

    def finish(self) -> None:
        """The generation has ended; nothing of it is served any more."""
        self.ended = True
        self.memory.rows_in_doubt.forget(self.unconfirmed)
        self.forget()

    def forget(self) -> None:
        """The generation has ended, or the reign: forget all that is known. `start` begins another reign of the same log.

        The end stays, as what it surely has reached, for who looks at the log meanwhile; nothing is appended to it.
        """
        self.live, self.unknown = False, True
        memory = self.memory
        memory.recent.pop(self.topic.title, None)
        memory.with_unconfirmed.discard(self)
        memory.with_uncommitted.discard(self)
        self.forget_producers()
        for writer in list((self.staged or {}).values()):
            memory.writers.forget(writer)
        memory.shed(self)
        self._know_nothing()
        self.notify()

    # Rows that open transactions published before their commit, so that an abort need not search for them.

    def note_uncommitted(self, write_pointer: int, after: bytes, last: bytes) -> None:
        """The writer has added rows with after < position <= last."""
        self._note_uncommitted(write_pointer, after + b"\0", last + b"\0")

    def found_uncommitted(self, write_pointer: int, first: bytes, last: bytes) -> None:
        """A search came to rows of the writer, the first and the last of them at these positions."""
        self._note_uncommitted(write_pointer, first, last + b"\0")

    def _note_uncommitted(self, write_pointer: int, start: bytes, stop: bytes) -> None:
        if self.uncommitted is None:
            self.uncommitted = {}
            self.memory.with_uncommitted.add(self)
        known = self.uncommitted.get(write_pointer)
        self.uncommitted[write_pointer] = (start if known is None else known[0], stop)

    def knows(self, transaction: JoinedTransaction) -> bool:
        """True when all rows that the transaction published here were noted, and are not forgotten."""
        return transaction.id > self.unknown_up_to and self.memory.knows(transaction)

    def uncommitted_range(self, transaction: JoinedTransaction, from_position: bytes) -> Range | None:
        """The range in which the transaction's rows may lie, open-ended if not all were noted; None: it has none."""
        if not self.knows(transaction):
            return from_position, None
        noted = self.uncommitted or {}
        ranges = [noted[pointer] for pointer in transaction.pointers if pointer in noted]
        if not ranges:
            return None
        return min(start for start, _ in ranges), max(stop for _, stop in ranges)

    def uncommitted_writers(self, write_pointers: Set[int]) -> list[int]:
        """Those of these writers of which rows were noted, ascending."""
        return [] if self.uncommitted is None else sorted(self.uncommitted.keys() & write_pointers)

    def end_writers(self, write_pointers: Set[int]) -> None:
        """These writers have ended: forget where their rows lie, and what they have staged."""
        if self.staged is not None:
            for write_pointer in self.staged.keys() & write_pointers:
                self.memory.writers.forget(self.staged[write_pointer])
            if not self.staged:
                self.staged = None
        if self.uncommitted is not None:
            for write_pointer in self.uncommitted.keys() & write_pointers:
                del self.uncommitted[write_pointer]
            if not self.uncommitted:
                self.uncommitted = None
                self.memory.with_uncommitted.discard(self)

    # Fetches that wait for something new.

    def waiter(self) -> asyncio.Future[None]:
        """A future that is done at the next notice. Take it before looking, then nothing is missed; cancel it at the end.

        `BusyError` when too many wait.
        """
        memory = self.memory
        memory.check_waiting()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = set()
            memory.with_waiting.add(self)
        self._waiting.add(future)
        memory.waiting += 1
        future.add_done_callback(self._left)
        return future

    @property
    def waiting(self) -> int:
        """The number of fetches that wait for rows of this topic."""
        return 0 if self._waiting is None else len(self._waiting)

    def notify(self) -> None:
        """Something was appended, or a transaction has ended, or the topic."""
        if self._waiting is not None:
            for future in list(self._waiting):
                if not future.done():
                    future.set_result(None)

    def _left(self, future: asyncio.Future[None]) -> None:
        if self._waiting is not None and future in self._waiting:
            self._waiting.discard(future)
            self.memory.waiting -= 1
            if not self._waiting:
                self._waiting = None
                self.memory.with_waiting.discard(self)

    @property
    def rows_locked(self) -> bool:
        """True while a job may change or remove rows."""
        return self._locks is not None and self._locks.rows.locked()

    @property
    def locks(self) -> LogLocks:
        """For a caller that must be alone at something."""
        if self._locks is None:
            self._locks = LogLocks()
        return self._locks


class GroupRows:
    """The rows that one group appends, to all topics."""

    def __init__(self, memory: LogMemory) -> None:
        self._memory = memory
        self._now_ms = 0
        self._built: list[tuple[TopicLog, RowBuilder]] = []
        self._written: list[tuple[TopicLog, RowBuilder, MessageRow]] = []
        self.newest: dict[TopicLog, RowBuilder] = {}
        self.numbered: set[tuple[TopicLog, bytes]] = set()  # the producers of messages that have numbers

    def begin(self, log: TopicLog, builder: RowBuilder) -> None:
        """One more row, at the log's end."""
        self._built.append((log, builder))
        if log not in self.newest:
            self._memory.pin(log)
        self.newest[log] = builder

    def closing(self, group: Group) -> None:
        self._now_ms = group.now_ms
        for log, builder in self._built:
            row = builder.row()
            self._written.append((log, builder, row))  # as it is, so that readers of the tail have nothing to unpack
            log.writing = True
            if log.in_flight is None:
                log.in_flight = builder.after
            log.packing.add(group, builder.topic, row)

    def durable(self) -> None:
        appended = self._memory.appended
        self._landed()
        for log, builder, row in self._written:
            if not log.ended:
                self._memory.tails.append(log, row, builder.after)
                if appended is not None:
                    appended(log, row)
        for log in self.newest:
            log.notify()
        for log, builder, row in self._written:  # last, so that readers lose nothing by a count that fails
            log.count(builder, row, self._now_ms)

    def failed(self) -> None:
        # The rows may have been written all the same. Their places stay taken, and readers ask the store.
        if not self._memory.atomic:
            for log, builder, row in self._written:
                if not log.ended:
                    log.unconfirmed += (MessageTable.put(builder.topic.keys, row).key,)
                    self._memory.with_unconfirmed.add(log)
        for log in self.newest:
            self._memory.tails.drop(log)
            log.newest_row = None
            log.forget_sums()
            log.forget_producers()
        self._landed()

    def _landed(self) -> None:
        for log in self.newest:
            log.writing = False
            if not log.unconfirmed:
                log.in_flight = None
            self._memory.unpin(log)


class LogMemory:
    """The state that the logs of one store share: the memory limits, the logs that must stay in memory, and totals."""

    def __init__(self, store: Store, tails: Tails, limits: LogLimits) -> None:
        self.rows_in_doubt = RowsInDoubt(store, MessageTable.name)
        self.tails = tails
        self.writers = StagedWriters(limits.writers)
        self.atomic = store.atomic
        self.limits = limits
        self.waiting = 0  # fetches
        self.with_waiting: set[TopicLog] = set()
        # Of these, memory alone knows something: of rows in doubt, and of where open transactions have published.
        self.with_unconfirmed: set[TopicLog] = set()
        self.with_uncommitted: set[TopicLog] = set()
        self.with_unsaved: set[TopicLog] = set()  # numbers of producers that no entry has
        self.uncommitted_unknown_up_to = POINTER_MAX  # transactions up to this one may have rows that were not noted
        self.messages_total = 0
        self.payload_bytes_total = 0
        self.appended: Callable[[TopicLog, MessageRow], None] | None = None  # told of each row at the end of a tail
        self.merged_rows_total = self.merged_bytes_total = (
            0  # small rows that became part of another, and the bytes of those
        )
        self.meter: Callable[[TopicName, int, int], None] | None = None  # told of each topic's messages and bytes
        self.recent: OrderedDict[TopicName, TopicLog] = OrderedDict()  # the least recently used first
        self.detailed: OrderedDict[TopicLog, int] = OrderedDict()  # with the entries of their blocks, in the same order
        self.block_entries = 0

    def knows(self, transaction: JoinedTransaction) -> bool:
        """True when this process noted all rows that the transaction published, and has not forgotten them."""
        return transaction.id > self.uncommitted_unknown_up_to and not transaction.was_invalid

    def check_waiting(self) -> None:
        """`BusyError` when no more fetches may wait."""
        if self.waiting >= self.limits.waiting:
            raise BusyError(
                f"{self.waiting} fetches wait for messages, the limit is {self.limits.waiting}",
                hint="send the same call again after Retry-After, or without waiting",
            )

    def touch(self, log: TopicLog) -> None:
        """Keep the log in memory while it is among those used last. One that a group changes stays anyhow, until that is durable."""
        if log.pending or log.ended:
            return
        self.recent[log.topic.title] = log
        self.recent.move_to_end(log.topic.title)
        if len(self.recent) > self.limits.logs:
            self.shed(self.recent.popitem(last=False)[1])

    def touch_details(self, log: TopicLog) -> None:
        """Keep the markers and index of the log, which may have changed, while they are among those used last."""
        if log.ended:
            return
        entries = 0 if log.index is None else log.index.blocks.entries
        self.block_entries += entries - self.detailed.get(log, 0)
        self.detailed[log] = entries
        self.detailed.move_to_end(log)
        if len(self.detailed) > self.limits.detailed:
            oldest = next(iter(self.detailed))
            self._forget_blocks(oldest)
            del self.detailed[oldest]
            if not oldest.pending:  # else it is one of those used last, as soon as the group is durable
                oldest.forget_details()
        if self.block_entries > self.limits.block_entries:
            for each in self.detailed:
                if self.block_entries <= self.limits.block_entries or each is log:
                    break
                self._forget_blocks(each)

    def forget_all_blocks(self) -> None:
        """Writers that had been decided about were decided about anew: no block holds any more."""
        self.tails.answers.clear()
        for log in self.detailed:
            self._forget_blocks(log)

    def _forget_blocks(self, log: TopicLog) -> None:
        self.block_entries -= self.detailed[log]
        self.detailed[log] = 0
        if log.index is not None:
            log.index.blocks = Blocks()

    def pin(self, log: TopicLog) -> None:
        """A group changes the log: the store does not know of it yet."""
        log.pending += 1
        self.recent.pop(log.topic.title, None)

    def unpin(self, log: TopicLog) -> None:
        """The group is durable, or has failed: the store can tell, but for rows in doubt."""
        log.pending -= 1
        if not log.pending and not log.ended:
            self.touch(log)
            if log.index is not None or log.markers is not None:
                self.touch_details(log)

    def shed(self, log: TopicLog) -> None:
        """Forget what can be read again. The log itself goes when nobody holds it any more."""
        self.tails.drop(log)
        log.forget_details()
        self.block_entries -= self.detailed.pop(log, 0)
        for writer in list((log.staged or {}).values()):
            if not writer.pins:
                self.writers.evict(writer)
