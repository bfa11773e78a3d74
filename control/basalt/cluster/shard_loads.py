"""What the shards of one server cost it: calls a second, with their bytes, of each; newer ones count more. Pure: time is an argument.

A call counts as one, and so do the bytes of 32 KiB, there and back. To count one is to add to a list, for every call does it; all else is done once a second.
The measure of a shard rises and falls by halves: what a new owner has measured from nothing, and what is left of what the former one had, are together what one owner
alone would have measured. Decision 0080.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from basalt.cluster.links.beats import BUSIEST_MAX, ToldLoads
from basalt_engine.stores.shards import SHARDS

# A call of one small message costs a server about 100 us, and each KiB of it about 3.
BYTES_PER_CALL = 32 << 10
# Waves come every 5 s: a burst of a few seconds moves nothing, and a load that lasts is seen whole before it has lasted two minutes.
HALF_LIFE_MS = 30_000
FOLD_MS = 1_000  # and told anew so often: a look at all shards takes some 100 us
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
