"""Producers: the last number of each in a topic, by which a publish that is sent again is found to be there already.

A producer numbers its messages. The stage that appends them compares: what is there is not written again, what follows the
last number is appended, and anything else is refused, for it would leave a gap. The numbers travel with the messages, in their
row and its one put, so that they are there or not as these are; a system entry of the topic (`producers`) has them up to a
place, and what lies behind that is read once after a restart, without payloads. An entry is there before a topic's first row
with numbers, so where there is none, nothing is read. Formats: docs/formats/message-table.md, docs/formats/system-table.md.

Where rows are written one by one, a producer has one row in a group and no more: of several, HBase could keep the last and
lose the first, and the numbers could not tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from basalt.catalog.topics import Topic, TopicName
from basalt.errors import (
    BusyError,
    ProducerFencedError,
    ProducerNotFoundError,
    ProducerUnknownError,
    SequenceGapError,
)
from basalt.messaging.log import stored_log
from basalt.messaging.log.append import Placed
from basalt.messaging.log.stored_log import PRODUCERS, SavedProducers
from basalt.messaging.log.topic_log import TopicLog, prefix_of
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.runtime.group_commit import Group, GroupCommit, NextGroupError, NotLoadedError, Phase
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.keys import position_fields
from basalt_engine.messages import MessageTable
from basalt_engine.records import Buffer, Extras
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

PER_TOPIC_MAX = 10_000
MEMORY_MAX = 1_000_000  # of all topics: 250 MB
IDLE_MS = 10 * 60_000
NAMED_IDLE_MS = 7 * 24 * 3_600_000
EVICTED_IDLE_MS = 60_000  # a producer that was used since is never forgotten for another's sake
SAVE_ROWS = 50_000  # behind the entry: a restart reads them in about a second
SAVE_AGE_MS = 60_000
SAVE_AGAIN_MS = 250  # after an entry could not be saved in time, where the job might come too late
SAVE_GROUP_TOPICS = 8
SAVE_GROUP_BYTES = 256 << 10  # of entries: gathering them takes the event loop some 3 ms
ENTRY_BYTES = 50  # of one producer in an entry, about
SHRINK_PART = 8  # so much of the memory is made free at a time, so that it need not be for each new one
NONE_SENT = -1  # the last number of a producer of which nothing is known


class ProducerLimits(NamedTuple):
    """The most producers of a topic that are remembered, and for how long after their last message; and the most in memory."""

    per_topic: int = PER_TOPIC_MAX
    idle_ms: int = IDLE_MS
    named_idle_ms: int = NAMED_IDLE_MS
    memory: int = MEMORY_MAX


PRODUCER_LIMITS = ProducerLimits()


class Sequenced(NamedTuple):
    """The numbers of a publish: the first message's, and the producer's last one before. `epoch` is a named producer's."""

    producer: bytes
    first: int
    after: int
    epoch: int = 0


class ProducerState(NamedTuple):
    """A producer as it is shown. `epoch` is 0 and `run` empty where it is not a named one."""

    name: str
    last: int
    epoch: int
    run: str
    used_ms: int


class Producer:
    """One producer of one topic. `used_ms` is for people and restarts; idle it is by `seen_ms`, which no clock that is set changes."""

    __slots__ = ("epoch", "last", "run", "seen_ms", "used_ms")

    def __init__(self, last: int, epoch: int, used_ms: int, run: str, seen_ms: float = 0.0) -> None:
        self.last = last
        self.epoch = epoch
        self.used_ms = used_ms
        self.seen_ms = seen_ms
        self.run = run

    def is_idle(self, monotonic_ms: float, limits: ProducerLimits) -> bool:
        """True when it sent nothing for so long that it may be forgotten."""
        return self.seen_ms <= monotonic_ms - (limits.named_idle_ms if self.epoch else limits.idle_ms)


