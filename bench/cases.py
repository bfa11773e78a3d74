"""The cases of `bench.versus`: fixed work, and what each round of it costs on the tree that is imported."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import uvloop

import basalt
from bench import processes, thrift_load
from bench.captured import captured
from bench.delivering import delivered
from bench.load import Load, drive, turns
from bench.processes import Process
from bench.readers import AVRO, BATCHES, Polls, read_all
from bench.spark_session import running_spark, tree_cpu_s

MESSAGE_BYTES = 1_024
BATCH = 500
SINGLES = 20_000  # rows that are read again
WRITERS = 8
TOPIC = "topic-000000"
WARM_UP_ROUNDS = 3  # a JVM is at its speed after some rounds
IDLE_S = 5
SETTLING_S = 3  # after its start a server runs each job for the first time

_MESSAGES = [os.urandom(MESSAGE_BYTES) for _ in range(BATCH)]


@dataclass(frozen=True, slots=True)
class Round:
    """The cost of a unit of a case (less is better), and what else is known of the round."""

    cost: float
    per_s: float | None = None
    p50_ms: float | None = None
    # Processor time of the load per unit: with one core of its own it is the limit at 1e6 / per_s.
    load_us: float | None = None
    rss_mib: float | None = None


Rounds = Generator[Round, None, None]  # for as long as one asks


def _rounds(server: Process, units: int, run: Callable[[], Load | None]) -> Rounds:
    """Processor time and rate of so many messages, round by round, after one that warms up."""
    run()
    while True:
        before_s, own_s, start = server.cpu_s(), time.process_time(), time.perf_counter()
        load = run()
        took_s = time.perf_counter() - start if load is None else load.seconds
        yield Round(
            (server.cpu_s() - before_s) * 1e6 / units,
            units / took_s,
            None if load is None else load.p50_ms,
            (time.process_time() - own_s) * 1e6 / units,
            server.rss_mib(),
        )


def _load(clients: int, calls: int, request: Callable[[], bytes], messages: int = 1) -> Case:
    def rounds(folder: Path, scale: int) -> Rounds:
        data = request()
        with processes.basalt(folder / "data") as server:
            _create(server)
            some = calls // scale
            yield from _rounds(server, some * messages, lambda: drive(server.port, clients, some, data))

    return rounds, "CPU us/message"


def _create(server: Process, topic: str = TOPIC) -> None:
    with _client(server) as client:
        client.topics.create(topic)


def _client(server: Process) -> basalt.client.Client:
    return basalt.connect(f"http://127.0.0.1:{server.port}")


def _publish(count: int, topic: str = TOPIC) -> bytes:
    return captured(lambda client: client.topic(topic).publish(_MESSAGES[:count]))


def _one_shot(count: int) -> bytes:
    return captured(lambda client: client.publish_atomically({TOPIC: _MESSAGES[:count]}))


def _read(readers: int, passes: int, accept: str, cold: bool = False) -> Case:
    """Single messages, written by eight writers, to the end of the topic, from the tail cache or by a new server without one."""

    def rounds(folder: Path, scale: int) -> Rounds:
        singles, polls = SINGLES // scale, Polls.of(TOPIC, accept)
        if cold:
            with processes.basalt(folder / "data") as server:
                _fill_singles(server, singles)
        with processes.basalt(folder / "data", f"messaging.cache_bytes_max={0 if cold else '1GiB'}") as server:
            if not cold:
                _fill_singles(server, singles)
            yield from _rounds(
                server, singles * readers * passes, lambda: _read_whole(server, readers, passes, polls, singles)
            )

    return rounds, "CPU us/message"


def _read_once(folder: Path, scale: int) -> Rounds:
    """Single messages that nobody has read yet, by one reader, from the tail cache."""
    singles = SINGLES // 2 // scale
    with processes.basalt(folder / "data", "messaging.cache_bytes_max=1GiB") as server:
        for turn in count():
            topic = f"topic-{turn:06d}"
            polls = Polls.of(topic)
            _fill_singles(server, singles, topic)
            before_s, own_s, start = server.cpu_s(), time.process_time(), time.perf_counter()
            _read_whole(server, 1, 1, polls, singles)
            took_s, used_s, own_s = time.perf_counter() - start, server.cpu_s() - before_s, time.process_time() - own_s
            yield Round(
                used_s * 1e6 / singles, singles / took_s, load_us=own_s * 1e6 / singles, rss_mib=server.rss_mib()
            )


def _fill_singles(server: Process, singles: int, topic: str = TOPIC) -> None:
    _create(server, topic)
    drive(server.port, WRITERS, singles, _publish(1, topic))


def _read_whole(server: Process, readers: int, passes: int, polls: Polls, messages: int) -> None:
    found = read_all(server.port, readers, passes, polls)
    assert found >= readers * passes * messages * MESSAGE_BYTES, "a reader has not come to the end"


def _fill(server: Process, messages: int) -> None:
    _create(server)
    drive(server.port, 2, max(1, messages // BATCH), _publish(BATCH))


def _poll(folder: Path, scale: int) -> Rounds:
    """Committed messages to the end of a topic: the server's and the client's processor time."""
    total = 200_000 // scale
    with processes.basalt(folder / "data") as server:
        _fill(server, total)
        with _client(server) as client:

            def read() -> None:
                assert sum(map(len, _pages(client))) == total

            for found in _rounds(server, total, read):
                yield Round(found.cost + (found.load_us or 0), found.per_s, None, found.load_us, found.rss_mib)


def _pages(client: basalt.client.Client) -> Iterator[list[object]]:
    topic, start = client.topic(TOPIC), None
    while True:
        page = topic.poll(start=start, inclusive=start is None, isolation="committed")
        if not len(page):
            return
        yield list(page.payloads())
        start = page.next_id


def _delivery(folder: Path, scale: int) -> Rounds:
    """From a publish to its answer by long poll, 200 a second."""
    messages = max(40, 400 // scale)
    publish, polls, waiting = _publish(1), Polls.of(TOPIC), Polls.of(TOPIC, wait_ms=5_000)
    with processes.basalt(folder / "data") as server:
        _create(server)
        yield from _rounds(server, messages, lambda: delivered(server.port, messages, publish, polls, waiting))


def _thrift(folder: Path, scale: int) -> Rounds:
    """Transactions of eight clients, one changed key each."""
    clients, calls = 8, 8_000 // scale
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]

    async def client(number: int) -> None:
        connection = await thrift_load.connected(port)
        for turn in range(calls // clients):
            await thrift_load.transaction(connection, b"row %d of client %d" % (turn, number))
        connection.close()

    async def run() -> None:
        await asyncio.gather(*(client(number) for number in range(clients)))

    with processes.basalt(folder / "data", f"thrift.port={port}") as server:
        yield from _rounds(server, calls, lambda: uvloop.run(run()))


def _spark_read(folder: Path, scale: int) -> Rounds:
    """A topic as a data frame, all columns: the server, the driver, the JVM and the workers together."""
    total = 200_000 // scale
    with processes.basalt(folder / "data") as server, running_spark(folder) as spark:
        _fill(server, total)
        options = {"server": f"http://127.0.0.1:{server.port}", "namespace": "default", "topic": TOPIC}
        for turn in count():
            before_s, start = tree_cpu_s(), time.perf_counter()
            spark.read.format("basalt").options(**options).load().write.format("noop").mode("overwrite").save()
            if turn >= WARM_UP_ROUNDS:
                yield Round((tree_cpu_s() - before_s) * 1e6 / total, total / (time.perf_counter() - start))


def _memory_messages(folder: Path, scale: int) -> Rounds:
    """Measure the memory of the server once a million messages were published."""
    publish = _publish(BATCH)
    for turn in count():
        with processes.basalt(folder / f"data-{turn}") as server:
            _create(server)
            drive(server.port, 2, 1_000_000 // BATCH // scale, publish)
            yield Round(server.rss_mib())


def _memory_topics(folder: Path, scale: int) -> Rounds:
    """Measure the memory of the server once each of 10,000 topics has a message."""
    create = captured(lambda client: client.topics.create(TOPIC))
    publish = _publish(1)
    topics = [f"topic-{number:06d}".encode() for number in range(10_000 // scale)]
    for turn in count():
        with processes.basalt(folder / f"data-{turn}") as server:
            for data in (create, publish):
                drive(server.port, 16, len(topics), turns([data.replace(TOPIC.encode(), topic) for topic in topics]))
            yield Round(server.rss_mib())


def _start(folder: Path, scale: int) -> Rounds:
    """Processor time from exec to ready and the first answer, with a million messages in the store."""
    with processes.basalt(folder / "data") as server:
        _fill(server, 1_000_000 // scale)
    while True:
        with processes.basalt(folder / "data") as server, _client(server) as client:
            assert client.ready()
            yield Round(server.cpu_s() * 1_000, p50_ms=server.start_s * 1_000, rss_mib=server.rss_mib())


def _idle(folder: Path, scale: int) -> Rounds:
    """Processor time of a server that nobody calls: in a shorter time it may have none."""
    with processes.basalt(folder / "data") as server:
        time.sleep(SETTLING_S)
        while True:
            before_s = server.cpu_s()
            time.sleep(IDLE_S)
            yield Round((server.cpu_s() - before_s) * 1e3 / IDLE_S, rss_mib=server.rss_mib())


Case = tuple[Callable[[Path, int], Rounds], str]

CASES: dict[str, Case] = {
    "singles-1": _load(1, 4_000, lambda: _publish(1)),
    "singles-8": _load(8, 10_000, lambda: _publish(1)),
    "singles-64": _load(64, 10_000, lambda: _publish(1)),
    "read-singles-tail-1": _read(1, 10, BATCHES),
    "read-singles-tail-8": _read(8, 2, BATCHES),
    "read-singles-cold-1": _read(1, 5, BATCHES, cold=True),
    "read-singles-cold-8": _read(8, 1, BATCHES, cold=True),
    "read-singles-once": (_read_once, "CPU us/message"),
    "read-avro-tail-1": _read(1, 10, AVRO),
    "read-avro-tail-8": _read(8, 2, AVRO),
    "read-avro-cold-1": _read(1, 5, AVRO, cold=True),
    "read-avro-cold-8": _read(8, 1, AVRO, cold=True),
    "publish-500": _load(1, 300, lambda: _publish(BATCH), BATCH),
    "publish-500-4": _load(4, 400, lambda: _publish(BATCH), BATCH),
    "poll-committed": (_poll, "CPU us/message, with the client's"),
    "one-shot-1": _load(1, 2_000, lambda: _one_shot(1)),
    "one-shot-8": _load(8, 5_000, lambda: _one_shot(1)),
    "delivery": (_delivery, "CPU us/message"),
    "transaction-500": _load(4, 300, lambda: _one_shot(BATCH), BATCH),
    "thrift": (_thrift, "CPU us/transaction"),
    "spark-read": (_spark_read, "CPU us/row, of all processes"),
    "memory-messages": (_memory_messages, "MiB"),
    "memory-topics": (_memory_topics, "MiB"),
    "start": (_start, "CPU ms; p50: wall ms"),
    "idle": (_idle, "CPU ms/s"),
}
