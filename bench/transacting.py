"""Measures transactions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import parse_principal
from basalt.http.app import ANYBODY, Frame, build_app
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.stores.memory import MemoryStore
from bench import processes
from bench.figures import Figure
from bench.load import drive, request
from bench.setting_up import BATCH, RawRocks, cpu_us_per, create_topics, messages, one_shot_request, publish_request

ROUNDS = 5
OWNED_ROUNDS = 15  # of short loops: what is compared differs by little


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


async def _called(app: Frame, path: str, body: object) -> Any:
    """The answer to a POST, in this process."""
    sent, parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}], list[bytes]()
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "http_version": "1.1",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")], "client": ("127.0.0.1", 1),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return sent.pop()

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    answer = b"".join(parts)
    return json.loads(answer) if answer else None


async def _transact(app: Frame, count: int) -> float:
    """Microseconds of processor time of one transaction: begin, store, commit."""
    began_s = time.process_time()
    for _ in range(count):
        begun = await _called(app, "/v1/transactions", {"snapshot": False})
        stored = {"transactionWritePointer": begun["writePointer"], "messages": ["message"]}
        await _called(app, "/v1/namespaces/bench/topics/owned/store", stored)
        ended = await _called(app, f"/v1/transactions/{begun['id']}/commit", {})
        assert ended["state"] == "COMMITTED", ended
    return (time.process_time() - began_s) / count * 1e6


async def _one_shots(app: Frame, count: int) -> float:
    """Microseconds of processor time of a one-shot transaction."""
    work = {"work": {"publish": [{"namespace": "bench", "topic": "owned", "messages": ["message"]}]}}
    began_s = time.process_time()
    for _ in range(count):
        assert (await _called(app, "/v1/transactions", work))["state"] == "COMMITTED"
    return (time.process_time() - began_s) / count * 1e6


async def _compare_owners(count: int) -> dict[str, tuple[list[float], list[float]]]:
    services = await open_services(Settings(), None, store=MemoryStore())
    await services.topics.create(services.topics.title("bench", "owned"), {})
    principal = parse_principal("token:etl")
    grants = [
        parse_grant("token:etl", ["read", "write"], "namespace:bench"),
        parse_grant("token:etl", ["transact"], "cluster"),
    ]
    owned, unowned = build_app(services, Caller(principal, Policy(grants))), build_app(services, ANYBODY)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name, run in (("begin, store, commit", _transact), ("one-shot", _one_shots)):
        took = found[name] = ([], [])
        for number in range(OWNED_ROUNDS):
            order = ((owned, took[0]), (unowned, took[1]))
            for app, into in order if number % 2 else reversed(order):
                into.append(await run(app, count))
    await services.close()
    return found


def owners(_folder: Path, quick: bool) -> Iterator[Figure]:
    """What it costs that a transaction belongs to somebody: its calls are judged, and the log says whose it is."""
    for name, (ours, theirs) in asyncio.run(_compare_owners(100 if quick else 400)).items():
        yield Figure(  # the fastest rounds: whatever else the machine does only adds to them
            f"{name} with an owner", min(ours), "us", "us of processor without", min(theirs), 1.15, at_most=True
        )
