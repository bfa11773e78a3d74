"""`ranges-spread`: ranges of one topic that a client reads through one, two and three servers which share an HBase, in turns of one run.

Processor time is that of the servers, of all three in each turn: what those cost that have nothing to do is in the yardstick, too. A server that does not own the
topic asks the owner for a permit with each range, so small ranges would gain nothing, and the client leaves them to the owner, wherever that is in its URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import basalt
from basalt.api.bodies.ranges import Split
from basalt.client.servers import SPREAD_BYTES_MIN
from bench.figures import Figure
from bench.load import drive
from bench.processes import Process
from bench.setting_up import BATCH, MESSAGE_BYTES, NAMESPACE, publish_request
from bench.sharing import MEMBERS, Sharers, hbase_with_coprocessor

ROUNDS = 5
READERS = 4  # threads, as tasks of Spark read side by side
TOPIC_BYTES = 64 << 20
TOPIC_BYTES_QUICK = 16 << 20
PASSES = 8  # over the topic in a turn: processor time is told in hundredths of a second
# Of payloads: an answer of Spark's source, the least that is spread, and one that is not.
RANGE_BYTES = (4 << 20, SPREAD_BYTES_MIN, 128 << 10)
COLUMNS = ("id", "value")
PER_CPU_MIN = 0.75  # a permit and the look at where the topic ends come on top
OWNER_MAX = {2: 0.7, 3: 0.55}  # of what the owner does when it reads all: its share, and the permits
SMALL_MIN = 0.9  # of what is not spread: each client asks another server once, which names the owner


class Cost(NamedTuple):
    """Seconds of processor of all servers, and of the topic's owner, for one turn."""

    all_s: float
    owner_s: float


def spreading(folder: Path, quick: bool) -> Iterator[Figure]:
    """Ranges of three sizes, read through 1, 2 and 3 servers."""
    with hbase_with_coprocessor(folder) as tables, ExitStack() as stack:
        # Bulk readers read what is in no memory any more.
        sharers = Sharers(stack, folder, tables("spread"), "messaging.cache_bytes_max=0")
        for _ in range(MEMBERS):
            sharers.add()
        owner = sharers.servers[1]  # the first one leads, and would do more than its ranges
        topic = sharers.topic("bulk", owner)
        total = (TOPIC_BYTES_QUICK if quick else TOPIC_BYTES) // MESSAGE_BYTES
        drive(owner.port, 1, total // BATCH, publish_request(topic, BATCH))
        asked = [owner, sharers.servers[2], sharers.servers[0]]
        with ThreadPoolExecutor(READERS) as threads:
            for range_bytes in RANGE_BYTES:
                splits = _splits(owner, topic, range_bytes)  # which the owner finds once, whoever reads
                costs: dict[int, list[Cost]] = {count: [] for count in range(1, MEMBERS + 1)}
                for turn in range((2 if quick else ROUNDS) + 1):
                    for count, found in costs.items():
                        urls = ",".join(f"http://127.0.0.1:{server.port}" for server in asked[count - 1 :: -1])
                        before = sharers.cpu_s(), owner.cpu_s()
                        _read(threads, urls, topic, splits, range_bytes)
                        if turn:
                            found.append(Cost(sharers.cpu_s() - before[0], owner.cpu_s() - before[1]))
                yield from _figures(range_bytes, PASSES * sum(split.messages for split in splits), costs)


def _splits(owner: Process, topic: str, range_bytes: int) -> list[Split]:
    """Cut all of the topic into ranges of about this size."""
    with basalt.connect(f"http://127.0.0.1:{owner.port}", namespace=NAMESPACE) as client:
        source = client.topic(topic)
        end = source.stable_end().id
        assert end is not None
        size_bytes = sum(split.bytes for split in source.splits(None, end, 1))
        return source.splits(None, end, max(1, size_bytes // range_bytes))


def _read(threads: ThreadPoolExecutor, urls: str, topic: str, splits: list[Split], size_bytes: int) -> None:
    """Read all of the topic so many times, in ranges of about this size side by side."""
    with basalt.connect(urls, namespace=NAMESPACE) as client:
        source = client.topic(topic)

        def read(turn: int, split: Split) -> None:
            after: bytes | None = split.after
            while True:
                page = source.range(after, split.through, columns=COLUMNS, turn=turn, size_bytes=size_bytes)
                if page.next_id is None:
                    return
                after = page.next_id

        for _ in range(PASSES):
            list(threads.map(read, range(len(splits)), splits))


def _figures(range_bytes: int, messages: int, costs: dict[int, list[Cost]]) -> Iterator[Figure]:
    alone = costs[1]
    title = f"ranges of {range_bytes >> 10:,} KiB through"
    per_cpu_s = {count: messages / median(each.all_s for each in found) for count, found in costs.items()}
    owner_us = {count: median(each.owner_s for each in found) / messages * 1e6 for count, found in costs.items()}
    is_spread = range_bytes >= SPREAD_BYTES_MIN
    for count in range(2, MEMBERS + 1):
        yield Figure(
            f"{title} {count} members, all servers", per_cpu_s[count], "msg/s of processor", "msg/s of processor, through 1",
            per_cpu_s[1], PER_CPU_MIN if is_spread else SMALL_MIN, cpu_us=1e6 / per_cpu_s[count], note=f"median of {len(alone)}",
        )  # fmt: skip
        if is_spread:
            yield Figure(
                f"{title} {count} members, the owner", owner_us[count], "us/msg", "us/msg, through 1", owner_us[1],
                OWNER_MAX[count], at_most=True, cpu_us=owner_us[count],
            )  # fmt: skip
