"""Checks and appends the markers of topics, and puts together those that readers of committed messages see.

Of each topic the state is known up to a position, and the markers that follow it. An entry of the system table (kind
`markers`, docs/formats/markers.md) has the state up to an older position; what follows that is read once after a restart.
It is written no later than a topic's first marker, so a topic without an entry has none, and is not searched for any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from basalt.api.markers import (
    NOTHING_KNOWN,
    Marker,
    MarkerState,
    TaskState,
    apply,
    closed,
    encode_marker,
    is_ended,
    malformed,
    refusal,
    watermark_ms,
)
from basalt.catalog.topics import Topic, TopicName
from basalt.errors import GenerationError, InputError, MarkerRefusedError, TopicEndedError, TopicNotFoundError
from basalt.messaging.log import stored_log
from basalt.messaging.log.append import Placed
from basalt.messaging.log.stored_log import MARKERS, SavedMarkers
from basalt.messaging.log.topic_log import RolledBack, TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import LogReader, before, end_of
from basalt.messaging.read.slices import Slice
from basalt.runtime.group_commit import Group, NotLoadedError, Phase
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.clock import Clock
from basalt_engine.errors import RetryError
from basalt_engine.keys import position_fields
from basalt_engine.records import RecordKind, decode
from basalt_engine.snapshot import InvalidList, TransactionSnapshot, Visibility
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

SAVE_AGE_MS = 60_000  # how old a saved state becomes before it is saved again; a crash costs reading what came since
SAVE_TOPICS_MAX = 500  # saved by one run of the job


class MarkerFacts(NamedTuple):
    """The markers of a topic, put together for readers of committed messages up to `at`, an id that no message has."""

    state: MarkerState
    watermark_ms: int | None
    ended: bool
    at: bytes | None
    generation: int


class UnstableMarker(NamedTuple):
    """A marker that is not part of the settled state yet."""

    position: bytes
    written_by: int | None
    marker: Marker


class TrackedMarkers:
    """A topic: the state that is settled through a position (empty: nothing is), and the markers after that."""

    __slots__ = ("ahead", "invalid", "latest", "persisted", "saved_ms", "saved_through", "settled", "through")

    def __init__(self) -> None:
        self.settled = NOTHING_KNOWN
        self.through = b""
        self.ahead: list[UnstableMarker] = []
        self.latest = NOTHING_KNOWN  # with those ahead, against which new ones are checked
        self.invalid: InvalidList | None = None  # the list by which those ahead were judged last
        self.persisted = False  # whether the system table has an entry
        self.saved_through = b""
        self.saved_ms = 0

    def add(self, ahead: UnstableMarker) -> None:
        self.ahead.append(ahead)
        self.latest = apply(self.latest, ahead.marker, position_fields(ahead.position)[0])

    def decide_up_to(self, stop: bytes, snapshot: TransactionSnapshot | None) -> None:
        """Everything up to `stop`, inclusive, is decided: take what committed readers see of it."""
        self.invalid = None if snapshot is None else snapshot.invalid
        rest = list[UnstableMarker]()
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

    def _keep(self, rest: list[UnstableMarker]) -> None:
        self.ahead, self.latest = [], self.settled
        for ahead in rest:
            self.add(ahead)

    def entry(self, topic: Topic) -> SavedMarkers:
        tasks = {name: (task.watermark_ms, task.ended, task.published_ms) for name, task in self.settled.tasks.items()}
        return SavedMarkers(topic.generation, self.through.hex(), self.settled.task_count, tasks)


class TopicMarkers:
    """The markers of one store. Where transactions are managed elsewhere none has a writer."""

    def __init__(
        self, store: Store, clock: Clock, logs: TopicLogs, reader: LogReader, writer: TopicLanes, ends: StableEnds
    ) -> None:
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs
        self._reader = reader
        self._writer = writer
        self._ends = ends
        self._stopping = False

    # Emission.

    async def publish(self, title: TopicName, marker: Marker) -> None:
        """Emit a marker outside a transaction; it is durable on return. `MarkerRefusedError`: it may not follow."""
        log = await self._logs.open(title)
        check_shape(marker)
        await self.ready(log)

        def stage(group: Group) -> Placed:
            present = self._logs.present(log)
            self.check([(present, marker)])
            return self.emit(group, present, marker, None)

        await self._writer.lane_of(log.topic.keys.prefix).run(stage)

    async def ready(self, log: TopicLog) -> None:
        """Read what is known of the topic, before a stage checks and emits."""
        await self._caught_up(log)

    def check(self, emissions: Sequence[tuple[TopicLog, Marker]], part: str = "") -> None:
        """In a stage, before it changes anything: refuse what may not follow the markers there are, in this order.

        `part` names where they stand.
        """
        self._require({log: None for log, _ in emissions})
        states: dict[TopicLog, MarkerState] = {}
        for index, (log, marker) in enumerate(emissions):
            topic = log.topic
            state = (states[log] if log in states else _tracked(log).latest).expecting(topic.tasks)
            refused = refusal(state, marker)
            if refused is not None:
                field = f"{part}[{index}].{refused.field}" if part else refused.field
                raise MarkerRefusedError(f"topic {topic.title}: {refused.what}", field=field, hint=refused.hint)
            states[log] = apply(state, marker, 0)

    def admit(self, logs: Iterable[TopicLog]) -> None:
        """In a stage, before it changes anything: refuse messages that would come behind the end of a topic's stream.

        Also when the end is not readable yet: until that is decided nobody knows better.
        """
        marked = {log: None for log in logs if log.marked}
        self._require(marked)
        for log in marked:
            refused = closed(_tracked(log).latest.expecting(log.topic.tasks))
            if refused is not None:
                raise TopicEndedError(
                    f"topic {log.topic.title}: {refused.what}", field=refused.field, hint=refused.hint
                )

    def emit(self, group: Group, log: TopicLog, marker: Marker, written_by: int | None) -> Placed:
        """In a stage, after `check`: the marker takes its place. Cannot fail."""
        tracked = _tracked(log)
        if not tracked.persisted:
            tracked.persisted = log.marked = True
            stored_log.put_entry(group, MARKERS, log.topic, tracked.entry(log.topic), Phase.BEFORE)
        kind = RecordKind.END_OF_STREAM if marker.ends else RecordKind.WATERMARK
        placed = log.append_marker(group, kind, encode_marker(marker), written_by)
        tracked.add(UnstableMarker(placed.end, written_by, marker))
        return placed

    # What is asked.

    async def facts(self, title: TopicName, *, wait_ms: int = 0) -> MarkerFacts:
        """Put the topic's settled markers together; waits up to `wait_ms` for the topic's end."""
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            log = await self._logs.open(title)
            arrival = log.waiter() if wait_ms else None
            try:
                found = _facts(log.topic, await self._caught_up(log))
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if found.ended or arrival is None or left_ms <= 0 or self._stopping or self._logs.is_moving(log):
                    return found
                await asyncio.wait([arrival], timeout=left_ms / 1_000)
            finally:
                if arrival is not None:
                    arrival.cancel()

    # What the `stats` job does.

    async def save(self, *, everything: bool = False, among: Iterable[TopicLog] | None = None) -> int:
        """Save the states of topics that went on since, of all or `among` these; how many."""
        now_ms = self._clock.now_ms()
        known = list(self._logs.memory.detailed if among is None else among)
        logs = [log for log in known if log.markers is not None and log.markers.persisted]
        due = [log for log in logs if everything or now_ms - log.markers.saved_ms >= SAVE_AGE_MS]
        saved = 0
        for log in due if everything else due[:SAVE_TOPICS_MAX]:
            with suppress(TopicNotFoundError):
                try:
                    await self._caught_up(log)
                except RetryError:  # such as while the coordinator is away: what is settled by now is right, too
                    if not everything:
                        raise
                saved += await self._writer.lane_of(log.topic.keys.prefix).run(partial(self._save, log))
        return saved

    async def keep(self, log: TopicLog) -> None:
        """Before rows are put out of reach: what their markers say is durable without them."""
        await self._caught_up(log)

        def stage(group: Group) -> int:
            self._require({log: None})
            return self._save(log, group)

        await self._writer.lane_of(log.topic.keys.prefix).run(stage)

    def stop_waiting(self) -> None:
        """Answer those who wait, from now on, with what there is."""
        self._stopping = True

    def _save(self, log: TopicLog, group: Group) -> int:
        tracked: TrackedMarkers | None = log.markers
        # A generation never writes over the one that followed.
        if log.unknown or tracked is None or not tracked.persisted:
            return 0
        tracked.saved_ms = group.now_ms
        if tracked.through == tracked.saved_through:
            return 0
        tracked.saved_through = tracked.through
        group.when_failed(log.forget_sums)
        stored_log.put_entry(group, MARKERS, log.topic, tracked.entry(log.topic))
        return 1

    # How.

    def _require(self, logs: dict[TopicLog, None]) -> None:
        """In a stage: the markers of these topics are in memory, or it runs again when they are.

        `GenerationError`: a topic was deleted since it was looked up, and what follows would be about the next generation.
        """
        for log in logs:
            if log.ended:
                raise GenerationError(
                    f"generation {log.topic.generation} of topic {log.topic.title} has ended",
                    field="generation",
                    hint="It was deleted meanwhile: look at the topic again.",
                )
            self._logs.present(log)
        missing = [log for log in logs if log.markers is None]
        if missing:
            raise NotLoadedError(partial(self._hold, missing))

    async def _hold(self, logs: Sequence[TopicLog]) -> Callable[[], None]:
        """Read the markers of these topics; they stay in memory until what is returned is called."""
        held: list[TopicLog] = []
        try:
            for log in logs:
                log.memory.pin(log)
                held.append(log)
                await self._caught_up(log)
        except BaseException:
            _let_go(held)
            raise
        return partial(_let_go, held)

    async def _caught_up(self, log: TopicLog) -> TrackedMarkers:
        """The topic's markers, settled through where a reader of committed messages comes now."""
        while True:
            tracked: TrackedMarkers | None = log.markers
            if tracked is None:
                async with log.locks.loading:
                    if log.markers is None:
                        log.markers = await self._read(log)
                continue
            await self._catch_up(log, tracked)
            log.memory.touch_details(log)
            unchanged: bool = log.markers is tracked
            if unchanged:  # else a write failed meanwhile, and what it may have added is in doubt
                return tracked
            if log.ended:
                raise self._logs.catalog.absent(log.topic.title)

    async def _catch_up(self, log: TopicLog, tracked: TrackedMarkers) -> None:
        stop, snapshot = await self._ends.settled(log, tracked.through)
        if stop > tracked.through or (snapshot is not None and snapshot.invalid is not tracked.invalid):
            tracked.decide_up_to(stop, snapshot)

    async def _read(self, log: TopicLog) -> TrackedMarkers:
        """Read the markers from the store, and drop those that were rolled back after they were read."""
        seen: list[RolledBack] = []
        log.roll_backs_seen = seen
        try:
            tracked = await self._load(log)
        finally:
            log.roll_backs_seen = None
        for each in seen:
            tracked.drop(each)
        return tracked

    async def _load(self, log: TopicLog) -> TrackedMarkers:
        """Read the saved markers, and those that follow them in the log."""
        topic = log.topic
        tracked = TrackedMarkers()
        saved = await self._call.about(None, stored_log.read_entry, MARKERS, self._system, topic)
        if saved is None:
            return tracked
        tracked.persisted = True
        tracked.through = tracked.saved_through = bytes.fromhex(saved.position)
        tasks = {name: TaskState(*task) for name, task in saved.tasks.items()}
        tracked.settled = tracked.latest = MarkerState(saved.task_count, tasks)
        if log.unconfirmed:
            await log.confirm_or_delete()
        stop = log.durable_stop
        rest: bytes | None = tracked.through + b"\0" if tracked.through else b""
        while rest is not None:
            rows, rest = await self._reader.page(log, rest, stop)
            for row in rows:
                if row.batch is not None and row.batch[1] != RecordKind.USER:
                    marker = Slice(row, decode(row.batch), None).marker()
                    tracked.add(UnstableMarker(row.position, row.written_by, marker))
        return tracked


def check_shape(marker: Marker, part: str = "") -> None:
    """`InputError` for what can be no marker of any topic."""
    refused = malformed(marker)
    if refused is not None:
        field = f"{part}.{refused.field}" if part else refused.field
        raise InputError(refused.what, field=field, hint=refused.hint)


def _tracked(log: TopicLog) -> TrackedMarkers:
    """The log's markers, of which `check` has made sure that they are in memory."""
    found: TrackedMarkers = log.markers
    return found


def _let_go(held: Sequence[TopicLog]) -> None:
    for log in held:
        log.memory.unpin(log)


def _facts(topic: Topic, tracked: TrackedMarkers) -> MarkerFacts:
    state = tracked.settled.expecting(topic.tasks)
    at = end_of(tracked.through) if tracked.through else None
    return MarkerFacts(state, watermark_ms(state), is_ended(state), at, topic.generation)


def _judge(written_by: int | None, snapshot: TransactionSnapshot | None) -> Visibility:
    if snapshot is not None:
        return snapshot.judge(written_by)
    return Visibility.SKIP if written_by is not None and written_by < 0 else Visibility.VISIBLE
