"""Basalt on HBase against HBase itself: the same gateway, the same messages of 1 KB, the same run, round by round.

The yardstick is what a Python program would do without Basalt: happybase, one row per message, in batches of 500. Messages are
random bytes, which nothing makes smaller, and lines of an access log.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import happybase

import basalt
from basalt_engine.errors import BasaltError
from bench import consuming, numbering, processes
from bench.figures import Figure
from bench.load import drive
from bench.processes import Process
from bench.reading import count_payloads
from bench.setting_up import (
    BATCH,
    MESSAGE_BYTES,
    NAMESPACE,
    cpu_us_per,
    create_topics,
    log_messages,
    messages,
    one_shot_request,
    publish_request,
)
from deploy.hbase.standalone import Gateways, Standalone

ROUNDS = 5
PEERS = (1, 2, 4)  # producers, then consumers
KINDS: dict[str, Callable[[int], list[bytes]]] = {"1 KB": messages, "1 KB of log lines": log_messages}
LEAD_S = 60
HEAP_MB = 4_096  # of a region server that is not short of memory, and flushes when a memstore is full
RAW_TABLE = b"bench_raw"
FAMILY = b"m"
FROM_STORE = "messaging.cache_bytes_max=0"  # reads the store, not its cache
SCAN_ROWS = 500  # per round trip of the raw scan, as many as a batch has


def rates(folder: Path, quick: bool) -> Iterator[Figure]:
    """Publishing, transactions and reading back, with 1, 2 and 4 at a time."""
    requests = 40 if quick else 160
    with running_hbase(folder) as gateways:
        connect(gateways).create_table(RAW_TABLE, {FAMILY.decode(): {}})
        with server_on(folder, gateways, FROM_STORE) as server, ProcessPoolExecutor(max(PEERS)) as peers:
            for kind in KINDS:
                yield from _publishing(gateways, server, peers, requests, kind)
                yield from _reading(gateways, server, peers, requests, kind)


def groups(folder: Path, quick: bool) -> Iterator[Figure]:
    """Consume-transform-produce against one-shot transactions, and publishes with numbers against those without."""
    with running_hbase(folder) as gateways, server_on(folder, gateways) as server:
        yield from consuming.on_one_shots(server, 20_000 if quick else 100_000, "HBase: ")
        yield from numbering.of_server(server, 40 if quick else 80, 2_000 if quick else 5_000, "HBase: ")


def _topic(use: str, kind: str) -> str:
    return f"{use}-{list(KINDS).index(kind)}"


def _publishing(
    gateways: Gateways, server: Process, peers: ProcessPoolExecutor, requests: int, kind: str
) -> Iterator[Figure]:
    for producers in PEERS:
        topics = [_topic(f"plain-{producers}", kind), _topic(f"tx-{producers}", kind)]
        create_topics(server, *topics)
        plain = publish_request(topics[0], BATCH, KINDS[kind])
        under = one_shot_request(BATCH, topics[1], make=KINDS[kind])
        raw = partial(_put_by, peers, gateways, producers, requests, kind)
        for warm_up in (plain, under):  # the Java processes compile what they do often
            drive(server.port, producers, requests, warm_up)
        raw()
        ours, in_transactions, theirs, cpu_us = [], [], [], []
        for _ in range(ROUNDS):
            theirs.append(raw())
            before_s = server.cpu_s()
            ours.append(drive(server.port, producers, requests, plain).per_second * BATCH)
            cpu_us.append(cpu_us_per(server, before_s, requests * BATCH))
            in_transactions.append(drive(server.port, producers, requests, under).per_second * BATCH)
        yield Figure(
            f"HBase: publish 500 x {kind}, {producers} producers", median(ours), "msg/s", "happybase rows/s",
            median(theirs), 3.5, cpu_us=median(cpu_us),
        )  # fmt: skip
        yield Figure(
            f"HBase: 500 x {kind} per transaction, {producers} producers", median(in_transactions), "msg/s",
            "msg/s published plainly", median(ours), 0.75,
        )  # fmt: skip


def _reading(
    gateways: Gateways, server: Process, peers: ProcessPoolExecutor, requests: int, kind: str
) -> Iterator[Figure]:
    total, full = requests * BATCH, _topic("full", kind)
    create_topics(server, full)
    drive(server.port, 2, requests, publish_request(full, BATCH, KINDS[kind]))
    connection = connect(gateways)
    connection.delete_table(RAW_TABLE, disable=True)
    connection.create_table(RAW_TABLE, {FAMILY.decode(): {}})
    _put_by(peers, gateways, 1, requests, kind)
    for consumers in PEERS:
        ours, theirs, cpu_us = [], [], []
        for round_number in range(ROUNDS + 1):
            raw_rate = _rate(peers, consumers, partial(_scan, gateways.thrift), total)
            before_s = server.cpu_s()
            rate = _rate(peers, consumers, partial(read, server.port, full), total)
            if round_number:  # the first one warms both up
                theirs.append(raw_rate)
                ours.append(rate)
                cpu_us.append(cpu_us_per(server, before_s, consumers * total))
        yield Figure(
            f"HBase: read back {kind}, {consumers} consumers", median(ours), "msg/s", "happybase scan, rows/s", median(theirs), 3.0,
            cpu_us=median(cpu_us),
        )  # fmt: skip


def _put_by(peers: ProcessPoolExecutor, gateways: Gateways, producers: int, requests: int, kind: str) -> float:
    """Rows per second that so many processes put together."""
    share = requests // producers
    puts = [partial(_put, gateways.thrift, number, share, kind) for number in range(producers)]
    return producers * share * BATCH / seconds(peers, puts)


def _rate(peers: ProcessPoolExecutor, consumers: int, read: Callable[[], int], total: int) -> float:
    """Messages per second that so many processes read together, each of them all."""
    return consumers * total / seconds(peers, [partial(_all, read, total)] * consumers)


def _all(read: Callable[[], int], total: int) -> None:
    count = read()
    assert count == total, (count, total)


def seconds(peers: ProcessPoolExecutor, calls: Sequence[Callable[[], None]]) -> float:
    """How long all of them took, side by side."""
    start = time.perf_counter()
    for future in [peers.submit(call) for call in calls]:
        future.result()
    return time.perf_counter() - start


def _put(thrift: str, number: int, batches: int, kind: str) -> None:
    """A row per message, as happybase's users do it; keys rise, each producer has its own."""
    with happybase_at(thrift) as connection:
        table, began, payloads = connection.table(RAW_TABLE), time.time_ns(), KINDS[kind](BATCH)
        for batch_number in range(batches):
            with table.batch() as batch:
                for index, payload in enumerate(payloads):
                    batch.put(b"%d-%020d-%08d-%04d" % (number, began, batch_number, index), {FAMILY + b":p": payload})


