"""Several servers that share the topics of one store: each with its port, its links and a thread of none, on a time of the story's own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import basalt
from basalt.cluster.led_store import Term
from basalt.cluster.links.beats import BEAT_MS
from basalt.cluster.links.link_tls import LinkTls, link_text
from basalt.cluster.owners import OwnersMap
from basalt.cluster.reigns import Phase
from basalt.server.wiring import RunningServices
from basalt.settings import Settings
from basalt.settings.cluster import ClusterSettings
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS, shard_of
from tests.control.server.passing_pair import PortServer
from tests.led_servers import HANG_S, LeaseTime

SHARING = Settings(cluster=ClusterSettings(balance="off"))  # shards move where a story says so
STEP_S = 0.01  # what reads and writes the store, and speaks over links, does it in real time


class SharingTime(LeaseTime):
    """The time of one story; it passes a beat at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.stands_still = False

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """No time passes meanwhile, however long that takes: what is counted by the second comes to the same on each machine."""
        self.stands_still = True
        try:
            yield
        finally:
            self.stands_still = False

    def pass_on(self) -> None:
        """Let time pass until the next beat, and all servers do what is due that are not stopped."""
        if self.stands_still:
            return
        self.now_ms += BEAT_MS
        for server in self.servers:
            if not server.is_stopped:
                server.member.leadership.step()
                server.member.membership.step()
                server.member.links.tend()

    async def run(self) -> None:
        """Let time pass all the while, about as fast as it does elsewhere or faster, but never faster than links answer."""
        while True:
            self.pass_on()
            async with asyncio.timeout(HANG_S):
                while not all(server.is_stopped or _is_quiet(server) for server in self.servers):
                    await asyncio.sleep(0.001)
            await asyncio.sleep(STEP_S)


def _is_quiet(server: PortServer) -> bool:
    links = server.member.links
    return links._beating is None and (links._dialing is None or links.to_leader is not None)


class Https(NamedTuple):
    """The servers speak TLS to clients by this protocol, and to each other over links by `links`; None: they do not."""

    protocol: Any
    links: LinkTls | None
    trusting: ssl.SSLContext


class SharingServer(PortServer):
    """One of the servers."""

    def __init__(
        self, time: SharingTime, store: MemoryStore, name: str, settings: Settings = SHARING, https: Https | None = None
    ) -> None:
        self.name, self.link_tls = name, None if https is None else https.links
        self.link_listener = socket.create_server(("127.0.0.1", 0))
        is_secure = self.link_tls is not None and self.link_tls.shown() is not None
        link = link_text(f"127.0.0.1:{self.link_listener.getsockname()[1]}", is_secure=is_secure)
        how: dict[str, Any] = {} if https is None else {"protocol": https.protocol, "scheme": "https"}
        super().__init__(time, store, name, settings, link=link, **how)
        self.trusting = None if https is None else https.trusting

    async def start(self) -> None:
        """Take links, and have one."""
        await self.member.links.start(self.link_listener, self.link_tls)

    @property
    def instance(self) -> str:
        """Its name in the map."""
        return self.member.leadership.candidate.instance

    @property
    def term(self) -> Term | None:
        """The term in which it serves, as the leader or as a member; None: it serves nothing."""
        serving = self.member._serving
        return None if serving is None or not serving.term.is_on() else serving.term

    @property
    def services(self) -> RunningServices:
        """What serves in it."""
        serving = self.member._serving
        assert serving is not None, f"{self.name} serves nothing"
        return serving.services

    @property
    def leads(self) -> bool:
        """True while it serves as the leader."""
        return self.term is not None and self.term.member is None

    @property
    def held(self) -> frozenset[int]:
        """The shards that it serves."""
        if self.term is None:
            return frozenset()
        reigns = self.services.topics.gate.reigns
        return frozenset(shard for shard in range(SHARDS) if reigns[shard].phase is Phase.HELD)

    async def die(self) -> None:
        """As after kill -9: nothing is written, nothing given up, and nobody is told."""
        self.is_stopped = True
        links = self.member.links
        if links._running is not None:
            links._running.cancel()
        if links._accepting is not None:
            links._accepting.cancel()
        links.handlers = type(links.handlers)()
        for link in (links.to_leader, *links.of_members.values()):
            if link is not None:
                link.close("it was killed")
        await self.hang_up()
        await super().die()


