"""The sink of a stream: every micro-batch is published once, whatever is killed and done again.

Spark makes one of these for each micro-batch, in a process of the driver's that only plans, pickles it for the tasks, and
makes another one to commit or abort. So nothing is kept in it, and all that the end must know travels in the messages.
docs/spark/sink.md has the options, docs/decisions/0017-a-sink-that-commits-once.md what was found out about Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from basalt.errors import InputError
from basalt_spark import sink_commit
from basalt_spark.connection import client_of
from basalt_spark.sink_schema import refuse_overwrite, sink_columns
from basalt_spark.sink_work import Segment, SegmentStored, SinkWork, stream_work
from basalt_spark.write_options import write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from basalt.client import Client


class BasaltStreamWriter(DataSourceStreamArrowWriter):
    """Publishes micro-batches, each in a transaction that is named by `txnAppId` and the batch's number."""

    def __init__(self, schema: StructType, overwrite: bool, options: Mapping[str, str]) -> None:
        refuse_overwrite(overwrite)
        self.options = write_options(options)
        if self.options.app_id is None:
            raise InputError(
                "a stream needs the option txnAppId: the name under which the server remembers which batches of this"
                " query it has; another name for each query",
                field="txnAppId",
            )
        if self.options.version is not None:
            raise InputError(
                "option txnVersion is for batch writes: in a stream the version is the batch's number",
                field="txnVersion",
            )
        self.app_id = self.options.app_id
        self.columns = sink_columns(schema, self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SegmentStored:
        """In a task: store its rows."""
        from basalt_spark.segment_writer import SegmentWriter, storing

        context = TaskContext.get()
        assert context is not None, "Spark calls this in its tasks"
        work = stream_work(self.app_id, context.getLocalProperty)
        client = self._client()
        store = storing(client, self.options.topic, self.options.namespace)
        return SegmentWriter(self.columns, lambda: self.join(client, work), store).write(
            iterator, context.partitionId(), work
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """On the driver, once every task has stored its rows."""
        sink_commit.commit(self._client(), sink_commit.stored(messages), self.options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """On the driver, when tasks failed or the commit did, or seemed to."""
        sink_commit.abort(self._client(), sink_commit.stored(messages))

    def join(self, client: Client, work: SinkWork) -> Segment | None:
        """A segment of the batch's transaction, or None where that was committed before."""
        joined = sink_commit.named(client, work, self.options)
        return None if joined.committed_before else Segment(joined.id, joined.segment())

    def _client(self) -> Client:
        return client_of(self.options.server)
