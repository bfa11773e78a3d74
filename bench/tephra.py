"""The Thrift face against Apache Tephra's own server with its local edit log: the same clients, one run, round by round."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import cast

import uvloop

from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.rocks import RocksStore
from bench import processes
from bench.figures import Figure
from tests.tephra_client.runtime import java_command

ROUNDS = 3
CLIENTS = (1, 8)
INVALID = (0, 5_000, 100_000)
FILL_AT_ONCE = 10_000  # transactions in progress while the invalid list is filled
FILL_BACK_MS = 3_600_000  # they began an hour ago
START_S_MAX = 300
TARGETS = {0: 0.3}  # and 1 where there are invalid entries

_LENGTH = struct.Struct(">i")
_LONG = struct.Struct(">q")


def _message(name: str, arguments: bytes) -> bytes:
    body = struct.pack(">HHi", 0x8001, 1, len(name)) + name.encode() + bytes(4) + arguments
    return _LENGTH.pack(len(body)) + body


_BEGIN = _message("startShort", b"\x00")
_ID_START = 8 + len("startShort") + 4 + 6  # in an answer's frame: its header, the field of the result, that of the id


def transactions(folder: Path, quick: bool) -> Iterator[Figure]:
    """Begin, canCommit and commit, with one client and with eight, and with invalid lists of three lengths."""
    seconds = 0.3 if quick else 2.0
    for invalid in INVALID[:2] if quick else INVALID:
        with ExitStack() as stack:
            here = folder / str(invalid)
            server, ours_port = stack.enter_context(_basalt(here / "basalt", invalid))
            theirs_port = stack.enter_context(_tephra(here / "tephra", invalid))
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
    _, connection = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port)
    done = 0
    while time.monotonic() < stop_s:
        begun = await connection.call(_BEGIN)
        (id_,) = _LONG.unpack_from(begun, _ID_START)
        change = b"row %d of client %d" % (done, number)
        changes = b"\x0e\x00\x02\x0b" + _LENGTH.pack(1) + _LENGTH.pack(len(change)) + change
        first = b"\x0a\x00\x01" + _LONG.pack(id_)
        for call in (
            _message("canCommitOrThrow", first + changes + b"\x00"),
            _message("commitOrThrow", first + b"\x0a\x00\x02" + _LONG.pack(id_) + b"\x00"),
        ):
            answer = await connection.call(call)
            if answer[-5:] != bytes(5):  # the sequence number, and a result without an exception
                raise RuntimeError(bytes(answer[:500]).decode(errors="replace"))
        done += 1
    connection.close()
    return done


class _Connection(asyncio.Protocol):
    """Sends a frame, waits for the whole frame that answers it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answered: asyncio.Future[bytearray]
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, not one of asyncio's

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= 4 and len(self._buffer) >= 4 + _LENGTH.unpack_from(self._buffer)[0]:
            answer, self._buffer = self._buffer, bytearray()
            del answer[:4]
            self._answered.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(ConnectionError("the server closed the connection"))

    async def call(self, frame: bytes) -> bytearray:
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return await self._answered

    def close(self) -> None:
        self._transport.close()


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
        await asyncio.gather(*(services.transactions.begin(timeout_ms=1_000, outside=True) for _ in range(some)))
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
