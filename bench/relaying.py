"""Measures the way through an SQL outbox, against publishing without one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import basalt
from basalt.outbox import Outbox, Relay
from bench import processes
from bench.figures import Figure
from bench.setting_up import NAMESPACE, create_topics, messages

ROUNDS = 3
BATCH = 500  # a relay's batch, and a publish's


def relay(folder: Path, quick: bool) -> Iterator[Figure]:
    """Messages per second from a full SQLite outbox into a topic, against plain publishes of as many."""
    count = BATCH * (10 if quick else 40)
    payloads = messages(count)
    with processes.basalt(folder / "data") as server:
        create_topics(server, "relayed", "plain")
        outbox = Outbox(lambda: sqlite3.connect(folder / "outbox.db"), name="bench", namespace=NAMESPACE)
        outbox.create_table()
        ours, theirs = [], []
        with basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE) as client:
            relaying = Relay(outbox, client, rows_max=BATCH)
            relaying.run_once()
            for _ in range(ROUNDS):
                with sqlite3.connect(folder / "outbox.db") as connection:
                    outbox.publish(connection, "relayed", payloads)
                began_s = perf_counter()
                while relaying.run_once():
                    pass
                ours.append(count / (perf_counter() - began_s))
                began_s = perf_counter()
                for start in range(0, count, BATCH):
                    client.topic("plain").publish(payloads[start : start + BATCH])
                theirs.append(count / (perf_counter() - began_s))
            relaying.close()
    yield Figure("outbox relay, batches of 500", median(ours), "msg/s", "msg/s of plain publishes", median(theirs), 0.1)
