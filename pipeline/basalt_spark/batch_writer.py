"""The sink of `df.write`: a data frame is published as a whole or not at all, and with a txnVersion once.

Unlike that of a stream, the instance that Spark makes when it plans the write is pickled for the tasks and for the end,
so what is found out here is known there. docs/spark/sink.md has the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from basalt.errors import InputError
from basalt_spark import sink_commit
from basalt_spark.connection import client_of
from basalt_spark.sink_schema import refuse_overwrite, sink_columns
from basalt_spark.sink_work import Segment, SegmentStored, SinkWork, batch_work
from basalt_spark.write_options import WriteOptions, write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from basalt.client import Client


class BasaltWriter(DataSourceArrowWriter):
    """Publishes a data frame in one transaction, under a name and version where they are given."""

    def __init__(self, schema: StructType, overwrite: bool, options: Mapping[str, str]) -> None:
        refuse_overwrite(overwrite)
        self.options = write_options(options)
        _check_name(self.options)
        self.columns = sink_columns(schema, self.options)
        self.run = uuid4().hex  # so that of two writes of one version the later ends the earlier
        # Without a name tasks could not find each other's transaction, so it begins here, before they do.
        self.transaction = None if self.options.app_id is not None else self._begun()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SegmentStored:
        """In a task: store its rows."""
        from basalt_spark.segment_writer import SegmentWriter, storing

        context = TaskContext.get()
        assert context is not None, "Spark calls this in its tasks"
        work = self._work(context)
        client = self._client()
        store = storing(client, self.options.topic, self.options.namespace)
        return SegmentWriter(self.columns, lambda: self.join(client, work), store).write(
            iterator, context.partitionId(), work
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, once every task has stored its rows."""
        sink_commit.commit(self._client(), sink_commit.stored(messages), self.options, self.transaction)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when tasks failed or the commit did, or seemed to."""
        sink_commit.abort(self._client(), sink_commit.stored(messages), self.transaction)

    def join(self, client: Client, work: SinkWork | None) -> Segment | None:
        """A segment of the transaction, or None where the version was committed before."""
        if work is None:
            assert self.transaction is not None, "a write without a name has begun its transaction"
            return Segment(self.transaction, client.transactions.checkpoint(self.transaction).write_pointer)
        joined = sink_commit.named(client, work, self.options)
        return None if joined.committed_before else Segment(joined.id, joined.segment())

    def _work(self, context: TaskContext) -> SinkWork | None:
        if self.options.app_id is None or self.options.version is None:
            return None
        return batch_work(self.options.app_id, self.options.version, self.run, context.getLocalProperty)

    def _begun(self) -> str:
        begun = self._client().transactions.begin(
            kind="long", timeout_ms=self.options.timeout_ms, owner=sink_commit.owner_of("write"), snapshot=False
        )
        return begun.id

    def _client(self) -> Client:
        return client_of(self.options.server)


def _check_name(options: WriteOptions) -> None:
    if options.app_id is not None and options.version is None:
        raise InputError(
            "option txnAppId of a batch write needs txnVersion: which writing of that name it is, to be done once",
            field="txnVersion",
        )
    if options.emit_watermark and options.app_id is None:
        raise InputError(
            "option emitWatermark needs txnAppId: it is the name of the task that tells the watermark", field="txnAppId"
        )
