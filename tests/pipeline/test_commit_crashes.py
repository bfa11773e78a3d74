"""Seeded runs of a stream that is killed everywhere, with its zombies resumed: each row is published once, in order.

Spark's part is played here by its rules: a log of offsets and one of commits, tasks that are tried three times, an abort
after a commit that failed or seemed to, a new run that starts at the last batch without a commit. The sink and the server
are real. Each planted fault of the sink must break some of these seeds. With Spark itself: tests/spark/test_crash_table.py.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator

import pyarrow as pa
import pytest

import basalt
from basalt.client import Client
from basalt.errors import BasaltError, SessionNotFoundError, UnavailableError
from basalt_spark.connection import QualifiedTopic
from basalt_spark.sink import commit as sink_commit
from basalt_spark.sink.commit import Segment, SegmentStored, SinkWork
from basalt_spark.sink.segment_writer import SegmentWriter, storing
from tests.budgets import SINK_SEEDS as SEEDS
from tests.pipeline.sink_server import TOPIC, VALUE_ONLY, options, payloads

BATCHES = 4
ROWS_MAX = 7  # in a batch
PARTITIONS = 2
ATTEMPTS = 3  # of a task
STEPS_MAX = 120  # with faults; then the stream is left to finish


class Died(Exception):
    """A worker was killed."""


class Sink:
    """The sink as it is."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def write(self, work: SinkWork, partition: int, batches: Iterator[pa.RecordBatch]) -> SegmentStored:
        store = storing(self.client, QualifiedTopic("default", TOPIC), "default")
        return SegmentWriter(VALUE_ONLY, lambda: self.join(work), store, 1).write(batches, partition, work)

    def join(self, work: SinkWork) -> Segment | None:
        joined = sink_commit.named(self.client, work, options().timeout_ms)
        return None if joined.committed_before else Segment(joined.id, joined.segment())

    def commit(self, messages: list[SegmentStored]) -> None:
        sink_commit.commit(self.client, messages, options())

    def abort(self, messages: list[SegmentStored]) -> None:
        sink_commit.abort(self.client, messages)

    def version(self, app_id: str = "etl") -> int | None:
        try:
            return self.client.sessions.get(app_id).version
        except SessionNotFoundError:
            return None


class NoLedger(Sink):
    def join(self, work: SinkWork) -> Segment | None:
        return super().join(SinkWork(f"etl-{work.run}", work.run, work.version, work.counter_owner))


class EqualForAtMost(Sink):
    def join(self, work: SinkWork) -> Segment | None:
        joined = super().join(work)
        if joined is None and self.version() != work.version:
            begun = self.client.transactions.begin(kind="long")
            return Segment(begun.id, begun.write_pointer)
        return joined


class PublishAllSegments(Sink):
    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.seen: list[Segment] = []

    def join(self, work: SinkWork) -> Segment | None:
        joined = super().join(work)
        self.seen += [joined] if joined else []
        return joined

    def commit(self, messages: list[SegmentStored]) -> None:
        found = sink_commit.verdict(messages)
        if not found.done and found.transaction is not None:
            every = [segment.write_pointer for segment in self.seen if segment.transaction == found.transaction]
            self.client.transactions.commit_segments(found.transaction, every, [])


class AbortUndoesACommit(Sink):
    def abort(self, messages: list[SegmentStored]) -> None:
        super().abort(messages)
        if messages and messages[0].work is not None and self.version() == messages[0].work.version:
            self.client.sessions.delete("etl")


class NoRunFence(Sink):
    """The counter owner is looked at when a task begins, and written when the driver ends: whoever is in between is not fenced."""

    def join(self, work: SinkWork) -> Segment | None:
        known = self.version()
        if known is not None and work.version <= known:
            return None
        return super().join(SinkWork(f"etl-{work.run}", work.run, work.version, work.counter_owner))

    def commit(self, messages: list[SegmentStored]) -> None:
        super().commit(messages)
        if messages[0].work is not None and not messages[0].committed_before:
            joined = sink_commit.named(self.client, messages[0].work, options().timeout_ms)
            if not joined.committed_before:
                self.client.transactions.commit_segments(joined.id, [], [])


