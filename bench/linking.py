"""A link between two servers: how long a call takes and what it costs, by TLS and without, beside asyncio's streams that echo the same bytes.

    python -m bench.linking [--calls N] [--bytes N]

Both ends are in this process, over a connection on the loopback, so the processor time is that of both. Of several rounds the best counts, and the ways take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

from basalt.cluster.links.frames import CallKind
from basalt.cluster.links.hello import LEADER, NONCE_BYTES, VERSION, Accept, Acceptor, Dial, Hello, fingerprint
from basalt.cluster.links.link import Handlers, Link, opened
from basalt.cluster.links.link_tls import LinkTls, Shown, link_text
from basalt.server.tls import load
from basalt.settings.auth import TlsSettings
from bench.securing import Certificates

ROUNDS = 5
CALLERS = (1, 32)
TIMEOUT_MS = 60_000
ECHO: CallKind[bytes, bytes] = CallKind(200, "echo", bytes, bytes)

Call = Callable[[bytes], Awaitable[bytes]]


class Measured(NamedTuple):
    """Microseconds of one call: half of them took no longer, and the processor's."""

    p50_us: float
    cpu_us: float


async def linked(tls: LinkTls) -> Call:
    """Calls over a link, by TLS or without."""
    loop, secret, handlers = asyncio.get_running_loop(), secrets.token_bytes(32), Handlers()
    handlers.add(ECHO, lambda _, question: question)
    shown = tls.shown()
    own = Acceptor(secret, "bench", "leader", 1, 1, certificate=b"" if shown is None else shown.certificate)
    other = Link(Accept(secrets.token_bytes(NONCE_BYTES), "bench"), handlers, lambda: own)
    hello = Hello(VERSION, "bench", "member", "leader", 1, LEADER, secrets.token_bytes(NONCE_BYTES))
    link = Link(Dial(secret, hello, "bench"), handlers)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        where = link_text(f"127.0.0.1:{listener.getsockname()[1]}", is_secure=shown is not None)
        dialing = loop.create_task(tls.dial(link, where, "localhost"))
        connection, _ = await loop.sock_accept(listener)
        await asyncio.gather(dialing, tls.accept(other, connection, shown))
    assert await opened(link, TIMEOUT_MS / 1_000)
    assert link.is_secure == (shown is not None)
    return lambda question: link.call(ECHO, question, TIMEOUT_MS)


def tls_in(folder: Path) -> LinkTls:
    """TLS of links, with certificates that are made for it."""
    Certificates(folder)
    _, _, context = load(TlsSettings(certificate=str(folder / "server.pem"), key=str(folder / "server.key")))
    shown = Shown(context, fingerprint(context.certificate_der))
    return LinkTls(str(folder / "ca.pem"), lambda: shown)


async def streamed() -> Call:
    """The same bytes there and back over asyncio's streams: one connection for each that waits, for they have no numbers."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(4):
            writer.write(head + await reader.readexactly(int.from_bytes(head, "big")))

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(question: bytes) -> bytes:
        reader, writer = free.pop() if free else await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(len(question).to_bytes(4, "big") + question)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        free.append((reader, writer))
        return answer

    return call


async def measure(call: Call, callers: int, calls: int, question: bytes) -> Measured:
    """So many calls of so many callers at a time."""
    times_s: list[float] = []

    async def work() -> None:
        for _ in range(calls // callers):
            began_s = time.perf_counter()
            assert await call(question) == question
            times_s.append(time.perf_counter() - began_s)

    began_s = time.process_time()
    await asyncio.gather(*(work() for _ in range(callers)))
    return Measured(1e6 * median(times_s), 1e6 * (time.process_time() - began_s) / len(times_s))


async def compare(calls: int, question: bytes) -> None:
    """All ways in turns, and the figures with their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        by_tls = await linked(tls_in(Path(folder)))
    ways = {"link": await linked(LinkTls()), "by TLS": by_tls, "streams": await streamed()}
    print("callers  way      p50 µs  CPU µs of both ends")
    for callers in CALLERS:
        best: dict[str, Measured] = {}
        for _ in range(ROUNDS):
            for name, call in ways.items():
                got = await measure(call, callers, calls, question)
                best[name] = min(best.get(name, got), got, key=lambda each: each.cpu_us)
        for name, each in best.items():
            print(f"{callers:7}  {name:7}  {each.p50_us:6.1f}  {each.cpu_us:6.1f}")
        for one, other in (("link", "streams"), ("by TLS", "link")):
            p50, cpu = best[one].p50_us / best[other].p50_us, best[one].cpu_us / best[other].cpu_us
            print(f"{callers:7}  {one} / {other}: {p50:.2f}  {cpu:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=100)
    given = parser.parse_args()
    uvloop.run(compare(given.calls, bytes(given.bytes)))


if __name__ == "__main__":
    main()
