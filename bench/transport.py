"""Measures HTTP libraries for the client, side by side: latency, bytes per second and copies of each candidate.

The decision and the figures it rests on are in docs/decisions/0005-client-transport.md. The server is a constant ASGI
app in a process of its own under uvicorn; nothing of Basalt runs, so that only the libraries differ. Libraries that are
not installed are left out. Run: `python bench/transport.py [--requests N] [--bodies N] [--json]`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

BODY_BYTES = 10 * 1024 * 1024  # the largest body that the server takes or, by default, answers
SMALL_BYTES = 1024  # a publish of one message, about
WARM_UP_REQUESTS = 200  # connections open, code warm, before anything is counted
OURS = "basalt"  # the transport that was built on the one chosen
CLIENTS_SYNC = ("http.client", "urllib3", "httpx2", "pyreqwest", OURS)
CLIENTS_ASYNC = ("aiohttp", "httpx2", "pyreqwest", OURS)
TIMEOUT_MS = 30_000

SyncCall = Callable[[str, str, bytes | None], int]
AsyncCall = Callable[[str, str, bytes | None], Awaitable[int]]


async def constant_app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """Answer /large and /chunked with the same body in 1 MiB parts, anything else with a few bytes."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    body = b"\x00" * (1024 * 1024)
    parts = [b"ok"] if scope["path"] == "/small" else [body] * (BODY_BYTES // len(body))
    headers = [(b"content-type", b"avro/binary")]
    if scope["path"] != "/chunked":  # uvicorn sends what has no length in chunks
        headers.append((b"content-length", str(sum(map(len, parts))).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for index, part in enumerate(parts):
        await send({"type": "http.response.body", "body": part, "more_body": index + 1 < len(parts)})


def serve() -> None:
    """Run the constant server on a free port, and print the port once it listens."""
    import socket

    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(constant_app, log_level="error", access_log=False, lifespan="off", http="httptools")
    uvicorn.Server(config).run(sockets=[listener])


@contextlib.contextmanager
def server() -> Iterator[int]:
    """The port of a constant server in a process of its own, stopped at the end."""
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def length_of(reply: Any) -> int:
    """The length of the body of an answer of our own transports."""
    if not hasattr(reply, "body"):
        raise RuntimeError(f"no answer: {reply}")
    return len(reply.body)


@contextlib.contextmanager
def sync_client(name: str, port: int) -> Iterator[SyncCall]:
    """A call of method, path and body that reads the whole answer and returns its length, on one kept connection."""
    base = f"http://127.0.0.1:{port}"
    if name == "http.client":
        connection = http.client.HTTPConnection("127.0.0.1", port)

        def read(method: str, path: str, body: bytes | None) -> int:
            connection.request(method, path, body)
            return len(connection.getresponse().read())

        yield read
        connection.close()
    elif name == "urllib3":
        import urllib3

        pool = urllib3.HTTPConnectionPool("127.0.0.1", port, retries=False)
        yield lambda method, path, body: len(pool.urlopen(method, path, body=body).data)
        pool.close()
    elif name == "httpx2":
        import httpx2

        with httpx2.Client(trust_env=False) as client:
            yield lambda method, path, body: len(client.request(method, base + path, content=body).content)
    elif name == OURS:
        from basalt.client.attempts import Send
        from basalt.client.http_transport import HttpTransport
        from basalt.client.servers import parse_url

        ours = HttpTransport(parse_url(base), headers={}, tls=None, monotonic_ms=lambda: time.monotonic() * 1_000)
        yield lambda method, path, body: length_of(ours.send(Send(method, path, {}, body or b"", TIMEOUT_MS)))
        ours.close()
    else:
        from pyreqwest.client import SyncClientBuilder

        with SyncClientBuilder().no_proxy().build() as reqwest:

            def send(method: str, path: str, body: bytes | None) -> int:
                builder = reqwest.request(method, base + path)
                return len((builder.body_bytes(body) if body else builder).build().send().bytes())

            yield send


@contextlib.asynccontextmanager
async def async_client(name: str, port: int) -> Any:
    """The async twin of `sync_client`."""
    base = f"http://127.0.0.1:{port}"
    if name == "aiohttp":
        import aiohttp

        async with aiohttp.ClientSession() as session:

            async def call(method: str, path: str, body: bytes | None) -> int:
                async with session.request(method, base + path, data=body) as response:
                    return len(await response.read())

            yield call
    elif name == "httpx2":
        import httpx2

        async with httpx2.AsyncClient(trust_env=False) as client:

            async def call(method: str, path: str, body: bytes | None) -> int:
                return len((await client.request(method, base + path, content=body)).content)

            yield call
    elif name == OURS:
        from basalt.client.aiohttp_transport import AiohttpTransport
        from basalt.client.attempts import Send
        from basalt.client.servers import parse_url

        ours = AiohttpTransport(parse_url(base), headers={}, tls=None)

        async def call(method: str, path: str, body: bytes | None) -> int:
            return length_of(await ours.send(Send(method, path, {}, body or b"", TIMEOUT_MS)))

        yield call
        await ours.close()
    else:
        from pyreqwest.client import ClientBuilder

        async with ClientBuilder().no_proxy().build() as reqwest:

            async def call(method: str, path: str, body: bytes | None) -> int:
                builder = reqwest.request(method, base + path)
                answer = await (builder.body_bytes(body) if body else builder).build().send()
                return len(await answer.bytes())

            yield call


CASES = (
    ("small GET", "GET", "/small", None),
    ("1 KiB POST", "POST", "/small", b"x" * SMALL_BYTES),
    ("10 MiB GET", "GET", "/large", None),
    ("10 MiB GET chunked", "GET", "/chunked", None),
    ("10 MiB POST", "POST", "/small", b"x" * BODY_BYTES),
)


def figures(client: str, kind: str, case: str, seconds: list[float], cpu_seconds: float, moved: int) -> dict[str, Any]:
    """One line of the result: medians in microseconds, and the bytes per second of the median."""
    median = statistics.median(seconds)
    return {
        "client": client,
        "kind": kind,
        "case": case,
        "requests": len(seconds),
        "p50_us": round(median * 1e6, 1),
        "p99_us": round(sorted(seconds)[int(len(seconds) * 0.99)] * 1e6, 1),
        "cpu_us": round(cpu_seconds / len(seconds) * 1e6, 1),
        "mib_per_s": round(moved / median / 2**20, 1),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def measure_sync(name: str, port: int, counts: dict[str, int]) -> list[dict[str, Any]]:
    """Every case through one sync client, one request after another."""
    lines = []
    with sync_client(name, port) as call:
        for case, method, path, body in CASES:
            count = counts[case]
            for _ in range(min(WARM_UP_REQUESTS, count)):
                call(method, path, body)
            seconds, cpu, moved = [], time.process_time(), 0
            for _ in range(count):
                begin = time.perf_counter()
                moved = max(call(method, path, body), len(body or b""))
                seconds.append(time.perf_counter() - begin)
            lines.append(figures(name, "sync", case, seconds, time.process_time() - cpu, moved))
    return lines


async def measure_async(name: str, port: int, counts: dict[str, int]) -> list[dict[str, Any]]:
    """Every case through one async client, one request after another."""
    lines = []
    async with async_client(name, port) as call:
        for case, method, path, body in CASES:
            count = counts[case]
            for _ in range(min(WARM_UP_REQUESTS, count)):
                await call(method, path, body)
            seconds, cpu, moved = [], time.process_time(), 0
            for _ in range(count):
                begin = time.perf_counter()
                moved = max(await call(method, path, body), len(body or b""))
                seconds.append(time.perf_counter() - begin)
            lines.append(figures(name, "async", case, seconds, time.process_time() - cpu, moved))
    return lines


def installed(name: str) -> bool:
    """True when this candidate can be measured here."""
    return name == "http.client" or importlib.util.find_spec(name) is not None


def measure_one(kind: str, name: str, port: int, counts: dict[str, int]) -> None:
    """Measure one candidate in this process and print its lines; a process each keeps peak memory apart."""
    if kind == "sync":
        lines = measure_sync(name, port, counts)
    else:
        import uvloop

        lines = (
            uvloop.run(measure_async(name, port, counts))
            if kind == "uvloop"
            else asyncio.run(measure_async(name, port, counts))
        )
    for line in lines:
        print(json.dumps(line | {"kind": kind}), flush=True)


def table(lines: list[dict[str, Any]]) -> str:
    """The lines as a table, one row per client and case."""
    heads = ("kind", "client", "case", "p50_us", "p99_us", "cpu_us", "mib_per_s", "peak_rss_mib")
    rows = [heads, *(tuple(str(line[head]) for head in heads) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    """Measure every candidate that is installed against one server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3_000, help="small requests per case")
    parser.add_argument("--bodies", type=int, default=30, help="10 MiB bodies per case")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=3, metavar=("KIND", "CLIENT", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    counts = {case: options.bodies if "MiB" in case else options.requests for case, *_ in CASES}
    if options.serve:
        serve()
        return
    if options.one:
        measure_one(options.one[0], options.one[1], int(options.one[2]), counts)
        return
    wanted = [("sync", name) for name in CLIENTS_SYNC]
    wanted += [(kind, name) for kind in ("asyncio", "uvloop") for name in CLIENTS_ASYNC]
    lines = []
    with server() as port:
        for kind, name in wanted:
            if installed(name):
                command = [sys.executable, __file__, "--one", kind, name, str(port)]
                command += ["--requests", str(options.requests), "--bodies", str(options.bodies)]
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                lines += [json.loads(line) for line in answer.splitlines()]
    print("\n".join(json.dumps(line) for line in lines) if options.json else table(lines))


if __name__ == "__main__":
    main()
