"""The markers of all topics: emitted in stages that check them, and reconciled up to where committed readers come.

Of each topic the state is known up to a position, and the markers that follow it. An entry of the system table (kind
`markers`, docs/formats/markers.md) has the state up to an older position; what follows that is read once after a restart.
It is written no later than a topic's first marker, so a topic without an entry has none, and is not searched for any.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from itertools import islice
from typing import NamedTuple

import msgspec

from basalt.api.markers.marker import Marker, decode_marker, encode_marker
from basalt.api.markers.reconcile import (
    NOTHING_KNOWN,
    MarkerState,
    TaskState,
    apply,
    is_ended,
    malformed,
    refusal,
    watermark_ms,
)
from basalt.catalog.topics import Topic, TopicName, Topics, title_of
from basalt.errors import BusyError, InputError, MarkerRefusedError, TopicNotFoundError
from basalt.messaging.log import log_bounds as removed
from basalt.messaging.log.append import Placed
from basalt.messaging.log.rolled_back import RolledBack
from basalt.messaging.log.tail import TopicKey
from basalt.messaging.log.topic_locks import TopicLocks
from basalt.messaging.publish import Messaging
from basalt.messaging.read.fetch import end_of
from basalt.messaging.read.last_stable import StableEnds, before
from basalt.messaging.read.row_pages import pages
from basalt.runtime.group_commit import Group, GroupCommit, Phase
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import MessageRow
from basalt_engine.records import Kind, decode
from basalt_engine.snapshot import InvalidList, TransactionSnapshot, Visibility
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

KIND = "markers"
TOPICS_MAX = 10_000  # topics whose state is in memory; the least recently used go
SAVE_AGE_MS = 60_000  # how old a saved state becomes before it is saved again; a crash costs reading what came since
SAVE_TOPICS_MAX = 500  # saved by one run of the job


class Saved(msgspec.Struct, frozen=True):
    """The state of a generation up to a position (hex). Each task: watermark, whether it ended, when it spoke last."""

    generation: int
    position: str
    task_count: int | None
    tasks: dict[str, tuple[int | None, bool, int]]


class MarkerFacts(NamedTuple):
    """What the markers of a topic say to readers of committed messages up to `at`, an id that no message has."""

    state: MarkerState
    watermark_ms: int | None
    ended: bool
    at: bytes | None
    generation: int


class _Ahead(NamedTuple):
    """A marker that is not part of the settled state yet."""

    position: bytes
    written_by: int | None
    marker: Marker


class _Tracked:
    """A topic: the state that is settled through a position (empty: nothing is), and the markers after that."""

    __slots__ = ("ahead", "invalid", "latest", "noted", "saved_ms", "saved_through", "settled", "through")

    def __init__(self) -> None:
        self.settled = NOTHING_KNOWN
        self.through = b""
        self.ahead: list[_Ahead] = []
        self.latest = NOTHING_KNOWN  # with those ahead, against which new ones are checked
        self.invalid: InvalidList | None = None  # the list by which those ahead were judged last
        self.noted = False  # whether the system table has an entry
        self.saved_through = b""
        self.saved_ms = 0

    def add(self, ahead: _Ahead) -> None:
        self.ahead.append(ahead)
        self.latest = apply(self.latest, ahead.marker, position_fields(ahead.position)[0])

    def settle(self, stop: bytes, snapshot: TransactionSnapshot | None) -> None:
        """Everything up to `stop`, inclusive, is decided: take what committed readers see of it."""
        self.invalid = None if snapshot is None else snapshot.invalid
        rest = list[_Ahead]()
        for ahead in self.ahead:
            seen = _judge(ahead.written_by, snapshot)
            if seen is Visibility.SKIP:
                continue  # also after `stop`: a failed writer is forgotten one day, and would pass for a committed one
            if ahead.position > stop or seen is Visibility.HOLD:
                stop = min(stop, before(ahead.position))
                rest.append(ahead)
            elif seen is Visibility.VISIBLE:
                self.settled = apply(self.settled, ahead.marker, position_fields(ahead.position)[0])
        self.through = max(self.through, stop)
        self._keep(rest)

    def drop(self, gone: RolledBack) -> None:
        """These rows were rolled back, so that none of them will ever count."""
        rest = [ahead for ahead in self.ahead if not gone.has(ahead.written_by, ahead.position)]
        if len(rest) < len(self.ahead):
            self._keep(rest)

    def _keep(self, rest: list[_Ahead]) -> None:
        self.ahead, self.latest = [], self.settled
        for ahead in rest:
            self.add(ahead)

    def entry(self, topic: Topic) -> bytes:
        tasks = {name: (task.watermark_ms, task.ended, task.published_ms) for name, task in self.settled.tasks.items()}
        return msgspec.json.encode(Saved(topic.generation, self.through.hex(), self.settled.task_count, tasks))


class TopicMarkers:
    """The markers of one store. Where transactions are managed elsewhere none has a writer."""

    def __init__(
        self, store: Store, clock: Clock, topics: Topics, messaging: Messaging, writer: GroupCommit, ends: StableEnds,
        *, topics_max: int = TOPICS_MAX,
    ) -> None:  # fmt: skip
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._topics = topics
        self._messaging = messaging
        self._writer = writer
        self._ends = ends
        self._tracked: OrderedDict[TopicKey, _Tracked] = OrderedDict()  # the least recently used first
        self._topics_max = topics_max
        self._loading = TopicLocks()
        self._gone: dict[TopicKey, list[RolledBack]] = {}  # what was rolled back while it was read
        messaging.appender.doubts.append(self._forget)
        messaging.roll_backs.append(self._rolled_back)
        topics.when_deleted.append(lambda topic: self._forget(topic.keys[:2]))

    # Emission.

    async def publish(self, title: TopicName, marker: Marker) -> None:
        """Emit a marker outside a transaction; it is durable on return. `MarkerRefusedError`: it may not follow."""
        topic = await self._topics.get(title)
        check_shape(marker)
        await self.ready(topic)

        def stage(group: Group) -> Placed:
            known = self._topics.known(title)
            self.check([(known, marker)])
            return self.emit(group, known, marker, None)

        await self._writer.run(stage)

    async def ready(self, topic: Topic) -> None:
        """Read what is known of the topic, before a stage checks and emits."""
        await self._messaging.appender.ready(topic)
        await self._settled(topic)

    def check(self, emissions: Sequence[tuple[Topic, Marker]], part: str = "") -> None:
        """In a stage: refuse what may not follow the markers there are, in this order. `part` names where they stand."""
        states: dict[TopicKey, MarkerState] = {}
        for index, (topic, marker) in enumerate(emissions):
            self._topics.known(topic.title).of_generation(topic.generation)
            key = topic.keys[:2]
            state = (states[key] if key in states else self._of(topic).latest).expecting(topic.tasks)
            refused = refusal(state, marker)
            if refused is not None:
                field = f"{part}[{index}].{refused.field}" if part else refused.field
                raise MarkerRefusedError(f"topic {topic.title}: {refused.what}", field=field, hint=refused.hint)
            states[key] = apply(state, marker, 0)

    def emit(self, group: Group, topic: Topic, marker: Marker, written_by: int | None) -> Placed:
        """In a stage, after `check`: the marker takes its place. Cannot fail."""
        key, tracked = topic.keys[:2], self._of(topic)
        if not tracked.noted:
            tracked.noted = True
            entry = SystemTable.put(KIND, removed.entry_name(topic.keys.prefix), tracked.entry(topic))
            group.add(SystemTable.name, entry, phase=Phase.INTENT)
        kind = Kind.END_OF_STREAM if marker.ends else Kind.WATERMARK
        placed = self._messaging.appender.append_marker(group, topic, kind, encode_marker(marker), written_by)
        tracked.add(_Ahead(position(placed.end_ms, placed.end_sequence), written_by, marker))
        group.when_failed(lambda: self._forget(key))
        return placed

    # What is asked.

    async def facts(self, title: TopicName, *, wait_ms: int = 0) -> MarkerFacts:
        """What the topic's markers say; waits up to `wait_ms` for the topic's end."""
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            topic = await self._topics.get(title)
            arrival = self._messaging.arrivals.waiter(topic.keys[:2]) if wait_ms else None
            try:
                found = _facts(topic, await self._settled(topic))
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if found.ended or arrival is None or left_ms <= 0 or self._messaging.stopping:
                    return found
                await asyncio.wait([arrival], timeout=left_ms / 1_000)
            finally:
                if arrival is not None:
                    arrival.cancel()

    # What the `stats` job does.

    async def save(self, *, everything: bool = False) -> int:
        """Save the states of topics that went on since; how many."""
        now_ms = self._clock.now_ms()
        due = [
            key
            for key, tracked in self._tracked.items()
            if tracked.noted and (everything or now_ms - tracked.saved_ms >= SAVE_AGE_MS)
        ]
        saved = 0
        for key in due if everything else due[:SAVE_TOPICS_MAX]:
            topic = await self._current(key)
            if topic is not None:
                await self._settled(topic)
                saved += await self._writer.run(lambda group, topic=topic: self._save(group, topic))  # type: ignore[misc]
        return saved

    async def keep(self, topic: Topic) -> None:
        """Before rows are put out of reach: what their markers say is durable without them.

        `GenerationError`, `TopicNotFoundError`: this generation has ended meanwhile.
        """
        await self._settled(topic)

        def stage(group: Group) -> int:
            self._topics.known(topic.title).of_generation(topic.generation)
            self._of(topic)  # refuses where it is not known any more
            return self._save(group, topic)

        await self._writer.run(stage)

    def _save(self, group: Group, topic: Topic) -> int:
        if not self._topics.lives(topic):  # the entry is the next generation's by now
            return 0
        tracked = self._tracked.get(topic.keys[:2])
        if tracked is None or not tracked.noted:
            return 0
        tracked.saved_ms = group.now_ms
        if tracked.through == tracked.saved_through:
            return 0
        tracked.saved_through = tracked.through
        group.when_failed(lambda: self._forget(topic.keys[:2]))
        group.add(SystemTable.name, SystemTable.put(KIND, removed.entry_name(topic.keys.prefix), tracked.entry(topic)))
        return 1

    # How.

    def _of(self, topic: Topic) -> _Tracked:
        tracked = self._tracked.get(topic.keys[:2])
        if tracked is None:  # a write failed since it was read
            raise BusyError(f"what the markers of topic {topic.title} say is being read again", hint="send it again")
        return tracked

    def _forget(self, key: TopicKey) -> None:
        self._tracked.pop(key, None)

    def _rolled_back(self, key: TopicKey, gone: RolledBack) -> None:
        """Its writer leaves the list of those in progress next: what is kept of it would pass for committed."""
        tracked = self._tracked.get(key)
        if tracked is not None:
            tracked.drop(gone)
        if key in self._gone:
            self._gone[key].append(gone)

    async def _current(self, key: TopicKey) -> Topic | None:
        try:
            topic = await self._topics.get(title_of(key[0]))
        except TopicNotFoundError:
            topic = None
        if topic is None or topic.generation != key[1]:
            self._forget(key)
            return None
        return topic

    async def _settled(self, topic: Topic) -> _Tracked:
        """The topic, settled through where a reader of committed messages comes now."""
        key = topic.keys[:2]
        while True:
            tracked = self._tracked.get(key)
            if tracked is None:
                async with self._loading.of(key):
                    if key not in self._tracked:
                        self._keep(key, await self._read(topic))
                continue
            await self._settle(topic, tracked)
            if (
                self._tracked.get(key) is tracked
            ):  # else a write failed meanwhile, and what it may have added is in doubt
                self._tracked.move_to_end(key)
                return tracked

    def _keep(self, key: TopicKey, tracked: _Tracked) -> None:
        self._tracked[key] = tracked
        over = len(self._tracked) - self._topics_max
        # A marker that is being written is not in the store yet: read again now, the state would lack it for ever.
        written = (other for other in self._tracked if other != key and other not in self._messaging.appender.in_flight)
        for other in list(islice(written, max(0, over))):
            del self._tracked[other]

    async def _settle(self, topic: Topic, tracked: _Tracked) -> None:
        stop, snapshot = await self._ends.settled(topic, tracked.through)
        if stop > tracked.through or (snapshot is not None and snapshot.invalid is not tracked.invalid):
            tracked.settle(stop, snapshot)

    async def _read(self, topic: Topic) -> _Tracked:
        """What the store has of the topic; rows that are rolled back while it is read may have been read before that."""
        key = topic.keys[:2]
        gone: list[RolledBack] = []
        self._gone[key] = gone
        try:
            tracked = await self._load(topic)
        finally:
            del self._gone[key]
        for each in gone:
            tracked.drop(each)
        return tracked

    async def _load(self, topic: Topic) -> _Tracked:
        """What was saved, and the markers that follow it in the log."""
        tracked = _Tracked()
        saved = await self._call.about(None, removed.read, self._system, KIND, topic, Saved)
        if saved is None or saved.generation != topic.generation:
            return tracked
        tracked.noted = True
        tracked.through = tracked.saved_through = bytes.fromhex(saved.position)
        tasks = {name: TaskState(*task) for name, task in saved.tasks.items()}
        tracked.settled = tracked.latest = MarkerState(saved.task_count, tasks)
        stop = await self._messaging.durable_stop(topic)
        start = tracked.through + b"\0" if tracked.through else b""
        async with aclosing(pages(self._call, self._messaging.messages, topic.read_keys, start, stop)) as found:
            async for page in found:
                for row in page:
                    if row.batch is not None and row.batch[1] != Kind.USER:
                        tracked.add(_Ahead(row.position, row.written_by, marker_of(row)))
        return tracked


def check_shape(marker: Marker, part: str = "") -> None:
    """`InputError` for what can be no marker of any topic."""
    refused = malformed(marker)
    if refused is not None:
        field = f"{part}.{refused.field}" if part else refused.field
        raise InputError(refused.what, field=field, hint=refused.hint)


def marker_of(row: MessageRow) -> Marker:
    """The marker in a row that has one."""
    assert row.batch is not None
    batch = decode(row.batch)
    return decode_marker(batch.kind.name.lower(), batch.payloads(0, 1)[0])


def _facts(topic: Topic, tracked: _Tracked) -> MarkerFacts:
    state = tracked.settled.expecting(topic.tasks)
    at = end_of(tracked.through) if tracked.through else None
    return MarkerFacts(state, watermark_ms(state), is_ended(state), at, topic.generation)


def _judge(written_by: int | None, snapshot: TransactionSnapshot | None) -> Visibility:
    if snapshot is not None:
        return snapshot.judge(written_by)
    return Visibility.SKIP if written_by is not None and written_by < 0 else Visibility.VISIBLE
