"""Shared by the measurements: messages of 1 KB, topics, and raw synced puts as a yardstick."""

from __future__ import annotations

import os
import statistics
import time
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


def messages(count: int) -> list[bytes]:
    """Random bytes, so that nothing gains by compressing them."""
    return [_MESSAGES[number % BATCH] for number in range(count)]


def path(topic: str, call: str = "") -> str:
    return f"/v1/namespaces/{NAMESPACE}/topics/{topic}{call}"


def create_topics(server: Process, *topics: str, clients: int = 16) -> None:
    """Create topics over HTTP."""
    puts = [request(path(topic), b"", "application/json", "PUT") for topic in topics]
    drive(server.port, clients, len(puts), turns(puts))


def publish_request(topic: str, count: int) -> bytes:
    """A publish of `count` messages outside a transaction."""
    return request(path(topic, "/publish"), encode_publish_request(PublishRequest(None, messages(count))))


def one_shot_request(count: int, *topics: str) -> bytes:
    """A one-shot transaction of `count` messages in each of the topics."""
    parts = [WorkPublish(NAMESPACE, topic, messages(count)) for topic in topics]
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
