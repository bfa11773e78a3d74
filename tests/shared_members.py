"""A server that shares its store with others, as far as it knows: members of any name, address, version and state, on a store of their own."""

from __future__ import annotations

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.members import MEMBER, MemberRecord
from basalt.cluster.membership import Membership
from basalt.cluster.owners import KIND, NAME, OwnersMap, granted
from basalt.server.wiring import RunningServices
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable

LEASE_MS = 6_000
URL = "http://leader:4780"


class SharedMembers:
    """The members that these services know of: at first their own server, which leads."""

    def __init__(self, services: RunningServices, version: str = "1.0") -> None:
        shared = MemoryStore(atomic=False)
        self._services = services
        self.version = version
        self._clock = services.clock
        self._added = 0
        self._system = SystemTable(shared.table("system"))
        candidate = Candidate("leader:1", URL, "leader", LEASE_MS)
        self.leadership = Leadership(shared.another(), services.clock, candidate, on_term=lambda _: None)
        self.leadership.seek()
        self.leadership.step()
        self.membership = Membership(shared.another(), services.clock, candidate, self.leadership, version)
        services.leadership, services.membership = self.leadership, self.membership
        self.look()

    def add(self, name: str, url: str = "http://other:4780", version: str = "1.0", ended_ms: int = 0) -> None:
        """A member of this name joins, and the leader sees it."""
        record = MemberRecord(name, url, version, self._clock.now_ms() + 1, LEASE_MS, 1, ended_ms)
        self._added += 1
        MEMBER.write(self._system, record, f"m{self._added}")
        self.look()

    def deal(self, **shards: list[int]) -> OwnersMap:
        """The leader owns all shards but these, each member's in turn, and looks at the map."""
        owners = granted(None, "leader", (), 1)
        for member, given in shards.items():
            owners = granted(owners, member, given, 1)
        for system in (self._system, SystemTable(self._services.store.table("system"))):
            system.write(KIND, NAME, owners.encode())
        self.look()
        return owners

    def look(self) -> None:
        """The leader looks at all rows."""
        self.membership._look_at_ms = 0.0
        self.membership.step()
        self.membership._look_at_ms = 0.0
        self.membership.step()
