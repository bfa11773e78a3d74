"""Appending to topics: places are given out and rows are built inside the group commit, so every reader sees one order.

Publishes without a transaction that meet in one group and one topic become one row. What was written goes to the tail
cache and wakes the fetches that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.messaging.log import log_bounds as removed
from basalt.messaging.log.positions import NEVER, Run, Stamp, after, places
from basalt.messaging.log.recent_entries import RecentEntries
from basalt.messaging.log.tail import TailCache, TopicKey
from basalt.messaging.log.topic_locks import TopicLocks
from basalt.messaging.log.waiting_fetches import Arrivals
from basalt.runtime.group_commit import Group
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, MessageTable, Reference
from basalt_engine.records import BATCH_MESSAGES_MAX, NO_EXTRAS, Buffer, Extras, Kind, encode
from basalt_engine.system import SystemTable
from basalt_engine.table import Delete, Store

STAMPS_MAX = 100_000  # topics whose newest place is kept in memory; beyond, the least recently used is read again
BATCH_BYTES_MAX = ROW_BYTES_MAX - 16  # a batch's header and checksum, and its length when it is compressed
MESSAGE_OVERHEAD_BYTES = 4  # a length in the record batch
EXTRAS_OVERHEAD_BYTES = 24  # event time, TTL, and the lengths of key and headers


class Placed(NamedTuple):
    """The places that one append took: first and last, both inclusive."""

    start_ms: int
    start_sequence: int
    end_ms: int
    end_sequence: int


class Cut(NamedTuple):
    """Messages of one publish that go into one row: start <= index < stop. `size_bytes`: what they take in its batch."""

    start: int
    stop: int
    payload_bytes: int
    size_bytes: int


class Appended(NamedTuple):
    """A row that became durable, as observers are told of it."""

    topic: Topic
    row: MessageRow
    messages: int
    payload_bytes: int


class _Building:
    """A row that still may grow within its group."""

    __slots__ = (
        "after",
        "extras",
        "kind",
        "last",
        "messages",
        "ms",
        "payload_bytes",
        "payloads",
        "reference",
        "size_bytes",
        "topic",
        "written_by",
    )

    def __init__(self, topic: Topic, written_by: int | None, after: bytes, ms: int) -> None:
        self.topic = topic
        self.written_by = written_by
        self.after = after
        self.ms = ms
        self.last = 0
        self.kind = Kind.USER
        self.payloads: list[Buffer] = []
        self.extras: list[Extras] | None = None
        self.reference: Reference | None = None
        self.messages = 0
        self.payload_bytes = 0
        self.size_bytes = 0

    def takes(self, ms: int, sequence: int, written_by: int | None, cut: Cut, extras: Sequence[Extras] | None) -> bool:
        """Whether messages of this writer, from this place on, fit in as well: a row's messages are neighbours."""
        if self.ms != ms or self.reference is not None or written_by is not None or self.written_by is not None:
            return False
        if self.kind is not Kind.USER:
            return False
        if sequence != self.last + 1:
            return False
        return self.size_bytes + cut.size_bytes + self._mixed_bytes(cut, extras) <= BATCH_BYTES_MAX

    def _mixed_bytes(self, cut: Cut, extras: Sequence[Extras] | None) -> int:
        """What messages without extras take more in one row with some that have them."""
        if (extras is None) == (self.extras is None):
            return 0
        return EXTRAS_OVERHEAD_BYTES * (self.messages if extras is not None else cut.stop - cut.start)

    def extend(self, payloads: Sequence[Buffer], extras: Sequence[Extras] | None, cut: Cut, last: int) -> None:
        self.size_bytes += cut.size_bytes + self._mixed_bytes(cut, extras)
        if extras is not None and self.extras is None:
            self.extras = [NO_EXTRAS] * self.messages
        if self.extras is not None:
            self.extras += extras if extras is not None else [NO_EXTRAS] * len(payloads)
        self.payloads += payloads
        self.messages += len(payloads)
        self.payload_bytes += cut.payload_bytes
        self.last = last

    def row(self) -> MessageRow:
        where = position(self.ms, self.last)
        if self.reference is not None:
            return MessageRow(where, self.written_by, None, self.reference)
        batch = encode(self.payloads, self.extras, kind=self.kind, compression=self.topic.compression)
        return MessageRow(where, self.written_by, batch, None, self._expire_ms())

    def _expire_ms(self) -> int | None:
        """When the last message of the row expires by its own TTL; None when one lives as long as the topic says."""
        if self.extras is None:
            return None
        longest = 0
        for extra in self.extras:
            if extra.ttl_ms is None or extra.ttl_ms >= self.topic.ttl_ms:
                return None
            longest = max(longest, extra.ttl_ms)
        return self.ms + longest


