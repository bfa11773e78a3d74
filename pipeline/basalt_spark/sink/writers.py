"""The sinks of `df.write` and of a stream: each data frame is published as a whole, once, or not at all.

Spark makes a stream's writer for each micro-batch, in a process of the driver's that only plans, pickles it for the
tasks, and makes another one to commit or abort. So it keeps nothing, and all that the end must know travels in the
tasks' messages. The writer of `df.write` is pickled for the tasks and for the end, so what it finds out when it is made
is known there. docs/spark/sink.md has the options, docs/decisions/0017-a-sink-that-commits-once.md what was found out
about Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from basalt.errors import InputError
from basalt_spark.connection import client_of
from basalt_spark.options.write_options import WriteOptions, refuse_overwrite, sink_columns, write_options
from basalt_spark.sink import commit as sink_commit
from basalt_spark.sink.commit import Segment, SegmentStored, SinkWork, batch_work, stream_work

if TYPE_CHECKING:
    import pyarrow as pa

    from basalt.client import Client


class SegmentSink:
    """The part that all sinks share: each task stores its rows in one transaction, under a segment of its own."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self.options = options
        self.columns = sink_columns(schema, options)
        # Begun before the tasks. Without it the tasks find their transaction by the name of the work.
        self.transaction: str | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SegmentStored:
        """Store the rows of a task, in the task."""
        from basalt_spark.sink.segment_writer import SegmentWriter, storing

        context = TaskContext.get()
        assert context is not None, "Spark calls this in its tasks"
        work, client = self.work(context), self._client()
        store = storing(client, self.options.topic, self.options.namespace)
        writer = SegmentWriter(self.columns, lambda: self.join(client, work), store)
        return writer.write(iterator, context.partitionId(), work)

    def work(self, context: TaskContext) -> SinkWork | None:
        """The work that the task is a part of; None if it has no name."""
        return None

    def join(self, client: Client, work: SinkWork | None) -> Segment | None:
        """Begin a segment of the transaction; None if the work was committed before."""
        if work is None:
            assert self.transaction is not None, "the transaction of work without a name begins before its tasks"
            return Segment(self.transaction, client.transactions.checkpoint(self.transaction).write_pointer)
        joined = sink_commit.named(client, work, self.options.timeout_ms)
        return None if joined.committed_before else Segment(joined.id, joined.segment())

    def _client(self) -> Client:
        return client_of(self.options.server)


class BasaltWriter(SegmentSink, DataSourceArrowWriter):
    """Publishes a data frame in one transaction, under a name and version if they are given."""

    def __init__(self, schema: StructType, overwrite: bool, options: Mapping[str, str]) -> None:
        refuse_overwrite(overwrite)
        given = write_options(options)
        _check_name(given)
        super().__init__(schema, given)
        self.run = uuid4().hex  # so that of two writes of one version the later one ends the earlier one
        if given.app_id is None:
            self.transaction = self._begun()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the rows, on the driver, once every task has stored its own."""
        sink_commit.commit(self._client(), sink_commit.stored(messages), self.options, self.transaction)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the transaction, on the driver, when tasks failed or the commit did, or seemed to."""
        sink_commit.abort(self._client(), sink_commit.stored(messages), self.transaction)

    def work(self, context: TaskContext) -> SinkWork | None:
        """The version of the name, if the options have one."""
        if self.options.app_id is None or self.options.version is None:
            return None
        return batch_work(self.options.app_id, self.options.version, self.run, context.getLocalProperty)

    def _begun(self) -> str:
        begun = self._client().transactions.begin(
            kind="long", timeout_ms=self.options.timeout_ms, owner=sink_commit.owner_of("write"), snapshot=False
        )
        return begun.id


class BasaltStreamWriter(SegmentSink, DataSourceStreamArrowWriter):
    """Publishes micro-batches, each in a transaction that is named by `txnAppId` and the batch's number."""

    def __init__(self, schema: StructType, overwrite: bool, options: Mapping[str, str]) -> None:
        refuse_overwrite(overwrite)
        given = write_options(options)
        if given.app_id is None:
            raise InputError(
                "a stream needs the option txnAppId, the name under which the server remembers the query's batches:"
                " give each query a name of its own",
                field="txnAppId",
            )
        if given.version is not None:
            raise InputError(
                "option txnVersion is for batch writes: in a stream the version is the batch's number; leave it out",
                field="txnVersion",
            )
        super().__init__(schema, given)
        self.app_id = given.app_id

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Publish the batch, on the driver, once every task has stored its rows."""
        sink_commit.commit(self._client(), sink_commit.stored(messages), self.options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """End the batch's transaction, on the driver, when tasks failed or the commit did, or seemed to."""
        sink_commit.abort(self._client(), sink_commit.stored(messages))

    def work(self, context: TaskContext) -> SinkWork:
        """The micro-batch that the task is a part of."""
        return stream_work(self.app_id, context.getLocalProperty)


def _check_name(options: WriteOptions) -> None:
    if options.app_id is not None and options.version is None:
        raise InputError(
            "option txnAppId of a batch write needs txnVersion, the number of this write under that name:"
            " each number is written once",
            field="txnVersion",
        )
    if options.emit_watermark and options.app_id is None:
        raise InputError(
            "option emitWatermark needs txnAppId, the name of the task that publishes the watermark", field="txnAppId"
        )
