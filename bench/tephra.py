"""The Thrift face against Apache Tephra's own server with its local edit log: the same clients, one run, round by round."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import uvloop

from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.rocks import RocksStore
from bench import processes, thrift_load
from bench.figures import Figure
from tests.tephra_client.runtime import java_command

ROUNDS = 3
CLIENTS = (1, 8)
QUICK_INVALID_MAX = 5_000  # filling a longer list takes longer than all else
FILL_AT_ONCE = 10_000  # transactions in progress while the invalid list is filled
FILL_BACK_MS = 3_600_000  # they began an hour ago
START_S_MAX = 300
TARGETS = {0: 0.3}  # and 1 where there are invalid entries


def transactions(folder: Path, quick: bool, invalid: int = 0) -> Iterator[Figure]:
    """Begin, canCommit and commit, with one client and with eight, and with an invalid list of this length."""
    seconds = 0.3 if quick else 2.0
    if quick:
        invalid = min(invalid, QUICK_INVALID_MAX)
    with ExitStack() as stack:
        server, ours_port = stack.enter_context(_basalt(folder / "basalt", invalid))
        theirs_port = stack.enter_context(_tephra(folder / "tephra", invalid))
        for clients in CLIENTS:
            ours, theirs, cpu_us = [], [], []
            for port in (ours_port, theirs_port):
                _rate(port, clients, seconds)
            for _ in range(ROUNDS):
                before_s = server.cpu_s()
                ours.append(_rate(ours_port, clients, seconds))
                cpu_us.append((server.cpu_s() - before_s) * 1e6 / (ours[-1] * seconds))
                theirs.append(_rate(theirs_port, clients, seconds))
            yield Figure(
                f"Thrift transactions, {clients} clients, {invalid:,} invalid", median(ours), "tx/s",
                "tx/s of Tephra's own server", median(theirs), TARGETS.get(invalid, 1.0), cpu_us=median(cpu_us),
            )  # fmt: skip


def _rate(port: int, clients: int, seconds: float) -> float:
    """Transactions per second."""

    async def run() -> int:
        stop_s = time.monotonic() + seconds
        return sum(await asyncio.gather(*(_client(port, number, stop_s) for number in range(clients))))

    return uvloop.run(run()) / seconds


async def _client(port: int, number: int, stop_s: float) -> int:
    connection = await thrift_load.connected(port)
    done = 0
    while time.monotonic() < stop_s:
        await thrift_load.transaction(connection, b"row %d of client %d" % (done, number))
        done += 1
    connection.close()
    return done


@contextmanager
def _basalt(data: Path, invalid: int) -> Iterator[tuple[processes.Process, int]]:
    data.parent.mkdir(parents=True, exist_ok=True)
    if invalid:
        asyncio.run(_fill(data, invalid))
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with processes.basalt(data, f"thrift.port={port}", "jobs.prune.enabled=false") as server:
        yield server, port


async def _fill(data: Path, count: int) -> None:
    """An invalid list of this length, as time-outs leave it."""
    clock = ManualClock(round(time.time() * 1_000) - FILL_BACK_MS)
    services = await open_services(Settings(), data, store=RocksStore.open(data, sync=False), clock=clock)
    for start in range(0, count, FILL_AT_ONCE):
        some = min(FILL_AT_ONCE, count - start)
        await asyncio.gather(
            *(services.transactions.begin(timeout_ms=1_000, external_writes=True) for _ in range(some))
        )
        clock.advance(1_000)
        await services.transactions.expire()
    assert len(services.transactions.state.invalid) == count
    await services.transactions.write_log_snapshot()
    await services.close()


@contextmanager
def _tephra(folder: Path, invalid: int) -> Iterator[int]:
    ready = folder / "port"
    child = subprocess.Popen(java_command("TephraServer", str(folder), str(invalid), str(ready)))
    try:
        stop_s = time.monotonic() + START_S_MAX
        while not ready.exists():
            if child.poll() is not None or time.monotonic() > stop_s:
                raise RuntimeError(f"Tephra's server did not start (exit status {child.poll()})")
            time.sleep(0.01)
        yield int(ready.read_text())
    finally:
        child.terminate()
        child.wait(20)
