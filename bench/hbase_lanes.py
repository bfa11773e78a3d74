"""The price of eight lanes of topics on HBase, in processor time, rate and p99: two servers with tables of their own, in turns.

Each publishes messages of 1 KB, one a call, by few and many callers, to one topic and to a hundred. With one topic all goes through one
lane of the eight. docs/decisions/0079-eight-topic-lanes.md has what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure
from bench.load import drive, turns
from bench.on_hbase import install, running_hbase, server_on
from bench.processes import Process, cpu_s_of
from bench.setting_up import create_topics, one_shot_request, publish_request
from bench.sharing import percentile
from deploy.hbase.standalone import MASTER, THRIFT2, Standalone

LANES = (1, 8)
TOPICS = (1, 100)
CALLERS = (1, 8, 64)
PAIRS = 7
WARM_UP_CALLS = 4_000  # of each server: Java compiles what it does often, and each topic is known then
CALLS, CALLS_OF_EACH = 600, 20  # of a round: so many, and so many of each caller if that is more
CPU_MAX, RATE_MIN, P99_MAX = 2.0, 0.75, 1.5


class Round(NamedTuple):
    """One server's turn: processor microseconds a call of it, and of HBase with its gateway; calls a second; p99 in milliseconds."""

    own_us: float
    hbase_us: float
    per_second: float
    p99_ms: float


def topic_lanes(folder: Path, quick: bool) -> Iterator[Figure]:
    """Eight lanes beside one: publishes, and one-shot transactions of one message, by few and many callers."""
    topics = [f"many-{number}" for number in range(max(TOPICS))]
    with running_hbase(folder) as gateways:
        pids = Standalone(folder / "hbase").pids()
        hbase = pids[MASTER], pids[THRIFT2]
        prefixes = [f"store.hbase.prefix=lanes{lanes}" for lanes in LANES]
        for prefix in prefixes:
            install(gateways, "--no-coprocessor", "--set", prefix)
        one, eight = (f"messaging.topic_lanes={lanes}" for lanes in LANES)
        with (
            server_on(folder / "one", gateways, prefixes[0], one) as first,
            server_on(folder / "eight", gateways, prefixes[1], eight) as second,
        ):
            servers = first, second
            plain = [publish_request(topic, 1) for topic in topics]
            for server in servers:
                create_topics(server, *topics)
                drive(server.port, 16, WARM_UP_CALLS // (8 if quick else 1), turns(plain))
            for number, callers in product(TOPICS, CALLERS):
                yield from _compared(servers, hbase, "publish", plain[:number], callers, quick)
            once = [one_shot_request(1, topic) for topic in topics]
            for callers in CALLERS:
                yield from _compared(servers, hbase, "one-shot", once, callers, quick)


def _compared(
    servers: Sequence[Process], hbase: Sequence[int], what: str, requests: Sequence[bytes], callers: int, quick: bool
) -> Iterator[Figure]:
    calls = max(CALLS, callers * CALLS_OF_EACH) // (4 if quick else 1)
    pairs: list[tuple[Round, Round]] = []
    for number in range(3 if quick else PAIRS):
        order = servers if number % 2 else servers[::-1]  # who comes second finds a busier HBase
        rounds = {server.pid: _round(server, hbase, requests, callers, calls) for server in order}
        pairs.append((rounds[servers[0].pid], rounds[servers[1].pid]))
    name = f"HBase, 8 lanes: {what}, {len(requests)} topics, {callers} callers"
    for column, unit, target, at_most in (
        ("own_us", "CPU us", CPU_MAX, True),
        ("hbase_us", "CPU us of HBase", CPU_MAX, True),
        ("per_second", "calls/s", RATE_MIN, False),
        ("p99_ms", "p99 ms", P99_MAX, True),
    ):
        values = [(getattr(one, column), getattr(eight, column)) for one, eight in pairs]
        one, eight = sorted(values, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
        yield Figure(name, eight, unit, f"{unit}, 1 lane", one, target, at_most)


def _round(server: Process, hbase: Sequence[int], requests: Sequence[bytes], callers: int, calls: int) -> Round:
    before_s, hbase_s = server.cpu_s(), sum(map(cpu_s_of, hbase))
    load = drive(server.port, callers, calls, turns(requests))
    own_us = (server.cpu_s() - before_s) * 1e6 / calls
    hbase_us = (sum(map(cpu_s_of, hbase)) - hbase_s) * 1e6 / calls
    return Round(own_us, hbase_us, load.per_second, percentile(load.latencies_ms, 99))
