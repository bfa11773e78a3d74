"""One simulated run in which most of what clients do is to consume with a group, through several lives of the server."""

from __future__ import annotations

from basalt_engine.stores.memory import MemoryStore
from tests.sim.faulty_store import FaultyStore
from tests.sim.one_shot_world import OneShotWorld
from tests.sim.world import STEPS_PER_CLIENT


class ConsumerWorld(OneShotWorld):
    """The run of one seed, on either kind of store."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.busy_group = True
        self.inner = MemoryStore(atomic=self.chances.random() < 0.5)
        self.fault_rate = self.chances.choice([0.02, 0.05, 0.15])

    def _opened(self, fault_rate: float) -> FaultyStore:
        if self.inner.atomic:
            return FaultyStore(self.inner, self.chances, fault_rate)
        return super()._opened(fault_rate)

    async def _client(self) -> None:
        for _ in range(2):
            await super()._client()

    async def _step(self) -> None:
        steps = {
            self.consumers.step: 16 * STEPS_PER_CLIENT,
            self._one_shot: 3,
            self._jump: 4,
            self._expire: 8,
            self._snapshot: 6,
            self.cells.step: 3,
        }
        await self.chances.choices(list(steps), list(steps.values()))[0]()