class Stream:
    """A streaming query as Spark runs it, on a source whose batches are always the same."""

    def __init__(self, client: Client, sink: Sink, seed: int) -> None:
        self.client, self.sink, self.random = client, sink, random.Random(seed)
        self.batches = [
            [b"%d.%d" % (batch, row) for row in range(self.random.randint(0, ROWS_MAX))] for batch in range(BATCHES)
        ]
        self.committed: set[int] = set()  # the commit log
        self.planned = 0  # the newest batch in the log of offsets
        self.runs = 0
        self.faults = True

    def rows(self) -> list[bytes]:
        return [row for batch in self.batches for row in batch]

    def chance(self, part: float) -> bool:
        return self.faults and self.random.random() < part

    def run(self) -> Generator[None]:
        """One run of the query, from the checkpoint until the source is at its end, or something fails."""
        self.runs += 1
        run = f"q/run-{self.runs}"
        number = self.planned if self.planned not in self.committed else self.planned + 1
        while number < BATCHES:
            self.planned = max(self.planned, number)
            yield
            messages = yield from self.tasks(SinkWork("etl", run, number, "query q"))
            if len(messages) < PARTITIONS or not self.commit(messages):
                self.sink.abort(messages)
                return
            yield  # here the commit is made, and the commit log does not know of it
            self.committed.add(number)
            number += 1

    def tasks(self, work: SinkWork) -> Generator[None, None, list[SegmentStored]]:
        messages = []
        for partition in self.random.sample(range(PARTITIONS), PARTITIONS):
            for _ in range(ATTEMPTS):
                yield
                try:
                    messages.append(self.attempt(work, partition))
                except (Died, BasaltError):
                    continue
                if self.chance(0.2):  # a slow twin of the attempt that won, of which nobody hears
                    self.twin(work, partition)
                break
        return messages

    def attempt(self, work: SinkWork, partition: int) -> SegmentStored:
        return self.sink.write(work, partition, self.read(work.version, partition))

    def twin(self, work: SinkWork, partition: int) -> None:
        try:
            self.attempt(work, partition)
        except (Died, BasaltError):
            return

    def read(self, number: int, partition: int) -> Iterator[pa.RecordBatch]:
        rows = self.batches[number]
        half = len(rows) // PARTITIONS
        for row in rows[:half] if partition == 0 else rows[half:]:
            yield pa.record_batch([pa.array([row])], names=["value"])
            if self.chance(0.05):
                raise Died

    def commit(self, messages: list[SegmentStored]) -> bool:
        try:
            self.sink.commit(messages)
            if self.chance(0.2):
                raise UnavailableError("the answer was lost")
        except BasaltError:
            return False
        return True

    def forget_some(self) -> None:
        """The checkpoint lost its end, as it may on a file system that keeps less than it says."""
        self.planned = max(0, self.planned - 1)
        self.committed = {number for number in self.committed if number < self.planned}


def published(sink_of, seed: int) -> tuple[list[bytes], list[bytes], int]:
    """The published messages, the expected ones, and how many transactions are left open."""
    with basalt.connect("embedded:", settings={"store.kind": "memory"}) as client:
        client.topics.create(TOPIC)
        stream = Stream(client, sink_of(client), seed)
        chosen = stream.random
        live: list[Generator[None]] = [stream.run()]
        for _ in range(STEPS_MAX):
            if chosen.random() < 0.06:  # the driver dies, or hangs and comes back later
                if chosen.random() < 0.5:
                    live.pop()
                if chosen.random() < 0.2:
                    stream.forget_some()
                live.append(stream.run())
            which = live[-1] if chosen.random() < 0.75 else chosen.choice(live)
            if next(which, "over") == "over":
                live.remove(which)
                live = live or [stream.run()]
        stream.faults = False
        for resumed in (*live, stream.run(), stream.run()):  # a zombie may have failed the first one of these
            for _ in resumed:
                pass
        return payloads(client), stream.rows(), len(client.transactions.list())


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_each_row_is_published_once_and_in_order_whatever_is_killed(first):
    for seed in range(first, first + 20):
        found, expected, still_open = published(Sink, seed)
        assert found == expected, f"seed {seed}"
        assert still_open <= 1, f"seed {seed}"  # of a batch whose tasks all failed; its time-out ends it


@pytest.mark.parametrize("broken", [NoLedger, EqualForAtMost, PublishAllSegments, AbortUndoesACommit, NoRunFence])
def test_a_sink_without_one_of_its_rules_is_found_out(broken):
    def fails(seed: int) -> bool:
        found, expected, _ = published(broken, seed)
        return found != expected

    assert any(fails(seed) for seed in range(SEEDS)), f"no seed of {SEEDS} notices {broken.__name__}"
