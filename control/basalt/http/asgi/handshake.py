"""The handshakes of a TLS port: each connection begins with one, in its time and among so many, and then is an `HttpConnection`.

uvicorn would leave that to the event loop, which gives a client a minute for it, tells nobody how many connections are at it, and goes
on with the context that it was started with. So a connection is accepted as a plain one here, and taken from the event loop until its
first byte is there: that of a handshake, which is made with the context in force; or that of a plain request, which is told
what it did wrong. Why: docs/decisions/0046-handshakes-of-our-own.md.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import ssl
from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.server import ServerState

from basalt.http.asgi.connections import Connections
from basalt.http.asgi.protocol import HttpConnection
from basalt.http.asgi.server_context import ServerContext

HANDSHAKE_SECONDS_MAX = 10  # two round trips and some milliseconds of work; a client that needs more can try again
HANDSHAKES_MAX = (
    1_000  # at a time, each with some 50 KB of memory; one more ends the oldest, which is the likeliest to be dead
)
GOODBYE_SECONDS_MAX = 30  # for a client to take the rest of an answer, and to say that it closes too
PLAIN_BYTES_MAX = 65_536  # of a request without TLS that are taken before it is answered
HANDSHAKES_PER_ADDRESS_MAX = 200  # so that the connections of one address end their own, and not those of others
REFUSED_LOG_S = 10  # at most so often a line on certificates that were refused, which anybody can have written

DONE, NO_TLS, REFUSED, LATE, BROKEN, DROPPED = "done", "no_tls", "refused", "late", "broken", "dropped"
OUTCOMES = (DONE, NO_TLS, REFUSED, LATE, BROKEN, DROPPED)

# What OpenSSL calls a client that sends no certificate where one is required.
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_HANDSHAKE = b"\x16"  # the first byte of every TLS connection, and of no request
_PROBLEM = msgspec.json.encode(
    {
        "type": "urn:basalt:error:malformed_request",
        "title": "Bad Request",
        "status": 400,
        "code": "malformed_request",
        "detail": "this port speaks TLS, and the request came without",
        "hint": "Use https:// in the URL.",
    }
)
_PLAIN_ANSWER = b"".join(
    (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n",
        b"content-length: %d\r\n\r\n" % len(_PROBLEM),
        _PROBLEM,
    )
)

log = logging.getLogger("basalt.tls")


class Handshakes:
    """The handshakes that go on, the context of the next ones, and what became of all: of handshakes, and of changed files."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.reloads: Counter[str] = Counter({"done": 0, "failed": 0})
        self._going_on: dict[Handshake, None] = {}  # the oldest first, here and of each address
        self._by_address: dict[str, dict[Handshake, None]] = {}
        self._told_s = -float(REFUSED_LOG_S)
        self._untold = 0

    @property
    def going_on(self) -> int:
        """Their number now."""
        return len(self._going_on)

    def use(self, context: ServerContext) -> None:
        """Make the next handshakes with this context. Who holds a connection by a certificate must make a new one."""
        self.context, before = context, self.context
        before.retired = True
        self.reloads["done"] += 1

    def begin(self, handshake: Handshake) -> None:
        """Count a handshake that begins. The oldest one of its address ends where that has too many, or else the oldest of all."""
        of_address = self._by_address.setdefault(handshake.address, {})
        of_address[handshake] = self._going_on[handshake] = None
        if len(of_address) > HANDSHAKES_PER_ADDRESS_MAX:
            next(iter(of_address)).drop()
        elif len(self._going_on) > HANDSHAKES_MAX:
            next(iter(self._going_on)).drop()

    def end(self, handshake: Handshake, outcome: str) -> None:
        """Count what became of it."""
        self.outcomes[outcome] += 1
        del self._going_on[handshake]
        of_address = self._by_address[handshake.address]
        del of_address[handshake]
        if not of_address:
            del self._by_address[handshake.address]

    def refused(self, address: str, reason: str, now_s: float) -> None:
        """Say that a client's certificate did not count, or that there was none; seldom enough that nobody fills the log."""
        if now_s - self._told_s < REFUSED_LOG_S:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        self._told_s, self._untold = now_s, 0
        log.warning("refused a client at %s for its certificate: %s%s", address, reason, more)


