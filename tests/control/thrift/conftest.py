"""The Thrift face over a real socket, in a thread of its own, and Thrift clients that talk to it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TFramedTransport, TSocket

from basalt.server.wiring import RunningServices, open_services
from basalt.settings import Settings
from basalt.settings.tree import TransactionSettings
from basalt.thrift.face import ThriftFace
from basalt.thrift.wire import types
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore

WAIT_S = 60.0  # a bound for a hang

Story = Callable[[RunningServices], Awaitable[Any]]


class Serving:
    """A server with the Thrift face on its own event loop. `do` runs a coroutine there."""

    def __init__(self, settings: Settings) -> None:
        self.settings = replace(settings, thrift=replace(settings.thrift, port=0))
        self.clock = ManualClock()
        self.store = MemoryStore()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), daemon=True)
        self.services: RunningServices
        self.face: ThriftFace
        self.port = 0

    def __enter__(self) -> Serving:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so."""
        stop_s = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < stop_s, "it did not come to be"
            time.sleep(0.01)

    def do(self, story: Story) -> Any:
        return asyncio.run_coroutine_threadsafe(self._told(story), self._loop).result(WAIT_S)

    async def _told(self, story: Story) -> Any:
        return await story(self.services)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.services = await open_services(self.settings, None, store=self.store, clock=self.clock)
        face = self.face = await self.services.start_thrift("127.0.0.1")
        assert face.port is not None
        self.port = face.port
        self._ready.set()
        await self._stop.wait()
        await face.stop()
        await self.services.close()

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A client of the service, as thriftpy2 makes one of our IDL."""
        transport = TFramedTransport(TSocket("127.0.0.1", self.port, socket_timeout=int(WAIT_S * 1_000)))
        transport.open()
        try:
            yield TClient(types.TTransactionServer, TBinaryProtocol(transport))
        finally:
            transport.close()

    @contextmanager
    def socket(self) -> Iterator[socket.socket]:
        """A plain connection."""
        with socket.create_connection(("127.0.0.1", self.port), WAIT_S) as connection:
            yield connection


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def message(name: str, arguments: bytes = b"\x00", *, kind: int = 1, sequence: int = 7) -> bytes:
    """A strict message, without its frame."""
    return struct.pack(">HHi", 0x8001, kind, len(name)) + name.encode() + struct.pack(">i", sequence) + arguments


def receive(connection: socket.socket) -> bytes:
    """The next frame's content; empty when the server has hung up."""
    head = _exactly(connection, 4)
    return _exactly(connection, struct.unpack(">i", head)[0]) if head else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return b""
        found += part
    return found


def application_error(body: bytes) -> tuple[str, int, int, str]:
    """Method, sequence, type and message of a TApplicationException."""
    version, kind, name_bytes = struct.unpack_from(">HHi", body)
    assert (version, kind) == (0x8001, 3), body
    name = body[8 : 8 + name_bytes].decode()
    (sequence,) = struct.unpack_from(">i", body, 8 + name_bytes)
    at = 12 + name_bytes
    assert body[at : at + 3] == b"\x0b\x00\x01"
    (size,) = struct.unpack_from(">i", body, at + 3)
    text = body[at + 7 : at + 7 + size].decode()
    rest = body[at + 7 + size :]
    assert rest[:3] == b"\x08\x00\x02"
    assert rest[7:] == b"\x00"
    return name, sequence, struct.unpack(">i", rest[3:7])[0], text


@pytest.fixture
def serving() -> Iterator[Serving]:
    with Serving(Settings()) as started:
        yield started


@pytest.fixture
def small() -> Iterator[Serving]:
    """One with small limits."""
    limits = TransactionSettings(changes_max=3, change_bytes_max=1 << 10, timeout_ms_max=60_000, allow_reset=True)
    with Serving(Settings(transactions=limits)) as started:
        yield started
