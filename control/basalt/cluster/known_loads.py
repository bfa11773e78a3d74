"""The loads of all shards as the leader knows them: by what their owners tell, and by what it remembers of shards that have moved. Pure.

An owner that has just got a shard has measured nothing of it yet. What the former one told is remembered, and counts less and less, as it would have in a
measure that had not been cut in two (`shard_loads`). Of a member that is not heard all stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from basalt.cluster.links.beats import ToldLoads
from basalt.cluster.owners import OwnersMap
from basalt.cluster.shard_loads import HALF_LIFE_MS, THOUSANDTHS, kept
from basalt_engine.stores.shards import SHARDS

REMEMBERED_MS = 10 * HALF_LIFE_MS  # a thousandth is left of it then


class KnownLoads:
    """What one leader knows in its term."""

    def __init__(self) -> None:
        self.loads: Sequence[float] = [0.0] * SHARDS  # calls a second, by shard, as of the last look
        self._owners: OwnersMap | None = None
        self._remembered: dict[int, tuple[float, float]] = {}  # by shard that has moved: its load then, and when

    def look(self, owners: OwnersMap, told: Mapping[str, ToldLoads], now_ms: float) -> Sequence[float]:
        """The loads by this map, and by what members have told last."""
        self._note_moves(owners, now_ms)
        found = list(self.loads)
        for member, shards in owners.by_owner().items():
            if member in told:
                total, busiest = told[member]
                busy = dict(busiest)
                # The sum of a beat is of what the member had when it was sent, and so is what is taken off it.
                others = max(0, total - sum(busy.values())) / max(1, len(shards.keys() - busy.keys()))
                for shard in shards:
                    found[shard] = busy.get(shard, others) / THOUSANDTHS + self._rest_of(shard, now_ms)
        self.loads = found
        return found

    def _note_moves(self, owners: OwnersMap, now_ms: float) -> None:
        before, self._owners = self._owners, owners
        if before is not None and before.version != owners.version:
            for shard, (epoch, was) in enumerate(zip(owners.epochs, before.epochs, strict=True)):
                if epoch != was:  # also one that its owner has taken anew, and so measures from nothing
                    self._remembered[shard] = self.loads[shard], now_ms
        self._remembered = {s: each for s, each in self._remembered.items() if now_ms - each[1] < REMEMBERED_MS}

    def _rest_of(self, shard: int, now_ms: float) -> float:
        load, since_ms = self._remembered.get(shard, (0.0, now_ms))
        return load * kept(now_ms - since_ms)
