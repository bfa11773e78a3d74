"""The loads of shards, as their server measures them and the leader knows them: calls a second, with their bytes; newer ones count more. Pure: time is an argument.

A call counts as one, and so do the bytes of 32 KiB, there and back. To count one is to add to a list, for every call does it; all else is done once a second.
The measure of a shard rises and falls by halves: what a new owner has measured from nothing, and what is left of what the former one had, are together what one owner
alone would have measured. Decision 0080.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

from basalt.cluster.links.beats import BUSIEST_MAX, ToldLoads
from basalt.cluster.owners import OwnersMap
from basalt_engine.stores.shards import SHARDS

# A call of one small message costs a server about 100 us, and each KiB of it about 3.
BYTES_PER_CALL = 32 << 10
# Waves come every 5 s: a burst of a few seconds moves nothing, and a load that lasts is seen whole before it has lasted two minutes.
HALF_LIFE_MS = 30_000
FOLD_MS = 1_000  # and told anew so often: a look at all shards takes some 100 us
REMEMBERED_MS = 10 * HALF_LIFE_MS  # of a shard that has moved: a thousandth is left of it then
THOUSANDTHS = 1_000  # beats carry whole numbers


def kept(elapsed_ms: float) -> float:
    """The part of a measure that is left after so long."""
    return math.exp2(-max(0.0, elapsed_ms) / HALF_LIFE_MS)


class ShardLoads:
    """The measure of one server, which outlasts its services. Used from the event loop."""

    def __init__(self) -> None:
        self._new = [0.0] * SHARDS  # calls since the last look
        self._loads = [0.0] * SHARDS  # calls a second, as of it
        self._looked_ms: float | None = None
        self._told = ToldLoads()

    def add(self, shard: int, size_bytes: int) -> None:
        """A call to a topic or table of this shard has taken and given so many bytes."""
        self._new[shard] += 1 + size_bytes / BYTES_PER_CALL

    def told(self, held: Iterable[tuple[int, int]], now_ms: float) -> ToldLoads:
        """The loads of the shards that this server has: ranges, first and last. What it measured of others is forgotten, so it must have taken its shards before."""
        if self._looked_ms is None:
            self._looked_ms = now_ms
        if now_ms - self._looked_ms >= FOLD_MS:
            self._fold(now_ms - self._looked_ms, held)
            self._looked_ms = now_ms
            busy = [(load, shard) for shard, load in enumerate(self._loads) if load * THOUSANDTHS >= 1]
            busiest = tuple((shard, round(load * THOUSANDTHS)) for load, shard in heapq.nlargest(BUSIEST_MAX, busy))
            self._told = ToldLoads(round(sum(self._loads) * THOUSANDTHS), busiest)
        return self._told

    def _fold(self, elapsed_ms: float, held: Iterable[tuple[int, int]]) -> None:
        left = kept(elapsed_ms)
        per_call = (1 - left) / (elapsed_ms / 1_000)  # as if they had come evenly since the last look
        before, new = self._loads, self._new
        self._new, self._loads = [0.0] * SHARDS, [0.0] * SHARDS
        for first, last in held:
            for shard in range(first, last + 1):
                self._loads[shard] = before[shard] * left + new[shard] * per_call


class KnownLoads:
    """All that one leader knows of loads in its term: what owners tell, and what it remembers of shards that have moved.

    An owner that has just got a shard has measured nothing of it yet. What the former one told is remembered, and counts less and less, as it would have in a
    measure that had not been cut in two. Of a member that is not heard all stays as it was.
    """

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
