"""Servers that take turns as the leader of one store, on a time of the story's own.

The time of leases passes only where a story lets it, and whoever is not stopped does then what is due. So no lease lapses because a
machine is slow or stands still, and how long a lease was waited for is the same on each.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from basalt.cluster.lease import LOOKS_PER_LEASE, Candidate
from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.server_context import ServerContext
from basalt.http.collectors import TlsMetrics
from basalt.server.failover import FailoverServer, Opening, ThriftStart
from basalt.server.wiring import RunningServices
from basalt.settings import Settings
from basalt.settings.cluster import ClusterSettings
from basalt.thrift.face import ThriftFace
from basalt_engine.clock import SystemClock
from basalt_engine.errors import CorruptionError
from basalt_engine.stores.memory import MemoryStore

LEASE_MS = 6_000
LOOK_MS = LEASE_MS / LOOKS_PER_LEASE  # time passes in steps of this
HANG_S = 60.0  # nothing waits that long


class LeaseTime:
    """The time by which all leases of one story are counted."""

    def __init__(self) -> None:
        self.now_ms = 1e9  # since the machine was started
        self.servers: list[LedServer] = []

    def pass_on(self) -> None:
        """Let time pass until the next look at the lease, and all servers look that are not stopped."""
        self.now_ms += LOOK_MS
        for server in self.servers:
            if not server.is_stopped:
                server.member.leadership.step()
                server.member.membership.step()

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> float:
        """Let time pass until it is so; by how many milliseconds it passed."""
        began_ms = self.now_ms
        async with asyncio.timeout(HANG_S):
            while not await is_so():
                self.pass_on()
                await asyncio.sleep(0.01)  # what reads and writes the store does it in real time
        return self.now_ms - began_ms


class ServerClock(SystemClock):
    """One server's clock: it may be ahead of the story's time, as after a stop of its own."""

    def __init__(self, time: LeaseTime) -> None:
        self.ahead_ms = 0.0
        self._time = time

    def monotonic_ms(self) -> float:
        return self._time.now_ms + self.ahead_ms


async def no_thrift(_services: RunningServices) -> ThriftFace:
    """Serve no clients of Thrift."""
    return ThriftFace(None)


ONE_LEADS = Settings(
    cluster=ClusterSettings(share=False)
)  # and owns all: those that share are in tests/control/server/sharing_servers.py


class LedServer:
    """One of the servers, a standby at first; without a thread of its own that looks at the lease."""

    def __init__(
        self, time: LeaseTime, store: MemoryStore, name: str, *,
        open_services: Opening,
        start_thrift: ThriftStart = no_thrift,
        settings: Settings = ONE_LEADS,
        url: str | None = None,
        link: str = "",
    ) -> None:  # fmt: skip
        self.url = url or f"http://{name}:4780"
        self.clock = ServerClock(time)
        self.opened: list[MemoryStore] = []
        self.is_stopped = False  # it does not look at the lease: neither renews it nor takes note of its end
        self._store = store
        self.time = time
        self.member = FailoverServer(
            self.clock,
            Candidate(name, self.url, f"{name}-1", LEASE_MS, f"{name}'s secret", link),
            open_store=self._open_store,
            open_services=open_services,
            start_thrift=start_thrift,
            settings=settings,
        )
        self.member.measure(TlsMetrics(Handshakes(ServerContext(ssl.PROTOCOL_TLS_SERVER))))
        self.running = asyncio.ensure_future(self.member.run())
        time.servers.append(self)

    @property
    def served_epoch(self) -> int | None:
        """The epoch of the term in which it serves."""
        serving = self.member._serving
        return None if serving is None else serving.term.epoch

    def _open_store(self) -> MemoryStore:
        self.opened.append(self._store.another())
        return self.opened[-1]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What watches the lease does nothing meanwhile, as in a process that is stopped."""
        self.is_stopped = True
        try:
            yield
        finally:
            self.is_stopped = False

    @contextmanager
    def gave_up(self) -> Iterator[None]:
        """It gives the lease up, and does not take it again meanwhile."""
        self.member.leadership.release()
        with self.stopped():
            yield

    async def stop(self) -> None:
        """As after SIGTERM: it answers what it took, and gives the lease up."""
        self.is_stopped = True
        self.running.cancel()
        with suppress(asyncio.CancelledError, CorruptionError):
            await self.running
        await self.member.close()

    async def die(self) -> None:
        """As after kill -9: nothing is written, and nothing given up."""
        self.is_stopped = True
        self.running.cancel()
        for store in self.opened:
            store.close()
