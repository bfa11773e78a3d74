"""Simulated runs in which most of what clients do is to send as producers: again and again, until there is an answer.

On a store that writes row by row a publish is cut, and what a server has given up may arrive later; several servers lead in turn.
What a producer was told is there is there once, and in the order of its numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from basalt.catalog.topics import TopicName
from basalt.errors import ProducerFencedError, ProducerUnknownError, SequenceGapError
from basalt.messaging.log import append
from basalt.messaging.producers import MEMORY_MAX, Sequenced
from basalt.settings import Settings
from basalt.settings.tree import ProducerSettings
from basalt_engine.errors import BasaltError
from basalt_engine.keys import topic_prefix
from basalt_engine.metadata import MetadataTable
from basalt_engine.stores.memory import MemoryStore
from tests.sim.faulty_store import FaultyStore
from tests.sim.history import Ending, Sent, Told
from tests.sim.one_shot_world import LateStore, OneShotWorld
from tests.sim.shared_world import SharedWorld
from tests.sim.world import TIMEOUT_MS, TOPICS, World

DAY_MS = 86_400_000
ROW_BYTES = 16  # so that a row has two messages of a simulation
MEMORY_FEW = 6  # producers of all topics
PENDING_MAX = 2  # requests of a producer that are under way at a time


class Request:
    """One publish of a producer, which is sent until there is an answer."""

    def __init__(self, messages: list[Sent], first: int, after: int) -> None:
        self.messages = messages
        self.first = first
        self.after = after

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1


class Sender:
    """A client's producer. It outlives servers."""

    def __init__(self, title: TopicName, name: str, generation: int, *, named: bool) -> None:
        self.title = title
        self.name = name
        self.generation = generation
        self.named = named
        self.epoch = 0  # of a named one that has to be opened first
        self.opened = 0
        self.last = -1  # that was given to a message
        self.requests: list[Request] = []
        self.pending: list[Request] = []
        self.sent: list[Sent] = []
        self.busy = False

    @property
    def done(self) -> list[Request]:
        """The requests that were answered."""
        return [each for each in self.requests if all(message.told is Told.DONE for message in each.messages)]


