"""The servers that share a store, who of them owns which shards, and what that means for one topic.

The map is read with each question, so an answer is never older than its question; who lives is known as of the last look at all members.
Any server answers: one that does not lead passes these calls on as all others, for it does not know who may ask.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from basalt.api.bodies.cluster import ClusterMember, ClusterMembers, DealtShard, MemberLoad, ShardBalance
from basalt.api.bodies.operations import Readiness, RegionInfo
from basalt.api.bodies.owners import (
    BusyShard,
    ClusterShards,
    MemberShards,
    OwnerState,
    ShardOwner,
    ShardRange,
    TopicExplanation,
    TopicRegion,
    WhyOwner,
)
from basalt.catalog.tables import TableName
from basalt.catalog.topics import TopicName
from basalt.cluster.balance import Move, Standing, why
from basalt.cluster.leader import Leadership
from basalt.cluster.links.beats import Beats
from basalt.cluster.members import Seen
from basalt.cluster.membership import Membership, Owner
from basalt.cluster.owners import Granted, OwnersMap, read_map
from basalt.cluster.reigns import MOVING_WAIT_MS_MAX, Phase, Reign
from basalt.cluster.shard_targets import Weighed
from basalt.errors import UnavailableError
from basalt.runtime.store_calls import StoreCalls
from basalt_engine import __version__
from basalt_engine.clock import Clock
from basalt_engine.keys import TopicKeys, table_prefix, topic_prefix
from basalt_engine.stores.shards import SHARDS, shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

_MESSAGES = "message"  # the table whose regions are told of: payloads of a topic may lie in every bucket
BUSIEST_SHOWN_MAX = 20  # shards: of topics that move members off their shares there are a few
_STATES: tuple[OwnerState, ...] = ("live", "silent", "dead")
_ALONE_EPOCH = 0  # of shards that nobody else can own


class Alone(NamedTuple):
    """A server whose store is embedded, so that it owns everything: its installation, and since when it runs."""

    instance: str
    started_ms: int


class _Share(NamedTuple):
    """A member's shards, the calls a second to them, and how much of its share that is."""

    shards: int
    load: float
    of_share: float | None


_NOTHING = _Share(0, 0.0, None)
_UNKNOWN = (None, None, None)


