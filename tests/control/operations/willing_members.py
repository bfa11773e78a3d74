"""Members that hold whatever the map gives them, at once: for who deals shards and needs nobody to have them."""

from __future__ import annotations

from typing import cast

from basalt.cluster.links.beats import Beat, ToldLoads
from basalt.cluster.links.fellows import Fellows
from basalt.cluster.links.shard_calls import Release, Released, Taken
from basalt.cluster.owners import OwnersMap
from basalt_engine.stores.shards import SHARDS


class WillingMembers:
    """Some members by name, in place of `Fellows`."""

    def __init__(self, *names: str, weight: int = 100) -> None:
        self.names, self.weight = set(names), weight
        self.lost: dict[str, tuple[float, ...]] = {}
        self.loads: dict[str, ToldLoads] = {}
        self.owners: OwnersMap | None = None

    @property
    def as_fellows(self) -> Fellows:
        """As the product knows them."""
        return cast("Fellows", self)

    def live(self) -> set[str]:
        return self.names

    def beats(self) -> dict[str, Beat]:
        version = 1 if self.owners is None else self.owners.version
        return {
            name: Beat(1, self._held(name), 0, 0, 0, 0, version, self.weight, *self.loads.get(name, ToldLoads()))
            for name in self.names
        }

    serving = beats

    def losses_ms(self, name: str) -> tuple[float, ...]:
        return self.lost.get(name, ())

    async def release(self, _name: str, asked: Release, _timeout_ms: float) -> Released:
        return Released(asked.shards)

    async def tell(self, name: str, owners: bytes, _timeout_ms: float) -> Taken:
        self.owners = OwnersMap.decode(owners)
        return Taken(self.owners.version, self._held(name))

    def _held(self, name: str) -> tuple[tuple[int, int], ...]:
        if self.owners is None:
            return ()
        return tuple((shard, shard) for shard in range(SHARDS) if self.owners.owner_of(shard) == name)[:512]
