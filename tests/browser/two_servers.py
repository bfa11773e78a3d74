"""A program: two servers of one store on the loopback, that lead in turn as the lines of its input say: `0` or `1`.

It prints their URLs in a line at first, and a line whenever the one leads that was asked for. Their leases have a time of their own.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from urllib.request import Request, urlopen

import uvicorn

from basalt.cluster.lease import Candidate
from basalt.server.failover import FailoverServer
from basalt.server.wiring import RunningServices, Shared, open_services
from basalt.settings import Settings
from basalt.settings.cluster import ClusterSettings
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Store
from tests.led_servers import LEASE_MS, LeaseTime, ServerClock

SETTINGS = Settings(
    cluster=ClusterSettings(share=False, pass_on=False)
)  # whose pages are those of a server that says who leads


class OneOfTwo:
    """A server that listens, and leads or stands by."""

    def __init__(self, lease_time: LeaseTime, store: MemoryStore, name: str) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.is_stopped = False
        self.clock = ServerClock(lease_time)
        self.member = FailoverServer(
            self.clock,
            Candidate(name, self.url, name, LEASE_MS),
            open_store=store.another,
            open_services=self._open,
            settings=SETTINGS,
        )
        server = uvicorn.Server(uvicorn.Config(self.member, lifespan="off", log_level="warning"))
        self.running = [asyncio.create_task(self.member.run()), asyncio.create_task(server.serve([listener]))]
        lease_time.servers.append(self)  # type: ignore[arg-type]

    async def serves(self) -> bool:
        return await asyncio.to_thread(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            with urlopen(Request(f"{self.url}/readyz?leader=true"), timeout=60) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    async def _open(self, store: Store, epoch: int, shared: Shared | None) -> RunningServices:
        return await open_services(SETTINGS, None, store=store, clock=self.clock, epoch=epoch, shared=shared)


async def main() -> None:
    lease_time, store = LeaseTime(), MemoryStore(atomic=False)
    servers = [OneOfTwo(lease_time, store, name) for name in ("first", "second")]
    print(*(server.url for server in servers), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        for number, server in enumerate(servers):
            server.is_stopped = number != int(line)
            if server.is_stopped and server.member.leadership.is_leader:
                server.member.leadership.release()
        await lease_time.until(servers[int(line)].serves)
        for server in servers:
            server.is_stopped = False
        await lease_time.until(lambda: asyncio.to_thread(knows, servers[1 - int(line)], servers[int(line)]))
        print("leads", flush=True)


def knows(standby: OneOfTwo, leader: OneOfTwo) -> bool:
    return standby.member.leadership.leader_url == leader.url


asyncio.run(main())
