"""Listens for clients of Apache Tephra, and keeps their number and what they send within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from basalt.errors import BasaltError, UnavailableError
from basalt.thrift.calls import Calls, Served
from basalt.thrift.connection import Connection

CONNECTIONS_MAX = 1_024  # a client process has a few; each is a descriptor and some KiB
IDLE_SECONDS_MIN = 60  # after which a client may have to make room for another
HELD_BYTES_MAX = 256 << 20  # of requests that are half received, all clients together: sixteen of the largest
CHECK_INTERVAL_S = 1.0  # how late a time-out may be
FINISH_S = 1.0  # what calls under way are given when the server stops
BACKLOG = 128
TOLD_MAX = 1_000  # peers of which is remembered that a refusal was logged
TELL_AGAIN_S = 60.0

log = logging.getLogger("basalt.tephra")


class TephraServer:
    """The Thrift face of one server. `port` is where it listens once it has started."""

    def __init__(self, served: Served) -> None:
        self.calls = Calls(served)
        self.port = 0
        self._metrics = served.metrics
        self._connections: set[Connection] = set()
        self._held_bytes = 0
        self._told_s: dict[str, float] = {}
        self._stopping = False
        self._empty = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._listening: asyncio.Server
        self._checking: asyncio.Task[None]

    async def start(self, host: str, port: int) -> None:
        """Listen; `UnavailableError` when nobody can there."""
        try:
            self._listening = await self._loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG)
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {host} port {port} for Thrift: {error.strerror or error}",
                field="thrift.port",
                hint="another process may have it; port 0 picks a free one",
            ) from error
        self.port = self._listening.sockets[0].getsockname()[1]
        self._checking = self._loop.create_task(self._check_all())
        log.info("the Thrift transaction service listens on %s port %d", host, self.port)

    async def stop(self) -> None:
        """Take no more calls, answer those under way, and hang up."""
        self._stopping = True
        self._listening.close()
        self._checking.cancel()
        for connection in tuple(self._connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), FINISH_S if self._connections else 0.0)
        for connection in tuple(self._connections):
            connection.abort()
        with contextlib.suppress(BasaltError):  # a former leader writes nothing more
            await self.calls.change_sets.log_empty_sets()

    # For connections.

    def enter(self, connection: Connection) -> bool:
        """Take the connection in, if need be in place of an idle one; False without room, or while the server stops."""
        if self._stopping:
            return False
        if len(self._connections) >= CONNECTIONS_MAX and not self._make_room():
            self.refuse(connection.peer, f"{CONNECTIONS_MAX} clients are connected already, all at work")
            return False
        self._connections.add(connection)
        self._metrics.connections = len(self._connections)
        return True

    def leave(self, connection: Connection, error: Exception | None) -> None:
        """It is gone."""
        self._connections.discard(connection)
        self._metrics.connections = len(self._connections)
        if self._stopping and not self._connections:
            self._empty.set()

    def hold(self, size_bytes: int) -> bool:
        """Count bytes of requests that are not complete; False when they are too many."""
        self._held_bytes += size_bytes
        return self._held_bytes <= HELD_BYTES_MAX

    def answered(self, method: str, outcome: str) -> None:
        """Count a call."""
        self._metrics.calls[method, outcome] += 1

    def refuse(self, peer: str, reason: str) -> None:
        """Count a client that was turned out, and log it; a peer that keeps coming is in the log once a minute."""
        self._metrics.refused += 1
        now_s = self._loop.time()
        told_s = self._told_s.get(peer)
        if told_s is not None and now_s - told_s < TELL_AGAIN_S:
            return
        if len(self._told_s) >= TOLD_MAX:
            self._told_s.clear()
        self._told_s[peer] = now_s
        log.warning("a client at %s is turned out: %s", peer, reason)

    def _make_room(self) -> bool:
        """Let go of the client that has been idle for longest, if there is one: its next call connects again."""
        now_s = self._loop.time()
        idlest = max(self._connections, key=lambda connection: connection.idle_s(now_s))
        if idlest.idle_s(now_s) < IDLE_SECONDS_MIN:
            return False
        idlest.finish()
        return True

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            now_s = self._loop.time()
            for connection in tuple(self._connections):
                connection.check(now_s)
