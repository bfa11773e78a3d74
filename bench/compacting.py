"""What the coprocessor costs HBase's own work: compactions with it and without it, over the same rows, turn by turn.

Two tables in one region server on HDFS, in a Java process of their own: one has the coprocessor, one has not. It knows
10,000 topics and 100,000 failed writers, none of which wrote these rows, so that it asks its questions of every row and
keeps them all: the case in which it can only cost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from basalt_engine.keys import TopicKeys
from basalt_engine.metadata import METADATA, TopicMetadata
from basalt_engine.records import encode
from basalt_engine.region_snapshot import RegionSnapshot
from basalt_engine.retention import POINTERS_PER_MS, OnInvalid
from basalt_engine.system import VALUE, entry_key, seal
from bench.figures import Figure
from tests.hbase.bare_installation import BareInstallation
from tests.hbase.java_gateway import compiled, java_process
from tests.hbase.mini_cluster import MiniCluster, NewTable, running_cluster, wait_until

ROUNDS = 7
TOPICS, INVALID = 10_000, 100_000
TTL_MS = 7 * 86_400_000
REFRESH_MS_MAX, KNOWLEDGE_MIB_MAX = 200, 50
REFRESHES, REFRESHES_COLD = 8, 3  # of all topics; the first ones open connections and load classes
WRITE_BYTES = 4 << 20  # of one call to Java
HEAP_MIB = 3_000
MIB = 1 << 20
OPTIMISE = "-XX:TieredStopAtLevel=4"  # as region servers run; tests do without the second compiler
KINDS = (("one message of 1 KB", 1, 200_000), ("500 messages of 1 KB", 500, 600))


def compaction(folder: Path, quick: bool) -> Iterator[Figure]:
    """Rows per second of major compactions; then what a region server's refresh takes, and what it keeps in memory."""
    body = snapshot().encode()
    with running_cluster(compiled(), folder, OPTIMISE, heap_mib_max=HEAP_MIB) as cluster:
        for name, messages, rows in KINDS:
            with BareInstallation(cluster, f"with{messages}") as installation:
                longest_ms = describe(installation, body)
                yield compared(cluster, installation, name, messages, rows // 10 if quick else rows)
        yield Figure(
            f"refresh of {TOPICS:,} topics and {INVALID:,} failed writers, longest once warm", longest_ms, "ms", "ms",
            REFRESH_MS_MAX, 1.0, at_most=True,
        )  # fmt: skip
    with java_process(compiled(), folder / "knowledge.log", HEAP_MIB) as gateway:
        taken = gateway.twins().knowledgeBytes(TOPICS, body) / MIB
        yield Figure("what a region server knows of them", taken, "MiB", "MiB", KNOWLEDGE_MIB_MAX, 1.0, at_most=True)


def compared(cluster: MiniCluster, installation: BareInstallation, name: str, messages: int, rows: int) -> Figure:
    """The same rows in a table with the coprocessor and in one without, compacted in turn."""
    tables = (installation.table("message"), f"without{messages}.message")
    cluster.create(NewTable(tables[1], splits=[bytes([1])]))
    for table in tables:
        fill(cluster, table, messages, rows)
    before = cluster.metrics().get("rowsKept", 0)
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            cluster.compact(tables[which], major=True)
            if number:  # the first one warms up
                taken[which].append(time.perf_counter() - start)
    kept = cluster.metrics()["rowsKept"] - before
    assert kept >= rows * (ROUNDS + 1), kept
    return Figure(
        f"compaction of rows of {name}, with the coprocessor", rows / median(taken[0]), "rows/s", "rows/s without it",
        rows / median(taken[1]), 0.95,
    )  # fmt: skip


def fill(cluster: MiniCluster, table: str, messages: int, rows: int) -> None:
    """Rows of the last topics by name, flushed into files."""
    batch = encode([os.urandom(1_024) for _ in range(messages)])
    now_ms = time.time_ns() // 1_000_000
    writer = now_ms * POINTERS_PER_MS
    keys = [TopicKeys(f"bench:topic-{number}:".encode(), 1, 2) for number in range(100)]
    some: dict[bytes, dict[bytes, bytes | None]] = {}
    for number in range(rows):
        key = keys[number % len(keys)].message_key(now_ms + number // len(keys), messages)
        some[key] = {b"p": batch, b"t": (writer + number).to_bytes(8, "big")}
        if len(some) * len(batch) >= WRITE_BYTES or number == rows - 1:
            cluster.write(table, some)
            some = {}
    cluster.flush(table)


def describe(installation: BareInstallation, body: bytes) -> int:
    """Topics and a snapshot, and region servers that have read them; the longest refresh once warm, in milliseconds."""
    cluster = installation.cluster
    cluster.write(installation.table("system"), {entry_key("snapshot", "latest"): {VALUE: seal(body)}})
    longest_ms = 0
    for number in range(REFRESHES):
        value = TopicMetadata(1, TTL_MS + number, OnInvalid.DROP, 1, 1, 0, 0, {}).encode()
        rows = {f"bench:topic-{topic}:".encode(): {METADATA: value} for topic in range(TOPICS)}
        cluster.write(installation.table("metadata"), dict(rows))  # all of them are read again, for all have changed
        took_ms = refreshed(cluster)
        longest_ms = max(longest_ms, took_ms) if number >= REFRESHES_COLD else 0
    return longest_ms


def refreshed(cluster: MiniCluster) -> int:
    """Wait until what was written is known; the longest refresh meanwhile, in milliseconds."""
    until, longest_ms = cluster.metrics().get("refreshes", 0) + 20, 0

    def is_known() -> bool:
        nonlocal longest_ms
        metrics = cluster.metrics()  # a histogram begins anew each time it is read
        longest_ms = max(longest_ms, metrics.get("refreshMs.max", 0))
        return metrics.get("refreshes", 0) >= until

    wait_until(is_known, "it was read")
    return longest_ms


def snapshot() -> RegionSnapshot:
    """One with a long list of failed writers, each a second after the one before, the last one an hour ago."""
    now = time.time_ns() // 1_000_000 * POINTERS_PER_MS
    second = 1_000 * POINTERS_PER_MS
    invalid = tuple(now - (INVALID + 3_600 - number) * second for number in range(INVALID))
    return RegionSnapshot(1, 1, now // POINTERS_PER_MS, now, now, now, now, TTL_MS, (), invalid)
