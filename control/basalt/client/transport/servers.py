"""Which of several servers a request goes to: the one that leads, as far as the client knows.

A request moves on only where nothing can have come of it: nobody took the connection, or a standby said that it did
nothing. What else goes wrong is for `retries` to judge, as with one server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from basalt.api.bodies.server import Problem
from basalt.client.plans.calls import Answer, NotSent, Reply
from basalt.client.plans.conversation import Send
from basalt.client.plans.drivers import AsyncTransport, Transport
from basalt.client.transport.urls import ServerUrl, parse_url
from basalt.errors import InputError, NotLeaderError

MOVES_MAX = 4  # within one attempt: past a server that is down, to a standby, to the leader it names, and one more


class Servers:
    """The servers that the caller named, and the one that answered last; shared by all requests of a client."""

    def __init__(self, named: Sequence[ServerUrl]) -> None:
        self.named = tuple(named)
        self.current = self.named[0]

    def instead(self, tried: ServerUrl, reply: Reply) -> ServerUrl | None:
        """Where to send the request that got this reply there; None when the reply stands."""
        if isinstance(reply, NotSent):
            return self._next(tried)
        if not isinstance(reply, Answer) or reply.status != 503:
            return None
        try:
            problem = msgspec.json.decode(reply.body, type=Problem)
        except msgspec.MsgspecError:
            return None
        if problem.code != NotLeaderError.code:
            return None
        return self._leader(problem.leader) or self._next(tried)

    def _leader(self, url: str | None) -> ServerUrl | None:
        try:
            leader = None if url is None else parse_url(url)
        except InputError:
            return None
        # Headers may hold secrets: what was to go over TLS never goes without.
        return leader if leader is not None and leader.scheme == self.named[0].scheme else None

    def _next(self, tried: ServerUrl) -> ServerUrl | None:
        if tried not in self.named:
            return self.named[0]
        found = self.named[(self.named.index(tried) + 1) % len(self.named)]
        return None if found == tried else found


class Trail:
    """The way of one request from server to server."""

    def __init__(self, servers: Servers, request: Send, monotonic_ms: Callable[[], float]) -> None:
        self._servers = servers
        self._monotonic_ms = monotonic_ms
        self._deadline_ms = monotonic_ms() + request.timeout_ms
        self._tried: list[ServerUrl] = []
        self.request = request
        self.at = servers.current

    def moves_on(self, reply: Reply) -> bool:
        """Whether to send `request` again, to the server `at`."""
        self._tried.append(self.at)
        found = self._servers.instead(self.at, reply)
        if found is None:
            return False
        self._servers.current = found
        left_ms = self._deadline_ms - self._monotonic_ms()
        if found in self._tried or len(self._tried) > MOVES_MAX or left_ms <= 0:
            return False
        self.at, self.request = found, replace(self.request, timeout_ms=left_ms)
        return True


class FollowingTransport:
    """Sends to the server that leads, of those that were named or that a standby names."""

    def __init__(
        self, named: Sequence[ServerUrl], open_one: Callable[[ServerUrl], Transport], monotonic_ms: Callable[[], float]
    ) -> None:
        self._servers = Servers(named)
        self._open_one = open_one
        self._monotonic_ms = monotonic_ms
        self._open: dict[ServerUrl, Transport] = {}

    def send(self, request: Send) -> Reply:
        """Send the request, and again only where nothing was done."""
        trail = Trail(self._servers, request, self._monotonic_ms)
        while True:
            reply = self._of(trail.at).send(trail.request)
            if not trail.moves_on(reply):
                return reply

    def close(self) -> None:
        """Close every connection to every server."""
        self._of(self._servers.named[0])  # so that a client that was never used is closed as well
        for transport in list(self._open.values()):
            transport.close()

    def _of(self, url: ServerUrl) -> Transport:
        found = self._open.get(url)
        return self._open.setdefault(url, self._open_one(url)) if found is None else found


class AsyncFollowingTransport:
    """Its async twin."""

    def __init__(
        self,
        named: Sequence[ServerUrl],
        open_one: Callable[[ServerUrl], AsyncTransport],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._servers = Servers(named)
        self._open_one = open_one
        self._monotonic_ms = monotonic_ms
        self._open: dict[ServerUrl, AsyncTransport] = {}

    async def send(self, request: Send) -> Reply:
        """Send the request, and again only where nothing was done."""
        trail = Trail(self._servers, request, self._monotonic_ms)
        while True:
            reply = await self._of(trail.at).send(trail.request)
            if not trail.moves_on(reply):
                return reply

    async def close(self) -> None:
        """Close every connection to every server."""
        self._of(self._servers.named[0])  # so that a client that was never used is closed as well
        for transport in list(self._open.values()):
            await transport.close()

    def _of(self, url: ServerUrl) -> AsyncTransport:
        found = self._open.get(url)
        if found is None:
            found = self._open[url] = self._open_one(url)
        return found