class _Rows:
    """The rows that one group appends."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._all: list[_Building] = []
        self._written: list[tuple[_Building, MessageRow]] = []
        self.newest: dict[TopicKey, _Building] = {}

    def begin(self, building: _Building) -> None:
        """One more row, at its topic's end."""
        self._all.append(building)
        self.newest[building.topic.keys[:2]] = building

    def closing(self, group: Group) -> None:
        self._appender.writing = self.newest.keys()
        for building in self._all:
            row = building.row()
            self._written.append((building, row))
            self._appender.in_flight.setdefault(building.topic.keys[:2], building.after)
            group.add(MessageTable.name, MessageTable.put(building.topic.keys, row))

    def durable(self) -> None:
        self._landed()
        for building, row in self._written:
            self._appender.tail.append(building.topic.keys[:2], row, building.after)
        for key in self.newest:
            self._appender.arrivals.notify(key)
        for building, row in self._written:  # last, so that readers lose nothing by an observer that fails
            self._appender.count(Appended(building.topic, row, building.messages, building.payload_bytes))

    def failed(self) -> None:
        # The rows may have been written all the same. Their places stay taken, and readers ask the store.
        for building, row in self._written:
            self._appender.doubt(building.topic, row)
        self._landed()
        for key in self.newest:
            self._appender.tail.forget(key)
            for observe in self._appender.doubts:
                observe(key)

    def _landed(self) -> None:
        self._appender.writing = frozenset()
        for key in self.newest.keys() - self._appender.doubtful.keys():
            self._appender.in_flight.pop(key, None)
        self._appender.landed()


