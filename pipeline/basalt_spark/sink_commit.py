"""What the driver does once all tasks have stored their rows: one commit, or none, and never an undone one.

The winning segments are published in the order of the partitions, and with them the version becomes the session's, in one
decision of the server's. docs/decisions/0017-a-sink-that-commits-once.md tells what Spark calls when.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from basalt.api.bodies.work import WorkMarker
from basalt.api.markers.marker import KIND_WATERMARK
from basalt.errors import (
    BasaltError,
    ConflictError,
    NotFoundError,
    TransactionEndedError,
    UnknownOutcomeError,
)
from basalt_spark.sink_work import SegmentStored, SinkWork
from basalt_spark.write_options import WriteOptions

if TYPE_CHECKING:
    from basalt.client import Client, NamedTransaction

COMMITTED = "COMMITTED"
OWNER_CHARS_MAX = 255  # what a server takes as an owner

_log = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """What there is to commit: nothing where `done`. Without a `transaction` no task had a row."""

    done: bool
    work: SinkWork | None
    transaction: str | None
    segments: tuple[int, ...]
    watermark_ms: int | None


def verdict(messages: Sequence[SegmentStored]) -> Verdict:
    """What the tasks of a job have done together; `TransactionEndedError` when that is no whole."""
    in_order = sorted(messages, key=lambda message: message.partition)
    segments = [message.segment for message in in_order if message.segment is not None]
    transactions = sorted({segment.transaction for segment in segments})
    done = any(message.committed_before for message in in_order)
    if len(transactions) > 1 and not done:
        raise TransactionEndedError(
            f"the rows of one batch lie under {len(transactions)} transactions ({', '.join(transactions)}): one timed out"
            " while tasks still wrote",
            hint="Start the query again, which writes the batch anew; give a longer txnTimeout.",
        )
    marks = [message.watermark_ms for message in in_order if message.watermark_ms is not None]
    return Verdict(
        done,
        in_order[0].work if in_order else None,
        transactions[0] if transactions else None,
        tuple(segment.write_pointer for segment in segments),
        max(marks, default=None),
    )


def commit(client: Client, messages: Sequence[SegmentStored], options: WriteOptions, begun: str | None = None) -> None:
    """Publish what the tasks stored, or nothing where that was done before. Returns only when it is durable.

    `begun` is the transaction where it began before the tasks did.
    """
    found = verdict(messages)
    if found.done:
        return
    markers = watermark_markers(options, found.watermark_ms)
    transaction = begun or found.transaction
    if transaction is None:
        if not markers or found.work is None:
            return  # nothing to tell: a batch without rows is no work, and done again it is none either
        joined = named(client, found.work, options)
        if joined.committed_before:
            return
        transaction = joined.id
    commit_segments(client, transaction, found.segments, markers)


def commit_segments(client: Client, transaction: str, segments: Sequence[int], markers: Sequence[WorkMarker]) -> None:
    """Commit, and where the answer is lost ask what became of it."""
    try:
        client.transactions.commit_segments(transaction, segments, markers)
    except UnknownOutcomeError:
        if client.transactions.get(transaction).state != COMMITTED:
            raise


def named(client: Client, work: SinkWork, options: WriteOptions) -> NamedTransaction:
    """The transaction of this work, begun or joined, or the news that it was committed before."""
    return client.named_transaction(
        work.app_id,
        work.run,
        work.version,
        ledger=work.ledger,
        kind="long",
        timeout_ms=options.timeout_ms,
        owner=owner_of(work.app_id),
    )


def abort(client: Client, messages: Sequence[SegmentStored], begun: str | None = None) -> None:
    """End what tasks that succeeded have begun, unless it is committed. It never fails, for something else did before.

    Spark calls it also after a commit whose answer was lost. With no message that names a transaction there is nothing to
    end: the next run ends it, or its time-out.
    """
    known = {message.segment.transaction for message in messages if message.segment is not None}
    for transaction in sorted(known | ({begun} if begun is not None else set())):
        abort_transaction(client, transaction)


def abort_transaction(client: Client, transaction: str) -> None:
    """End it, unless it has ended: one that is committed stays so."""
    try:
        client.transactions.abort(transaction)
    except (ConflictError, NotFoundError):
        return
    except BasaltError as error:
        _log.warning("transaction %s was not aborted, and ends by its time-out: %s", transaction, error)


def watermark_markers(options: WriteOptions, watermark_ms: int | None) -> tuple[WorkMarker, ...]:
    """The marker that tells how far event time has come in the rows of this batch, if that is wanted and known."""
    if not options.emit_watermark or watermark_ms is None:
        return ()
    topic, task = options.topic, options.app_id
    assert topic is not None, "checked with the columns"
    assert task is not None, "checked with the options"
    return (WorkMarker(topic.namespace, topic.topic, task, options.task_count, KIND_WATERMARK, watermark_ms),)


def owner_of(name: str) -> str:
    """Who wrote, for operators."""
    return f"spark {name}"[:OWNER_CHARS_MAX]


def stored(messages: Sequence[object]) -> list[SegmentStored]:
    """The commit messages of the tasks that succeeded; Spark has None for the others."""
    return [message for message in messages if isinstance(message, SegmentStored)]
