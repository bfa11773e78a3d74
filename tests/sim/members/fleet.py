"""A hundred members in virtual time, by the costs that were measured: what a fall of ten costs, how even the shards lie, how busy the coordinator is.

It knows nothing of transactions: those are the world's. Each member here is a few numbers, and the leader runs the rules of `balance`.
"""

from __future__ import annotations

import random
import zlib
from typing import NamedTuple

from basalt.cluster import balance
from basalt.cluster.balance import MemberLoad, Move
from basalt.cluster.lease import LOOKS_PER_LEASE, RENEWALS_PER_LEASE

SHARDS = 1_024
LEASE_MS = 6_000.0
GATHER_PARTS = 8  # of a lease: so long the leader waits for others that die at the same time, before it writes the map
REGIONS = 96  # six tables in sixteen buckets
FENCES_AT_ONCE = 16
HBASE_MS = (3.0, 15.0)  # one write, from fast to slow

# What the coordinator does, in microseconds of one core.
ONE_SHOT_US = 5.0
FRAME_US = 10.0  # read, unpacked, answered and packed: 3 to 14 a side
BEATS_PER_S = 4
CALL_OF_HBASE_US = 120.0


class Fall(NamedTuple):
    """How long after a fall of members all shards were owned again, and with how many writes of the map."""

    owned_ms: float
    map_writes: int


class Fleet:
    """Members, shards and topics of one seed."""

    def __init__(self, seed: int, members: int = 100, topics: int = 10_000) -> None:
        self.chances = random.Random(seed)
        self.members = {f"m{number}": MemberLoad() for number in range(members)}
        self.loads = [0.0] * SHARDS
        for number in range(topics):  # a few topics carry most
            self.loads[shard_of(f"ns/topic-{number}")] += self.chances.paretovariate(1.5)
        self.owners: list[str | None] = [None] * SHARDS
        self.apply(balance.dealt(self.owners, self.loads, self.members, 0.0))

    def apply(self, moves: list[Move]) -> None:
        """The map says so."""
        for shard, _, to in moves:
            self.owners[shard] = to

    def off_share(self) -> float:
        """By which part of its share the member is off that is furthest from it."""
        held = dict.fromkeys(self.members, 0.0)
        for owner, load in zip(self.owners, self.loads, strict=True):
            if owner is not None:
                held[owner] += load
        weights = sum(member.weight for member in self.members.values())
        shares = {name: sum(self.loads) * member.weight / weights for name, member in self.members.items()}
        return max(abs(held[name] - share) / share for name, share in shares.items())

    # A fall.

    def fall(self, dead: int, *, leader_too: bool = False) -> Fall:
        """So many members die at one moment."""
        names = self.chances.sample(sorted(self.members), dead)
        noticed = sorted(self._notice_ms() for _ in names)
        # A new leader has counted already: it waits for the lease of the lead, which was renewed as any other.
        begins_ms = self._notice_ms() + self._hbase_ms() if leader_too else 0.0
        for name in names:
            del self.members[name]
        owned_ms, writes = 0.0, 0
        waiting = [max(at_ms, begins_ms) for at_ms in noticed]
        while waiting:
            written_ms = waiting[0] + LEASE_MS / GATHER_PARTS
            gathered = [at_ms for at_ms in waiting if at_ms <= written_ms]
            waiting = waiting[len(gathered) :]
            writes += 1
            # The memberships are ended side by side while it waits; the map is told over links, and read if they are slow.
            owned_ms = written_ms + self._hbase_ms() + self._take_ms()
        self.apply(balance.dealt(self.owners, self.loads, self.members, LEASE_MS))
        return Fall(owned_ms, writes)

    def _notice_ms(self) -> float:
        """A whole lease after the leader's look that found the last renewal, by the next look."""
        look_ms = LEASE_MS / LOOKS_PER_LEASE
        renewed_ms = -self.chances.uniform(0, LEASE_MS / RENEWALS_PER_LEASE)
        return renewed_ms + self.chances.uniform(0, look_ms) + LEASE_MS + self.chances.uniform(0, look_ms)

    def _take_ms(self) -> float:
        """One fence to each region, some at a time; the slowest of each batch counts."""
        return sum(max(self._hbase_ms() for _ in range(FENCES_AT_ONCE)) for _ in range(REGIONS // FENCES_AT_ONCE))

    def _hbase_ms(self) -> float:
        return self.chances.uniform(*HBASE_MS)

    # Balance.

    def even_out(self, within_ms: float) -> tuple[int, int]:
        """Have the leader balance for so long: how many waves it took, and how many moves."""
        waves = moves = 0
        now_ms, last_ms = 0.0, -balance.WAVE_EVERY_MS
        while now_ms < within_ms:
            now_ms += 1_000.0
            wave = balance.wave(self.owners, self.loads, self.members, now_ms, last_ms, 0.0)
            if wave:
                self.apply(wave)
                waves, moves, last_ms = waves + 1, moves + len(wave), now_ms
        return waves, moves


def coordinator_busy(one_shots_per_s: float, one_shots_per_frame: float, members: int) -> float:
    """The part of one core that a coordinator needs: decisions, frames, beats, and the rows of members."""
    frames = one_shots_per_s / one_shots_per_frame
    rows = RENEWALS_PER_LEASE + LOOKS_PER_LEASE  # its own: members renew and look for themselves
    calls_of_hbase = rows / (LEASE_MS / 1_000)
    beats = members * BEATS_PER_S
    return (one_shots_per_s * ONE_SHOT_US + (frames + beats) * FRAME_US + calls_of_hbase * CALL_OF_HBASE_US) / 1e6


def rows_of_members(members: int) -> tuple[float, float]:
    """Renewals and looks of all members, per second."""
    return members * RENEWALS_PER_LEASE / (LEASE_MS / 1_000), members * LOOKS_PER_LEASE / (LEASE_MS / 1_000)


def shard_of(title: str) -> int:
    """Some fixed spread over the shards."""
    return zlib.crc32(title.encode()) % SHARDS
