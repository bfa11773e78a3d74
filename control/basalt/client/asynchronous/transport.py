"""Transports: they send requests, to the server that leads or owns a topic, with the token that the client has."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from basalt.client.attempts import Send
from basalt.client.credential import Hidden, KeptToken, TokenAwayError, TokenSource, asked_aside
from basalt.client.plans import Answer, NoCredential, Reply
from basalt.client.servers import Redirects, Servers

if TYPE_CHECKING:
    from asyncio import Lock  # blocking: from threading import Lock

log = logging.getLogger("basalt.client")


class AsyncTransport(Protocol):
    """Sends requests, many at the same time."""

    async def send(self, request: Send) -> Reply:
        """Send it and return what came back within its time-out. Raise nothing but bugs, interrupts and cancellation."""
        ...

    async def close(self) -> None:
        """Close every connection. Closing twice is no error."""
        ...


class AsyncCredential:
    """The client's token: asks for it when it is first needed, and again where that may help; never twice at the same time."""

    def __init__(self, source: TokenSource, now_ms: Callable[[], int]) -> None:
        self._kept = KeptToken(source)
        self._now_ms = now_ms
        self._lock, self._process = _new_lock(), os.getpid()
        self._said = False

    async def header(self) -> Hidden:
        """The Authorization to send."""
        kept, now_ms = self._kept, self._now_ms()
        if kept.header is not None and (now_ms < kept.ask_at_ms or (kept.may_wait(now_ms) and self._lock.locked())):
            return kept.header  # still good, and where it is about to expire somebody asks for another one already
        try:
            return await self._other_than(kept.header)
        except Exception as error:
            if kept.header is None or not kept.may_wait(now_ms):
                raise
            kept.keep_on(now_ms)
            if not self._said:
                self._said = True
                log.warning("the client's token cannot be had anew (%s); the one it has is sent", type(error).__name__)
            return kept.header

    async def instead_of(self, refused: Hidden) -> Hidden | None:
        """Another Authorization than the one that a server has refused; None where there is none."""
        if self._kept.source.ask is None:
            return None
        header = await self._other_than(refused)
        return None if header == refused else header

    async def _other_than(self, seen: Hidden | None) -> Hidden:
        ask = self._kept.source.ask
        if self._process != os.getpid():  # a fork took the lock along as it was, and whoever holds it stayed behind
            self._lock, self._process = _new_lock(), os.getpid()
        async with self._lock:
            if ask is not None and (self._kept.header is None or self._kept.header is seen):
                try:
                    given = await asked_aside(ask)
                except OSError as error:
                    raise TokenAwayError(type(error).__name__) from None
                self._kept.take(given, self._now_ms())
                self._said = False
            assert self._kept.header is not None
            return self._kept.header


def _new_lock() -> Lock:
    from asyncio import Lock  # blocking: from threading import Lock

    return Lock()


class AsyncRedirectingTransport:
    """Sends to the server that leads: one of those that were named, or one that a standby names."""

    def __init__(self, servers: Servers[AsyncTransport], credential: AsyncCredential | None = None) -> None:
        self._servers = servers
        self._credential = credential

    async def send(self, request: Send) -> Reply:
        """Send the request, and send it again only where nothing was done."""
        redirects = Redirects(self._servers, request)
        try:
            return await self._sent(redirects, self._credential)
        except TokenAwayError as away:
            return NoCredential(f"asking for one failed: {away}")

    async def _sent(self, redirects: Redirects, credential: AsyncCredential | None) -> Reply:
        header = None if credential is None else await credential.header()
        if header is not None and not redirects.sign(header):
            return NoCredential("asking for one took as long as the call may take")
        while True:
            reply = await self._servers.transport_to(redirects.server).send(redirects.request)
            if credential is not None and header is not None and isinstance(reply, Answer) and reply.status == 401:
                # Nothing was done, whatever the call. Once: what is refused again stays refused.
                header = await credential.instead_of(header)
                credential = None
                if header is not None and redirects.sign(header):
                    continue
            standing = redirects.follow(reply)
            if standing is not None:
                return standing

    async def close(self) -> None:
        """Close every connection to every server."""
        for transport in self._servers.transports():
            await transport.close()
