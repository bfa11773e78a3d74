"""The table of crashes: a stream is killed at each point and started again from its checkpoint; each row is there once.

docs/spark/sink.md has the table. The same with many seeds, without Spark: tests/pipeline/test_sink_crashes.py.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from pyspark.errors import StreamingQueryException

from basalt.errors import ConflictError, SessionFencedError
from basalt_spark.sink import commit as sink_commit
from basalt_spark.sink.commit import SinkWork
from tests.pipeline.sink_server import task
from tests.spark.session import ROOT
from tests.spark.sink_faults import FAULT, FAULTY, PIPE, SOURCES
from tests.spark.sink_stream import expected, numbers, run, started, texts

pytestmark = pytest.mark.spark

PROCESS_SECONDS_MAX = 400  # a bound for a hang: a JVM starts in ten, and in many more on a busy machine


class Sinks:
    """Queries that write numbers to one topic, under one name and from one checkpoint."""

    def __init__(self, spark, server, client, topic, folder):
        self.spark, self.server, self.client, self.topic, self.folder = spark, server, client, topic, folder
        self.checkpoint = folder / "checkpoint"
        self.pipe = folder / "pipe"
        client.topics.create(topic)

    def writer(self, kind="basalt", fault="", distinct=False):
        faulty = {} if kind == "basalt" else {FAULT: fault, PIPE: str(self.pipe)}
        frame = numbers(self.spark).dropDuplicates(["value"]) if distinct else numbers(self.spark)
        return frame.writeStream.format(kind).options(
            server=self.server.url, topic=self.topic, txnAppId=self.topic, **faulty
        )

    def run(self, kind="basalt", fault=""):
        run(self.writer(kind, fault), self.checkpoint)

    def fails(self, fault, kind=FAULTY):
        with pytest.raises(StreamingQueryException):
            self.run(kind, fault)

    def texts(self):
        return texts(self.client, self.topic)


@pytest.fixture
def sinks(spark, basalt_server, basalt, topic, tmp_path):
    return Sinks(spark, basalt_server, basalt, topic, tmp_path)


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    for source in SOURCES:
        spark.dataSource.register(source)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("all tasks fail", 0),  # each after it has stored half of its rows
        ("one task fails", 0),
        ("the driver's process dies before the commit", 0),
        ("the driver's process dies after the commit", 1),
        ("the answer is lost", 1),
    ],
)
def test_after_a_crash_each_row_is_there_once(sinks, fault, seen):
    sinks.fails(fault)
    assert sinks.texts() == expected(seen)
    sinks.run()  # what was left over, and the next batch
    assert sinks.texts() == expected(2)


def test_a_stateful_query_keeps_its_state_where_its_batch_was_committed_before(sinks):
    with pytest.raises(StreamingQueryException):
        run(sinks.writer(FAULTY, "the driver's process dies after the commit", distinct=True), sinks.checkpoint)
    run(sinks.writer(distinct=True), sinks.checkpoint)
    assert sorted(sinks.texts(), key=int) == sorted(expected(2), key=int)


def test_a_worker_that_is_killed_is_tried_again_within_the_batch(sinks):
    sinks.run(FAULTY, "a worker dies")
    assert sinks.pipe.exists()
    assert sinks.texts() == expected(1)


def test_a_zombie_that_wakes_up_publishes_nothing(sinks):
    query = started(sinks.writer(), sinks.checkpoint)
    query.awaitTermination()
    zombie = SinkWork(sinks.topic, f"{query.id}/a run that hung", 1, f"query {query.id}")
    stored = task(sinks.client, zombie, [b"of the zombie"], topic=sinks.topic)
    sinks.run()  # from the same checkpoint, as a supervisor starts it
    with pytest.raises(SessionFencedError):
        task(
            sinks.client,
            SinkWork(sinks.topic, zombie.run, 2, zombie.counter_owner),
            [b"of the zombie"],
            topic=sinks.topic,
        )
    with pytest.raises(ConflictError):
        sinks.client.transactions.commit_segments(stored.segment.transaction, [stored.segment.write_pointer], [])
    sink_commit.abort(sinks.client, [stored])
    assert sinks.texts() == expected(2)


def test_a_driver_that_is_killed_after_the_commit_does_not_publish_it_again(sinks):
    os.mkfifo(sinks.pipe)
    with another_driver(sinks) as (process, told):
        ready, _, _ = select.select([told], [], [], PROCESS_SECONDS_MAX)
        assert ready, "the other driver has committed nothing"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert sinks.texts() == expected(1)
    assert not (sinks.checkpoint / "commits" / "0").exists()
    sinks.run()  # the batch that Spark takes for lost, and the next one
    assert (sinks.checkpoint / "commits" / "0").exists()
    assert sinks.texts() == expected(2)


@contextmanager
def another_driver(sinks):
    """A driver in a process of its own, whose query hangs after its commit; and the pipe's end that hears of that."""
    command = [sys.executable, "-m", "tests.spark.hanging_driver", sinks.server.url, sinks.topic, str(sinks.folder)]
    told = os.open(sinks.pipe, os.O_RDONLY | os.O_NONBLOCK)
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield process, told
    finally:
        os.close(told)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("basalt_without_ledger", "the driver's process dies after the commit"),
        ("basalt_undoing", "the answer is lost"),
    ],
)
def test_a_planted_fault_of_the_sink_publishes_rows_twice(sinks, kind, fault):
    sinks.fails(fault, kind)
    sinks.run(kind)
    assert sinks.texts() == [*expected(1), *expected(2)]


def test_a_planted_fault_that_publishes_all_segments_shows_rows_of_a_lost_attempt(sinks):
    sinks.run("basalt_all_segments", "a worker dies")
    assert len(sinks.texts()) > len(expected(1))