class ClusterInspection:
    """Tells who shares one store. `leadership` and `membership` are None where the store is embedded."""

    def __init__(
        self, store: Store, clock: Clock, alone: Alone, leadership: Leadership | None, membership: Membership | None,
        granted: Granted | None, reigns: Sequence[Reign], weighed: Callable[[], Weighed | None],
    ) -> None:  # fmt: skip
        self._store = store
        self._clock = clock
        self._alone = alone
        self._leadership = leadership
        self._membership = membership
        self._granted = granted
        self._reigns = reigns
        self._weighed = weighed

    def members(self) -> ClusterMembers:
        """The servers that share the store. This one leads."""
        leadership, membership = self._leadership, self._membership
        if leadership is None or membership is None:  # nobody else has the store open
            own = ClusterMember(
                self._alone.instance, "", "", "leader", "live", __version__, self._alone.started_ms, 0, 0, None, None
            )
            return ClusterMembers(False, 0, None, (own,))
        now_ms, looked_ms = self._clock.monotonic_ms(), membership.looked_ms
        shares = _shares(self._weighed())
        members = [
            _member(*each, membership.instance, membership.beats, now_ms, shares) for each in membership.seen.items()
        ]
        return ClusterMembers(
            True, leadership.epoch, None if looked_ms is None else round(now_ms - looked_ms),
            tuple(sorted(members, key=lambda member: (member.since_ms, member.instance))),
        )  # fmt: skip

    async def owner(self, title: TopicName | TableName) -> ShardOwner:
        """The owner of the shard that this name falls into."""
        kind, prefix = _prefix(title)
        shard = shard_of(prefix)
        if self._membership is None:
            alone = self._alone
            return ShardOwner(
                kind,
                title.namespace,
                title.name,
                shard,
                alone.instance,
                "",
                "",
                "live",
                _ALONE_EPOCH,
                alone.started_ms,
                "alone",
                0,
            )
        owners = await self._read()
        owner = self._membership.owner(owners.owner_of(shard))
        since_ms, why = self._since(shard, owners)
        return ShardOwner(
            kind, title.namespace, title.name, shard, owner.instance, owner.name, owner.url, owner.state, owners.epochs[shard],
            since_ms, why, owners.version,
        )  # fmt: skip

    def _since(self, shard: int, owners: OwnersMap) -> tuple[int | None, WhyOwner]:
        """Since when the owner has the shard, where this server knows, and why."""
        granted, membership = self._granted, self._membership
        if granted is not None and granted.still_holds(shard, owners) and membership is not None:
            # What the map gave to others before this term began it gives to them still: since when, nobody here knows.
            is_own = owners.owner_of(shard) == membership.candidate.instance
            return (granted.at_ms, "lead") if is_own else (None, "grant")
        reign = self._reigns[shard]
        return (reign.since_ms, "move") if reign.epoch == owners.epochs[shard] else (None, "grant")

    async def shards(self) -> ClusterShards:
        """All shards with their owners."""
        if self._membership is None:
            alone = self._alone.instance
            return ClusterShards(
                False, 0, 0, SHARDS, {"live": SHARDS, "silent": 0, "dead": 0}, 0,
                (MemberShards(alone, "", "", "live", SHARDS),), (ShardRange(0, SHARDS - 1, alone, 0, 0),),
            )  # fmt: skip
        owners = await self._read()
        weighed = self._weighed()
        shares = _shares(weighed)
        members = tuple(
            _shards_of(self._membership.owner(name), count, shares.get(name))
            for name, count in sorted(owners.counts().items())
        )
        states: Counter[OwnerState] = Counter()
        for each in members:
            states[each.state] += each.shards
        return ClusterShards(
            True, owners.version, owners.leader_epoch, SHARDS, {state: states[state] for state in _STATES}, states["dead"],
            members, tuple(_ranges(owners)), _busiest(weighed),
        )  # fmt: skip

    def balance(self, moves: Sequence[Move], *, dry_run: bool) -> ShardBalance:
        """These moves of balance, which are planned and not made yet, and their reason; with how all stand that have shards or are to have some."""
        weighed = self._weighed()
        assert weighed is not None, "a server that deals no shards plans none"
        shares = sorted(_shares(weighed).items())
        dealt = (
            DealtShard(move.shard, move.origin or "", move.to, round(weighed.loads[move.shard], 1)) for move in moves
        )
        members = tuple(MemberLoad(name, share.load, share.of_share) for name, share in shares)
        return ShardBalance(tuple(dealt), dry_run, why(weighed.standing, moves), members)

    async def explain(
        self, title: TopicName, spread: int | None, buckets: int, readiness: Readiness, regions: Sequence[RegionInfo]
    ) -> TopicExplanation:
        """Everything about where a topic is. `spread`: over how many buckets its rows may lie; None: there is no such topic."""
        owner = await self.owner(title)
        keys = TopicKeys(topic_prefix(*title), 1, buckets, spread or 1)
        is_own = self._membership is None or owner.instance == self._membership.candidate.instance
        obstacles = [] if spread else [f"there is no topic {title}: calls that need it get topic_not_found"]
        reign = self._reigns[owner.shard]
        if is_own and reign.phase is not Phase.HELD:
            obstacles.append(
                f"its shard moves ({reign.phase.value}): calls wait for up to {MOVING_WAIT_MS_MAX} ms, then get shard_moving"
            )
        holds = None if is_own else self._holds(owner)
        if holds is False:
            obstacles.append(
                f"{owner.owner}, the owner, has not taken the shard yet, or gives it up: calls wait, then get shard_moving"
            )
        obstacles += _obstacles(owner, is_own or holds is not None, readiness)
        return TopicExplanation(
            owner, spread is not None, keys.scanned(), buckets, True if is_own or holds else None, tuple(obstacles),
            tuple(_regions(keys, regions)),
        )  # fmt: skip

    def _holds(self, owner: ShardOwner) -> bool | None:
        """Tell whether another server says in its beats that it holds its shard; None where it is not heard."""
        assert self._membership is not None
        member, beats = self._membership.row_of(owner.instance), self._membership.beats
        if member is None or not beats.is_linked(member, self._clock.monotonic_ms()):
            return None
        heard = beats.heard[member]
        if heard.beat is None:
            return None
        return any(first <= owner.shard <= last for first, last in heard.beat.shards)

    async def _read(self) -> OwnersMap:
        owners = await StoreCalls(self._store)(read_map, SystemTable(self._store.table(SystemTable.name)))
        if owners is None:
            raise UnavailableError(
                "the store has no map of owners", hint="The leader writes it when its term begins: send the call again."
            )
        return owners


