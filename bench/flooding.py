"""Measures a good client beside one that floods the server with calls that it refuses: bad credentials, and calls beyond a quota.

    python -m bench.flooding PORT CONNECTIONS AUTHORIZATION

is the flood: so many connections that send the next call as soon as the last one is answered, whatever it was told.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import cast

import uvloop

from basalt.api.bodies.messages import PublishRequest
from basalt.api.codecs import avro
from bench import processes
from bench.figures import Figure
from bench.load import Connection
from bench.processes import Process
from bench.setting_up import MESSAGE_BYTES, NAMESPACE

FLOOD_CONNECTIONS = 64  # each waits for an answer before its next call, as every HTTP client does
PER_SECOND = 100  # calls of the good client, which is not in a hurry
TURN_S = 4.0
PAIRS = 5
SLOWER_AT_MOST = 2.0

_PATH = f"/v1/namespaces/{NAMESPACE}/topics/good"


def flood(folder: Path, quick: bool) -> Iterator[Figure]:
    """The 99th percentile of a good client's publishes, in turns alone and beside a flood."""
    secret = folder / "bootstrap"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    settings = ("auth.kinds=token", f"auth.bootstrap_token_file={secret}")
    with processes.basalt(folder / "data", *settings) as server:
        root = _Api(server.port, secret.read_text())
        root.ask("PUT", _PATH)
        good, noisy = (root.ask("POST", "/v1/admin/tokens", {"name": name})["token"] for name in ("good", "noisy"))
        root.ask(
            "POST",
            "/v1/admin/grants",
            {"subject": "token:good", "verbs": ["write"], "resource": f"topic:{NAMESPACE}:good"},
        )
        root.ask("PUT", "/v1/admin/quotas/token:noisy", {"requestsPerS": 100})
        for name, bad in (
            ("calls without a credential", ""),
            ("bad credentials", f"basalt_{'0' * 16}_{'x' * 43}_{'0' * 8}"),
            ("calls beyond a quota", noisy),
        ):
            yield _beside(server, name, good, bad, 2 if quick else PAIRS)


def _beside(server: Process, name: str, good: str, bad: str, pairs: int) -> Figure:
    alone_ms, beside_ms, refused, port, spent_s = [], [], [], server.port, [0.0, 0.0]
    _p99_ms(port, good, TURN_S)
    for _ in range(pairs):
        before_s = server.cpu_s()
        alone_ms.append(_p99_ms(port, good, TURN_S))
        spent_s[0] += server.cpu_s() - before_s
        with _flooded(port, bad) as count:
            before_s = server.cpu_s()
            beside_ms.append(_p99_ms(port, good, TURN_S))
            spent_s[1] += server.cpu_s() - before_s
        refused.append(count[0] / TURN_S)
    return Figure(
        f"publish p99 beside a flood of {name}", median(beside_ms), "ms", "ms: alone", median(alone_ms), SLOWER_AT_MOST,
        at_most=True, note=f"{median(refused):,.0f} refusals a second on {FLOOD_CONNECTIONS} connections, which took"
        f" {100 * (spent_s[1] - spent_s[0]) / (pairs * TURN_S):.1f} % of a processor",
    )  # fmt: skip


class _Api:
    def __init__(self, port: int, token: str) -> None:
        self._url, self._token = f"http://127.0.0.1:{port}", token

    def ask(self, method: str, path: str, body: object = None) -> dict[str, str]:
        data = b"{}" if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self._url + path, data, headers, method=method)) as answer:
            found: dict[str, str] = json.load(answer)
            return found


def _publish(token: str) -> bytes:
    body = avro.encode_publish_request(PublishRequest(None, [bytes(MESSAGE_BYTES)]))
    proof = f"authorization: Bearer {token}\r\n" if token else ""
    head = f"POST {_PATH}/publish HTTP/1.1\r\nhost: localhost\r\n{proof}"
    return f"{head}content-type: avro/binary\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _p99_ms(port: int, token: str, seconds: float) -> float:
    """The 99th percentile of publishes, each of which is due at its time, however late the one before was."""
    data, latencies = _publish(token), []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        connection = (await loop.create_connection(Connection, "127.0.0.1", port))[1]
        began = time.perf_counter()
        for number in range(int(seconds * PER_SECOND)):
            due = began + number / PER_SECOND
            await asyncio.sleep(due - time.perf_counter())
            await connection.call(data)
            latencies.append((time.perf_counter() - due) * 1_000)
        connection.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return sorted(latencies)[int(0.99 * len(latencies))]


@contextmanager
def _flooded(port: int, token: str) -> Iterator[list[int]]:
    """A flood while the block lasts; then the number of its calls that were answered."""
    command = [sys.executable, "-m", "bench.flooding", str(port), str(FLOOD_CONNECTIONS), token]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=processes.ENVIRONMENT
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()  # it floods
        count: list[int] = []
        try:
            yield count
        finally:
            child.stdin.close()
            count.append(int(child.stdout.readline()))


class _Flooding(asyncio.Protocol):
    """A connection that sends the same call for ever."""

    answered = 0

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        _Flooding.answered += data.count(b"HTTP/1.1 ")
        assert self._transport is not None
        self._transport.write(self._data)


async def _flood(port: int, connections: int, token: str) -> None:
    loop, data = asyncio.get_running_loop(), _publish(token)
    for _ in range(connections):
        await loop.create_connection(lambda: _Flooding(data), "127.0.0.1", port)
    await asyncio.sleep(0.5)  # what may pass at first has passed
    _Flooding.answered = 0
    print(flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(_Flooding.answered, flush=True)


if __name__ == "__main__":
    uvloop.run(_flood(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
