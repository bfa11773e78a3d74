"""Measures publishing: messages a second, the cost of each, and the memory that the server keeps for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench import processes
from bench.figures import Figure
from bench.load import drive, request, turns
from bench.setting_up import BATCH, RawRocks, cpu_us_per, create_topics, one_shot_request, path, publish_request

ROUNDS = 5


def batches(folder: Path, quick: bool) -> Iterator[Figure]:
    """500 x 1 KB per request, synced, against raw rows in synced batches of 500."""
    requests = 100 if quick else 400
    raw = RawRocks(folder / "raw")
    with processes.basalt(folder / "data") as server:
        create_topics(server, "one", "four")
        for topic, clients in (("one", 1), ("four", 4)):
            body = publish_request(topic, BATCH)
            drive(server.port, clients, 40, body)
            raw.per_second(40, BATCH)
            ours, theirs, cpu_us = [], [], []
            for _ in range(ROUNDS):
                theirs.append(raw.per_second(requests // 2, BATCH))
                before_s = server.cpu_s()
                load = drive(server.port, clients, requests, body)
                ours.append(load.per_second * BATCH)
                cpu_us.append(cpu_us_per(server, before_s, requests * BATCH))
            yield Figure(
                f"publish 500 x 1 KB, {clients} clients", median(ours), "msg/s", "raw synced rows/s", median(theirs), 0.8,
                cpu_us=median(cpu_us),
            )  # fmt: skip
    raw.close()


def singles(folder: Path, quick: bool) -> Iterator[Figure]:
    """64 clients that publish single messages, against the same clients on a trivial route."""
    calls = 4_000 if quick else 20_000
    with processes.basalt(folder / "data") as server, processes.trivial() as bare:
        create_topics(server, "single")
        body = publish_request("single", 1)
        ours, theirs, cpu_us = [], [], []
        drive(server.port, 64, 2_000, body)
        drive(bare.port, 64, 2_000, body)
        for _ in range(ROUNDS):
            theirs.append(drive(bare.port, 64, calls, body).per_second)
            before_s = server.cpu_s()
            ours.append(drive(server.port, 64, calls, body).per_second)
            cpu_us.append(cpu_us_per(server, before_s, calls))
        yield Figure(
            "publish 1 x 1 KB, 64 clients", median(ours), "msg/s", "calls/s of a trivial route", median(theirs), 0.6,
            cpu_us=median(cpu_us),
        )  # fmt: skip


def memory(folder: Path, quick: bool) -> Iterator[Figure]:
    """Resident memory after 1/2 and after all of 2 million messages, with a tail cache of 64 MiB."""
    total = 400_000 if quick else 2_000_000
    with processes.basalt(folder / "data", "messaging.cache_bytes_max=64MiB") as server:
        create_topics(server, "memory")
        body = publish_request("memory", BATCH)
        samples = []
        for _ in range(4):
            drive(server.port, 2, total // 4 // BATCH, body)
            samples.append(server.rss_mib())
        yield Figure(
            f"memory after {total:,} messages",
            samples[-1],
            "MiB",
            "MiB after the first half",
            samples[1],
            1.2,
            at_most=True,
        )


def topics(folder: Path, quick: bool) -> Iterator[Figure]:
    """Processor time per publish with 10 and with 10,000 topics, each publish to the next topic."""
    many, calls = (1_000, 4_000) if quick else (10_000, 30_000)
    with processes.basalt(folder / "data") as server:
        names = [f"topic-{number}" for number in range(many)]
        create_topics(server, *names)
        bodies = [publish_request(name, 1) for name in names]
        drive(server.port, 64, many, turns(bodies))
        few_us: list[float] = []
        many_us: list[float] = []
        for _ in range(ROUNDS):
            for count, found in ((10, few_us), (many, many_us)):
                before_s = server.cpu_s()
                drive(server.port, 64, calls // 3, turns(bodies[:count]))
                found.append(cpu_us_per(server, before_s, calls // 3))
        yield Figure(
            f"CPU per publish, {many:,} topics",
            median(many_us),
            "us",
            "us with 10 topics",
            median(few_us),
            1.2,
            at_most=True,
        )


def invalid(folder: Path, quick: bool) -> Iterator[Figure]:
    """Processor time per one-shot transaction with an empty and with a long invalid list."""
    entries, calls = (2_000, 2_000) if quick else (100_000, 8_000)
    with processes.basalt(folder / "data") as server:
        create_topics(server, "invalid")
        body = one_shot_request(1, "invalid")
        plain = publish_request("invalid", 1)
        found: dict[int, tuple[float, float]] = {}
        for count in (0, entries):
            if count:
                _make_invalid(server, count)
            per_call = []
            for data in (plain, body):
                drive(server.port, 16, 500, data)
                samples = []
                for _ in range(ROUNDS):
                    before_s = server.cpu_s()
                    drive(server.port, 16, calls // 2, data)
                    samples.append(cpu_us_per(server, before_s, calls // 2))
                per_call.append(median(samples))
            found[count] = (per_call[0], per_call[1])
        for index, what in enumerate(("publish", "one-shot transaction")):
            yield Figure(
                f"CPU per {what}, {entries:,} invalid", found[entries][index], "us", "us with none", found[0][index], 1.2,
                at_most=True,
            )  # fmt: skip


def _make_invalid(server: processes.Process, count: int) -> None:
    """Fill the invalid list, through the API: begin, then invalidate, several at a time."""
    import http.client
    import json
    from concurrent.futures import ThreadPoolExecutor

    def some(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        for _ in range(number):
            connection.request(
                "POST", "/v1/transactions", json.dumps({"snapshot": False}), {"content-type": "application/json"}
            )
            began = json.loads(connection.getresponse().read())
            connection.request("POST", f"/v1/transactions/{began['id']}/invalidate")
            connection.getresponse().read()
        connection.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(some, [count // 8] * 8))


def start(folder: Path, quick: bool) -> Iterator[Figure]:
    """From exec to ready with a million messages in the store, against 2 s."""
    total = 100_000 if quick else 1_000_000
    with processes.basalt(folder / "data") as server:
        create_topics(server, "start")
        body = publish_request("start", BATCH)
        drive(server.port, 2, total // BATCH, body)
    with processes.basalt(folder / "data") as server:
        drive(server.port, 1, 1, request(path("start"), b"", method="GET"))
        yield Figure(f"start with {total:,} messages", server.start_s, "s", "s", 2.0, 1.0, at_most=True)