def _scan(thrift: str) -> int:
    with happybase_at(thrift) as connection:
        rows = connection.table(RAW_TABLE).scan(batch_size=SCAN_ROWS)
        return sum(1 for _, columns in rows if len(columns[FAMILY + b":p"]) == MESSAGE_BYTES)


def read(port: int, name: str) -> int:
    """The topic through Basalt's client, in full pages."""
    with basalt.connect(f"http://127.0.0.1:{port}", namespace=NAMESPACE) as client:
        topic, count, start = client.topic(name), 0, None
        while True:
            page = topic.poll(start=start, inclusive=start is None)
            if not len(page):
                return count
            count += count_payloads(page)
            start = page.next_id


@contextmanager
def happybase_at(thrift: str) -> Iterator[happybase.Connection]:
    """A connection of its own to the gateway."""
    host, _, port = thrift.rpartition(":")
    connection = happybase.Connection(host, int(port))
    try:
        yield connection
    finally:
        connection.close()


def connect(gateways: Gateways) -> happybase.Connection:
    """A connection to the first gateway."""
    host, _, port = gateways.thrift.rpartition(":")
    return happybase.Connection(host, int(port))


@contextmanager
def running_hbase(folder: Path, *, coprocessor: bool = False) -> Iterator[Gateways]:
    """A standalone HBase with Basalt's tables; with the coprocessor, whose jar `make jar` builds, only where that is what counts."""
    standalone = Standalone(folder / "hbase")
    try:
        gateways = standalone.start(heap_mb=HEAP_MB)
        install(gateways, *(("--jar", "packaged") if coprocessor else ("--no-coprocessor",)))
        yield gateways
    finally:
        standalone.stop()


def install(gateways: Gateways, *options: str) -> None:
    """Make Basalt's tables."""
    command = [sys.executable, "-m", "basalt.cli.main", "hbase", "install", *_settings(gateways), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def server_on(folder: Path, gateways: Gateways, *settings: str) -> Iterator[Process]:
    """A server on it; it leads once this returns."""
    given = [word for word in _settings(gateways) if word != "--set"]
    with processes.basalt(folder / "data", *settings, *given) as server:
        with basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE) as client:
            give_up_s = time.monotonic() + LEAD_S
            while True:
                try:
                    client.topics.list()
                    break
                except BasaltError:
                    if time.monotonic() > give_up_s:
                        raise
                    time.sleep(0.1)
        yield server


def _settings(gateways: Gateways) -> list[str]:
    values = {"store.kind": "hbase", "store.hbase.thrift": gateways.thrift, "store.hbase.thrift2": gateways.thrift2}
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
