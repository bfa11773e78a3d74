"""The live logs of all topics: opened when somebody needs one, kept while somebody holds it or used it of late.

`open` is what reads. A stage of the group commit never does: it finds a log that is open, or raises `NotLoadedError`, and
is run again once the log was opened. Topics are created, changed and deleted here, so that the live log has the present
properties, and ends with its generation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from basalt.catalog.topics import Topic, TopicName, Topics, merged_properties, title_of, topic_name
from basalt.cluster.shard_gate import ShardGate
from basalt.errors import TopicNotFoundError
from basalt.messaging.log import stored_log
from basalt.messaging.log.append import EMPTY_LOG, LogPosition
from basalt.messaging.log.staged_payloads import StagedPayloads
from basalt.messaging.log.tails import Tails
from basalt.messaging.log.topic_log import LOG_LIMITS, LogLimits, LogMemory, TopicLog
from basalt.runtime.group_commit import NotLoadedError
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.protocol import JoinedTransaction, Settled
from basalt.transactions.rules.transaction import Join
from basalt_engine.clock import Clock
from basalt_engine.keys import position_fields, topic_prefix
from basalt_engine.messages import MessageTable
from basalt_engine.snapshot import PointerRuns
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Store


class AbsentTopic:
    """Instead of a log: there is no such topic. Kept while a stage that asked for it is to run."""


class TopicLogs:
    """The logs of one store."""

    def __init__(
        self, store: Store, clock: Clock, catalog: Topics, *, tail_bytes_max: int, answers_bytes_max: int = 0,
        limits: LogLimits = LOG_LIMITS, gate: ShardGate | None = None,
    ) -> None:  # fmt: skip
        self.catalog = catalog
        self.gate = gate or ShardGate(clock)
        self.tails = Tails(tail_bytes_max, answers_bytes_max)
        self.memory = LogMemory(store, self.tails, limits)
        self.staged = StagedPayloads(store, clock, self.memory.writers)
        self._messages = MessageTable.of(store)
        self._system = SystemTable(store.table(SystemTable.name))
        self._call = StoreCalls(store)
        self._open: WeakValueDictionary[TopicName, TopicLog | AbsentTopic] = WeakValueDictionary()

    # Finding logs.

    def title(self, namespace: str, name: str) -> TopicName:
        """The checked names of a topic; those of a log that is in memory were checked when it was opened. `InvalidNameError`."""
        title = TopicName(namespace, name)
        return title if title in self.memory.recent else topic_name(namespace, name)

    def find(self, title: TopicName) -> TopicLog | None:
        """The topic's log, where it is open and nothing is to be decided before it is used; else `open` it."""
        log = self.find_in_doubt(title)
        return None if log is None or log.unconfirmed else log

    def find_in_doubt(self, title: TopicName) -> TopicLog | None:
        """The same, though rows are in doubt: `LogReader` decides about them when it comes to them, and while the store takes no
        writes what lies before them is read."""
        log = self.memory.recent.get(title)
        if log is None:
            found = self._open.get(title)
            if not isinstance(found, TopicLog):
                return None
            log = found
        self.memory.touch(log)
        return log if log.live else None

    async def open(self, title: TopicName) -> TopicLog:
        """The topic's log; `TopicNotFoundError` when it does not exist. Rows that are in doubt are decided about."""
        log = self.find(title)
        while log is None:
            log = await self._load(title)
            if log.unconfirmed:
                await log.confirm_or_delete()
                log = self.find(title)
        return log

    async def get(self, title: TopicName) -> Topic:
        """The topic as it is now; `TopicNotFoundError`."""
        return (await self.open(title)).topic

    def loaded(self, title: TopicName) -> TopicLog:
        """In a stage, before it changes anything: the topic's log. `TopicNotFoundError`, `NotLoadedError`."""
        found = self._open.get(title)
        if found is None or (isinstance(found, TopicLog) and not found.live):
            raise NotLoadedError(partial(self.hold, [title]))
        if isinstance(found, AbsentTopic):
            raise self.catalog.absent(title)
        self.memory.touch(found)
        return found

    def present(self, log: TopicLog) -> TopicLog:
        """In a stage: the log itself, or that of the generation that came after it."""
        return log if log.live else self.loaded(log.topic.title)

    async def hold(self, titles: Iterable[TopicName]) -> Callable[[], None]:
        """Open these logs, if there are such topics; they stay open until what is returned is dropped."""
        held: list[TopicLog | AbsentTopic] = []
        for title in titles:
            try:
                held.append(await self.open(title))
            except TopicNotFoundError:
                held.append(self._open.setdefault(title, AbsentTopic()))
        return partial(_let_go, held)

    # Of transactions.

    async def joined(self, join: Join) -> TopicLog | None:
        """The log of a topic that a transaction has joined; None when that generation is no more."""
        try:
            log = await self.open(title_of(join.topic))
        except TopicNotFoundError:
            return None
        return log if log.topic.generation == join.generation else None

    def knows(self, transaction: JoinedTransaction, join: Join) -> bool:
        """True when all rows that the transaction published in this topic were noted, where its log is not in memory, too."""
        unknown_up_to = self.gate.reigns[shard_of(join.topic)].unknown_up_to
        return transaction.id > unknown_up_to and self.memory.knows(transaction)

    def in_memory(self, title: TopicName) -> TopicLog | None:
        """The topic's log where it is open, for who only looks at it: it is as close to being dropped as before."""
        found = self._open.get(title)
        return found if isinstance(found, TopicLog) else None

    def find_joined(self, join: Join) -> TopicLog | None:
        """The same, where it is in memory."""
        log = self._open.get(title_of(join.topic))
        if not isinstance(log, TopicLog) or log.ended or log.topic.generation != join.generation:
            return None
        return log

    def loaded_joined(self, joins: Sequence[Join]) -> Mapping[Join, TopicLog]:
        """In a stage: the logs of those of the generations that are still there. `NotLoadedError`."""
        logs_of_join: dict[Join, TopicLog] = {}
        missing: list[TopicName] = []
        for join in joins:
            title = title_of(join.topic)
            log = self._open.get(title)
            if log is None or (isinstance(log, TopicLog) and not log.live):
                missing.append(title)
            elif isinstance(log, TopicLog) and log.topic.generation == join.generation:
                logs_of_join[join] = log
        if missing:
            raise NotLoadedError(partial(self.hold, missing))
        return logs_of_join

    # Changing topics.

    async def create(self, title: TopicName, properties: Mapping[str, object], created_by: str = "") -> Topic:
        """A new topic, or a new generation of one that was deleted; `TopicExistsError` when it is there."""
        async with self.gate.visit(topic_prefix(*title)), self.catalog.changing(title):
            topic = await self.catalog.create(title, properties, created_by)
            self._open.pop(title, None)  # that there is none; the log is opened by who uses it
            return topic

    async def update(
        self, title: TopicName, properties: Mapping[str, object], versions: Collection[str] | None = None
    ) -> Topic:
        """Replace all properties; absent ones go back to their defaults. Messages stay where they are.

        `TopicChangedError`: the present version is none of those given.
        """
        async with self._changed(title) as log:
            log.topic = await self.catalog.update(log.topic, properties, versions)
        return log.topic

    async def merge(
        self, title: TopicName, changes: Mapping[str, object], versions: Collection[str] | None = None
    ) -> Topic:
        """Change these properties and leave the others; None puts one back to its default. Refuses as `update` does."""
        async with self._changed(title) as log:
            log.topic = await self.catalog.update(log.topic, merged_properties(log.topic, changes), versions)
        return log.topic

    async def would_change(
        self, title: TopicName, properties: Mapping[str, object], versions: Collection[str] | None = None, *, merging: bool
    ) -> tuple[Topic, Topic]:  # fmt: skip
        """The topic as it is, and as `update` or (`merging`) `merge` would make it. Refuses as these do."""
        topic = await self.get(title)
        asked = merged_properties(topic, properties) if merging else properties
        return topic, self.catalog.changed(topic, asked, versions)

    async def truncate(self, title: TopicName, before_ms: int, generation: int | None = None) -> Topic:
        """Put what was published before this time out of reach, durably; an earlier time than the last one changes nothing.

        `GenerationError`: it is of another generation than the one given.
        """
        async with self._changed(title) as log:
            log.topic = await self.catalog.truncate(log.topic.of_generation(generation), before_ms)
        return log.topic

    async def delete(self, title: TopicName) -> Topic:
        """Delete the topic. Its rows are out of reach at once, and are removed by retention later."""
        async with self._changed(title) as log:
            await self.catalog.delete(log.topic)
            self._end(log)
        return log.topic

    @asynccontextmanager
    async def _changed(self, title: TopicName) -> AsyncIterator[TopicLog]:
        """The live log, for one change. One that fails may have taken effect, or another server made one: read it again then."""
        async with self.gate.visit(topic_prefix(*title)), self.catalog.changing(title):
            log = await self._live_log(title)
            try:
                yield log
            except BaseException:
                log.live = False
                raise

    async def confirm_or_delete_all(self) -> None:
        """Decide about all rows in doubt, of every topic."""
        for log in list(self.memory.with_unconfirmed):
            await log.confirm_or_delete()

    # How.

    def recovered(self, last_pointer: int, lent: PointerRuns) -> None:
        """Of transactions up to this pointer nothing is known but what the store says; later ones were never heard of.

        One-shot transactions with `lent` pointers are ended.
        """
        for log in list(self.memory.with_uncommitted):
            log.end_writers({writer for writer in log.uncommitted or () if writer > last_pointer or writer in lent})
        self.memory.uncommitted_unknown_up_to = last_pointer
        self.memory.writers.recovered(last_pointer)

    def settled(self, told: Settled) -> None:
        """One-shot transactions are decided: wake the readers that they held up. Rows that were not noted here, `Views` knows."""
        pointers = frozenset(told.pointers)
        for log in list(self.memory.with_uncommitted):
            noted = log.uncommitted or {}
            ended = noted.keys() & pointers
            if told.runs:
                ended |= {writer for writer in noted if any(first <= writer <= last for first, last in told.runs)}
            if ended:
                log.end_writers(ended)
                log.notify()

    def wake_all(self) -> None:
        """Answer all fetches that wait: the server stops, or what was decided elsewhere may concern any topic."""
        for log in list(self.memory.with_waiting):
            log.notify()

    # What a move of shards asks for: see `basalt.operations.shard_moves`.

    def of_shards(self, shards: Collection[int]) -> list[TopicLog]:
        """The logs of these shards that are in memory."""
        return [log for log in list(self._open.values()) if isinstance(log, TopicLog) and log.shard in shards]

    def suspend(self, shards: Collection[int]) -> list[TopicLog]:
        """Whoever needs a log of these shards looks for it anew, and so comes to the gate. Who waits for a message is answered."""
        absent = [title for title, log in self._open.items() if isinstance(log, AbsentTopic)]
        for title in absent:
            if shard_of(topic_prefix(*title)) in shards:
                self._open.pop(title, None)
        logs = self.of_shards(shards)
        for log in logs:
            log.live = False
            log.notify()
        return logs

    def is_moving(self, log: TopicLog) -> bool:
        """True while nobody gets the log: who waits for something new is to be answered with what there is."""
        return not self.gate.is_held(log.shard)

    def in_doubt(self, shards: Collection[int]) -> bool:
        """True when rows of these shards may take effect late."""
        return any(log.shard in shards for log in self.memory.with_unconfirmed) or self.staged.in_doubt(shards)

    async def confirm_or_delete(self, shards: Collection[int]) -> None:
        """Decide about rows in doubt of these shards."""
        for log in [each for each in self.memory.with_unconfirmed if each.shard in shards]:
            await log.confirm_or_delete()
        await self.staged.confirm_or_delete(shards)

    async def _load(self, title: TopicName) -> TopicLog:
        async with self.gate.visit(topic_prefix(*title)), self.catalog.changing(title):
            return await self._live_log(title)

    async def _live_log(self, title: TopicName) -> TopicLog:
        """The log with the topic's present properties; its lock is held."""
        found = self._open.get(title)
        log = found if isinstance(found, TopicLog) else None
        if log is not None and log.live:
            return log
        try:
            topic = await self.catalog.read(title)
        except TopicNotFoundError:
            self.staged.end_topic(title)  # a log that was dropped from memory leaves them there
            if log is not None:
                self._end(log)
            raise
        if log is not None:
            if log.topic.generation == topic.generation:
                if log.unknown:
                    await self._start(log, topic)
                log.topic, log.live = topic, True
                return log
            self._end(log)
        marked, end = await self._call(self._read, topic)
        return self._keep(TopicLog(topic, end, self.memory, marked=marked, unknown_up_to=self._unknown_up_to(topic)))

    async def _start(self, log: TopicLog, topic: Topic) -> None:
        """A reign begins for a log that somebody still holds: only what the store says counts."""
        marked, end = await self._call(self._read, topic)
        log.forget()  # what was read since the last one has ended
        log.start(topic, end, marked=marked, unknown_up_to=self._unknown_up_to(topic))
        self.memory.touch(log)

    def _unknown_up_to(self, topic: Topic) -> int:
        return self.gate.reigns[shard_of(topic.keys.prefix)].unknown_up_to

    def _keep(self, log: TopicLog) -> TopicLog:
        self._open[log.topic.title] = log
        self.memory.touch(log)
        return log

    def _end(self, log: TopicLog) -> None:
        if self._open.get(log.topic.title) is log:
            del self._open[log.topic.title]
        log.finish()
        self.staged.end_topic(log.topic.title)

    def _read(self, topic: Topic) -> tuple[bool, LogPosition]:
        """Tell whether the topic may have markers, and where it ends."""
        marked = stored_log.read_entry(stored_log.MARKERS, self._system, topic) is not None
        return marked, self._read_end(topic)

    def _read_end(self, topic: Topic) -> LogPosition:
        # The newest row may have been removed since; its place must not be given out again all the same.
        row, newest = self._messages.last(topic.read_keys), stored_log.newest(self._system, topic)
        newest = newest if row is None else max(newest, row.position)
        return LogPosition(*position_fields(newest)) if newest else EMPTY_LOG


def _let_go(_: object) -> None:
    """Do nothing: the argument is what kept the logs in memory, and goes with the call."""
