"""Servers on one store with real links between them, in this process.

The time of leases passes only where a story lets it; what goes over a connection takes as long as it takes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.led_store import Term
from basalt.cluster.links.beats import BEAT_MS
from basalt.cluster.links.link_tls import LinkTls, link_text
from basalt.cluster.links.links import Links
from basalt.cluster.membership import Membership
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable, install
from tests.control.cluster.links.link_pair import HANG_S, until

LEASE_MS = 6_000
SECRET = "a secret of thirty-two characters"


class Server:
    """One member with its links. `tls`: of its links; None: they have none."""

    def __init__(
        self,
        world: World,
        name: str,
        secret: str | None,
        store: MemoryStore,
        tls: LinkTls | None = None,
        url: str | None = None,
    ) -> None:
        self.name, self.listener, self.tls = name, socket.create_server(("127.0.0.1", 0)), tls
        is_secure = tls is not None and tls.shown() is not None
        self.where = link_text(f"127.0.0.1:{self.listener.getsockname()[1]}", is_secure=is_secure)
        candidate = Candidate(name, url or f"http://{name}", f"{name}-1", LEASE_MS, f"{name}'s own secret", self.where)
        self.terms: list[Term] = []
        self.leadership = Leadership(store.another(), world.clock, candidate, on_term=self.terms.append)
        self.membership = Membership(store.another(), world.clock, candidate, self.leadership)
        self.links = Links(world.clock, self.leadership, self.membership, secret)
        self.is_stopped = False

    @property
    def is_linked(self) -> bool:
        link = self.links.to_leader
        return link is not None and link.is_open

    @property
    def is_quiet(self) -> bool:
        """True when nothing that it asked over a connection waits for an answer."""
        links = self.links
        return self.is_stopped or (links._beating is None and (links._dialing is None or links.to_leader is not None))

    def step(self) -> None:
        self.leadership.step()
        self.membership.step()
        self.links.tend()

    async def stop(self) -> None:
        """As a server stops: the lease is given up, the members are told, the rest follows."""
        self.is_stopped = True
        self.leadership.stop()
        self.links.end_term("the leader stops")
        self.membership.stop()
        await self.links.close()


class World:
    """The servers and their time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(atomic=False)
        self.system = SystemTable(self.store.table("system"))
        install(self.system, self.clock, 2)
        self.servers: list[Server] = []

    async def add(
        self, name: str, secret: str | None = SECRET, store: MemoryStore | None = None, tls: LinkTls | None = None,
        url: str | None = None,
    ) -> Server:  # fmt: skip
        server = Server(self, name, secret, store or self.store, tls, url)
        self.servers.append(server)
        await server.links.start(server.listener, tls)
        server.leadership.seek()
        return server

    async def pass_ms(self, duration_ms: float) -> None:
        for _ in range(int(duration_ms // BEAT_MS)):
            self.clock.advance(BEAT_MS)
            await self.step()

    async def step(self) -> None:
        for server in self.servers:
            if not server.is_stopped:
                server.step()
        await asyncio.sleep(0.001)
        await until(lambda: all(server.is_quiet for server in self.servers))  # however slow this machine is

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not is_so():
                await self.pass_ms(BEAT_MS)

    async def until_linked(self, leader: Server, *others: Server) -> None:
        await self.until(lambda: len(leader.links.linked()) == len(others) and all(each.is_linked for each in others))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        for server in made.servers:
            if not server.is_stopped:
                await server.stop()


def run(story: Callable[[World], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with world() as made:
            await story(made)

    asyncio.run(all_of_it())


async def three(world: World) -> tuple[Server, Server, Server]:
    """A leader and two standbys, all linked."""
    leader = await world.add("first")
    await world.until(lambda: leader.leadership.is_leader)
    others = await world.add("second"), await world.add("third")
    await world.until_linked(leader, *others)
    return leader, *others
