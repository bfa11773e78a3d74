"""Which piece of work a write is, and what a task tells the driver of it. All of it travels pickled between processes.

A task knows query, run and batch from the local properties of its job; the process that commits knows the batch alone.
So every task says in its commit message whose work it did (docs/decisions/0017-a-sink-that-commits-once.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from basalt.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

# What Spark's own MicroBatchExecution puts into the jobs of a stream. The run is the job group.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
RUN_PROPERTY = "spark.jobGroup.id"

BATCH_LEDGER = "batch"  # whose versions were given by hand, and are not a query's


@dataclass(frozen=True, slots=True)
class SinkWork:
    """A version of a named session: done once. `run` is who does it; `ledger` is who counts the versions."""

    app_id: str
    run: str
    version: int
    ledger: str


@dataclass(frozen=True, slots=True)
class Segment:
    """What one attempt of a task stored, under a write pointer of its own."""

    transaction: str
    write_pointer: int


@dataclass(frozen=True)
class SegmentStored(WriterCommitMessage):
    """What a task tells of its attempt. `segment` is None where it had no rows, or all was committed before."""

    partition: int
    work: SinkWork | None
    segment: Segment | None = None
    committed_before: bool = False
    rows: int = 0
    watermark_ms: int | None = None


def stream_work(app_id: str, property_of: Callable[[str], str | None]) -> SinkWork:
    """The work of a task in a micro-batch, by the properties of its job."""
    query, batch, run = (property_of(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY, RUN_PROPERTY))
    if query is None or batch is None or run is None:
        missing = ", ".join(
            name
            for name, value in ((QUERY_PROPERTY, query), (BATCH_PROPERTY, batch), (RUN_PROPERTY, run))
            if value is None
        )
        raise InputError(
            f"this Spark does not tell the tasks of a stream which batch they work at ({missing} is not set), so a sink"
            " cannot write it once; write in foreachBatch with basalt_spark.batch_transaction",
            field="txnAppId",
        )
    return SinkWork(app_id, f"{query}/{run}", int(batch), query_ledger(query))


def batch_work(app_id: str, version: int, run: str, property_of: Callable[[str], str | None]) -> SinkWork:
    """The work of a task of `df.write`. In foreachBatch it is the query's, and else one of its own."""
    query, query_run = property_of(QUERY_PROPERTY), property_of(RUN_PROPERTY)
    if query is None or query_run is None:
        return SinkWork(app_id, run, version, BATCH_LEDGER)
    return SinkWork(app_id, f"{query}/{query_run}", version, query_ledger(query))


def query_ledger(query: str) -> str:
    """How a session calls the query that counts its versions."""
    return f"query {query}"
