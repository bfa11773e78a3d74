"""The members that can be given shards, with their weights; and what is to move so that each has its share.

The rule itself is `cluster.balance`; here is what it is asked with: the loads that members tell, and that of this server itself. An operator's drain is kept in the store, so that the next leader knows of it: it lasts
until it is taken back, or the member's run ends. Decision 0072.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from basalt.cluster import balance
from basalt.cluster.balance import MemberLoad, Move, Standing
from basalt.cluster.links.beats import ToldLoads
from basalt.cluster.links.fellows import Fellows
from basalt.cluster.members import MEMBERS_MAX
from basalt.cluster.owners import OwnersMap
from basalt.cluster.shard_loads import KnownLoads
from basalt.errors import ConflictError
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.stores.shards import SHARDS
from basalt_engine.system import SystemRecord, SystemTable
from basalt_engine.table import Store

WHOLE = 100  # the weight of an ordinary server: weights are hundredths
# Calls a second that each shard counts beside its load: while all shards together have less than some hundred, numbers of shards decide, and nothing moves for
# a handful of calls. All together they are a fortieth of what one server can do.
IDLE_LOAD = 0.25


class DrainedMembers(msgspec.Struct, frozen=True):
    """The members that are to have no shards, by their names in the map. Format: docs/formats/system-table.md, "drained"."""

    members: tuple[str, ...] = ()


DRAINED = SystemRecord("drained", "members", DrainedMembers)


class Weighed(NamedTuple):
    """The load of each shard, and how members stand by them; by this map."""

    owners: OwnersMap
    loads: Sequence[float]
    standing: Standing


class ShardTargets:
    """Who is to have how much, as the leader of one term knows. `own` is the leader's name in the map, `own_loads` tells what its shards cost it."""

    def __init__(
        self, store: Store, own: str, fellows: Fellows | None, own_loads: Callable[[], ToldLoads] | None = None
    ) -> None:
        self._call = StoreCalls(store)
        self._system = SystemTable(store.table(SystemTable.name))
        self._own = own
        self._fellows = fellows
        self._own_loads = own_loads
        self._known = KnownLoads()
        self.weight, self.leader_share = WHOLE, WHOLE // 2  # hundredths, as the settings say
        self.leaving: set[str] = (
            set()
        )  # members that stop; of those that have stopped no more than there can be members
        self.drained: frozenset[str] | None = None  # None: it was not read yet

    async def read(self) -> None:
        """Read who is drained, once a term."""
        if self.drained is None:
            found = await self._call(DRAINED.get, self._system)
            self.drained = frozenset(() if found is None else found.members)

    async def drain(self, member: str, is_drained: bool) -> None:
        """Note, durably, that a member is to have no shards, or that it may have some again."""
        await self.read()
        assert self.drained is not None
        drained = self.drained | {member} if is_drained else self.drained - {member}
        live = None if self._fellows is None else self._fellows.live()
        if live is not None:  # a run that has ended does not come back
            drained &= live | {self._own}
        if len(drained) > MEMBERS_MAX:
            raise ConflictError(f"{len(drained)} members would be drained, the limit is {MEMBERS_MAX}")
        await self._call.write(DRAINED.write, self._system, DrainedMembers(tuple(sorted(drained))))
        self.drained = frozenset(drained)

    def leaves(self, member: str) -> None:
        """A member stops, and is to have no shards any more."""
        self.leaving.add(member)
        live = None if self._fellows is None else self._fellows.live()
        if len(self.leaving) > MEMBERS_MAX and live is not None:
            self.leaving &= live | {self._own, member}

    def is_out(self, member: str) -> bool:
        """True for one that is to have no shards: it stops, or was drained."""
        return member in self.leaving or member in (self.drained or ())

    def serving(self) -> set[str]:
        """All that can take shards at this moment, the leader among them, whether or not they are to have some."""
        return {self._own} | (set() if self._fellows is None else set(self._fellows.serving()))

    def members(self) -> dict[str, MemberLoad]:
        """Those that are to have shards, with the weights of their shares. The leader, who does more than others, has a smaller one; alone it has all."""
        others = {} if self._fellows is None else self._fellows.serving()
        found = {
            run: MemberLoad(max(1, beat.weight) / WHOLE, () if self._fellows is None else self._fellows.losses_ms(run))
            for run, beat in others.items()
            if not self.is_out(run)
        }
        if not self.is_out(self._own) or not found:
            found[self._own] = MemberLoad(max(1, self.weight * self.leader_share) / WHOLE**2)
        return found

    def dealt(self, owners: OwnersMap, shards: Collection[int], now_ms: float) -> dict[int, str]:
        """New owners for these shards, none of which may stay where it is."""
        members = self.members()
        names = [None if shard in shards else owners.owner_of(shard) for shard in range(SHARDS)]
        moves = balance.dealt(names, self._weighed(owners, now_ms), members, now_ms)
        return {move.shard: move.to for move in moves if move.shard in shards}

    def wave(self, owners: OwnersMap, now_ms: float, last_wave_ms: float, leads_since_ms: float) -> list[Move]:
        """The next few moves towards everybody's share. What others have that cannot be reached, or is to have no shards, is left out."""
        names = [owners.owner_of(shard) for shard in range(SHARDS)]
        loads = self._weighed(owners, now_ms)
        return balance.wave(names, loads, self.members(), now_ms, last_wave_ms, leads_since_ms)

    def weighed(self, owners: OwnersMap, now_ms: float) -> Weighed:
        """The loads of all shards, and all that are to have some as `wave` sees them."""
        names = [owners.owner_of(shard) for shard in range(SHARDS)]
        stands = balance.standing(names, self._weighed(owners, now_ms), self.members(), now_ms)
        return Weighed(owners, self._known.loads, stands)

    def loads(self, owners: OwnersMap, now_ms: float) -> Sequence[float]:
        """Calls a second, with their bytes, by shard: as members have told of them, and as this server has measured its own."""
        told = {} if self._fellows is None else {run: beat.loads for run, beat in self._fellows.serving().items()}
        if self._own_loads is not None:
            told[self._own] = self._own_loads()
        return self._known.look(owners, told, now_ms)

    def _weighed(self, owners: OwnersMap, now_ms: float) -> list[float]:
        """The weight of each shard: its load, and a little more."""
        return [load + IDLE_LOAD for load in self.loads(owners, now_ms)]

    def out_with_shards(self, owners: OwnersMap) -> Mapping[str, list[int]]:
        """The shards of those that are to have none."""
        out = {place: member for place, member in enumerate(owners.members) if self.is_out(member)}
        found: dict[str, list[int]] = {}
        for shard, place in enumerate(owners.owners) if out else ():  # most looks find nobody
            if place in out:
                found.setdefault(out[place], []).append(shard)
        if self._own in found and self._is_alone():
            del found[self._own]
        return found

    def _is_alone(self) -> bool:
        return set(self.members()) <= {self._own}
