"""The transaction of a write: the work it stands for, what its tasks report, and the one commit on the driver.

A task knows query, run and batch from the local properties of its job; the process that commits knows the batch alone.
So each task names its work in its commit message. The driver publishes the winning segments in the order of the
partitions; with them the version becomes the session's, in one decision of the server's. All messages travel pickled
between processes. docs/decisions/0017-a-sink-that-commits-once.md tells what Spark calls when.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from basalt.api.bodies.messages import WorkAcknowledge, WorkMarker
from basalt.api.markers import KIND_WATERMARK
from basalt.errors import (
    BasaltError,
    ConflictError,
    InputError,
    NotFoundError,
    TransactionEndedError,
    UnknownOutcomeError,
)
from basalt_spark.options import WriteOptions

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from collections.abc import Callable

    from basalt.client import Client, NamedTransaction


COMMITTED = "COMMITTED"
OWNER_CHARS_MAX = 255  # of an owner on a server

# The local properties that Spark's MicroBatchExecution gives to the jobs of a stream. The run is the job group.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
RUN_PROPERTY = "spark.jobGroup.id"

BATCH_LEDGER = "batch"  # of versions that a user gave, not a query

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkWork:
    """A version of a named session, which is done once.

    `run` is the attempt at it, `counter_owner` the one that counts versions.
    """

    app_id: str
    run: str
    version: int
    counter_owner: str


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows that one attempt of a task stored, under a write pointer of its own."""

    transaction: str
    write_pointer: int


@dataclass(frozen=True)
class SegmentStored(WriterCommitMessage):
    """The report of a task's attempt. `segment` is None if it had no rows, or if all was committed before."""

    partition: int
    work: SinkWork | None
    segment: Segment | None = None
    committed_before: bool = False
    rows: int = 0
    watermark_ms: int | None = None
    through: bytes | None = None  # the highest id of what was read


def stream_work(app_id: str, property_of: Callable[[str], str | None]) -> SinkWork:
    """The work of a task in a micro-batch, from the properties of its job."""
    properties = {name: property_of(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY, RUN_PROPERTY)}
    missing = [name for name, value in properties.items() if value is None]
    if missing:
        raise InputError(
            f"this Spark does not tell the tasks of a stream which batch they work at ({', '.join(missing)} is not"
            " set), so a sink cannot write it once; write in foreachBatch with basalt_spark.batch_transaction",
            field="txnAppId",
        )
    return batch_work(app_id, int(str(properties[BATCH_PROPERTY])), "", properties.get)


def batch_work(app_id: str, version: int, run: str, property_of: Callable[[str], str | None]) -> SinkWork:
    """The work of a task of `df.write`: the query's in foreachBatch, else a work of its own."""
    query, query_run = property_of(QUERY_PROPERTY), property_of(RUN_PROPERTY)
    if query is None or query_run is None:
        return SinkWork(app_id, run, version, BATCH_LEDGER)
    return SinkWork(app_id, f"{query}/{query_run}", version, f"query {query}")


class TasksResult(NamedTuple):
    """The result of all tasks: nothing to commit if `done`; without a `transaction` no task had a row."""

    done: bool
    work: SinkWork | None
    transaction: str | None
    segments: tuple[int, ...]
    watermark_ms: int | None
    through: bytes | None


def verdict(messages: Sequence[SegmentStored]) -> TasksResult:
    """Put the tasks' reports together; `TransactionEndedError` when they do not make a whole."""
    in_order = sorted(messages, key=lambda message: message.partition)
    segments = [message.segment for message in in_order if message.segment is not None]
    transactions = sorted({segment.transaction for segment in segments})
    done = any(message.committed_before for message in in_order)
    if len(transactions) > 1 and not done:
        raise TransactionEndedError(
            f"the rows of one batch lie under {len(transactions)} transactions ({', '.join(transactions)}):"
            " one timed out while tasks still wrote",
            hint="Start the query again, which writes the batch anew; give a longer txnTimeout.",
        )
    marks = [message.watermark_ms for message in in_order if message.watermark_ms is not None]
    return TasksResult(
        done,
        in_order[0].work if in_order else None,
        transactions[0] if transactions else None,
        tuple(segment.write_pointer for segment in segments),
        max(marks, default=None),
        max((message.through for message in in_order if message.through is not None), default=None),
    )