class Sharers:
    """All servers of one story."""

    def __init__(self, https: Https | None = None) -> None:
        self.https = https
        self.time = SharingTime()
        self.store = MemoryStore(atomic=False)
        self.servers: list[SharingServer] = []

    async def add(self, name: str, settings: Settings = SHARING) -> SharingServer:
        """One more, which has begun to serve."""
        server = SharingServer(self.time, self.store, name, settings, self.https)
        self.servers.append(server)
        await server.start()
        await self.until(lambda: server.term is not None and server.uvicorn.started, f"{name} serves")
        return server

    @property
    def living(self) -> list[SharingServer]:
        return [server for server in self.servers if not server.is_stopped]

    @property
    def leader(self) -> SharingServer:
        """The server that leads."""
        (leader,) = [server for server in self.living if server.leads]
        return leader

    @property
    def members(self) -> list[SharingServer]:
        """The others that serve."""
        return [server for server in self.living if server.term is not None and not server.leads]

    @property
    def owners(self) -> OwnersMap | None:
        return self.leader.services.topics.gate.owners

    def owner_of(self, topic: str) -> SharingServer:
        """The server that serves this topic of the namespace shop."""
        shard = shard_of(topic_prefix("shop", topic))
        (owner,) = [server for server in self.living if shard in server.held]
        return owner

    def topic_of(self, server: SharingServer, like: str = "orders") -> str:
        """The name of a topic that would be this server's."""
        names = (f"{like}-{number}" for number in range(100 * SHARDS))
        return next(name for name in names if shard_of(topic_prefix("shop", name)) in server.held)

    async def give(self, topic: str, to: SharingServer, **given: str) -> None:
        """Move the topic's shard to this server, as an operator does."""
        shard = shard_of(topic_prefix("shop", topic))
        async with asyncio.timeout(HANG_S):
            while shard not in to.held:
                move = {"shards": [shard], "to": to.instance}
                told = await self.leader.ask("POST", "/v1/admin/cluster/moves", move, **given)
                # It does not serve yet, or the leader is about to read what must stay with it.
                assert told.status in (200, 409, 503), told.body
                await asyncio.sleep(STEP_S)

    def all_know(self, owner: SharingServer, shard: int) -> bool:
        """Every server knows that this one owns the shard, and lives."""
        return all(
            (owners := server.member._owners()) is not None
            and owners.owner_of(shard) == owner.instance
            and server.member.membership.owner(owner.instance).state == "live"
            for server in self.living
        )

    def all_is_dealt(self) -> bool:
        """Every shard is served, and by one server."""
        held = [shard for server in self.living for shard in server.held]
        return sorted(held) == list(range(SHARDS))

    def is_balanced(self) -> bool:
        """The same, and each server has some."""
        return self.all_is_dealt() and all(server.held for server in self.living)

    async def until(self, is_so: Callable[[], bool], what: str = "it is so") -> None:
        """Return once it is so, while time passes."""
        try:
            async with asyncio.timeout(HANG_S):
                while not is_so():
                    await asyncio.sleep(STEP_S)
        except TimeoutError:
            raise AssertionError(f"never: {what}") from None


@asynccontextmanager
async def sharers(count: int, settings: Settings = SHARING, https: Https | None = None) -> AsyncIterator[Sharers]:
    """So many servers, the first of which leads, while their time passes."""
    world = Sharers(https)
    passing = asyncio.ensure_future(world.time.run())
    try:
        for number in range(count):
            await world.add(f"server{number}", settings)
        yield world
    finally:
        for server in reversed(world.servers):
            if not server.is_stopped:
                with suppress(TimeoutError):
                    await asyncio.wait_for(server.end(), HANG_S)
        passing.cancel()


def told_apart(settings: Settings, **cluster: object) -> Settings:
    """The settings with other ones of the cluster."""
    return replace(settings, cluster=replace(settings.cluster, **cluster))  # type: ignore[arg-type]


Story = Callable[[Sharers], Awaitable[None]]


async def read_with(client: basalt.AsyncClient, topic: str, told: set[str]) -> list[str]:
    """What is committed in the topic, once all of these are: readers are held at what a server that died left undecided, until it is given up."""
    shown: list[str] = []
    try:
        async with asyncio.timeout(HANG_S):
            while not told <= set(shown):
                await asyncio.sleep(STEP_S)
                shown = [message.text async for message in client.topic(topic).read()]
                assert len(shown) == len(set(shown)), "something shows twice"
    except TimeoutError:
        raise AssertionError(f"lost: {told - set(shown)}") from None
    return shown