def _prefix(title: TopicName | TableName) -> tuple[Literal["topic", "table"], bytes]:
    return ("table", table_prefix(*title)) if isinstance(title, TableName) else ("topic", topic_prefix(*title))


def _shares(weighed: Weighed | None) -> dict[str, _Share]:
    """The shares of all members of the map; nothing where this server deals no shards."""
    if weighed is None:
        return {}
    by_owner: dict[str, dict[int, int]] = {name: {} for name in weighed.standing.held} | weighed.owners.by_owner()
    return {
        name: _Share(
            len(shards), round(sum(weighed.loads[shard] for shard in shards), 1), _of_share(weighed.standing, name)
        )
        for name, shards in by_owner.items()
    }


def _busiest(weighed: Weighed | None) -> tuple[BusyShard, ...]:
    if weighed is None:
        return ()
    busy = ((round(load, 1), shard) for shard, load in enumerate(weighed.loads))
    return tuple(
        BusyShard(shard, weighed.owners.owner_of(shard), load)
        for load, shard in heapq.nlargest(BUSIEST_SHOWN_MAX, busy)
        if load
    )


def _of_share(standing: Standing, member: str) -> float | None:
    """The part of its share that a member has; None: it is to have nothing."""
    return round(standing.ratio(member), 2) if standing.shares.get(member) else None


def _member(
    instance: str, seen: Seen, leader: str, beats: Beats, now_ms: float, shares: Mapping[str, _Share]
) -> ClusterMember:
    record, state = seen.record, seen.state(now_ms)
    linked = beats.is_linked(instance, now_ms)
    heard = beats.heard.get(instance) if linked else None
    rtt_us = None if heard is None or heard.beat is None else heard.beat.rtt_us
    role: Literal["leader", "standby"] = "leader" if instance == leader else "standby"
    return ClusterMember(
        instance, record.holder, record.url, None if state == "dead" else role, state, record.version, record.began_ms,
        round(now_ms - seen.since_ms), record.lease_ms, None if instance == leader else linked, rtt_us or None,
        *(shares.get(record.run, _NOTHING) if shares and state != "dead" else _UNKNOWN),
    )  # fmt: skip


def _shards_of(owner: Owner, count: int, share: _Share | None) -> MemberShards:
    _, load, part = share or _NOTHING
    return MemberShards(owner.instance, owner.name, owner.url, owner.state, count, load, part)


def _ranges(owners: OwnersMap) -> list[ShardRange]:
    ranges = []
    for place, group in groupby(range(SHARDS), key=lambda shard: owners.owners[shard]):
        shards = list(group)
        epochs = owners.epochs[shards[0] : shards[-1] + 1]
        ranges.append(ShardRange(shards[0], shards[-1], owners.members[place], min(epochs), max(epochs)))
    return ranges


def _obstacles(owner: ShardOwner, is_own: bool, readiness: Readiness) -> list[str]:
    found = []
    if owner.state == "dead":
        found.append(
            f"nobody serves shard {owner.shard}: its owner is no member any more, and no other has been given it"
        )
    elif owner.state == "silent":
        found.append(
            f"{owner.owner}, the owner, has not renewed its lease for half of it or longer: calls may wait until that ends"
        )
    elif not is_own:
        found.append(f"this server is not the owner, and cannot tell whether {owner.owner} at {owner.url} answers")
    for part in readiness.parts:
        if not part.ok:
            whose = "calls about transactions" if part.name == "coordinator" else "calls"
            detail = f" ({part.detail})" if part.detail else ""
            found.append(f"{whose} wait or are refused: the part {part.name} is not ready{detail}")
    return found


def _regions(keys: TopicKeys, regions: Sequence[RegionInfo]) -> list[TopicRegion]:
    """The regions that can hold messages of a topic, by the keys at which they begin and end."""
    prefix = keys.prefix
    behind = prefix[:-1] + bytes((prefix[-1] + 1,))
    spans = [(bytes((salt,)) + prefix, bytes((salt,)) + behind) for salt in keys.scanned()]
    found = []
    for each in regions:
        if each.table.rpartition(".")[2] != _MESSAGES:
            continue
        first, stop = bytes.fromhex(each.start), bytes.fromhex(each.stop)
        if any(first < end and (not stop or start < stop) for start, end in spans):
            found.append(TopicRegion(each.table, each.id, each.server))
    return found
