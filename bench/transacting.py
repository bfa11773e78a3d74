"""Measures transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench import processes
from bench.figures import Figure
from bench.load import drive, request
from bench.setting_up import BATCH, RawRocks, cpu_us_per, create_topics, messages, one_shot_request, publish_request

ROUNDS = 5


def one_shots(folder: Path, quick: bool) -> Iterator[Figure]:
    """A transaction of one message in one request: its time with one client, its rate with eight."""
    calls = 1_000 if quick else 4_000
    raw = RawRocks(folder / "raw")
    with processes.basalt(folder / "data") as server, processes.trivial() as bare:
        create_topics(server, "one")
        body, empty = one_shot_request(1, "one"), request("/trivial", messages(1)[0])
        for port, data in ((server.port, body), (bare.port, empty)):
            drive(port, 8, 500, data)
        ours_ms, sums_ms, ours, theirs, cpu_us = [], [], [], [], []
        for _ in range(ROUNDS):
            ours_ms.append(drive(server.port, 1, calls // 4, body).p50_ms)
            sums_ms.append(raw.p50_ms(calls // 4) + drive(bare.port, 1, calls // 4, empty).p50_ms)
            before_s = server.cpu_s()
            ours.append(drive(server.port, 8, calls, body).per_second)
            cpu_us.append(cpu_us_per(server, before_s, calls))
            theirs.append(drive(bare.port, 8, calls, empty).per_second)
        yield Figure(
            "one-shot transaction, p50",
            median(ours_ms),
            "ms",
            "ms: synced put + trivial call",
            median(sums_ms),
            1.5,
            at_most=True,
        )
        yield Figure(
            "one-shot transactions, 8 clients", median(ours), "tx/s", "calls/s of a trivial route", median(theirs), 0.4,
            cpu_us=median(cpu_us),
        )  # fmt: skip
    raw.close()


def batches(folder: Path, quick: bool) -> Iterator[Figure]:
    """500 messages per transaction, against publishing them without one."""
    requests = 100 if quick else 400
    with processes.basalt(folder / "data") as server:
        create_topics(server, "plain", "tx")
        plain, under = publish_request("plain", BATCH), one_shot_request(BATCH, "tx")
        ours, theirs, cpu_us = [], [], []
        for _ in range(ROUNDS):
            theirs.append(drive(server.port, 4, requests, plain).per_second * BATCH)
            before_s = server.cpu_s()
            ours.append(drive(server.port, 4, requests, under).per_second * BATCH)
            cpu_us.append(cpu_us_per(server, before_s, requests * BATCH))
        yield Figure(
            "500 messages per transaction", median(ours), "msg/s", "msg/s published plainly", median(theirs), 0.8,
            cpu_us=median(cpu_us),
        )  # fmt: skip
