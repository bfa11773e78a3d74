"""Real lines without a log at hand: the demo sends its own server requests, and takes the server's request log."""

from __future__ import annotations

import http.client
import json
import random
import time
from pathlib import Path
from urllib.parse import urlsplit

CLIENTS = 40
REQUESTS = 3_000
LOG_TIMEOUT_S = 60.0  # a bound for a hang: far more than a server takes to write a line
POLL_S = 0.01
PATHS = (
    "/livez",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/v1/namespaces/default/topics",
    "/v1/namespaces/shop/topics",
    "/v1/namespaces/shop/topics/orders",
    "/v1/transactions",
    "/v1/admin/jobs",
    "/favicon.ico",
)


def make_requests(url: str) -> int:
    """Send the server requests from many loopback addresses, some paths more often than others; returns how many."""
    address = urlsplit(url)
    chance = random.Random(2015)  # the same mix each time
    weights = [1 / rank for rank in range(1, len(PATHS) + 1)]
    for client in range(CLIENTS):
        # Linux takes any 127.x.y.z as a source address; elsewhere all requests come from one client.
        source = (f"127.0.0.{client + 1}", 0)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, source_address=source)
        try:
            connection.connect()
        except OSError:
            connection = http.client.HTTPConnection(address.hostname or "", address.port)
        for path in chance.choices(PATHS, weights, k=REQUESTS // CLIENTS):
            connection.request("GET", path, headers={"User-Agent": "basalt-demo"})
            connection.getresponse().read()
        connection.close()
    return CLIENTS * (REQUESTS // CLIENTS)


def access_lines(server_log: Path, count: int) -> list[bytes]:
    """The first `count` requests in a server's log, which has a JSON object a line, as access log lines in their order.

    A server logs a request when it has answered it, so the last ones may take a moment.
    """
    give_up_s = time.monotonic() + LOG_TIMEOUT_S
    while len(lines := _access_lines(server_log)) < count and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
    return lines[:count]


def _access_lines(server_log: Path) -> list[bytes]:
    whole = server_log.read_bytes().rpartition(b"\n")[0]
    events = (json.loads(line) for line in whole.splitlines() if line.startswith(b"{"))
    return [event["message"].encode() for event in events if event.get("logger") == "basalt.access"]