class Senders:
    """All producers of a simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chances = world.chances
        self._all: list[Sender] = []
        self._made = 0

    async def send(self) -> None:
        """One of the producers, or a new one, sends what it has pending, in any order, some of it twice at a time."""
        sender = self._pick()
        sender.busy = True
        try:
            if sender.named and not sender.epoch:
                await self._open(sender)
                if not sender.epoch:
                    return
            if not sender.pending:
                for _ in range(self._chances.randint(1, PENDING_MAX)):
                    sender.pending.append(self._request(sender))
            requests = [*sender.pending, *self._chances.sample(sender.pending, self._chances.randint(0, 1))]
            self._chances.shuffle(requests)
            await asyncio.gather(*(self._ask(sender, request, sender.epoch) for request in requests))
        finally:
            sender.busy = False

    async def take_over(self) -> None:
        """Another run opens a named producer; what the former one still sends is refused."""
        named = [sender for sender in self._all if sender.named and sender.epoch and not sender.busy]
        if not named:
            return
        sender = self._chances.choice(named)
        sender.busy = True
        try:
            former, sender.epoch = sender.epoch, 0
            await self._open(sender)
            if sender.epoch:
                zombies = Request([self._world.message(sender.title, None)], sender.last + 1, sender.last)
                with suppress(BasaltError):
                    await self._publish(sender, zombies, former)
                    raise AssertionError(f"{sender.name}: a fenced run was let in")
                zombies.messages[0].told = Told.REFUSED
        finally:
            sender.busy = False

    async def save(self) -> None:
        """What the job does."""
        with suppress(BasaltError):
            await self._world.wired.services.producers.save(everything=self._chances.random() < 0.7)

    async def store(self) -> None:
        """A transaction stores in several calls, each sent until there is an answer, and commits."""
        world, title = self._world, self._chances.choice(TOPICS)
        try:
            tx = await world.wired.transactions.begin(timeout_ms=TIMEOUT_MS)
        except BasaltError:
            return
        world.history.pointers.append(tx.id)
        ending = world.history.transactions[tx.id] = Ending()
        before = 0
        for _ in range(self._chances.randint(1, 3)):
            messages = [world.message(title, tx.id) for _ in range(self._chances.randint(1, 5))]
            payloads = [each.text.encode() for each in messages]
            generation = self.generation_of(title)
            done = False
            for _ in range(3):
                wired = world.wired
                call = wired.messaging.store(title, payloads, tx.write_pointer, before=before)
                try:
                    done = await self._tell(messages, call) is Told.DONE
                except SequenceGapError:
                    lost = wired is world.wired and self.generation_of(title) == generation
                    assert not lost, f"{title}: what was stored is not there, or twice"
                if done:
                    break
            if not done or self.generation_of(title) != generation:
                ending.may_lack = True
                break
            before += len(messages)
        with suppress(BasaltError):
            await world._end(tx, ending)

    def check(self, title: TopicName, shown: Sequence[str]) -> None:
        """Each producer's messages come in the order of its numbers."""
        place = {text: number for number, text in enumerate(shown)}
        for sender in self._all:
            if sender.title == title:
                places = [place[each.text] for each in sender.sent if each.text in place]
                assert places == sorted(places), f"{title}: the messages of {sender.name} are out of order"

    def _pick(self) -> Sender:
        idle = [sender for sender in self._all[-6:] if not sender.busy]
        if idle and self._chances.random() < 0.85:
            return self._chances.choice(idle)
        self._made += 1
        title = self._chances.choice(TOPICS)
        sender = Sender(title, f"p{self._made}", self.generation_of(title), named=self._chances.random() < 0.3)
        self._all.append(sender)
        return sender

    def _request(self, sender: Sender) -> Request:
        messages = [self._world.message(sender.title, None) for _ in range(self._chances.randint(1, 5))]
        sender.sent += messages
        request = Request(messages, sender.last + self._chances.choice([1, 1, 1, 7]), sender.last)
        sender.last = request.last
        sender.requests.append(request)
        return request

    async def _ask(self, sender: Sender, request: Request, epoch: int) -> None:
        if all(each.told is Told.DONE for each in request.messages):
            return
        wired = self._world.wired
        try:
            told = await self._tell(request.messages, self._publish(sender, request, epoch))
        except (SequenceGapError, ProducerUnknownError, ProducerFencedError) as refusal:
            if wired is not self._world.wired:
                return  # it was told by a server that leads no more
            earlier = any(each.last < request.first for each in sender.pending)
            if earlier and not isinstance(refusal, ProducerFencedError):
                return  # it has overtaken that one
            assert self._is_new(sender), f"{sender.name} in {sender.title}: {refusal}"
            self._retire(sender)
            return
        if told is Told.DONE and request in sender.pending:
            sender.pending.remove(request)

    async def _publish(self, sender: Sender, request: Request, epoch: int) -> None:
        asked = Sequenced(sender.name.encode(), request.first, request.after, epoch)
        payloads = [each.text.encode() for each in request.messages]
        await self._world.wired.messaging.publish_numbered(sender.title, payloads, asked)

    async def _tell(self, messages: list[Sent], call: Coroutine[Any, Any, object]) -> Told:
        """Make the call, and note that its messages are there where it says so; a refusal says nothing of earlier calls."""
        try:
            await call
        except (SequenceGapError, ProducerUnknownError, ProducerFencedError):
            raise
        except BasaltError:
            return Told.NOTHING
        self._note(messages)
        return Told.DONE

    def _note(self, messages: list[Sent]) -> None:
        history = self._world.history
        for message in messages:
            generation = history.generations.get(message.title, 0)
            if message.told is not Told.DONE:
                message.told, message.told_at, message.told_generation = Told.DONE, history.now(), generation
            # What was sent twice at a time may have met two generations.
            message.told_generation = max(message.told_generation, generation)

    async def _open(self, sender: Sender) -> None:
        sender.opened += 1
        with suppress(BasaltError):
            opened = await self._world.wired.services.producers.open(sender.title, sender.name, f"run-{sender.opened}")
            if self._is_new(sender):
                self._retire(sender)
                return
            for request in [each for each in sender.pending if each.last <= opened.last]:
                self._note(request.messages)
                sender.pending.remove(request)
            known = max((each.last for each in sender.done), default=-1)
            assert opened.last >= known, f"{sender.name} had come to {known}, and is told {opened.last}"
            sender.epoch = opened.epoch

    def _retire(self, sender: Sender) -> None:
        if sender in self._all:
            self._all.remove(sender)

    def _is_new(self, sender: Sender) -> bool:
        """Whether the topic was created anew since."""
        return self.generation_of(sender.title) != sender.generation

    def generation_of(self, title: TopicName) -> int:
        """The topic's generation, as the store has it."""
        stored = MetadataTable(self._world.inner.table(MetadataTable.name)).get(topic_prefix(*title))
        return 0 if stored is None else stored.generation


