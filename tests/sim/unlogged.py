"""Clients whose change sets the log gets only with the commit, as those of the Thrift face: two of them, with few keys."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from basalt.thrift.deferred_change_sets import DeferredChangeSets
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.errors import BasaltError
from tests.wiring import Wired

if TYPE_CHECKING:
    from tests.sim.world import World

KEYS = (b"one", b"other")
TIMEOUT_MS = 2_000


@dataclass(slots=True)
class Asker:
    """One transaction, and what it told. `told_to` is the process that keeps its change set, which the log has not."""

    tx: Transaction
    keys: frozenset[bytes] = frozenset()
    told_to: Wired | None = None


class UnloggedSets:
    """The clients. Some leave their transaction for a while, in which the server may die."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: list[Asker] = []
        self._done: list[Asker] = []
        self._kept: tuple[Wired, DeferredChangeSets] | None = None

    async def step(self) -> None:
        """Begin and tell, or go on with what was left; commit, unless it is left."""
        world = self._world
        try:
            if self._left and world.chances.random() < 0.6:
                asker = self._left.pop(0)
            else:
                asker = await self._begin()
            if world.chances.random() < 0.4:
                self._left.append(asker)
                return
            for _ in range(world.chances.randint(0, 3)):
                await asyncio.sleep(0)
            await self._commit(asker)
        except BasaltError:
            return

    def _sets(self, wired: Wired) -> DeferredChangeSets:
        """What the process that runs now keeps."""
        if self._kept is None or self._kept[0] is not wired:
            self._kept = wired, DeferredChangeSets(wired.transactions, wired.clock)
        return self._kept[1]

    async def _begin(self) -> Asker:
        world, wired = self._world, self._world.wired
        begun: asyncio.Future[Transaction] = asyncio.get_running_loop().create_future()
        if self._sets(wired).begin(begun, TIMEOUT_MS, "sim"):
            asker = Asker(await begun)
        else:  # the log is being read: as the face does
            asker = Asker(await wired.transactions.begin(timeout_ms=TIMEOUT_MS, external_writes=True))
        world.history.pointers.append(asker.tx.id)
        await self._tell(wired, asker)
        return asker

    async def _tell(self, wired: Wired, asker: Asker) -> None:
        asker.keys = frozenset(self._world.chances.sample(KEYS, self._world.chances.randint(1, 2)))
        if self._sets(wired).tell(asker.tx.id, asker.keys):
            asker.told_to = wired
            return
        await wired.transactions.set_changes(asker.tx.id, list(asker.keys))
        asker.told_to = None

    async def _commit(self, asker: Asker) -> None:
        """Commit. Where the change set was lost that is refused, until it is told again."""
        wired = self._world.wired
        try:
            await self._asked_to_commit(wired, asker)
        except BasaltError:
            if self._world.chances.random() < 0.5:
                raise
            await self._tell(wired, asker)
            await self._asked_to_commit(wired, asker)
        lost = asker.told_to not in (None, wired)
        assert not lost, f"transaction {asker.tx.id} was committed without its change set"
        for other in self._done:
            if asker.keys & other.keys:
                assert _sees(asker, other) or _sees(other, asker), (
                    f"{asker.tx.id} and {other.tx.id} ran at once, changed the same and were both committed"
                )
        self._done.append(asker)

    async def _asked_to_commit(self, wired: Wired, asker: Asker) -> None:
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._world.chances.random() < 0.7 and self._sets(wired).submit_commit(told, asker.tx.id):
            answer = await told
            if isinstance(answer, BasaltError):
                raise answer
        else:
            await self._sets(wired).commit(asker.tx.id)


def _sees(one: Asker, other: Asker) -> bool:
    return one.tx.snapshot().is_visible(other.tx.id)
