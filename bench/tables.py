"""Measures a transaction that changes a row and publishes a message."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs.avro import encode_work
from basalt_engine.cells.names import change_key
from basalt_engine.keys import table_prefix
from bench import processes
from bench.figures import Figure
from bench.load import Connection, Load, drive, request
from bench.processes import Process
from bench.setting_up import NAMESPACE, RawRocks, cpu_us_per, create_topics, messages, one_shot_request

ROUNDS = 5
TABLE, TOPIC = "state", "events"
TABLE_PATH = f"/v1/namespaces/{NAMESPACE}/tables/{TABLE}"
TRANSACTIONS_PATH = "/v1/transactions"
CALLS = 4  # begin, changes, write, commit: what `client.transaction()` sends
JSON = "application/json"
VALUE = b64encode(os.urandom(100)).decode()

_rows = itertools.count()


def row_and_message(folder: Path, quick: bool) -> Iterator[Figure]:
    """Transactions that change one row and publish one message, as the client sends them; each a row of its own."""
    count = 200 if quick else 1_500
    raw = RawRocks(folder / "raw")
    with processes.basalt(folder / "data") as server, processes.trivial() as bare:
        create_topics(server, TOPIC)
        drive(server.port, 1, 1, request(TABLE_PATH, b"", JSON, "PUT"))
        one_shot, empty = one_shot_request(1, TOPIC), request("/trivial", messages(1)[0])
        drive(server.port, 8, 500, one_shot)
        drive(bare.port, 8, 500, empty)
        transact(server, 8, 50)
        alone_ms, sums_ms, rates, one_shots, raw_rates, cpu_us = [], [], [], [], [], []
        for _ in range(ROUNDS):
            alone_ms.append(transact(server, 1, count // 4).p50_ms)
            sums_ms.append(CALLS * (raw.p50_ms(count // 4) + drive(bare.port, 1, count // 4, empty).p50_ms))
            before_s = server.cpu_s()
            rates.append(transact(server, 8, count).per_second)
            cpu_us.append(cpu_us_per(server, before_s, count))
            raw_rates.append(raw.per_second(count // 4, 2) / 2)
            one_shots.append(drive(server.port, 8, count, one_shot).per_second)
        yield Figure(
            "row and message in a transaction, p50", median(alone_ms), "ms",
            f"ms: {CALLS} x (synced put + trivial call)", median(sums_ms), 2.5, at_most=True,
        )  # fmt: skip
        yield Figure(
            "row and message in a transaction, 8 clients", median(rates), "tx/s", "one-shot tx/s of a message alone",
            median(one_shots), 0.2, cpu_us=median(cpu_us),
        )  # fmt: skip
        yield Figure(
            "row and message in a transaction, 8 clients", median(rates), "tx/s", "raw synced batches/s of two rows",
            median(raw_rates), 0.3,
        )  # fmt: skip
    raw.close()


def transact(server: Process, clients: int, count: int) -> Load:
    """So many transactions over so many connections."""

    async def run() -> Load:
        loop = asyncio.get_running_loop()
        connections = [(await loop.create_connection(Connection, "127.0.0.1", server.port))[1] for _ in range(clients)]
        latencies_ms: list[float] = []
        left = itertools.count(count, -1)
        began = time.perf_counter()

        async def work(connection: Connection) -> None:
            while next(left) > 0:
                start = time.perf_counter()
                await _transaction(connection)
                latencies_ms.append((time.perf_counter() - start) * 1_000)

        await asyncio.gather(*map(work, connections))
        seconds = time.perf_counter() - began
        for connection in connections:
            connection.close()
        return Load(count, seconds, latencies_ms)

    return uvloop.run(run())


async def _transaction(connection: Connection) -> None:
    row = b"row %d" % next(_rows)
    answer = await connection.call(request(TRANSACTIONS_PATH, b'{"snapshot":false}', JSON))
    transaction: str = msgspec.json.decode(answer.split(b"\r\n\r\n", 1)[1])["id"]
    path = f"{TRANSACTIONS_PATH}/{transaction}"
    changes = {"changes": [change_key(table_prefix(NAMESPACE, TABLE), 1, row)], "externalWrites": False}
    await connection.call(request(f"{path}/changes", msgspec.json.encode(changes), JSON))
    put = {"row": row, "column": b"state", "value": VALUE}
    body = {"transaction": transaction, "generation": 1, "puts": [put]}
    await connection.call(request(f"{TABLE_PATH}/write", msgspec.json.encode(body), JSON))
    work = encode_work(Work(publish=[WorkPublish(NAMESPACE, TOPIC, messages(1))]))
    await connection.call(request(f"{path}/commit", work))
