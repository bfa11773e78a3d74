"""Measures the planning of a reader's batches: from what the server remembers of the topic, against reading it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import basalt
from basalt.client.blocking.client import Topic
from bench import processes
from bench.figures import Figure
from bench.load import drive
from bench.setting_up import BATCH, NAMESPACE, create_topics, publish_request

ROWS = 10_000
OTHER_ROWS = 7_777  # so that batches end elsewhere than those from which the server learnt
SPLITS = 16


def ranges(folder: Path, quick: bool) -> Iterator[Figure]:
    """Advancing by 10,000 messages through a topic that was never read, and through one that was; and its splits."""
    total = 100_000 if quick else 1_000_000
    with processes.basalt(folder / "data", "messaging.cache_bytes_max=0") as server:
        create_topics(server, "full")
        drive(server.port, 2, total // BATCH, publish_request("full", BATCH))
        with basalt.connect(f"http://127.0.0.1:{server.port}", namespace=NAMESPACE) as client:
            topic = client.topic("full")
            unknown_s = advanced(topic, ROWS, total)
            known_s = advanced(topic, OTHER_ROWS, total)
            yield Figure(
                f"advances by {OTHER_ROWS:,} through {total:,} known messages", total / known_s, "messages/s",
                "messages/s never read", total / unknown_s, 2.0,
            )  # fmt: skip
            end = topic.stable_end().id
            assert end is not None
            start_s = time.perf_counter()
            whole = topic.advance(None, through=end)
            counted_s = time.perf_counter() - start_s
            assert (whole.messages, whole.at_end) == (total, True)
            yield Figure(
                f"counting {total:,} known messages", total / counted_s, "messages/s", "messages/s never read",
                total / unknown_s, 20.0,
            )  # fmt: skip
            start_s = time.perf_counter()
            parts = topic.splits(None, end, SPLITS)
            split_s = time.perf_counter() - start_s
            assert sum(part.messages for part in parts) == total
            yield Figure(
                f"{SPLITS} splits of {total:,} known messages", split_s * 1_000, "ms", "ms to read them",
                unknown_s * 1_000, 0.5, at_most=True,
            )  # fmt: skip


def advanced(topic: Topic, rows_max: int, total: int) -> float:
    """Seconds that it takes to advance through the whole topic."""
    at, rows, start_s = None, 0, time.perf_counter()
    while True:
        found = topic.advance(at, messages_max=rows_max)
        at, rows = found.through, rows + found.messages
        if found.at_end:
            break
    assert rows == total, (rows, total)
    return time.perf_counter() - start_s
