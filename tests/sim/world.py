"""One simulated run: clients, a server that dies and starts again, a clock that jumps; all from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.topics import TopicName, topic_name
from basalt.errors import CoordinatorUnavailableError, ShardMovingError
from basalt.messaging.log.topic_log import LOG_LIMITS
from basalt.settings import Settings
from basalt.settings.tree import MessagingSettings, TransactionSettings
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.clock import ManualClock
from basalt_engine.errors import BasaltError, InputError
from basalt_engine.stores.memory import MemoryStore
from tests.sim.cells import TOLD_IN, Cells
from tests.sim.consumers import Consumers
from tests.sim.faulty_store import FaultyStore, ProcessDied
from tests.sim.history import Ending, History, Sent, Told
from tests.sim.jobs import Jobs
from tests.sim.unlogged import UnloggedSets
from tests.wiring import Wired, texts

TOPICS = (topic_name("sim", "a"), topic_name("sim", "b"), topic_name("sim", "c"))
CLIENTS = 3
STEPS_PER_CLIENT = 5
TIMEOUT_MS = 2_000
LIFETIME_MS = 60_000  # what failed longer ago may be pruned; clocks jump further


class World:
    """The run of one seed."""

    memory = LOG_LIMITS  # of every server
    hurry = 0.0  # how often the clock goes on between two turns of the event loop

    def __init__(self, seed: int) -> None:
        self.chances = random.Random(seed)
        self.history = History()
        self.clock = ManualClock()
        self.inner = MemoryStore(atomic=self.chances.random() < 0.5)
        self.fault_rate = self.chances.choice([0.0, 0.05, 0.2])
        self.cached = self.chances.random() < 0.5
        busy = self.chances.random()
        self.busy_table = busy < 0.25  # most of what clients do is about cells
        self.busy_group = busy > 0.75  # or consume
        self.wired: Wired
        self.store: FaultyStore
        self._processes: list[FaultyStore] = []
        self.steady = True  # no write hangs
        self.texts = 0
        self.abandoned: list[Transaction] = []
        self.topics = TOPICS
        self.renewed: tuple[TopicName, ...] = TOPICS  # deleted and created again now and then
        self.jobs = Jobs(self)
        self.cells = Cells(self)
        self.unlogged = UnloggedSets(self)
        self.consumers = Consumers(self, seed)
        self.cursors: dict[tuple[TopicName, int], tuple[bytes | None, list[str]]] = {}

    async def run(self) -> None:
        """Start, let the clients work through crashes, then check with a server that no longer fails."""
        await self._prepare()
        for _ in range(self.chances.choice([1, 1, 2])):
            await self._start(self.fault_rate)
            tasks = [asyncio.ensure_future(self._client()) for _ in range(CLIENTS)]
            await self._until_dead_or_done(tasks)
        await self._check()

    async def _prepare(self) -> None:
        """What clients use, made by a server that does not fail."""
        await self._start(0.0)
        for title in (*TOPICS, TOLD_IN):
            await self._create(title)
        await self.cells.prepare()
        await self.consumers.prepare()
        self.steady = False

    async def _start(self, fault_rate: float) -> None:
        """A new process over what the last one left."""
        while True:
            self._end_processes()
            self.store = self._opened(fault_rate)
            self.store.log_away = not self.store.atomic and fault_rate > 0 and self.chances.random() < 0.1
            self._processes.append(self.store)
            starting = asyncio.ensure_future(self._wire())
            await self._until_death_or(starting)
            starting.cancel()
            try:
                self.wired = await starting
                self.store.log_away = False
                return
            except (BasaltError, ProcessDied, asyncio.CancelledError):  # recovery writes too, and may fail as well
                fault_rate /= 2

    async def _wire(self) -> Wired:
        return await Wired.start(self.store, self.clock, settings=self._settings(), memory=self.memory)

    def _settings(self) -> Settings:
        messaging = MessagingSettings(cache_bytes_max=(1 << 20) if self.cached else 0)
        return Settings(messaging=messaging, transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS))

    def _end_processes(self) -> None:
        """Only one process has the store open: what others left on the loop, timers of groups say, writes nothing beside it."""
        for store in self._processes:
            store.death.set()

    def _opened(self, fault_rate: float) -> FaultyStore:
        return FaultyStore(self.inner, self.chances, fault_rate)

    async def _until_dead_or_done(self, tasks: list[asyncio.Task[None]]) -> None:
        await self._until_death_or(asyncio.gather(*tasks, return_exceptions=True))
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _until_death_or(self, ended: asyncio.Future[Any]) -> None:
        """Wait until this has ended, or the server has: the clock passes when nobody has anything to do."""
        death = asyncio.ensure_future(self.store.death.wait())
        await asyncio.wait((death, ended), return_when=asyncio.FIRST_COMPLETED)
        death.cancel()

    async def _client(self) -> None:
        for _ in range(STEPS_PER_CLIENT * 2 if self.busy_table or self.busy_group else STEPS_PER_CLIENT):
            await self._step()
            for _ in range(self.chances.randint(0, 2)):
                await asyncio.sleep(0)

    async def _step(self) -> None:
        steps = [
            self._publish,
            self._transaction,
            self._one_shot,
            self._follow,
            self._jump,
            self._expire,
            self._recreate,
            self._snapshot,
            self._outage,
            self.jobs.step,
            self.cells.step,
            self.unlogged.step,
            self.consumers.step,
        ]
        await self.chances.choices(
            steps, [6, 6, 3, 4, 2, 2, 1, 1, 1, 4, 60 if self.busy_table else 4, 4, 60 if self.busy_group else 4]
        )[0]()

    # What clients do.

    def message(self, title: TopicName, tx: int | None) -> Sent:
        self.texts += 1
        message = Sent(f"m{self.texts}", title, self.history.generations.get(title, 0), self.history.now(), tx)
        self.history.sent[message.text] = message
        return message

    async def tell(self, messages: list[Sent], call: Awaitable[object]) -> Told:
        """Make the call, and note of the messages what its answer says."""
        again = any(message.told_at for message in messages)
        for message in messages:
            message.told, message.told_at, message.told_generation = Told.NOTHING, 0, 1 << 30
        try:
            await call
            told = Told.DONE
        except InputError:
            told = Told.REFUSED
        except ShardMovingError:  # nothing was done, by this call
            told = Told.NOTHING if again else Told.REFUSED
        except BasaltError:
            told = Told.NOTHING
        for message in messages:
            message.told, message.told_at = told, self.history.now()
            message.told_generation = self.history.generations.get(message.title, 0)
        return told

    async def _publish(self) -> None:
        title = self.chances.choice(TOPICS)
        messages = [self.message(title, None) for _ in range(self.chances.randint(1, 3))]
        await self.tell(messages, self.wired.messaging.publish(title, [message.text.encode() for message in messages]))

    async def _transaction(self) -> None:
        try:
            tx = await self.wired.transactions.begin(timeout_ms=TIMEOUT_MS, external_writes=self.chances.random() < 0.2)
        except BasaltError:
            return
        self.history.pointers.append(tx.id)
        ending = self.history.transactions[tx.id] = Ending()
        for _ in range(self.chances.randint(0, 3)):
            await self._write_under(tx, ending)
            await asyncio.sleep(0)
        await self._end(tx, ending)

    async def _write_under(self, tx: Transaction, ending: Ending) -> None:
        title = self.chances.choice(TOPICS)
        message = self.message(title, tx.id)
        how = self.chances.choice(["store", "publish", "store, refer"])
        if how == "publish":
            told = await self.tell(
                [message], self.wired.messaging.publish(title, [message.text.encode()], tx.write_pointer)
            )
        else:
            told = await self.tell(
                [message], self.wired.messaging.store(title, [message.text.encode()], tx.write_pointer)
            )
            if how == "store, refer" and told is Told.DONE:
                with suppress(BasaltError):
                    await self.wired.messaging.publish(title, [], tx.write_pointer)
        ending.may_lack |= told is not Told.DONE

    async def _end(self, tx: Transaction, ending: Ending) -> None:
        choice = self.chances.random()
        if choice < 0.2:
            self.abandoned.append(tx)
            return
        ending.asked = "commit" if choice < 0.8 else "abort"
        if ending.asked == "abort":
            with suppress(BasaltError):
                await self.wired.transactions.abort(tx.id)
            return
        titles = self.chances.sample(TOPICS, self.chances.randint(0, 2))
        messages = [self.message(title, tx.id) for title in titles]
        work = Work(publish=[WorkPublish(*message.title, [message.text.encode()]) for message in messages])
        ending.told = await self.tell(messages, self.wired.transactions.commit(tx.id, work, f"commit-{tx.id}"))
        if ending.told is Told.NOTHING:  # the retry of a lost answer
            ending.told = await self.tell(messages, self.wired.transactions.commit(tx.id, work, f"commit-{tx.id}"))

    async def _one_shot(self) -> None:
        fake = -len(self.history.transactions) - 1  # its id is only known when it is answered
        ending = self.history.transactions[fake] = Ending("commit")
        titles = self.chances.sample(TOPICS, 2)
        messages = [self.message(title, fake) for title in titles]
        work = Work(publish=[WorkPublish(*message.title, [message.text.encode()]) for message in messages])
        for _ in range(2):
            ending.told = Told.NOTHING
            ending.told = await self.tell(messages, self.wired.transactions.one_shot(work, "sim", f"one{fake}"))

    async def _follow(self) -> None:
        """A reader that goes on from where it was: what it has seen must never change."""
        title = self.chances.choice(TOPICS)
        key = (title, self.history.generations.get(title, 0))
        start, seen = self.cursors.get(key, (None, []))
        with suppress(BasaltError):
            page = await self.wired.messaging.fetch(
                title, start, start is None, messages_max=self.chances.randint(1, 5), committed=True
            )
            if self.history.generations.get(title, 0) == key[1] and self.cursors.get(key, (None, []))[0] == start:
                self.cursors[key] = (page.next_id or start, seen + texts(page))

    async def _jump(self) -> None:
        if self.chances.random() < 0.5:
            self.clock.advance(self.chances.choice([1, 10, 500]))
        else:
            self.clock.step(self.clock.now_ms() + self.chances.choice([-3_600_000, -1, -50, 1, 3_600_000]))

    async def _expire(self) -> None:
        self.clock.advance(self.chances.choice([0, TIMEOUT_MS]))
        with suppress(BasaltError):
            await self.wired.transactions.expire()
            if self.abandoned and self.chances.random() < 0.5:  # its client comes back, and undoes what it did
                await self.wired.transactions.abort(self.abandoned.pop(0).id)

    async def _snapshot(self) -> None:
        with suppress(BasaltError):
            await self.wired.transactions.write_log_snapshot()

    async def _outage(self) -> None:
        """The log is away for a while, also while a server starts. Whatever needs no log goes on."""
        store, wired = self.store, self.wired
        if store.atomic or store.log_away or store.dead:
            return
        store.log_away = True
        for _ in range(self.chances.randint(1, 3)):
            title = self.chances.choice(TOPICS)
            message = self.message(title, None)
            publish = wired.messaging.publish(title, [message.text.encode()])
            message.told, message.told_at, message.told_generation = Told.NOTHING, 0, 1 << 30
            try:
                await publish
                told = Told.DONE
            except CoordinatorUnavailableError as error:
                raise AssertionError(f"{title}: a publish without a transaction needs the log: {error}") from None
            except BasaltError as error:
                told = Told.REFUSED if isinstance(error, InputError) else Told.NOTHING
            message.told, message.told_at = told, self.history.now()
            message.told_generation = self.history.generations.get(title, 0)
            for _ in range(self.chances.randint(0, 3)):
                await asyncio.sleep(0)
        with suppress(BasaltError):
            tx = await wired.transactions.begin()
            self.history.pointers.append(tx.id)
            assert not store.log_away, f"transaction {tx.id} began without the log"
        store.log_away = False

    async def _recreate(self) -> None:
        await self._renewed(self.chances.choice(TOPICS))

    async def _renewed(self, title: TopicName) -> None:
        """A server may die between the two, and then the topic is gone until the next time."""
        with suppress(BasaltError):
            await self.wired.topics.delete(title)
        with suppress(BasaltError):
            await self._create(title)

    async def _create(self, title: TopicName) -> None:
        topic = await self.wired.topics.create(
            title, {"spread": str(self.chances.choice([1, 1, 3])), "ttl": "31536000"}
        )
        self.history.generations[title] = topic.generation

    # What must be true.

    async def _check(self) -> None:
        """End every transaction and read everything, with a server that does not fail."""
        self.steady = True
        await self._start(0.0)
        while (
            not self.wired.transactions.manager.is_known
        ):  # time passed while the log was read, and the server opened without it
            with suppress(CoordinatorUnavailableError):
                await self.wired.transactions.recover()
        for title in self.renewed:
            with suppress(BasaltError):
                await self._create(title)
        self.clock.step(self.clock.now_ms() + 100 * TIMEOUT_MS)
        last = max((tx.deadline_ms for tx in await self.wired.transactions.list()), default=0)
        self.clock.step(max(self.clock.now_ms(), last))
        await self.wired.transactions.expire()
        assert await self.wired.transactions.list() == []
        committed = {}
        for title in (*TOPICS, TOLD_IN):
            everything = await self.wired.page_through(title, self.chances.choice([1, 4, 16]))
            self.history.check_read(title, everything, committed=False)
            shown = await self.wired.page_through(title, self.chances.choice([1, 4, 16]), committed=True)
            self.history.check_read(title, shown, committed=True)
            rest = iter(everything)
            assert all(text in rest for text in shown), f"{title}: two readers, two orders"
            self._check_cursor(title, shown)
            committed[title] = shown
        self.history.check_all_or_nothing(committed)
        await self.cells.check()
        await self.consumers.check()
        self.jobs.check({text for shown in committed.values() for text in shown})
        assert self.history.pointers == sorted(set(self.history.pointers)), "write pointers do not rise"

    def _check_cursor(self, title: TopicName, shown: list[str]) -> None:
        _, seen = self.cursors.get((title, self.history.generations.get(title, 0)), (None, []))
        assert shown[: len(seen)] == seen, f"{title}: history changed behind a reader"
