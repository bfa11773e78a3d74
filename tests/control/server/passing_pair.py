"""A leader and a standby over one store, each with a port of its own in this process, and callers that speak to them over sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import uvicorn
from yarl import URL

from basalt.cluster.members import MEMBER, MemberRecord
from basalt.cluster.owners import KIND, NAME, granted, read_map
from basalt.http.asgi.protocol import HttpConnection
from basalt.server.passing_on import PassingOn
from basalt.server.wiring import RunningServices, Shared, open_services
from basalt.settings import Settings
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Store
from tests.led_servers import HANG_S, LEASE_MS, ONE_LEADS, LeaseTime, LedServer

JSON = {"Accept": "application/json"}
TOPIC = "/v1/namespaces/shop/topics/orders"
SHARD = shard_of(topic_prefix("shop", "orders"))


class Told(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class PortServer(LedServer):
    """One of the servers, with a port."""

    trusting: ssl.SSLContext | None = None  # of those that ask it, where it speaks TLS

    def __init__(
        self, time: LeaseTime, store: MemoryStore, name: str, settings: Settings = ONE_LEADS, protocol: Any = HttpConnection,
        scheme: str = "http", link: str = "",
    ) -> None:  # fmt: skip
        self.settings = settings
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        super().__init__(
            time,
            store,
            name,
            open_services=self.open_services,
            settings=settings,
            url=f"{scheme}://127.0.0.1:{self.port}",
            link=link,
        )
        config = uvicorn.Config(
            self.member,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )  # type: ignore[arg-type]
        self.uvicorn = uvicorn.Server(config)
        self.uvicorn.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self.serving = asyncio.ensure_future(self.uvicorn.serve(sockets=[self.listener]))

    async def open_services(self, store: Store, epoch: int, shared: Shared | None) -> RunningServices:
        return await open_services(self.settings, None, store=store, clock=self.clock, epoch=epoch, shared=shared)

    @property
    def passing(self) -> PassingOn:
        return self.member._standby.passing

    @property
    def connections(self) -> int:
        """How many connections it has."""
        return len(self.uvicorn.server_state.connections)

    async def serves(self) -> bool:
        return self.served_epoch is not None

    async def ask(
        self, method: str, target: str, body: Any = b"", *, tls: ssl.SSLContext | None = None, **given: str
    ) -> Told:
        """One call, over a connection of its own."""
        headers = {name.replace("_", "-"): value for name, value in given.items()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if data:
            headers = {"Content-Type": "application/json", **headers}
        timeout = aiohttp.ClientTimeout(total=HANG_S)
        async with (
            aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout) as session,
            session.request(
                method, URL(self.url + target, encoded=True), data=data or None, headers=headers, allow_redirects=False,
                skip_auto_headers=("Content-Type", "Accept-Encoding", "User-Agent"), ssl=tls or self.trusting or True,
            ) as answer,
        ):  # fmt: skip
            return Told(answer.status, {n.lower(): v for n, v in answer.headers.items()}, await answer.read())

    async def raw(self, request: bytes) -> bytes:
        """All that is answered to these bytes, until the server closes or says nothing more."""
        reader, writer = await self.line()
        writer.write(request)
        try:
            async with asyncio.timeout(HANG_S):
                return await reader.read()
        finally:
            writer.close()

    async def line(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trusting)

    async def hang_up(self) -> None:
        """Its port is closed, and each of its connections is cut, as when its process is killed."""
        for port in self.uvicorn.servers:  # at once: else it takes connections until it looks whether it is to exit
            port.close()
        for each in list(self.uvicorn.server_state.connections):
            each.transport.abort()  # type: ignore[union-attr]
        self.uvicorn.should_exit = self.uvicorn.force_exit = True
        await self.serving

    async def end(self) -> None:
        if not self.serving.done():
            await self.hang_up()
        await self.stop()


async def until(is_so: Any) -> None:
    async with asyncio.timeout(HANG_S):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def passing_pair(
    settings: Settings = ONE_LEADS, standby_settings: Settings | None = None, **how: Any
) -> AsyncIterator[tuple[PortServer, PortServer]]:
    """A leader and a standby that knows it."""
    time, store = LeaseTime(), MemoryStore(atomic=False)
    first = PortServer(time, store, "first", settings, **how)
    await first.time.until(first.serves)
    second = PortServer(time, store, "second", standby_settings or settings, **how)
    await time.until(lambda: _knows(second, first))
    await until(lambda: first.uvicorn.started and second.uvicorn.started)
    try:
        yield first, second
    finally:
        for server in (first, second):
            await server.end()


async def _knows(server: PortServer, leader: PortServer) -> bool:
    return server.member.leadership.leader_url == leader.url


def join(server: LedServer, instance: str, url: str = "http://third:4780", secret: str = "") -> None:
    """Another member has a row in this server's store, which nobody renews."""
    record = MemberRecord("third:3", url, "1.0", 1, LEASE_MS, 1, 0, secret=secret)
    MEMBER.write(SystemTable(server._store.another().table("system")), record, instance)


def give(server: LedServer, member: str, shard: int = SHARD) -> None:
    """The map gives the shard, which is that of the topic, to this member."""
    system = SystemTable(server._store.another().table("system"))
    before = read_map(system)
    assert before is not None
    system.write(KIND, NAME, granted(before, member, [shard], before.leader_epoch).encode())


async def deal(server: LedServer, member: str, shard: int = SHARD) -> None:
    """The map gives the shard to this member, and this server has seen it."""
    give(server, member, shard)

    async def has_seen() -> bool:
        owners = server.member.membership.owners
        return owners is not None and owners.owner_of(shard) == member

    await server.time.until(has_seen)