class Appender:
    """The end of every topic of a store. All but `ready` is called from stages of the group commit."""

    def __init__(self, store: Store, tail: TailCache, arrivals: Arrivals, *, topics_max: int = STAMPS_MAX) -> None:
        self._rows_table = store.table(MessageTable.name)
        self._messages = MessageTable(self._rows_table)
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self.tail = tail
        self.arrivals = arrivals
        self._stamps: RecentEntries[TopicKey, Stamp] = RecentEntries(topics_max)
        # For each topic of the group that is being written, the position after which its rows come. While a thread
        # writes, the store may show rows that a power failure would still take back: readers stop there.
        self.in_flight: dict[TopicKey, bytes] = {}
        # Rows of writes that failed, where such a write may still take effect later: `settle` decides, and until then
        # their topics stay in flight.
        self.doubtful: dict[TopicKey, list[bytes]] = {}
        self._decides = not store.atomic
        self._settling = TopicLocks()
        self.writing: Set[TopicKey] = frozenset()  # the topics of the group that is being written
        self.observers: list[Callable[[Appended], None]] = []
        self.doubts: list[Callable[[TopicKey], None]] = []  # told of topics whose rows may or may not have been written
        self.messages_total = 0
        self.payload_bytes_total = 0

    async def ready(self, topic: Topic) -> None:
        """Read where the topic ends, if this process does not know it yet, before a stage needs it."""
        key = topic.keys[:2]
        if key in self.doubtful:
            await self.settle(topic)
        if key not in self._stamps:
            await self._stamps.load(key, lambda: self._call(self._read_stamp, topic))
            self._stamps.evict(keep=key)

    def landed(self) -> None:
        """The group is durable, or has failed: the store can say where its topics end, but for rows in doubt."""
        self._stamps.unpin_all(except_for=self.doubtful)
        self._stamps.evict()

    def doubt(self, topic: Topic, row: MessageRow) -> None:
        """Nobody can tell whether this row was written, or will be."""
        if self._decides:
            put = MessageTable.put(topic.keys, row)
            self.doubtful.setdefault(topic.keys[:2], []).append(put.key)

    async def settle(self, topic: Topic) -> None:
        """Decide about rows in doubt: those that are there stay, the others are deleted before anyone can have seen them.

        A delete also hides what arrives after it, for a write carries the time of its sending.
        """
        await self._settle(topic.keys[:2])

    async def settle_all(self) -> None:
        """Decide about all rows in doubt, of every topic."""
        for key in list(self.doubtful):
            await self._settle(key)

    async def _settle(self, key: TopicKey) -> None:
        async with self._settling.of(key):
            rows = tuple(self.doubtful.get(key, ()))
            if not rows:
                return
            await self._call.write(self._delete_absent, rows)
            left = self.doubtful.get(key, [])[
                len(rows) :
            ]  # a later group may have failed meanwhile, or the topic be gone
            if left:
                self.doubtful[key] = left
                return
            self.doubtful.pop(key, None)
            if key not in self.writing:
                self.in_flight.pop(key, None)
                self._stamps.unpin(key)
        self.arrivals.notify(key)

    def _delete_absent(self, rows: Sequence[bytes]) -> None:
        absent = [Delete(row) for row in rows if self._rows_table.get(row) is None]
        if absent:
            self._rows_table.write(absent)

    def append(
        self,
        group: Group,
        topic: Topic,
        payloads: Sequence[Buffer],
        extras: Sequence[Extras] | None = None,
        written_by: int | None = None,
    ) -> Placed:
        """Add messages at the topic's end; at most `BATCH_MESSAGES_MAX`. Cannot fail."""
        assert 0 < len(payloads) <= BATCH_MESSAGES_MAX, len(payloads)
        runs, before = self._take(group, topic, len(payloads))
        at = 0
        for run in runs:
            stop = at + run.stop - run.start
            part = None if extras is None else extras[at:stop]
            self._add_run(group, topic, run, payloads[at:stop], part, written_by, before)
            at = stop
        return _placed(runs)

    def append_marker(self, group: Group, topic: Topic, kind: Kind, payload: Buffer, written_by: int | None) -> Placed:
        """Add a marker at the topic's end: a row of its own, which counts as no message. Cannot fail."""
        assert kind is not Kind.USER
        runs, before = self._take(group, topic, 1)
        building = _Building(topic, written_by, before, runs[0].ms)
        building.last = runs[0].start
        building.kind = kind
        building.payloads.append(payload)
        self._rows(group).begin(building)
        return _placed(runs)

    def refer(self, group: Group, topic: Topic, reference: Reference, written_by: int, payload_bytes: int) -> Placed:
        """Add a row that publishes stored payloads, which have so many bytes."""
        runs, before = self._take(group, topic, 1)
        building = _Building(topic, written_by, before, runs[0].ms)
        building.last = runs[0].start
        building.reference = reference
        building.messages = reference.messages
        building.payload_bytes = payload_bytes
        self._rows(group).begin(building)
        return _placed(runs)

    def skip(self, group: Group, topic: Topic) -> Placed:
        """Take a place that stays empty, for a publish of nothing: no later row may turn up under its answer."""
        return _placed(self._take(group, topic, 1)[0])

    def newest(self, topic: Topic) -> bytes:
        """The position of the newest place given out; empty when there is none."""
        stamp = self._stamp(topic)
        return b"" if stamp is NEVER else position(*stamp)

    def forget(self, topic: Topic) -> None:
        """The generation has ended; nothing of it is served any more."""
        self._stamps.pop(topic.keys[:2])
        self.doubtful.pop(topic.keys[:2], None)
        self.in_flight.pop(topic.keys[:2], None)
        self.tail.forget(topic.keys[:2])
        self.arrivals.notify(topic.keys[:2])

    def _take(self, group: Group, topic: Topic, count: int) -> tuple[list[Run], bytes]:
        key, stamp = topic.keys[:2], self._stamp(topic)
        # Not before the time of a truncation, even if the clock was set back since: nobody would ever read it there.
        runs = places(stamp, max(group.now_ms, topic.truncated_before_ms), count)
        self._rows(group)  # which ends the pin
        self._stamps.pin(key, after(runs))
        return runs, b"" if stamp is NEVER else position(*stamp)

    def _stamp(self, topic: Topic) -> Stamp:
        stamp = self._stamps.get(topic.keys[:2])
        if stamp is None:
            stamp = self._read_stamp(topic)
        self._stamps.put(topic.keys[:2], stamp)
        return stamp

    def _read_stamp(self, topic: Topic) -> Stamp:
        # The newest row may have been removed since; its place must not be given out again all the same.
        row, newest = self._messages.last(topic.read_keys), removed.newest(self._system, topic)
        newest = newest if row is None else max(newest, row.position)
        return Stamp(*position_fields(newest)) if newest else NEVER

    def _add_run(
        self, group: Group, topic: Topic, run: Run, payloads: Sequence[Buffer], extras: Sequence[Extras] | None,
        written_by: int | None, before: bytes,
    ) -> None:  # fmt: skip
        rows = self._rows(group)
        sequence = run.start
        for cut in cuts(payloads, extras):
            newest = rows.newest.get(topic.keys[:2])
            if newest is None or not newest.takes(run.ms, sequence, written_by, cut, extras):
                ahead = before if newest is None else position(newest.ms, newest.last)
                newest = _Building(topic, written_by, ahead, run.ms)
                rows.begin(newest)
            sequence += cut.stop - cut.start
            part = None if extras is None else extras[cut.start : cut.stop]
            newest.extend(payloads[cut.start : cut.stop], part, cut, sequence - 1)

    def count(self, appended: Appended) -> None:
        """A row is durable."""
        self.messages_total += appended.messages
        self.payload_bytes_total += appended.payload_bytes
        for observe in self.observers:
            observe(appended)

    def _rows(self, group: Group) -> _Rows:
        return group.part(self, lambda: _Rows(self))


