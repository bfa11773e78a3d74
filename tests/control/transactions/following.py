"""A coordinator, and members that follow its log over real links on the loopback; the store is one, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from basalt.cluster.links.beats import Beats
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello
from basalt.cluster.links.link import Handlers, Link, opened
from basalt.cluster.links.links import Links
from basalt.runtime.write_lanes import WriteLanes
from basalt.server.wiring import BUCKETS_EMBEDDED
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.log.transaction_log import TransactionLog
from basalt.transactions.manager import TransactionManager
from basalt.transactions.protocol import Told
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.control.cluster.links.link_pair import HANG_S, SECRET, until
from tests.wiring import A, B, Wired


class TestLinks:
    """What the two sides use of `Links`: no membership, no leases."""

    __test__ = False

    def __init__(self) -> None:
        self.handlers = Handlers()
        self.to_leader: Link | None = None
        self.of_members: dict[str, Link] = {}
        self.beats = Beats()
        self.oldest_view: Callable[[], int] = lambda: 0
        self.views: int | None = None
        self.answered: tuple[Link | None, float] = (None, 0.0)
        self.calls: list[Callable[[], None]] = []

    def when_linked(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def forget(self, call: Callable[[], None]) -> None:
        self.calls.remove(call)

    def oldest_view_of_members(self) -> int | None:
        return self.views

    @property
    def links(self) -> Links:
        return cast("Links", self)


class Member:
    """One that follows."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.links = world, name, TestLinks()
        self.store = world.store.another()
        log = TransactionLog(self.store.table("transaction_log"))
        lanes = WriteLanes.of(self.store, world.clock, BUCKETS_EMBEDDED)
        self.manager = FollowedTransactions(self.store, world.clock, lanes, log, self.links.links)
        self.told: list[Told] = []
        self.manager.tells(self.hear)

    def hear(self, told: Sequence[Told]) -> None:
        self.told += told

    async def link(self) -> None:
        """A new link to the coordinator; the one before breaks."""
        await self.cut()
        world = self.world

        def dial() -> Link:
            hello = Hello(VERSION, "installation", self.name, "leader", 7, LEADER, bytes(NONCE_BYTES))
            return Link(Dial(SECRET, hello, "a test"), self.links.handlers)

        _, link = await asyncio.get_running_loop().create_connection(dial, "127.0.0.1", world.port)
        assert await opened(link, HANG_S)
        await until(lambda: any(each.is_open and each.peer == self.name for each in world.accepted))
        world.links.of_members[self.name] = next(
            each for each in world.accepted if each.is_open and each.peer == self.name
        )
        world.links.beats.opened(self.name, 0.0)
        self.links.to_leader = link
        for call in self.links.calls:
            call()

    async def cut(self) -> None:
        """The link breaks."""
        link, self.links.to_leader = self.links.to_leader, None
        if link is not None:
            link.close("cut")
            other = self.world.links.of_members.pop(self.name)
            await asyncio.wait((other.closed,))

    @property
    def is_as_the_leader(self) -> bool:
        """True once it knows what the leader knows."""
        leader, member = self.world.manager, self.manager
        return leader.is_known and member.is_known and member.state.image() == leader.state.image()

    async def until_as_the_leader(self) -> None:
        await until(lambda: self.is_as_the_leader)


class World:
    """A coordinator and its members."""

    def __init__(self, shop: Wired) -> None:
        self.shop, self.clock = shop, shop.clock
        assert isinstance(shop.store, MemoryStore)
        self.store = shop.store
        self.links = TestLinks()
        self.accepted: list[Link] = []
        self.port = 0
        self.members: list[Member] = []
        self.manager.lead(self.links.links)

    @property
    def manager(self) -> TransactionManager:
        return self.shop.transactions.manager

    def accept(self) -> Link:
        own = Acceptor(SECRET, "installation", "leader", 7, 7)
        self.accepted.append(Link(Accept(bytes(NONCE_BYTES), "a test"), self.links.handlers, lambda: own))
        return self.accepted[-1]

    async def member(self, name: str = "m1", *, linked: bool = True) -> Member:
        """A member begins to follow."""
        member = Member(self, name)
        self.members.append(member)
        member.manager.start()
        if linked:
            await member.link()
        return member


@asynccontextmanager
async def following(**options: Any) -> AsyncIterator[World]:
    """A coordinator with two topics, and nobody who follows yet."""
    shop = await Wired.start(MemoryStore(atomic=False), ManualClock(), **options)
    for title in (A, B):
        await shop.topics.create(title, {})
    world = World(shop)
    server = await asyncio.get_running_loop().create_server(world.accept, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        for member in world.members:
            await member.manager.close()
            await member.cut()
        world.manager.close()
        server.close()
