"""Who is to own which shards: sticky, by weight and by load. Pure.

Shards without an owner are dealt at once. Others move only away from a member that has a fifth more than its share, a few at a time, and not while
everything is new. Decision 0072.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OFF_PARTS = 5  # a member is left alone until it is a fifth off its share
SETTLED_PARTS = (
    10  # and waves that have begun go on until all are within a tenth: loads that change a little begin no other ones
)
# Nor is one moved that has less than this part of a share: all shards would have to move to make a difference. Where nothing is called each has more, for there are 1,024.
LIGHT_PARTS = 2_048
GOES_ON_MS = 20_000  # a wave that comes so soon after another goes on with it
# A move costs its topics some 100 ms, so it must be worth it: of what two members differ by, in parts of their shares, a fifth is left between each and where the other was.
WORTH_PARTS = 4, 5
WAVE_SHARDS_MAX = 8  # each move is a gap of some 100 ms for its topics
# While the fullest member has far more than its share, as where a second one joins: of 1,024 shards half would take six minutes by eights.
# A wave costs hardly more with more shards in it (one release, one map, one fence), but more topics wait at a time.
FIRST_WAVE_SHARDS_MAX = 64
EXCESS_PARTS = 8  # a wave takes this part of what the fullest has above its share, within these two bounds
WAVE_EVERY_MS = 5_000  # loads that beats tell are averages: the next wave sees what the last one did
QUIET_AFTER_LEADER_MS = 10_000  # a new leader knows no loads yet
LOSSES_MAX = 3  # of a lease, in this time: such a member rests until one of them is older
LOSSES_WITHIN_MS = 600_000


class MemberLoad(NamedTuple):
    """One live member: its weight, and when it lost its lease before."""

    weight: float = 1.0
    losses_ms: tuple[float, ...] = ()

    def rests(self, now_ms: float) -> bool:
        """True while nothing is given to it, for it loses its lease again and again."""
        return sum(now_ms - loss < LOSSES_WITHIN_MS for loss in self.losses_ms) >= LOSSES_MAX


class Move(NamedTuple):
    """One shard, from a member to another; from nobody when it had no owner."""

    shard: int
    origin: str | None
    to: str


def dealt(
    owners: Sequence[str | None], loads: Sequence[float], members: Mapping[str, MemberLoad], now_ms: float
) -> list[Move]:
    """New owners for all shards whose owner is not there, each to whoever is furthest below its share."""
    fit = _fit(members, now_ms)
    if not fit:
        return []
    held = _held(owners, loads, members)
    queue = [(held[name] / members[name].weight, name) for name in fit]
    heapq.heapify(queue)
    moves = []
    # The heaviest first: what is light evens out the rest.
    lost = [shard for shard, owner in enumerate(owners) if owner not in members]
    for shard in sorted(lost, key=lambda shard: (-loads[shard], shard)):
        _, to = heapq.heappop(queue)
        moves.append(Move(shard, owners[shard], to))
        held[to] += loads[shard]
        heapq.heappush(queue, (held[to] / members[to].weight, to))
    return moves


class Standing(NamedTuple):
    """All members, with what they have and their shares. `alone`: shards that are more than a share by themselves, and so stay where they are."""

    held: dict[str, float]
    shares: dict[str, float]
    alone: frozenset[int] = frozenset()

    def ratio(self, name: str) -> float:
        """All that the member has, as a part of its share; without an end for one that is to have nothing, and has something."""
        held, share = self.held[name], self.shares[name]
        return held / share if share else held and float("inf")

    def is_off(self, parts: int = OFF_PARTS) -> bool:
        """True while somebody has more or less than its share, by more than this part of it."""
        return any(abs(self.held[name] - share) * parts > share for name, share in self.shares.items())


def standing(
    owners: Sequence[str | None], loads: Sequence[float], members: Mapping[str, MemberLoad], now_ms: float
) -> Standing:
    """All members as they stand. Who has a shard that is more than a share has that as its share, and the others share the rest."""
    held = _held(owners, loads, members)
    rest, weights = sum(held.values()), {name: members[name].weight for name in _fit(members, now_ms)}
    shares = dict.fromkeys(members, 0.0)
    alone = set()
    for shard in sorted(range(len(owners)), key=lambda shard: (-loads[shard], shard)):
        owner = owners[shard]
        if len(weights) < 2 or loads[shard] * sum(weights.values()) <= rest * max(weights.values()):
            break
        if owner not in held:
            continue
        if owner in weights:
            alone.add(shard)
        else:  # it is at one that has another such shard, or is to have nothing, and goes to who has least
            owner = min(weights, key=lambda name: (held[name] / weights[name], name))
        shares[owner] = loads[shard]
        rest -= loads[shard]
        del weights[owner]
    for name, weight in weights.items():
        shares[name] = max(0.0, rest) * weight / sum(weights.values())
    return Standing(held, shares, frozenset(alone))


def why(stands: Standing, moves: Sequence[Move]) -> str:
    """The reason of these moves, which are the next ones, or of there being none, in words."""
    if len(stands.held) < 2:
        return "no other server could have shards"
    if not moves and not stands.is_off():
        return f"each server is within {1 / OFF_PARTS:.0%} of its share"
    fullest = max(stands.held, key=lambda name: (stands.ratio(name), name))
    least = min((name for name in stands.held if stands.shares[name]), key=lambda name: (stands.ratio(name), name))
    told = ", ".join(_told(stands, name) for name in (fullest, least))
    if moves:
        return told
    return f"{told}, and no shard could move that would take two servers nearer to their shares by enough"


def _told(stands: Standing, name: str) -> str:
    if not stands.shares[name]:
        return f"{name} has shards and is to have none"
    return f"{name} has {stands.ratio(name):.0%} of its share"


def wave(
    owners: Sequence[str | None],
    loads: Sequence[float],
    members: Mapping[str, MemberLoad],
    now_ms: float,
    last_wave_ms: float,
    leads_since_ms: float,
) -> list[Move]:
    """The next few moves towards everybody's share; none while all are near it, or it is too early.

    Waves that have begun go on until all are nearer than would begin one: else each small change of loads would begin the next.
    """
    if now_ms - last_wave_ms < WAVE_EVERY_MS or now_ms - leads_since_ms < QUIET_AFTER_LEADER_MS:
        return []
    stands = standing(owners, loads, members, now_ms)
    # What others have, who are not there, is dealt before.
    if not any(stands.held.values()) or not stands.is_off(
        SETTLED_PARTS if now_ms - last_wave_ms <= GOES_ON_MS else OFF_PARTS
    ):
        return []
    fit, shards = _fit(members, now_ms), _shards_of(owners, loads, stands.alone)
    moves: list[Move] = []
    most = _wave_shards(stands, shards, loads)
    while len(moves) < most and stands.is_off(SETTLED_PARTS):
        move = _next(stands, shards, loads, fit)
        if move is None:
            break
        assert move.origin is not None
        moves.append(move)
        shards[move.origin].remove(move.shard)
        stands.held[move.origin] -= loads[move.shard]
        stands.held[move.to] += loads[move.shard]
    return moves


def _wave_shards(stands: Standing, shards: Mapping[str, list[int]], loads: Sequence[float]) -> int:
    """The number of shards that the next wave may have, by what the fullest member has above its share."""
    excess, fullest = max((stands.held[name] - stands.shares[name], name) for name in stands.held)
    movable = [loads[shard] for shard in shards.get(fullest, ())]
    if not any(movable):
        return WAVE_SHARDS_MAX
    part = excess / (sum(movable) / len(movable)) / EXCESS_PARTS
    return max(WAVE_SHARDS_MAX, min(FIRST_WAVE_SHARDS_MAX, int(part)))


def _next(stands: Standing, shards: Mapping[str, list[int]], loads: Sequence[float], fit: Sequence[str]) -> Move | None:
    """One move that takes two members nearer to their shares, and puts neither where the other one was: from the fullest that can give any."""
    to = min(fit, key=lambda name: (stands.ratio(name), name))
    for origin in sorted(stands.held, key=lambda name: (-stands.ratio(name), name)):
        gap = stands.ratio(origin) - stands.ratio(to)
        if stands.held[origin] <= stands.shares[origin] or gap <= 0:
            return None
        share, given = stands.shares[origin], shards.get(origin, ())
        if not share:
            return next((Move(shard, origin, to) for shard in given if loads[shard] > 0), None)  # it is to have nothing
        most = gap * min(share, stands.shares[to]) * WORTH_PARTS[0] / WORTH_PARTS[1]
        light = min(share, stands.shares[to]) / LIGHT_PARTS
        # One that is too much for this member alone, as for a leader with half a share; else the heaviest that the other still has room for; else one that is
        # too much for it, and yet leaves the two nearer to their shares than now.
        for least, bound in (
            (share + share / OFF_PARTS, most), (light, min(most, stands.shares[to] - stands.held[to])), (light, most)
        ):  # fmt: skip
            for shard in given:
                if least < loads[shard] <= bound:
                    return Move(shard, origin, to)
    return None


def _fit(members: Mapping[str, MemberLoad], now_ms: float) -> list[str]:
    """Those that may be given shards; all, when all rest."""
    return sorted(name for name, member in members.items() if not member.rests(now_ms)) or sorted(members)


def _held(owners: Sequence[str | None], loads: Sequence[float], members: Mapping[str, MemberLoad]) -> dict[str, float]:
    held = dict.fromkeys(members, 0.0)
    for owner, load in zip(owners, loads, strict=True):
        if owner in held:
            held[owner] += load
    return held


def _shards_of(owners: Sequence[str | None], loads: Sequence[float], alone: frozenset[int]) -> dict[str, list[int]]:
    """The shards of each owner that may move, the heaviest first: of few moves each does much."""
    shards: dict[str, list[int]] = {}
    for shard in sorted(range(len(owners)), key=lambda shard: (-loads[shard], shard)):
        owner = owners[shard]
        if owner is not None and shard not in alone:
            shards.setdefault(owner, []).append(shard)
    return shards