def cuts(payloads: Sequence[Buffer], extras: Sequence[Extras] | None = None) -> list[Cut]:
    """Where to cut a publish into rows; a message that is larger than a row may be is alone in its row."""
    lengths = list(map(len, payloads))
    payload_bytes, size_bytes = sum(lengths), MESSAGE_OVERHEAD_BYTES * len(lengths)
    sizes = None if extras is None else list(map(_extras_bytes, extras))
    size_bytes += payload_bytes + (0 if sizes is None else sum(sizes))
    if size_bytes <= BATCH_BYTES_MAX:
        return [Cut(0, len(lengths), payload_bytes, size_bytes)]
    parts, first, payload_bytes, size_bytes = [], 0, 0, 0
    for index, length in enumerate(lengths):
        cost = length + MESSAGE_OVERHEAD_BYTES + (0 if sizes is None else sizes[index])
        if index > first and size_bytes + cost > BATCH_BYTES_MAX:
            parts.append(Cut(first, index, payload_bytes, size_bytes))
            first, payload_bytes, size_bytes = index, 0, 0
        payload_bytes += length
        size_bytes += cost
    return [*parts, Cut(first, len(lengths), payload_bytes, size_bytes)]


def _extras_bytes(extra: Extras) -> int:
    size_bytes = EXTRAS_OVERHEAD_BYTES if extra.key is None else EXTRAS_OVERHEAD_BYTES + len(extra.key)
    for name, value in extra.headers:  # most have none, and each row of a large publish comes here
        size_bytes += 6 + len(name.encode()) + len(value)
    return size_bytes


def _placed(runs: list[Run]) -> Placed:
    return Placed(runs[0].ms, runs[0].start, runs[-1].ms, runs[-1].stop - 1)