class Handshake(asyncio.Protocol):
    """A connection of a TLS port, from when it is accepted until it is an `HttpConnection`. uvicorn makes it as it would make that."""

    def __init__(
        self, handshakes: Handshakes, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        self._handshakes = handshakes
        self._server_state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._new_connection = functools.partial(HttpConnection, config, server_state, app_state, self._loop)
        app: Any = config.app
        self._connections: Connections = app.connections
        self._client: str | None = None
        self._connection: HttpConnection | None = None
        self._line: socket.socket | None = None
        self.address = ""
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        accepted = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if peer else None
        self.address = self._client or "an unknown address"
        if not self._connections.open(self._client, self._loop.time()):
            transport.abort()
            return
        try:
            self._line = socket.socket(fileno=os.dup(accepted.fileno()))
        except OSError:
            self._connections.close(self._client)
            return  # no more files: the client may come again
        finally:
            transport.abort()  # the event loop's handle alone; nothing was read from it
        self._line.setblocking(False)
        self._deadline_s = self._loop.time() + HANDSHAKE_SECONDS_MAX
        self._timer = self._loop.call_at(self._deadline_s, self._end, LATE)
        self._loop.add_reader(self._line, self._look_at_first_byte)
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # any with `shutdown`
        self._handshakes.begin(self)

    def drop(self) -> None:
        """End it: it is in the way of others."""
        self._end(DROPPED)

    def shutdown(self) -> None:
        """The server stops: nothing was asked yet."""
        self._end(DROPPED)

    def _look_at_first_byte(self) -> None:
        assert self._line is not None
        try:
            first = self._line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if first == _HANDSHAKE:
            self._loop.remove_reader(self._line)
            self._task = self._loop.create_task(self._secure(self._line))
        elif first.isalpha():
            self._tell_plain(self._line)
            self._end(NO_TLS)
        else:
            self._end(BROKEN)

    def _make(self) -> HttpConnection:
        self._connection = self._new_connection()
        self._connection.is_counted = True
        return self._connection

    def _tell_plain(self, line: socket.socket) -> None:
        with suppress(OSError):
            line.recv(PLAIN_BYTES_MAX)  # what is left unread would have the answer lost
            line.send(_PLAIN_ANSWER)
            line.shutdown(socket.SHUT_WR)

    async def _secure(self, line: socket.socket) -> None:
        outcome = BROKEN
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                self._make, line, ssl=self._handshakes.context,
                ssl_handshake_timeout=max(0.001, self._deadline_s - self._loop.time()),
                ssl_shutdown_timeout=GOODBYE_SECONDS_MAX,
            )  # fmt: skip
            # A connection that was lost meanwhile comes back as if all were well.
            if transport.get_extra_info("ssl_object") is not None:
                outcome = DONE
        except ssl.SSLError as error:
            outcome = self._judge(error)
        except ConnectionAbortedError:
            outcome = LATE
        except (OSError, ValueError):
            pass  # the client has gone; or its certificate is one of its CA, and has texts in it that are none
        finally:
            self._end(outcome)

    def _judge(self, error: ssl.SSLError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message
        elif error.reason == _NO_CERTIFICATE:
            reason = "it sent none, and tls.client is required"
        else:
            return BROKEN
        self._handshakes.refused(self.address, reason, self._loop.time())
        return REFUSED

    def _end(self, outcome: str) -> None:
        """It is over, in one way or another; only the first one counts."""
        line, self._line = self._line, None
        if line is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:  # the line is the event loop's now
            if outcome != DONE:
                self._task.cancel()
        else:
            self._loop.remove_reader(line)
            line.close()
        self._server_state.connections.discard(self)
        if self._connection is None or not self._connection.has_begun:  # else it is counted until its own end
            self._connections.close(self._client)
        self._handshakes.end(self, outcome)
