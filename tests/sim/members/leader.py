"""The member that leads: it ends memberships, says who owns what, and coordinates all transactions.

The first two need the rows of members and the map alone. So shards find owners while nobody can read the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from basalt.cluster.lease import LEASE, LOOKS_PER_LEASE, RENEWALS_PER_LEASE, is_free, released
from tests.sim.members.coordinator import Coordinator
from tests.sim.members.hbase import SHARDS, SYSTEM, OwnersMap
from tests.sim.members.ledger import View
from tests.sim.members.play import CallError

if TYPE_CHECKING:
    from tests.sim.members.member import Member

LEASE_MS = 1_000  # of the lead and of memberships; the product's default is longer
GRANTED_ANEW_MS = 600  # 2 s in the product, whose lease is longer too
UNLINKED_MS = 3_000  # 30 s: a member without a link to the coordinator is ended
LONELY_MS = 2_000  # 10 s: a leader with links to fewer than half of the members gives up


class Leader:
    """One term of the lead."""

    def __init__(self, member: Member, epoch: int) -> None:
        self.member, self.epoch = member, epoch
        self.play, self.hbase = member.play, member.hbase
        self.is_over = False
        self.since_ms = self.linked_ms = self.play.now_ms
        self.beats: dict[str, tuple[float, dict[str, int]]] = {}
        self.missing_ms: dict[tuple[str, int], float] = {}
        self.coordinator = Coordinator(self)
        for loop in (self._renew(), self._assign_again(), self._move_again(), self.coordinator.work()):
            self.play.start(loop, member.process)

    def is_on(self) -> bool:
        """True while the lease of the lead is on, and the member's own. A term that has once lapsed is over as a whole."""
        if not self.is_over and not (self.member.lead.is_on() and self.member.is_on()):
            self.end()
        return not self.is_over

    def end(self) -> None:
        """Lead no more, whatever the lease says."""
        self.is_over = True
        if self.member.leader is self:
            self.member.leader = None

    async def _renew(self) -> None:
        lead = self.member.lead
        while self.is_on():
            await self.play.sleep(LEASE_MS / RENEWALS_PER_LEASE)
            if lead.lease.known:
                await lead.write()
            else:
                try:
                    lead.saw(await self.member.ask_hbase_bare(SYSTEM, lambda: self.hbase.system.get(lead.key)))
                except CallError:
                    continue
        self.end()

    def hear_beat(self, instance: str, held: dict[str, int]) -> View | None:
        """What a member holds; it gets the newest view."""
        self.beats[instance] = (self.play.now_ms, held)
        return self.coordinator.ledger.view() if self.coordinator.is_open else None

    def is_silent(self, instance: str, ms: float) -> bool:
        """True when a member has had no beat for so long."""
        return self.play.now_ms - self.beats.get(instance, (self.since_ms, {}))[0] > ms

    # Members and the map.

    async def _assign_again(self) -> None:
        while self.is_on():
            await self.play.sleep(LEASE_MS / LOOKS_PER_LEASE)
            live = [name for name in list(self.member.seen) if not await self._ended(name)]
            self._count_links(live)
            if self.is_on() and live:
                await self._assign(live)

    async def _ended(self, name: str) -> bool:
        """End a membership that has stayed as it is for a whole lease, or has no link; True when it is over."""
        seen = self.member.seen[name]
        assert seen.record is not None
        if seen.record.is_released:
            self.coordinator.dead.add(name)
            return True
        lies = self.play.chances.random() < self.member.world.lie_rate
        unlinked = name != self.member.instance and self.is_silent(name, UNLINKED_MS)
        if not (lies or unlinked or is_free(seen, "", self.member.clock.monotonic_ms())) or not self.is_on():
            return False
        key, stored = "member:" + name, LEASE.encode(released(seen))
        try:
            await self.member.ask_hbase(SYSTEM, lambda: self.hbase.replace(key, seen.stored, stored))
        except CallError:
            return False
        self.coordinator.dead.add(name)
        return True

    def _count_links(self, live: list[str]) -> None:
        linked = sum(name == self.member.instance or not self.is_silent(name, LONELY_MS / 2) for name in live)
        if 2 * linked >= len(live):
            self.linked_ms = self.play.now_ms
        elif self.play.now_ms - self.linked_ms > LONELY_MS:
            self.member.stands_by_until_ms = self.play.now_ms + 4 * LEASE_MS
            self.end()

    async def _assign(self, live: list[str]) -> None:
        before: OwnersMap = self.member.map
        if before.leader_epoch > self.epoch:
            self.end()
            return
        owners = dict(before.owners)
        for shard in SHARDS:
            owner, epoch = owners.get(shard, ("", 0))
            if owner not in live:
                owners[shard] = (self._least_loaded(live, owners), epoch + 1)
            elif self._is_missing(shard, owner, epoch):
                owners[shard] = (owner, epoch + 1)
        if owners != before.owners or before.leader_epoch < self.epoch:
            await self.write_map(before, owners)

    def _least_loaded(self, live: list[str], owners: dict[str, tuple[str, int]]) -> str:
        held = [owner for owner, _ in owners.values()]
        return min(live, key=lambda name: (held.count(name), name))

    def _is_missing(self, shard: str, owner: str, epoch: int) -> bool:
        """True when the owner's beats have not told of this reign for a while: it is granted anew."""
        beat = self.beats.get(owner)
        if beat is None or beat[1].get(shard) == epoch:
            self.missing_ms.pop((shard, epoch), None)
            return False
        return self.play.now_ms - self.missing_ms.setdefault((shard, epoch), self.play.now_ms) > GRANTED_ANEW_MS

    async def write_map(self, before: OwnersMap, owners: dict[str, tuple[str, int]]) -> None:
        """Replace the map, if it is still what was read."""
        new = OwnersMap(before.version + 1, self.epoch, owners)
        try:
            await self.member.ask_hbase(SYSTEM, lambda: self.hbase.replace("owners:map", before, new))
        except CallError:
            return
        self.member.take_map(new)

    async def _move_again(self) -> None:
        """Planned moves: the owner releases, then the map says who is next."""
        while self.is_on():
            await self.play.sleep(self.play.chances.uniform(*self.member.world.move_every_ms))
            before = self.member.map
            live = [name for name in self.beats if not self.is_silent(name, UNLINKED_MS / 2)]
            if len(live) > 1 and before.leader_epoch == self.epoch and before.owners:
                shard = self.play.chances.choice(SHARDS)
                to = self.play.chances.choice(live)
                await self.move(shard, to)

    async def move(self, shard: str, to: str) -> None:
        """Move one shard; rows in doubt, or an owner that does not answer, call it off."""
        before = self.member.map
        owner, epoch = before.owners[shard]
        if owner == to:
            return
        links = self.member.links
        try:
            await links.call(self.member, owner, "hear_leader", self.epoch, shard, "release")
        except CallError:
            return
        if self.is_on():
            await self.write_map(before, {**before.owners, shard: (to, epoch + 1)})