class ProducerWorld(OneShotWorld):
    """The run of one seed, on a store of either kind."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.inner = MemoryStore(atomic=self.chances.random() < 0.3)
        self.senders = Senders(self)
        self.memory_max = MEMORY_FEW if seed % 2 else MEMORY_MAX

    async def run(self) -> None:
        """As its parent does, with rows of a few messages."""
        with patch.object(append, "BATCH_BYTES_MAX", ROW_BYTES):
            await super().run()

    def _settings(self) -> Settings:
        return _remembering(super()._settings(), self.memory_max)

    def _opened(self, fault_rate: float) -> FaultyStore:
        kind = FaultyStore if self.inner.atomic else LateStore
        return kind(self.inner, self.chances, fault_rate)

    async def _step(self) -> None:
        steps = {
            **_steps(self.senders),
            self._publish: 2,
            self._one_shot: 1,
            self._follow: 2,
            self._jump: 1,
            self._expire: 1,
        }
        await _one_of(self, {**steps, self._recreate: 1})

    async def _check(self) -> None:
        await super()._check()
        await _check(self, self.senders)


class SharedProducerWorld(SharedWorld):
    """The run of one seed, of several servers that lead in turn."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.senders = Senders(self)
        self.memory_max = MEMORY_FEW if seed % 2 else MEMORY_MAX

    async def run(self) -> None:
        """As its parent does, with rows of a few messages."""
        with patch.object(append, "BATCH_BYTES_MAX", ROW_BYTES):
            await super().run()

    def _settings(self) -> Settings:
        return _remembering(super()._settings(), self.memory_max)

    async def _step(self) -> None:
        await _one_of(
            self, {**_steps(self.senders), self._publish: 2, self._follow: 2, self._expire: 1, self._recreate: 1}
        )

    async def _check(self) -> None:
        await super()._check()
        await _check(self, self.senders)


Steps = dict[Callable[[], Coroutine[Any, Any, None]], int]


def _steps(senders: Senders) -> Steps:
    return {senders.send: 14, senders.take_over: 2, senders.save: 3, senders.store: 3}


async def _one_of(world: World, steps: Steps) -> None:
    await world.chances.choices(list(steps), list(steps.values()))[0]()


async def _check(world: World, senders: Senders) -> None:
    for title in TOPICS:
        senders.check(title, await world.wired.page_through(title, 16))


def _remembering(settings: Settings, memory_max: int) -> Settings:
    """Clocks jump by hours between the lives of servers, and no producer is to be forgotten but by the memory of one."""
    return replace(settings, producers=ProducerSettings(idle_ms=30 * DAY_MS, memory_max=memory_max))
