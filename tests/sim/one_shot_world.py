"""One simulated run in which most of what clients do is one-shot transactions, on a store that is not atomic.

The log has no word of each of them before their rows are written. So here servers die often, clocks step back and far ahead, and
what a server has given up may arrive later: rows, and entries of the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

from basalt.api.bodies.messages import Work, WorkPublish
from basalt_engine.errors import BasaltError, UnknownOutcomeError
from basalt_engine.messages import MessageTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, Insert, Mutation, Put, Table, TableWrite
from tests.sim.faulty_store import FaultyStore
from tests.sim.history import Ending
from tests.sim.world import CLIENTS, TIMEOUT_MS, TOPICS, World

TERMS_MAX = 5
LATE_RATE = 0.05
LATE_DELETES_RATE = 0.5
DOUBTED = (MessageTable.name, PayloadTable.name)


class LateTable:
    """A table of a `LateStore`. What is written to it alone is written at once."""

    def __init__(self, store: LateStore, inner: Table) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, mutations: Sequence[Mutation]) -> None:
        self._store.overtaken(self._inner.name, mutations)
        self._inner.write(mutations)


class LateStore(FaultyStore):
    """A store to which some of a write comes late, after its caller was told that nobody knows.

    As in HBase, a delete that was sent after a row hides it all the same; and a process that ended takes along what had
    not arrived, for the next one fences it off.
    """

    def __init__(self, inner: MemoryStore, chances: random.Random, fault_rate: float) -> None:
        super().__init__(inner, chances, fault_rate)
        self._late: list[tuple[str, Put | Insert]] = []
        self.arrives = 0.3  # with which chance what is late arrives at the next write

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self._late and not self.dead and not self.log_away and self._chances.random() < self.arrives:
            self._arrive()
        for name, mutations in writes:
            self.overtaken(name, mutations)
        if self.dead or not self._fault_rate or self._chances.random() >= LATE_RATE:
            super().write(writes)
            return
        for table, mutations in writes:
            for mutation in mutations:
                if isinstance(mutation, Put | Insert) and self._chances.random() < 0.7:
                    self._late.append((table, mutation))
                elif isinstance(mutation, Put):
                    self._inner.table(table).write([mutation])
        raise UnknownOutcomeError("no answer in time")

    def table(self, name: str) -> Table:
        return LateTable(self, super().table(name))

    def overtaken(self, name: str, mutations: Sequence[Mutation]) -> None:
        """What these delete or write over arrives no more: each write carries the time of its sending."""
        deleted = {mutation.key for mutation in mutations if isinstance(mutation, Delete | Put)}
        self._late = [(table, row) for table, row in self._late if table != name or row.key not in deleted]

    def _arrive(self) -> None:
        late, self._late = self._late, []
        for table, row in late:
            with suppress(BasaltError):
                self._inner.table(table).write([row])


class LateDeletesTable(LateTable):
    """A table of a `LateDeletesStore`."""

    def __init__(self, store: LateDeletesStore, inner: Table) -> None:
        super().__init__(store, inner)
        self._deletes = store

    def write(self, mutations: Sequence[Mutation]) -> None:
        if self._deletes.loses(self._inner.name, mutations):
            raise UnknownOutcomeError("no answer in time")
        super().write(mutations)


class LateDeletesStore(LateStore):
    """A store to which deletes of rows in doubt come late too. What it holds back of a process that ended never arrives."""

    def __init__(self, inner: MemoryStore, chances: random.Random, fault_rate: float, lots: random.Random) -> None:
        super().__init__(inner, chances, fault_rate)
        self._lots = lots
        self._late_deletes: list[tuple[str, Delete]] = []

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self._late_deletes and not self.dead and self._lots.random() < 0.3:
            late, self._late_deletes = self._late_deletes, []
            for table, delete in late:
                self._inner.table(table).write([delete])
        super().write(writes)

    def table(self, name: str) -> Table:
        return LateDeletesTable(self, self._inner.table(name)) if name in DOUBTED else super().table(name)

    def loses(self, name: str, mutations: Sequence[Mutation]) -> bool:
        """True when these are deletes whose answer is lost, and that come late. A row that is on its way may come before its delete."""
        deletes = [mutation for mutation in mutations if isinstance(mutation, Delete)]
        if not deletes or self.dead or not self._fault_rate or self._lots.random() >= LATE_DELETES_RATE:
            return False
        self._late_deletes += [(name, delete) for delete in deletes]
        if self._lots.random() < 0.7:
            self._arrive()
        return True

    def overtaken(self, name: str, mutations: Sequence[Mutation]) -> None:
        """A row that is put again comes out above the delete."""
        super().overtaken(name, mutations)
        put = {mutation.key for mutation in mutations if isinstance(mutation, Put)}
        self._late_deletes = [each for each in self._late_deletes if each[0] != name or each[1].key not in put]


class OneShotWorld(World):
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.inner = MemoryStore(atomic=False)
        self.fault_rate = self.chances.choice([0.05, 0.15, 0.3])

    async def run(self) -> None:
        """Start, let the clients work through crashes, then check with a server that no longer fails."""
        await self._prepare()
        for _ in range(self.chances.randint(2, TERMS_MAX)):
            await self._start(self.fault_rate)
            tasks = [asyncio.ensure_future(self._client()) for _ in range(CLIENTS)]
            await self._until_dead_or_done(tasks)
        await self._check()

    def _opened(self, fault_rate: float) -> FaultyStore:
        return LateStore(self.inner, self.chances, fault_rate)

    async def _step(self) -> None:
        steps = {
            self._one_shot: 10,
            self._twice: 1,
            self._publish: 3,
            self._checkpointed: 2,
            self._follow: 3,
            self._jump: 3,
            self._expire: 2,
            self._recreate: 1,
            self._snapshot: 1,
            self._outage: 1,
            self.cells.step: 12 if self.busy_table else 2,
            self.consumers.step: 20 if self.busy_group else 4,
        }
        await self.chances.choices(list(steps), list(steps.values()))[0]()

    async def _twice(self) -> None:
        """A one-shot transaction whose client asks a second time before it has heard of the first."""
        fake = -len(self.history.transactions) - 1
        ending = self.history.transactions[fake] = Ending("commit")
        messages = [self.message(title, fake) for title in self.chances.sample(TOPICS, 2)]
        work = Work(publish=[WorkPublish(*message.title, [message.text.encode()]) for message in messages])
        calls = [self.wired.transactions.one_shot(work, "sim", f"one{fake}") for _ in range(2)]
        ending.told = await self.tell(messages, _any_of(calls))

    async def _checkpointed(self) -> None:
        """A transaction that takes pointers in the groups in which one-shot transactions do."""
        with suppress(BasaltError):
            tx = await self.wired.transactions.begin(timeout_ms=TIMEOUT_MS)
            self.history.pointers.append(tx.id)
            ending = self.history.transactions[tx.id] = Ending()
            tx = await self.wired.transactions.checkpoint(tx.id)
            self.history.pointers.append(tx.write_pointer)
            # Its messages are told apart by its id, whichever pointer they are under.
            await self._write_under(tx, ending)
            await self._end(tx, ending)

    async def _jump(self) -> None:
        if self.chances.random() < 0.6:
            self.clock.advance(self.chances.choice([1, 10, 500, 2_500, 11_000, 60_000]))
        else:
            self.clock.step(self.clock.now_ms() + self.chances.choice([-3_600_000, -5_000, -50, -1, 1, 3_600_000]))


class LateDeletesWorld(OneShotWorld):
    """The same, with more plain messages and readers, and the deletes of rows in doubt come late as well."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lots = random.Random(~seed)  # of its own: all else is as it would be without

    def _opened(self, fault_rate: float) -> FaultyStore:
        return LateDeletesStore(self.inner, self.chances, fault_rate, self.lots)

    async def _step(self) -> None:
        steps = {
            self._publish: 10,
            self._follow: 12,
            self._one_shot: 3,
            self._checkpointed: 2,
            self._jump: 1,
            self._outage: 1,
        }
        await self.chances.choices(list(steps), list(steps.values()))[0]()


async def _any_of(calls: Sequence[Awaitable[object]]) -> None:
    """All calls at once. Raises only when none succeeds."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if len(failures) == len(answers):
        raise failures[0]
