"""One simulated run in which shards move at any moment, from the server to itself: each move is whole, with the map and a fence.

Most of what clients do is one-shot transactions, as in the world below it, whose store is not atomic: what was given up may arrive late, in the
middle of a move or behind it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from basalt.catalog.topics import TopicName
from basalt.cluster.owners import take_all
from basalt_engine.errors import BasaltError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import shard_of
from tests.sim.faulty_store import FaultyStore
from tests.sim.one_shot_world import LateStore, OneShotWorld
from tests.sim.world import TOPICS
from tests.wiring import Wired

MEMBER = "sim"
MOVES = 40  # of one server's life, at most
TURNS_MAX = 12  # of the event loop between two of them


class MovingWorld(OneShotWorld):
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.epoch = 0
        self.follows = seed % 2 == 0  # most of what clients do is to publish, and to read on from where they were

    def _opened(self, fault_rate: float) -> FaultyStore:
        self.epoch += 1
        self.inner: MemoryStore = self.inner.another()
        self.inner.lead(self.epoch)
        store = super()._opened(fault_rate)
        assert isinstance(store, LateStore)
        store.arrives = 0.04  # a move is several writes: some of what is late is to come behind it
        return store

    async def _step(self) -> None:
        if not self.follows:
            await super()._step()
            return
        steps = {self._publish: 10, self._follow: 12, self._one_shot: 2, self._transaction: 2, self._jump: 1}
        await self.chances.choices([*steps], [*steps.values()])[0]()

    async def _wire(self) -> Wired:
        owners = take_all(self.inner, MEMBER, self.epoch)
        wired = await super()._wire()
        wired.services.shard_moves.lead(owners, MEMBER, self.epoch)
        return wired

    async def _until_dead_or_done(self, tasks: list[asyncio.Task[None]]) -> None:
        moving = asyncio.ensure_future(self._move())
        try:
            await super()._until_dead_or_done(tasks)
        finally:
            moving.cancel()
            with suppress(asyncio.CancelledError, BasaltError):
                await moving

    async def _move(self) -> None:
        moves = self.wired.services.shard_moves
        for _ in range(self.chances.randint(1, MOVES)):
            for _ in range(self.chances.randint(0, TURNS_MAX)):
                await asyncio.sleep(0)
            titles = self.chances.sample(TOPICS, self.chances.randint(1, len(TOPICS)))
            with suppress(BasaltError):
                await moves.move(frozenset(map(_shard, titles)), MEMBER)


def _shard(title: TopicName) -> int:
    return shard_of(topic_prefix(*title))