class Remembered:
    """The producers in memory, of all topics. What is saved of a topic can be forgotten, and read again."""

    __slots__ = ("count", "states")

    def __init__(self) -> None:
        self.count = 0
        self.states: dict[TopicLog, LogProducers] = {}  # those that were read first come first

    def keep(self, log: TopicLog, state: LogProducers) -> None:
        """Have what was read of a log as its state from now on."""
        log.producers = self.states[log] = state
        self.count += len(state.by_name)

    def dropped(self, log: TopicLog, state: LogProducers) -> None:
        """The log has forgotten it."""
        if self.states.get(log) is state:
            del self.states[log]
            self.count -= len(state.by_name)

    def forget_saved(self, count_max: int, but: TopicLog) -> bool:
        """Forget what is saved of other topics, until so many are left. False: there was nothing to forget."""
        unsaved = but.memory.with_unsaved
        if len(self.states) - len(unsaved) <= (but not in unsaved):
            return False
        before = self.count
        for log in [each for each in self.states if each is not but and each not in unsaved]:
            log.forget_producers()
            if self.count <= count_max:
                break
        return self.count < before


class LogProducers:
    """The producers of one generation of a topic, the least recently used first."""

    __slots__ = ("by_name", "changed_ms", "changes", "has_entry", "position", "remembered", "saved", "ttl_ms")

    def __init__(self, remembered: Remembered) -> None:
        self.remembered = remembered
        self.by_name: dict[bytes, Producer] = {}
        # The newest row that all this was read from, or the empty place behind which a producer was deleted. Not the newest place
        # given out: where a write failed nothing lies, and the next server, whose clock may be behind, gives such places out again.
        self.position = b""
        self.has_entry = False
        self.changes = 0  # rows with numbers, and whatever else came
        self.saved = 0  # so many of them are in the entry
        self.changed_ms = 0.0  # when the first came that is not, on the monotonic clock
        self.ttl_ms: int | None = None  # the shortest of those rows whose messages all have one of their own

    @property
    def unsaved(self) -> int:
        """The rows with numbers behind the entry, and other changes that it lacks."""
        return self.changes - self.saved

    def add(self, name: bytes, producer: Producer) -> None:
        """Remember one more."""
        self.by_name[name] = producer
        self.remembered.count += 1

    def forget(self, names: Sequence[bytes]) -> None:
        """Forget these."""
        for name in names:
            del self.by_name[name]
        self.remembered.count -= len(names)

    def forget_idle(self, monotonic_ms: float, limits: ProducerLimits) -> None:
        """Forget those that sent nothing for long."""
        self.forget([name for name, producer in self.by_name.items() if producer.is_idle(monotonic_ms, limits)])

    def forget_idlest(self, monotonic_ms: float, limits: ProducerLimits) -> bool:
        """Forget one, or more, so that there is room for another; False when all are in use."""
        before = len(self.by_name)
        idlest = next((name for name, producer in self.by_name.items() if not producer.epoch), None)
        if idlest is None or self.by_name[idlest].seen_ms > monotonic_ms - EVICTED_IDLE_MS:
            self.forget_idle(monotonic_ms, limits)
        else:
            self.forget([idlest])
        return len(self.by_name) < before

    def changed(self, log: TopicLog, monotonic_ms: float) -> None:
        """Something came that the entry lacks."""
        if self.changes == self.saved:
            self.changed_ms = monotonic_ms
            self.ttl_ms = None
            log.memory.with_unsaved.add(log)
        self.changes += 1

    def expires(self, extras: Sequence[Extras]) -> None:
        """Note how long a row lives that has messages with TTLs of their own."""
        longest_ms = 0
        for extra in extras:
            if extra.ttl_ms is None:
                return
            longest_ms = max(longest_ms, extra.ttl_ms)
        self.ttl_ms = longest_ms if self.ttl_ms is None else min(self.ttl_ms, longest_ms)

    def due(self, log: TopicLog, monotonic_ms: float) -> bool:
        """True when the entry is to be written: before much is to be read, and long before rows may go with what they say."""
        return self.unsaved >= SAVE_ROWS or self.due_ms(log) <= monotonic_ms

    def due_ms(self, log: TopicLog) -> float:
        """When the entry is to be written if no more comes, on the monotonic clock."""
        ttl_ms = log.topic.metadata.ttl_ms if self.ttl_ms is None else min(self.ttl_ms, log.topic.metadata.ttl_ms)
        return self.changed_ms + min(SAVE_AGE_MS, ttl_ms // 2)

    def is_short_lived(self, log: TopicLog) -> bool:
        """True when rows may go, by themselves, before the job that saves entries has to come."""
        return not log.memory.atomic and self.unsaved > 0 and self.due_ms(log) < self.changed_ms + SAVE_AGE_MS

    def dropped(self, log: TopicLog) -> None:
        """The log has forgotten all of it."""
        self.remembered.dropped(log, self)


class Producers:
    """The producers of all topics of one store. What appends or changes is called from stages of the group commit."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        logs: TopicLogs,
        writer: TopicLanes,
        limits: ProducerLimits = PRODUCER_LIMITS,
    ) -> None:
        self._system = SystemTable(store.table(SystemTable.name))
        self._messages = MessageTable.of(store)
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs
        self._writer = writer
        self._limits = limits
        self._remembered = Remembered()
        self._last_epoch = 0  # that was given; no two runs ever get the same, whatever is deleted between them
        self._timer: asyncio.TimerHandle | None = None  # for rows that live short
        self._timer_ms = 0.0
        self._saving: asyncio.Task[None] | None = None
        self.duplicates_total = 0  # publishes of which nothing was written

    @property
    def known(self) -> int:
        """The number of producers in memory, of all topics."""
        return self._remembered.count

    # What a publish asks, in its stage.

    def admit(self, group: Group, log: TopicLog, asked: Sequenced, count: int) -> int:
        """Count those of the publish's messages that are there already; all of them: a repetition, to be answered when the group is durable.

        Changes nothing. `SequenceGapError`, `ProducerUnknownError`, `ProducerFencedError`, `BusyError`.
        """
        state = self._required(log)
        producer = state.by_name.get(asked.producer)
        epoch, known = (0, NONE_SENT) if producer is None else (producer.epoch, producer.last)
        if asked.epoch != epoch:
            raise _stale(asked, epoch, known)
        if asked.first + count - 1 <= known:
            self.duplicates_total += 1
            return count
        if asked.first <= known:
            passed = known - asked.first + 1
        elif asked.after == known:
            passed = 0
        else:
            raise _gap(asked, producer is not None, known)
        if producer is None:
            self._make_room(log, state)
        if not log.memory.atomic and log.has_numbered(group, asked.producer):
            raise NextGroupError
        return passed

    def append(
        self, group: Group, log: TopicLog, messages: Sequence[Buffer], extras: Sequence[Extras] | None, asked: Sequenced,
        passed: int,
    ) -> Placed:  # fmt: skip
        """Append the messages behind those that are there already. Cannot fail."""
        state: LogProducers = log.producers
        if passed:
            messages, extras = messages[passed:], None if extras is None else extras[passed:]
        if not log.memory.atomic:
            log.leave_millisecond(group, len(messages))
        if not state.has_entry:
            self._announce(group, log, state)
        first = asked.first + passed
        name, by_name, monotonic_ms = asked.producer, state.by_name, self._clock.monotonic_ms()
        producer = by_name.pop(name, None)
        last = first + len(messages) - 1
        if producer is None:
            state.add(name, Producer(last, 0, group.now_ms, "", monotonic_ms))
        else:
            producer.last, producer.used_ms, producer.seen_ms = last, group.now_ms, monotonic_ms
            by_name[name] = producer  # the last of all again
        state.changed(log, monotonic_ms)
        if extras is not None:
            state.expires(extras)
        if state.is_short_lived(log):
            self._save_by(state.due_ms(log))
        placed = log.append(group, messages, extras, None, (name, first))
        state.position = placed.end
        return placed

    # Named producers.

    async def open(self, title: TopicName, name: str, run: str) -> ProducerState:
        """Let a run be the one that sends as this producer; an earlier run is fenced from now on. The same run again: no change."""
        log = await self._logs.open(title)
        return await self._lane(log).run(partial(self._open, log, name.encode("ascii"), run), _entry_bytes(log))

    async def of_topic(self, title: TopicName) -> list[ProducerState]:
        """The topic's producers, by name; only what is durable."""
        log = await self._logs.open(title)
        return sorted(await self._lane(log).run(lambda _: self._shown(self._logs.present(log))))

    async def find(self, title: TopicName, name: str) -> ProducerState:
        """One of them; `ProducerNotFoundError`."""
        log, key = await self._logs.open(title), name.encode("ascii")
        found = await self._lane(log).run(lambda _: self._shown(self._logs.present(log), key))
        if not found:
            raise _absent(title, name)
        return found[0]

    async def delete(self, title: TopicName, name: str) -> None:
        """Forget a producer: whoever goes on sending as it is refused. `ProducerNotFoundError`."""
        log = await self._logs.open(title)
        await self._lane(log).run(partial(self._delete, log, name), _entry_bytes(log))

    def _lane(self, log: TopicLog) -> GroupCommit:
        return self._writer.lane_of(log.topic.keys.prefix)

    def _open(self, log: TopicLog, name: bytes, run: str, group: Group) -> ProducerState:
        log = self._logs.present(log)
        state = self._required(log)
        producer = state.by_name.get(name)
        if producer is None:
            self._make_room(log, state)
            producer = Producer(NONE_SENT, 0, 0, "")
        else:
            state.forget([name])
        self._announce(group, log, state)
        if not producer.epoch or producer.run != run:
            # Not below the clock: one that was forgotten and comes back must not get an epoch that a zombie has.
            self._last_epoch = max(producer.epoch, self._last_epoch, group.now_ms - 1) + 1
            producer.epoch, producer.run = self._last_epoch, run
        producer.used_ms, producer.seen_ms = group.now_ms, self._clock.monotonic_ms()
        state.add(name, producer)  # the last of all
        self._change(group, log, state)
        return _state(name, producer)

    def _delete(self, log: TopicLog, name: str, group: Group) -> None:
        log = self._logs.present(log)
        state = self._required(log)
        if name.encode("ascii") not in state.by_name:
            raise _absent(log.topic.title, name)
        state.forget([name.encode("ascii")])
        log.divide(group)  # else a row behind the entry could tell the numbers of a row before it
        state.position = log.newest
        self._change(group, log, state)

    def _change(self, group: Group, log: TopicLog, state: LogProducers) -> None:
        """Write the entry with the group, for a change that no row tells of."""
        state.changed(log, self._clock.monotonic_ms())
        self.save_with(group, log)
        group.when_failed(log.forget_producers)

    def _shown(self, log: TopicLog, name: bytes | None = None) -> list[ProducerState]:
        """All of them, or the one of this name."""
        known = self._required(log).by_name
        if name is not None:
            return [_state(name, known[name])] if name in known else []
        return [_state(each, producer) for each, producer in known.items()]

    def _make_room(self, log: TopicLog, state: LogProducers) -> None:
        """See to it that one more may be remembered; `BusyError` when all are in use."""
        remembered, limits, monotonic_ms = self._remembered, self._limits, self._clock.monotonic_ms()
        if len(state.by_name) >= limits.per_topic and not state.forget_idlest(monotonic_ms, limits):
            raise BusyError(
                f"{len(state.by_name)} producers send to the topic, the limit is {limits.per_topic}",
                hint="send the same call again after Retry-After, share producers, or raise producers.per_topic_max",
            )
        if remembered.count < limits.memory:
            return
        left = limits.memory - max(1, limits.memory // SHRINK_PART)
        if not remembered.forget_saved(left, log) and not state.forget_idlest(monotonic_ms, limits):
            raise BusyError(
                f"{remembered.count} producers are in memory, the limit is {limits.memory}",
                hint="send the same call again after Retry-After, share producers, or raise producers.memory_max",
            )

    # Loading.

    async def ready(self, log: TopicLog) -> None:
        """Have what is known of the log's producers in memory; rows in doubt are decided about first."""
        async with log.locks.producers:
            if log.unconfirmed:
                await log.confirm_or_delete()
            if log.producers is None and not log.ended:
                state = await self._call.long(self._read, log.topic)
                if not log.ended:
                    self._keep(log, state)

    def _keep(self, log: TopicLog, state: LogProducers) -> None:
        log.go_on_behind(state.position)
        self._remembered.keep(log, state)
        if state.unsaved:
            log.memory.with_unsaved.add(log)
        if state.is_short_lived(log):
            self._save_by(state.due_ms(log))
        if self._remembered.count > self._limits.memory:
            self._remembered.forget_saved(self._limits.memory, log)

    def _required(self, log: TopicLog) -> LogProducers:
        state: LogProducers | None = log.producers
        if state is None or log.unconfirmed:
            raise NotLoadedError(partial(self._hold, log))
        return state

    async def _hold(self, log: TopicLog) -> Callable[[], None]:
        await self.ready(log)
        return partial(_let_go, log)

    def _read(self, topic: Topic) -> LogProducers:
        state = LogProducers(self._remembered)
        entry = stored_log.read_entry(PRODUCERS, self._system, topic)
        if entry is None:
            row = self._messages.last(topic.read_keys)
            state.position = b"" if row is None else row.position
            return state
        state.has_entry, state.position = True, bytes.fromhex(entry.position)
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        state.changed_ms = monotonic_ms
        found = {
            name.encode("ascii"): Producer(last, epoch, used_ms, run)
            for name, (last, epoch, used_ms, run) in entry.producers.items()
        }
        newest: dict[bytes, bytes] = {}  # the position of the newest row of each
        for where, producers in self._messages.numbered(topic.read_keys, state.position):
            state.changes += 1
            for name, (last, _) in producers.items():
                if where <= newest.get(name, b""):  # buckets are read one after the other
                    continue
                newest[name] = where
                producer = found.setdefault(name, Producer(NONE_SENT, 0, 0, ""))
                producer.last, producer.used_ms = last, max(producer.used_ms, position_fields(where)[0])
        state.position = max(state.position, *newest.values(), b"")
        for producer in found.values():
            producer.seen_ms = monotonic_ms - max(0, now_ms - producer.used_ms)
        state.by_name = dict(sorted(found.items(), key=lambda item: item[1].used_ms))
        return state

    # Saving.

    async def save(self, *, everything: bool = False, among: Collection[TopicLog] | None = None) -> int:
        """Save what came long ago, or much (`everything`: all that came), of all or `among` these; of how many topics."""
        monotonic_ms, unsaved = self._clock.monotonic_ms(), self._logs.memory.with_unsaved
        known = unsaved if among is None else unsaved.intersection(among)
        due = [log for log in known if everything or log.producers.due(log, monotonic_ms)]
        saved, some, size_bytes = 0, list[TopicLog](), 0
        for number, log in enumerate(due, 1):
            some.append(log)
            size_bytes += _entry_bytes(log)
            if number == len(due) or len(some) == SAVE_GROUP_TOPICS or size_bytes >= SAVE_GROUP_BYTES:
                for lane, part in self._writer.split(some, prefix_of).items():
                    saved += await lane.run(partial(self._save, part), sum(map(_entry_bytes, part)))
                some, size_bytes = [], 0
                await asyncio.sleep(0)
        return saved

    def _save_by(self, at_ms: float, after_ms: float = 1) -> None:
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_ms = at_ms
        left_ms = max(at_ms - self._clock.monotonic_ms() + 1, after_ms)
        self._timer = asyncio.get_running_loop().call_later(left_ms / 1_000, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._save_short_lived())

    async def _save_short_lived(self) -> None:
        with suppress(BasaltError):  # it is tried again, here and by the job
            await self.save()
        for log in list(self._logs.memory.with_unsaved):
            if log.producers.is_short_lived(log):
                self._save_by(log.producers.due_ms(log), SAVE_AGAIN_MS)

    async def close(self) -> None:
        """Save nothing more by itself."""
        if self._saving is not None:
            await asyncio.wait([self._saving])
        if self._timer is not None:
            self._timer.cancel()

    async def keep(self, log: TopicLog) -> None:
        """Before rows are put out of reach: what they say of producers is durable without them."""
        await self._lane(log).run(partial(self._save_known, log), _entry_bytes(log))

    def _save_known(self, log: TopicLog, group: Group) -> None:
        if not log.ended:
            self._required(log)
            self.save_with(group, log)

    def _save(self, logs: Iterable[TopicLog], group: Group) -> int:
        return sum(self.save_with(group, log) for log in logs)

    def save_with(self, group: Group, log: TopicLog) -> bool:
        """In a stage: write the entry with the group, after its rows, where something came since. False: nothing is known."""
        state: LogProducers | None = log.producers
        if state is None or log.unknown or log.unconfirmed:
            return False
        if not state.unsaved:
            return True
        state.forget_idle(self._clock.monotonic_ms(), self._limits)
        topic = log.topic
        entry = SavedProducers(topic.generation, state.position.hex(), dict(_entries(state)))
        stored_log.put_entry(group, PRODUCERS, topic, entry, Phase.AFTER)
        changes = state.changes
        group.when_durable(lambda: self._saved(log, state, changes))
        return True

    def _saved(self, log: TopicLog, state: LogProducers, changes: int) -> None:
        state.has_entry = True
        state.saved = max(state.saved, changes)  # one group may save twice
        state.changed_ms = self._clock.monotonic_ms()
        if not state.unsaved and log.producers is state:
            log.memory.with_unsaved.discard(log)
            if not log.pending and log.memory.recent.get(log.topic.title) is not log:
                log.forget_producers()  # nobody has used the log for long

    def _announce(self, group: Group, log: TopicLog, state: LogProducers) -> None:
        """Before a topic's first numbers: an entry, without which nobody looks for rows that have some."""
        if not state.has_entry:
            state.has_entry = True  # should the group fail, all of this is read anew
            empty = SavedProducers(log.topic.generation, state.position.hex(), {})
            stored_log.put_entry(group, PRODUCERS, log.topic, empty, Phase.BEFORE)


def _entries(state: LogProducers) -> Iterator[tuple[str, tuple[int, int, int, str]]]:
    for name, producer in state.by_name.items():
        yield name.decode("ascii"), (producer.last, producer.epoch, producer.used_ms, producer.run)


def _entry_bytes(log: TopicLog) -> int:
    """About what the entry of a log has, as far as that is in memory."""
    return 0 if log.producers is None else len(log.producers.by_name) * ENTRY_BYTES


def _state(name: bytes, producer: Producer) -> ProducerState:
    return ProducerState(name.decode("ascii"), producer.last, producer.epoch, producer.run, producer.used_ms)


def _stale(asked: Sequenced, epoch: int, last: int) -> ProducerFencedError | ProducerUnknownError:
    name = asked.producer.decode("ascii")
    if asked.epoch > epoch:
        return ProducerUnknownError(
            f"producer {name} has no epoch {asked.epoch} in this topic: its last number is {last}",
            hint="open the named producer again, and go on behind the number that it tells",
        )
    return ProducerFencedError(
        f"producer {name} is at epoch {epoch}, and this call has epoch {asked.epoch}: another run sends as it now",
        hint="stop; or open it under this run's name, which fences the other",
    )


def _gap(asked: Sequenced, is_known: bool, last: int) -> SequenceGapError | ProducerUnknownError:
    name = asked.producer.decode("ascii")
    if not is_known:
        return ProducerUnknownError(
            f"producer {name} is not known in this topic (its last number is {NONE_SENT}), and the call follows number"
            f" {asked.after}",
            hint="its messages up to there are in the topic, or nobody can tell any more; go on under a new name",
        )
    return SequenceGapError(
        f"the last number of producer {name} in this topic is {last}, and the call follows number {asked.after}",
        hint="send what lies between first, or say the last number in Basalt-Sequence-After",
    )


def _absent(title: TopicName, name: str) -> ProducerNotFoundError:
    return ProducerNotFoundError(
        f"topic {title.namespace}:{title.name} knows no producer {name}", hint="GET …/producers lists those it knows"
    )


def _let_go(_: object) -> None:
    """Do nothing: the argument is what kept the log in memory, and goes with the call."""
