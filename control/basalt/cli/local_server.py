"""A server on this machine that may just be starting: whoever started it a moment ago types the next command already.

Only a refused connection is waited for, and only on loopback. There it means that nothing listens yet, or nothing ever will; from
elsewhere it comes from a machine that is up, whose server somebody else starts.
"""

from __future__ import annotations

import socket
import sys
from time import sleep
from typing import TYPE_CHECKING

from basalt.errors import RetryError
from basalt_engine.clock import SystemClock

if TYPE_CHECKING:
    from basalt.client import Tls
    from basalt.client.servers import ServerUrl

START_MS_MAX = 5_000  # a start takes half a second; one that recovers, on a machine with other work, a few
CONNECT_TIMEOUT_S = 1.0
ASK_TIMEOUT_MS = 2_000  # one question of `basalt wait`
PAUSE_S = 0.05
SAID_AFTER_MS = 1_000


def wait_for_start(url: str, wait_ms: int = START_MS_MAX) -> bool:
    """True once something listens at one of these URLs; False where nothing does, on loopback after `wait_ms`.

    What is wrong then the call itself tells.
    """
    from basalt.client.servers import is_loopback, parse_urls

    servers = parse_urls(url)
    if not all(is_loopback(server.host) for server in servers):
        return any(_connected(server) is None for server in servers)
    clock = SystemClock()
    began_ms, said = clock.monotonic_ms(), False
    while True:
        failures = [_connected(server) for server in servers]
        if not all(isinstance(failure, ConnectionRefusedError) for failure in failures):
            return None in failures
        waited_ms = clock.monotonic_ms() - began_ms
        if waited_ms >= wait_ms:
            return False
        if waited_ms >= SAID_AFTER_MS and not said and sys.stderr.isatty():
            sys.stderr.write(f"basalt: nothing listens at {url} yet; waiting for {wait_ms / 1_000:g} s at most\n")
            said = True
        sleep(PAUSE_S)


def wait_until_ready(url: str, wait_ms: int, tls: Tls | None = None) -> tuple[str, str]:
    """The URL of a server that is ready, and ""; or after `wait_ms` all URLs, and what keeps them from it. Anybody may ask."""
    import basalt
    from basalt.client.servers import parse_urls

    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        for server in parse_urls(url):
            try:
                with basalt.connect(server.text, timeout_ms=ASK_TIMEOUT_MS, attempts_max=1, tls=tls) as client:
                    found = client.ready()
                if found.ready:
                    return server.text, ""
                reason = ", ".join(f"{part.name}: {part.detail}" for part in found.parts if not part.ok)
            except RetryError as error:
                reason = error.message
        if clock.monotonic_ms() >= deadline_ms:
            return url, reason
        sleep(PAUSE_S)


def _connected(server: ServerUrl) -> OSError | None:
    """None when a connection was made; else why not."""
    try:
        socket.create_connection((server.host, server.port), CONNECT_TIMEOUT_S).close()
    except OSError as failure:
        return failure
    return None
