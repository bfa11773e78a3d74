"""The coprocessor's cost in HBase's own work: compactions with it and without it, over the same rows, turn by turn.

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
from typing import NamedTuple

from basalt_engine.cells.keys import TableKeys
from basalt_engine.keys import TopicKeys, table_prefix
from basalt_engine.metadata import METADATA, TopicMetadata
from basalt_engine.records import encode
from basalt_engine.retention import OnInvalid
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.hbase.regions import RegionSnapshot
from basalt_engine.system import VALUE, entry_key, seal
from bench.figures import Figure
from tests.hbase.bare_installation import BareInstallation
from tests.hbase.java_gateway import compiled, java_process
from tests.hbase.mini_cluster import MiniCluster, NewTable, running_cluster, wait_until

ROUNDS = 7
TOPICS, TABLES, INVALID = 10_000, 1_000, 100_000  # a tenth of the topics are tables
OLDER = 3_600_000 * POINTERS_PER_MS  # an hour, between a cell's two versions
TTL_MS = 7 * 86_400_000
REFRESH_MS_MAX, KNOWLEDGE_MIB_MAX = 200, 50
REFRESHES, REFRESHES_COLD = 8, 3  # of all topics; the first ones open connections and load classes
WRITE_BYTES = 4 << 20  # of one call to Java
HEAP_MIB = 3_000
MIB = 1 << 20
OPTIMISE = "-XX:TieredStopAtLevel=4"  # as region servers run; tests do without the second compiler


class Kind(NamedTuple):
    """The rows of one comparison."""

    name: str
    table: str
    rows: int
    value_bytes: int
    messages: int = 1  # in a row


KINDS = (
    Kind("of one message of 1 KB", "message", 200_000, 1_024),
    Kind("of 500 messages of 1 KB", "message", 600, 1_024, 500),
    Kind("of cells of 1 KB", "cell", 200_000, 1_024),
)


def compaction(folder: Path, quick: bool) -> Iterator[Figure]:
    """Rows per second of major compactions; then what a region server's refresh takes, and what it keeps in memory."""
    body = snapshot().encode()
    with running_cluster(compiled(), folder, OPTIMISE, heap_mib_max=HEAP_MIB) as cluster:
        for number, kind in enumerate(KINDS):
            with BareInstallation(cluster, f"with{number}") as installation:
                longest_ms = describe(installation, body)
                yield compared(cluster, installation, kind._replace(rows=kind.rows // 10) if quick else kind)
        yield Figure(
            f"refresh of {TOPICS:,} topics and {INVALID:,} failed writers, longest once warm", longest_ms, "ms", "ms",
            REFRESH_MS_MAX, 1.0, at_most=True,
        )  # fmt: skip
    with java_process(compiled(), folder / "knowledge.log", HEAP_MIB) as gateway:
        taken = gateway.twins().knowledgeBytes(TOPICS, body) / MIB
        yield Figure("what a region server knows of them", taken, "MiB", "MiB", KNOWLEDGE_MIB_MAX, 1.0, at_most=True)


def compared(cluster: MiniCluster, installation: BareInstallation, kind: Kind) -> Figure:
    """The same rows in a table with the coprocessor and in one without, compacted in turn."""
    tables = (installation.table(kind.table), f"{installation.prefix}out.{kind.table}")
    cluster.create(NewTable(tables[1], splits=[bytes([1])]))
    for table in tables:
        fill(cluster, table, kind)
    before = cluster.metrics().get("rowsKept", 0)
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            cluster.compact(tables[which], major=True)
            if number:  # the first one warms up
                taken[which].append(time.perf_counter() - start)
    kept = cluster.metrics()["rowsKept"] - before
    assert kept >= kind.rows * (ROUNDS + 1), kept
    return Figure(
        f"compaction of rows {kind.name}, with the coprocessor", kind.rows / median(taken[0]), "rows/s",
        "rows/s without it", kind.rows / median(taken[1]), 0.95,
    )  # fmt: skip


def fill(cluster: MiniCluster, table: str, kind: Kind) -> None:
    """Rows of the last topics or tables by name, flushed into files."""
    some: dict[bytes, dict[bytes, bytes | None]] = {}
    size = 0
    for key, columns in cells(kind) if kind.table == "cell" else messages(kind):
        some[key] = columns
        size += sum(len(value or b"") for value in columns.values())
        if size >= WRITE_BYTES:
            cluster.write(table, some)
            some, size = {}, 0
    cluster.write(table, some)
    cluster.flush(table)


def messages(kind: Kind) -> Iterator[tuple[bytes, dict[bytes, bytes | None]]]:
    """Message rows of writers one after the other."""
    batch = encode([os.urandom(kind.value_bytes) for _ in range(kind.messages)])
    now_ms = time.time_ns() // 1_000_000
    writer = now_ms * POINTERS_PER_MS
    keys = [TopicKeys(f"bench:topic-{number}:".encode(), 1, 2) for number in range(100)]
    for number in range(kind.rows):
        key = keys[number % len(keys)].message_key(now_ms + number // len(keys), kind.messages)
        yield key, {b"p": batch, b"t": (writer + number).to_bytes(8, "big")}


def cells(kind: Kind) -> Iterator[tuple[bytes, dict[bytes, bytes | None]]]:
    """Two versions of each cell, the newer one too young for some reader, so that both stay."""
    value = b"\1" + os.urandom(kind.value_bytes)
    writer = time.time_ns() // 1_000_000 * POINTERS_PER_MS
    keys = [TableKeys(table_prefix("bench", f"topic-{number}"), 1, 2) for number in range(100)]
    for number in range(kind.rows):
        row, version = divmod(number, 2)
        key = keys[row % len(keys)].cell_key(b"account-%09d" % row, b"balance", writer - row - version * OLDER)
        yield key, {b"c": value}


def describe(installation: BareInstallation, body: bytes) -> int:
    """Topics and a snapshot, and region servers that have read them; the longest refresh once warm, in milliseconds."""
    cluster = installation.cluster
    cluster.write(installation.table("system"), {entry_key("snapshot", "latest"): {VALUE: seal(body)}})
    longest_ms = 0
    for number in range(REFRESHES):
        value = TopicMetadata(1, TTL_MS + number, OnInvalid.DROP, 1, 1, 0, 0, {}).encode()
        rows = {f"bench:topic-{topic}:".encode(): {METADATA: value} for topic in range(TOPICS - TABLES)}
        rows |= {table_prefix("bench", f"topic-{number}"): {METADATA: value} for number in range(TABLES)}
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
    bound = now - OLDER // 2  # some reader is half an hour old
    return RegionSnapshot(1, 1, now // POINTERS_PER_MS, now, now, now, bound, TTL_MS, (), invalid)
