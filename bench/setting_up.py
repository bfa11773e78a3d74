"""Shared by the measurements: messages of 1 KB, topics, and raw synced puts as a yardstick."""

from __future__ import annotations

import os
import random
import ssl
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import rocksdict

from basalt.api.bodies.messages import PublishRequest, Work, WorkPublish
from basalt.api.codecs.avro import encode_publish_request, encode_work
from bench.load import drive, request, turns
from bench.processes import Process

MESSAGE_BYTES = 1_024
BATCH = 500
NAMESPACE = "bench"

_MESSAGES = [os.urandom(MESSAGE_BYTES) for _ in range(BATCH)]


def log_messages(count: int) -> list[bytes]:
    """Lines of an access log, joined to as many bytes: some 3 : 1 each, and more side by side.

    BASALT_ACCESS_LOG names a real log; without, the lines are made up, of as many different words.
    """
    if named := os.environ.get("BASALT_ACCESS_LOG"):
        lines = Path(named).read_bytes().splitlines()
    else:
        chance = random.Random(7)
        lines = [
            b'10.%d.%d.%d - - [%02d/May/2026:%02d:%02d:%02d +0000] "GET /%x/%x.html HTTP/1.1" 200 %d "-" "Mozilla/5.0 (%x)"'
            % (*(chance.randrange(top) for top in (99, 250, 250, 28, 24, 60, 60, 1 << 16, 1 << 24, 99_999, 1 << 16)),)
            for _ in range(10_000)
        ]
    text = b"\n".join(lines)
    starts = (number * MESSAGE_BYTES % (len(text) - MESSAGE_BYTES) for number in range(count))
    return [text[start : start + MESSAGE_BYTES] for start in starts]


def messages(count: int) -> list[bytes]:
    """Random bytes, so that nothing gains by compressing them."""
    return [_MESSAGES[number % BATCH] for number in range(count)]


def path(topic: str, call: str = "") -> str:
    return f"/v1/namespaces/{NAMESPACE}/topics/{topic}{call}"


def create_topics(server: Process, *topics: str, clients: int = 16, tls: ssl.SSLContext | None = None) -> None:
    """Create topics over HTTP."""
    puts = [request(path(topic), b"", "application/json", "PUT") for topic in topics]
    drive(server.port, clients, len(puts), turns(puts), tls=tls)


def publish_request(topic: str, count: int, make: Callable[[int], list[bytes]] = messages) -> bytes:
    """A publish of `count` messages outside a transaction."""
    return request(path(topic, "/publish"), encode_publish_request(PublishRequest(None, make(count))))


def one_shot_request(count: int, *topics: str, make: Callable[[int], list[bytes]] = messages) -> bytes:
    """A one-shot transaction of `count` messages in each of the topics."""
    parts = [WorkPublish(NAMESPACE, topic, make(count)) for topic in topics]
    return request("/v1/transactions", encode_work(Work(publish=parts)))


class RawRocks:
    """RocksDB with a row per message and synced batches, and nothing else."""

    def __init__(self, directory: Path) -> None:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        self._database = rocksdict.Rdict(str(directory), options)
        self._synced = rocksdict.WriteOptions()
        self._synced.sync = True
        self._written = 0

    def put(self, count: int) -> None:
        """One synced batch of `count` rows."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for payload in messages(count):
            batch.put(b"row%016d" % self._written, payload)
            self._written += 1
        self._database.write(batch, self._synced)

    def per_second(self, batches: int, count: int) -> float:
        """Rows per second over so many batches."""
        start = time.perf_counter()
        for _ in range(batches):
            self.put(count)
        return batches * count / (time.perf_counter() - start)

    def p50_ms(self, puts: int) -> float:
        """The median time of one synced put."""
        times = []
        for _ in range(puts):
            start = time.perf_counter()
            self.put(1)
            times.append((time.perf_counter() - start) * 1_000)
        return statistics.median(times)

    def close(self) -> None:
        self._database.close()


def cpu_us_per(server: Process, before_s: float, messages_sent: int) -> float:
    """Server processor microseconds per message since `before_s`."""
    return (server.cpu_s() - before_s) * 1e6 / messages_sent