def commit(client: Client, messages: Sequence[SegmentStored], options: WriteOptions, begun: str | None = None) -> None:
    """Publish what the tasks stored, or nothing if that was done before. Returns only when it is durable.

    `begun` is the transaction, if it began before the tasks did.
    """
    result = verdict(messages)
    if result.done:
        return
    markers: list[WorkMarker] = []
    if options.emit_watermark and result.watermark_ms is not None:
        topic, task = options.topic, options.app_id
        assert topic is not None, "checked with the columns"
        assert task is not None, "checked with the options"
        markers = [
            WorkMarker(topic.namespace, topic.topic, task, options.task_count, KIND_WATERMARK, result.watermark_ms)
        ]
    acknowledge: list[WorkAcknowledge] = []
    if options.group is not None and result.through is not None:
        topic, group = options.group
        acknowledge = [WorkAcknowledge(topic.namespace, topic.topic, group, up_to=result.through)]
    transaction = begun or result.transaction
    if transaction is None:
        if not (markers or acknowledge) or result.work is None:
            return  # a batch without rows or markers commits nothing, also when it is run again
        joined = named(client, result.work, options.timeout_ms)
        if joined.committed_before:
            return
        transaction = joined.id
    commit_segments(client, transaction, result.segments, markers, acknowledge)


def commit_segments(
    client: Client,
    transaction: str,
    segments: Sequence[int],
    markers: Sequence[WorkMarker] = (),
    acknowledge: Sequence[WorkAcknowledge] = (),
) -> None:
    """Commit; if the answer is lost, ask for the outcome."""
    try:
        client.transactions.commit_segments(transaction, segments, markers, acknowledge)
    except UnknownOutcomeError:
        if client.transactions.get(transaction).state != COMMITTED:
            raise


def named(client: Client, work: SinkWork, timeout_ms: int | None = None) -> NamedTransaction:
    """Begin or join the transaction of this work; the answer may be that it was committed before."""
    return client.named_transaction(
        work.app_id,
        work.run,
        work.version,
        counter_owner=work.counter_owner,
        kind="long",
        timeout_ms=timeout_ms,
        owner=owner_of(work.app_id),
    )


def join_segment(client: Client, work: SinkWork, timeout_ms: int | None = None) -> Segment | None:
    """Begin a segment of this work's transaction; None if the work was committed before."""
    joined = named(client, work, timeout_ms)
    return None if joined.committed_before else Segment(joined.id, joined.segment())


def abort(client: Client, messages: Sequence[SegmentStored], begun: str | None = None) -> None:
    """End the transactions of tasks that succeeded, unless they are committed.

    Never raises: another error is on its way. Spark calls it after a commit whose answer was lost, too. If no message
    names a transaction, the next run ends it, or its time-out.
    """
    known = {message.segment.transaction for message in messages if message.segment is not None}
    for transaction in sorted(known | ({begun} if begun is not None else set())):
        abort_transaction(client, transaction)


def abort_transaction(client: Client, transaction: str) -> None:
    """Abort a transaction, unless it has ended; a committed one stays committed."""
    try:
        client.transactions.abort(transaction)
    except (ConflictError, NotFoundError):
        return
    except BasaltError as error:
        _log.warning("transaction %s was not aborted and ends by its time-out: %s", transaction, error)


def owner_of(name: str) -> str:
    """The owner of a transaction, as operators see it."""
    return f"spark {name}"[:OWNER_CHARS_MAX]


def stored(messages: Sequence[object]) -> list[SegmentStored]:
    """The reports of the tasks that succeeded; Spark has None for the others."""
    return [message for message in messages if isinstance(message, SegmentStored)]
