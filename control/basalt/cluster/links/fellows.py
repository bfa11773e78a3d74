"""The other members as the leader deals shards to them: who lives, who can be given some, what each says that it holds, and the calls to them.

The map knows a member by its run, a link by its membership; a run may have several memberships, one after the other.
"""

from __future__ import annotations

from basalt.cluster.links.beats import Beat
from basalt.cluster.links.link import Link
from basalt.cluster.links.links import Links
from basalt.cluster.links.shard_calls import MAP, RELEASE, NewMap, Release, Released, Taken
from basalt.cluster.membership import Membership
from basalt.errors import UnavailableError
from basalt_engine.clock import Clock


class Fellows:
    """The other members, by their names in the map."""

    def __init__(self, clock: Clock, links: Links, membership: Membership) -> None:
        self._clock = clock
        self._links = links
        self._membership = membership

    def live(self) -> set[str] | None:
        """Those that may be serving; None: this server has not looked yet."""
        return None if self._membership.looked_ms is None else self._membership.may_serve()

    def beats(self) -> dict[str, Beat]:
        """The last beat of each that is linked."""
        heard, seen, now_ms = self._links.beats.heard, self._membership.seen, self._clock.monotonic_ms()
        found = {}
        for instance in self._links.beats.linked(now_ms):
            beat = heard[instance].beat
            if beat is not None and instance in seen and not seen[instance].record.is_over:
                found[seen[instance].record.run] = beat
        return found

    def serving(self) -> dict[str, Beat]:
        """Those that can be given shards: they are linked, and follow the map."""
        return {run: beat for run, beat in self.beats().items() if beat.map_version}

    def losses_ms(self, run: str) -> tuple[float, ...]:
        """When servers at this one's address lost their memberships of late: a server that is started anew is another run at the same address."""
        seen = self._membership.seen.values()
        urls = {each.record.url for each in seen if each.record.run == run}
        return tuple(each.since_ms for each in seen if each.record.is_over and each.record.url in urls)

    async def release(self, run: str, asked: Release, timeout_ms: float) -> Released:
        """Ask for shards. Raises what the member did, or what became of the call."""
        return await self._link(run).call(RELEASE, asked, timeout_ms)

    async def tell(self, run: str, owners: bytes, timeout_ms: float) -> Taken:
        """Tell the map; the answer comes once the member holds what it gives it."""
        return await self._link(run).call(MAP, NewMap(owners), timeout_ms)

    def _link(self, run: str) -> Link:
        seen = self._membership.seen
        for instance, link in self._links.of_members.items():
            if instance in seen and seen[instance].record.run == run and link.is_open:
                return link
        raise UnavailableError(f"the member {run} is not linked; nothing was done", hint="try again")
