"""One simulated run of several servers on one store: they lead in turn, and former leaders go on as if nothing had happened.

A server is stopped at any point and another takes over. What the stopped one had sent arrives late, after the new leader
has begun; and it wakes and takes calls. Nothing of either may ever be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from basalt.server.wiring import open_services
from basalt_engine.errors import BasaltError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import every_shard
from basalt_engine.table import TableWrite
from tests.sim.faulty_store import FaultyStore
from tests.sim.history import Told
from tests.sim.world import CLIENTS, TOPICS, World
from tests.wiring import Wired

TERMS_MAX = 4
TURNS_MAX = 600  # of the event loop; by then only those still wait who asked a process that is dead
STALL_RATE = 0.05  # how often a write is the first that the network holds back


class UnfencedStore(MemoryStore):
    """A store that lets former leaders write, to show what the epochs are for."""

    def another(self) -> UnfencedStore:
        """One more handle, which nobody refuses either."""
        made = UnfencedStore.__new__(UnfencedStore)
        made.__dict__ |= super().another().__dict__
        for table in made._tables.values():
            table._store = made
        return made

    def check_owner(self, table: str, keys: Iterable[bytes]) -> None:
        """Whoever asks may write."""


class StallingStore(FaultyStore):
    """The store as one server reaches it: from some write on, the network holds everything back until it is let go."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.held: list[Callable[[], None]] | None = None

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.held is None and self._fault_rate and self._chances.random() < STALL_RATE:
            self.held = []
        if self.held is None:
            super().write(writes)
            return
        self.held.append(lambda: self._inner.write(writes))
        raise UnknownOutcomeError("no answer in time")

    def let_go(self) -> None:
        """Everything arrives."""
        held, self.held = self.held, None
        for write in held or ():
            with suppress(BasaltError):
                write()


class SharedWorld(World):
    """The run of one seed."""

    def __init__(self, seed: int, *, fenced: bool = True) -> None:
        super().__init__(seed)
        self.inner = MemoryStore(atomic=False) if fenced else UnfencedStore(atomic=False)
        self.epoch = 0
        self.former: list[Wired] = []

    async def run(self) -> None:
        """Let the clients work through changes of leader, then check with one that does not fail."""
        await self._prepare()
        for _ in range(self.chances.randint(2, TERMS_MAX)):
            tasks = [asyncio.ensure_future(self._client()) for _ in range(CLIENTS)]
            for _ in range(self.chances.randint(0, 60)):
                await asyncio.sleep(0)
            self.former.append(self.wired)
            await self._start(self.fault_rate)  # while clients still wait for the one that led
            tasks += [asyncio.ensure_future(self._ask_a_former_one()) for _ in range(CLIENTS)]
            for _ in range(TURNS_MAX):
                if self.store.dead or all(task.done() for task in tasks):
                    break
                await asyncio.sleep(0)
            if not all(task.done() for task in tasks):
                self.store.death.set()
            await self._until_dead_or_done(tasks)
        for former in self.former:
            _store_of(former).let_go()
        await self._check()

    def _end_processes(self) -> None:
        """Former leaders go on: the store refuses what they write."""

    def _opened(self, fault_rate: float) -> StallingStore:
        self.epoch += 1
        handle = self.inner.another()
        handle.lead(self.epoch)
        handle.take(every_shard(self.epoch))
        return StallingStore(handle, self.chances, fault_rate)

    async def _wire(self) -> Wired:
        services = await open_services(
            self._settings(), None, store=self.store, clock=self.clock, epoch=self.epoch, memory=self.memory
        )
        return Wired(services, self.clock, self.store)

    async def _ask_a_former_one(self) -> None:
        """A client that does not know yet who leads, and a network that delivers late; readers look on in between."""
        former = self.chances.choice(self.former)
        for _ in range(self.chances.randint(0, 10)):
            await asyncio.sleep(0)
        await self._follow()
        _store_of(former).let_go()
        title = self.chances.choice(TOPICS)
        message = self.message(title, None)
        message.told, message.told_generation = Told.REFUSED, 1 << 30
        with suppress(BasaltError):
            await former.messaging.publish(title, [message.text.encode()])
            raise AssertionError(f"{title}: a former leader took {message.text}")
        with suppress(BasaltError):
            tx = await former.transactions.begin()
            raise AssertionError(f"a former leader began transaction {tx.id}")
        with suppress(BasaltError):
            await former.services.scheduler._jobs["retention"].job.run()


def _store_of(wired: Wired) -> StallingStore:
    store = wired.store
    assert isinstance(store, StallingStore)
    return store
