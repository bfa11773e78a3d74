"""Cheap load: many connections on one event loop, requests encoded beforehand, answers read only as far as needed."""

from __future__ import annotations

import asyncio
import ssl
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

CONTENT_LENGTH = b"content-length:"
CHUNKED = b"transfer-encoding: chunked"
LAST_CHUNK = b"\r\n0\r\n\r\n"


def request(
    path: str, body: bytes, content_type: str = "avro/binary", method: str = "POST", accept: str | None = None
) -> bytes:
    accepted = "" if accept is None else f"accept: {accept}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{accepted}content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Caller(asyncio.BaseProtocol):
    """A connection that sends one request at a time. How its answer is read, and when it is whole, a subclass knows."""

    def __init__(self) -> None:
        self._answered: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, not one of asyncio's

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError("the server closed the connection"))

    async def call(self, data: bytes) -> bytes:
        """Send one request; what the subclass keeps of its answer, which must be a 200."""
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        answer = await self._answered
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer[:500].decode(errors="replace"))
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Connection(Caller, asyncio.Protocol):
    """Sends a request, waits for the whole answer, which has a Content-Length or comes in chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(CONTENT_LENGTH)
        if CHUNKED in head:
            is_whole = self._buffer.endswith(LAST_CHUNK)
        else:
            length = int(head[at + len(CONTENT_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            is_whole = len(self._buffer) >= end + 4 + length
        if is_whole and self._answered is not None:
            answer, self._buffer = self._buffer, b""
            self._answered.set_result(answer)


@dataclass(frozen=True, slots=True)
class Load:
    """The time that a run of calls took."""

    calls: int
    seconds: float
    latencies_ms: list[float]

    @property
    def per_second(self) -> float:
        return self.calls / self.seconds

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.latencies_ms)


def turns(requests: Sequence[bytes]) -> Callable[[int], bytes]:
    return lambda number: requests[number % len(requests)]


def drive(
    port: int, clients: int, calls: int, data: bytes | Callable[[int], bytes], *, tls: ssl.SSLContext | None = None
) -> Load:
    """`calls` requests over `clients` connections, each with one under way: always the same bytes, or those for a number."""
    make = turns([data]) if isinstance(data, bytes) else data

    async def run() -> Load:
        loop = asyncio.get_running_loop()
        name = None if tls is None else "localhost"
        connections = [
            (await loop.create_connection(Connection, "127.0.0.1", port, ssl=tls, server_hostname=name))[1]
            for _ in range(clients)
        ]
        numbers = iter(range(calls))
        latencies: list[float] = []

        async def client(connection: Connection) -> None:
            for number in numbers:
                data = make(number)
                start = time.perf_counter()
                await connection.call(data)
                latencies.append((time.perf_counter() - start) * 1_000)

        start = time.perf_counter()
        await asyncio.gather(*map(client, connections))
        seconds = time.perf_counter() - start
        for connection in connections:
            connection.close()
        return Load(calls, seconds, latencies)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
