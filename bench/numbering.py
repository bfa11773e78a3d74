"""Measures what numbers cost that make a publish safe to send again: publishes with them against the same without.

One client sends both, so that what it costs is on both sides; and they take turns at being first.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvloop

from bench import processes
from bench.figures import Figure
from bench.load import Connection
from bench.processes import Process
from bench.setting_up import BATCH, cpu_us_per, create_topics, publish_request

ROUNDS = 11  # short ones: how long a write takes varies by more than numbers cost, on HBase by a factor of three
CLIENTS = 64


class Producers:
    """Clients that publish the same messages again and again, each as a producer of its own, or without numbers."""

    def __init__(self, port: int, clients: int, data: bytes, messages: int, *, numbered: bool = True) -> None:
        self._port = port
        line, self._rest = data.split(b"\r\n", 1)
        self._numbered = numbered
        # As the client sends it: a name of 16 characters, in a header of its own.
        named = b"\r\nbasalt-producer: %s\r\nbasalt-sequence: "
        self._heads = [
            line + (named % secrets.token_urlsafe(12).encode() if numbered else b"\r\n") for _ in range(clients)
        ]
        self._sent = [0] * clients
        self._messages = messages

    def publish(self, calls: int) -> float:
        """So many calls of all of them together; how many a second."""
        numbers = iter(range(calls))

        async def client(connection: Connection, producer: int) -> None:
            head = self._heads[producer]
            for _ in numbers:
                sequence = b"%d\r\n" % (self._sent[producer] * self._messages)
                self._sent[producer] += 1
                await connection.call(head + (sequence if self._numbered else b"") + self._rest)

        async def run() -> float:
            loop = asyncio.get_running_loop()
            connections = [(await loop.create_connection(Connection, "127.0.0.1", self._port))[1] for _ in self._heads]
            start = time.perf_counter()
            await asyncio.gather(*(client(each, producer) for producer, each in enumerate(connections)))
            seconds = time.perf_counter() - start
            for connection in connections:
                connection.close()
            return calls / seconds

        return uvloop.run(run())


def numbered(folder: Path, quick: bool) -> Iterator[Figure]:
    """On the embedded store: 500 messages a call by one client, and one message by 64."""
    with processes.basalt(folder / "data") as server:
        yield from of_server(server, 30 if quick else 150, 2_000 if quick else 10_000, "")


def of_server(server: Process, batches: int, singles: int, where: str) -> Iterator[Figure]:
    create_topics(server, "with", "without")
    for title, clients, messages, calls, target in (
        (f"{where}publish 500 with numbers", 1, BATCH, batches, 0.97),
        (f"{where}publish 1 with numbers, {CLIENTS} clients", CLIENTS, 1, singles, 0.9),
    ):
        sides = [
            Producers(server.port, clients, publish_request(topic, messages), messages, numbered=topic == "with")
            for topic in ("with", "without")
        ]
        rates: tuple[list[float], list[float]] = ([], [])
        cpu_us: tuple[list[float], list[float]] = ([], [])
        for turn in range(ROUNDS + 1):
            for side in (0, 1) if turn % 2 else (1, 0):
                before_s = server.cpu_s()
                rate = sides[side].publish(calls) * messages
                if turn:  # the first round warms up
                    rates[side].append(rate)
                    cpu_us[side].append(cpu_us_per(server, before_s, calls * messages))
        ours, theirs = map(median, rates)
        our_cpu_us, their_cpu_us = map(median, cpu_us)
        ratios = [ours_then / theirs_then for ours_then, theirs_then in zip(*rates, strict=True)]
        yield Figure(
            title, ours, "msg/s", "msg/s without", theirs, target, cpu_us=our_cpu_us,
            note=f"without: {their_cpu_us:.2f} us of the server's processor; rounds from {min(ratios):.2f} to {max(ratios):.2f}",
        )  # fmt: skip
