"""A server in this process to write to, and the tasks and the driver of a job without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from basalt.client import Client
from basalt_spark.connection import QualifiedTopic
from basalt_spark.options import SinkColumns, WriteOptions, write_options
from basalt_spark.sink import commit as sink_commit
from basalt_spark.sink.commit import Segment, SegmentStored, SinkWork
from basalt_spark.sink.segment_writer import SegmentWriter, storing

VALUE_ONLY = SinkColumns(("value",))
TOPIC = "orders"


def options(**given: str) -> WriteOptions:
    return write_options({"server": "http://127.0.0.1:1", "topic": TOPIC, "txnAppId": "etl", **given})


def work(version: int, run: str = "run-1", counter_owner: str = "query q") -> SinkWork:
    return SinkWork("etl", run, version, counter_owner)


def task(
    client: Client,
    doing: SinkWork,
    rows: Iterable[Any],
    partition: int = 0,
    columns: SinkColumns = VALUE_ONLY,
    given: WriteOptions | None = None,
    topic: str = TOPIC,
) -> SegmentStored:
    """Do what a task of a stream does with one record batch: `rows` are values, or a batch of its own."""
    batch = (
        rows if isinstance(rows, pa.RecordBatch) else pa.record_batch([pa.array(rows, pa.binary())], names=["value"])
    )

    def join() -> Segment | None:
        joined = sink_commit.named(client, doing, (given or options()).timeout_ms)
        return None if joined.committed_before else Segment(joined.id, joined.segment())

    store = storing(client, None if columns.has_topic else QualifiedTopic("default", topic), "default")
    return SegmentWriter(columns, join, store).write(iter([batch]), partition, doing)


def batch(client: Client, doing: SinkWork, partitions: Sequence[Sequence[bytes]]) -> None:
    """A whole micro-batch."""
    messages = [task(client, doing, rows, number) for number, rows in enumerate(partitions)]
    sink_commit.commit(client, messages, options())


def payloads(client: Client, topic: str = TOPIC) -> list[bytes]:
    """The payloads that a reader of committed messages sees."""
    return [message.payload for message in client.topic(topic).read(isolation="committed")]
