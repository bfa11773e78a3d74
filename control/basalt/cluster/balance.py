"""Who is to own which shards: sticky, by weight and by load. Pure.

Shards without an owner are dealt at once. Others move only away from a member that has a fifth more than its share, a few at a time, and not while
everything is new. Decision 0072.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OFF_PARTS = 5  # a member is left alone until it is a fifth off its share
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


def wave(
    owners: Sequence[str | None],
    loads: Sequence[float],
    members: Mapping[str, MemberLoad],
    now_ms: float,
    last_wave_ms: float,
    leads_since_ms: float,
) -> list[Move]:
    """The next few moves towards everybody's share; none while all are near it, or it is too early."""
    if now_ms - last_wave_ms < WAVE_EVERY_MS or now_ms - leads_since_ms < QUIET_AFTER_LEADER_MS:
        return []
    fit = _fit(members, now_ms)
    held = _held(owners, loads, members)
    if not any(held.values()):  # what others have, who are not there, is dealt before
        return []
    shares = _shares(members, fit, sum(held.values()))
    shards = _shards_of(owners, loads)
    moves: list[Move] = []
    moved: set[int] = set()
    most = _wave_shards(held, shares, shards)
    while len(moves) < most:
        move = _next(held, shares, shards, loads, moved, fit)
        if move is None:
            break
        assert move.origin is not None
        moves.append(move)
        moved.add(move.shard)
        held[move.origin] -= loads[move.shard]
        held[move.to] += loads[move.shard]
    return moves


def _wave_shards(held: Mapping[str, float], shares: Mapping[str, float], shards: Mapping[str, list[int]]) -> int:
    """The number of shards that the next wave may have, by what the fullest member has above its share."""
    excess, fullest = max(((held[name] - shares[name], name) for name in held), default=(0.0, ""))
    movable = len(shards.get(fullest, ()))
    if not movable or held[fullest] <= 0:
        return WAVE_SHARDS_MAX
    part = excess / (held[fullest] / movable) / EXCESS_PARTS
    return max(WAVE_SHARDS_MAX, min(FIRST_WAVE_SHARDS_MAX, int(part)))


def _next(
    held: Mapping[str, float],
    shares: Mapping[str, float],
    shards: Mapping[str, list[int]],
    loads: Sequence[float],
    moved: set[int],
    fit: Sequence[str],
) -> Move | None:
    """One move that takes a member which is a fifth off nearer to its share, and puts nobody else a fifth off."""
    to = min(fit, key=lambda name: (held[name] / shares[name], name), default=None)
    origin = max(
        held,
        key=lambda name: (held[name] / shares[name] if shares[name] else held[name] and float("inf"), name),
        default=None,
    )
    if to is None or origin is None or to == origin:
        return None
    over = held[origin] - shares[origin] > shares[origin] / OFF_PARTS
    under = shares[to] - held[to] > shares[to] / OFF_PARTS
    if not (over or under):
        return None
    # The heaviest that the other still has room for; else one that is too much for it, and yet leaves the two nearer to their shares than now.
    room = shares[to] - held[to]
    for most in (room, room + held[origin] - shares[origin]):
        for shard in shards.get(origin, ()):
            if shard not in moved and 0 < loads[shard] < most:
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


def _shares(members: Mapping[str, MemberLoad], fit: Sequence[str], load: float) -> dict[str, float]:
    weights = sum(members[name].weight for name in fit)
    return {name: load * members[name].weight / weights if name in fit else 0.0 for name in members}


def _shards_of(owners: Sequence[str | None], loads: Sequence[float]) -> dict[str, list[int]]:
    """The shards of each owner that may move, the heaviest first: of few moves each does much."""
    shards: dict[str, list[int]] = {}
    for shard in sorted(range(len(owners)), key=lambda shard: (-loads[shard], shard)):
        owner = owners[shard]
        if owner is not None:
            shards.setdefault(owner, []).append(shard)
    return shards
