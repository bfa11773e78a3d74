"""Some members in virtual time whose shards have loads: each measures its own, tells it in beats, and the leader moves shards by that.

Measure, memory and rule are the product's; here are only the calls that come, the beats that carry what was told, and a map that is written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from basalt.cluster import balance
from basalt.cluster.balance import MemberLoad
from basalt.cluster.links.beats import ToldLoads
from basalt.cluster.owners import dealt, granted
from basalt.cluster.shard_loads import BYTES_PER_CALL, KnownLoads, ShardLoads
from basalt.cluster.shard_targets import IDLE_LOAD
from basalt_engine.stores.shards import SHARDS

LEADER = "m0"
LEADER_SHARE = 0.5
STEP_S = 5
Rates = Callable[[int], Sequence[float]]  # calls a second of each shard, at a second


class LoadedFleet:
    """The first member leads, and has all shards at first."""

    def __init__(self, members: int) -> None:
        self.members = {f"m{number}": MemberLoad(LEADER_SHARE if not number else 1.0) for number in range(members)}
        self.owners = granted(None, LEADER, range(SHARDS), 1)
        self.measures = {name: ShardLoads() for name in self.members}
        self.known = KnownLoads()
        self.told: dict[str, ToldLoads] = {}
        self.now_s = 0
        self.last_wave_ms = -1e9
        self.waves = self.moves = 0
        self.silent: set[str] = set()  # their beats do not come

    def run(self, seconds: int, rates: Rates, step_s: int = STEP_S) -> int:
        """Let time pass; the number of moves in it."""
        before = self.moves
        for _ in range(seconds // step_s):
            self.now_s += step_s
            self._calls(rates(self.now_s), step_s)
            self._beats()
            self._balance()
        return self.moves - before

    def _calls(self, rates: Sequence[float], step_s: int) -> None:
        for shard, rate in enumerate(rates):
            if rate:  # as one call with so many bytes
                size_bytes = round((rate * step_s - 1) * BYTES_PER_CALL)
                self.measures[self.owners.owner_of(shard)].add(shard, size_bytes)

    def _beats(self) -> None:
        for name, measure in self.measures.items():
            told = measure.told(_ranges(self.owners.shards_of(name)), self.now_s * 1_000.0)
            if name not in self.silent:
                self.told[name] = told

    def _balance(self) -> None:
        now_ms = self.now_s * 1_000.0
        loads = self.known.look(self.owners, self.told, now_ms)
        names = [self.owners.owner_of(shard) for shard in range(SHARDS)]
        weighed = [load + IDLE_LOAD for load in loads]
        wave = balance.wave(names, weighed, self.members, now_ms, self.last_wave_ms, 0.0)
        if wave:
            self.owners = dealt(self.owners, {move.shard: move.to for move in wave}, LEADER, 1)
            self.waves, self.moves, self.last_wave_ms = self.waves + 1, self.moves + len(wave), now_ms

    def ratios(self, rates: Sequence[float]) -> dict[str, float]:
        """By which part of its share of these loads each member has, where no shard is more than a share."""
        weights = sum(member.weight for member in self.members.values())
        held = {name: sum(rates[shard] for shard in self.owners.shards_of(name)) for name in self.members}
        return {name: held[name] * weights / sum(rates) / member.weight for name, member in self.members.items()}


def _ranges(shards: Sequence[int] | dict[int, int]) -> list[tuple[int, int]]:
    runs = groupby(enumerate(sorted(shards)), key=lambda each: each[1] - each[0])
    found = [[shard for _, shard in run] for _, run in runs]
    return [(run[0], run[-1]) for run in found]
