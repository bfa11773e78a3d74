"""The sinks of `df.write`, of a stream and of `foreachBatch`: a data frame is published as a whole, once, or not at all.

Spark makes a stream's writer for each micro-batch, in a process of the driver's that only plans, pickles it for the
tasks, and makes another one to commit or abort. So it keeps nothing, and all that the end must know travels in the
tasks' messages. The writer of `df.write` is pickled for the tasks and for the end, so what it finds out when it is made
is known there.

`batch_transaction` publishes several data frames, in several topics, and markers, once for each batch:

    def publish(frame, batch_id):
        with basalt_spark.batch_transaction(frame, batch_id, app_id="orders", server=url) as tx:
            tx.write(frame.select("value"), topic="orders")
            tx.watermark("orders", event_time_ms)

docs/spark/sink.md has the options, docs/decisions/0017-a-sink-that-commits-once.md what was found out about Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from basalt.api.bodies.messages import WorkAcknowledge, WorkMarker
from basalt.api.markers import KIND_END_OF_STREAM, KIND_WATERMARK
from basalt.errors import GroupNotFoundError, InputError, TransactionEndedError
from basalt_spark.connection import client_of, topic_name
from basalt_spark.options import WriteOptions, refuse_overwrite, sink_columns, write_options
from basalt_spark.sink import commit as sink_commit
from basalt_spark.sink.commit import Segment, SegmentStored, SinkWork, batch_work, stream_work

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from basalt.client import Client

REGISTERED = "spark.basalt.partRegistered"  # registering twice makes Spark warn, with each batch

# The format of one write within the transaction, and the options that it has beside those of any write.
PART_FORMAT = "basalt_part"
TRANSACTION = "transaction"
REPORT = "report"


def refuse_absent_topic(options: Mapping[str, str]) -> None:
    """Raise `TopicNotFoundError` while nothing is done yet, if the option names a topic that is not there.

    Topics that a column names are known when their rows are written, and not before.
    """
    given = write_options(options)
    if given.topic is not None:
        client_of(given.server).topics.get(given.topic.topic, namespace=given.topic.namespace)


def make_group(options: Mapping[str, str]) -> None:
    """Make the group of option `group`, a tracked one, unless it is there. `InputError` for one that deals messages to members."""
    group = write_options(options).group
    if group is None:
        return
    topic = client_of(write_options(options).server).topic(group.topic.topic, namespace=group.topic.namespace)
    try:
        found = topic.group(group.name).get()
    except GroupNotFoundError:
        found = topic.group(group.name).create(mode="tracked")
    if found.options.mode != "tracked":
        raise InputError(
            f"group {group.name} of topic {group.topic} is of mode {found.options.mode}: what this query acknowledges would never be"
            " dealt to its members; name a group of its own",
            field="group",
        )


class SegmentSink:
    """The part that all sinks share: each task stores its rows in one transaction, under a segment of its own."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self.options = options
        self.columns = sink_columns(schema, options)
        # Begun before the tasks. Without it the tasks find their transaction by the name of the work.
        self.transaction: str | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SegmentStored:
        from basalt_spark.sink.segment_writer import SegmentWriter, storing

        context = TaskContext.get()
        assert context is not None, "Spark calls this in its tasks"
        work, client = self.work(context), self._client()
        store = storing(client, self.options.topic, self.options.server.namespace)
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
        return sink_commit.join_segment(client, work, self.options.timeout_ms)

    def _client(self) -> Client:
        return client_of(self.options.server)


class BasaltWriter(SegmentSink, DataSourceArrowWriter):
    """Publishes a data frame in one transaction, under a name and version if they are given."""

    def __init__(self, schema: StructType, overwrite: bool, options: Mapping[str, str]) -> None:
        refuse_overwrite(overwrite)
        given = write_options(options)
        if given.app_id is not None and given.version is None:
            raise InputError(
                "option txnAppId of a batch write needs txnVersion, the number of this write under that name:"
                " each number is written once",
                field="txnVersion",
            )
        if given.emit_watermark and given.app_id is None:
            what = "option emitWatermark needs txnAppId, the name of the task that publishes the watermark"
            raise InputError(what, field="txnAppId")
        super().__init__(schema, given)
        self.run = uuid4().hex  # so that of two writes of one version the later one ends the earlier one
        if given.app_id is None:
            begun = self._client().transactions.begin(
                kind="long", timeout_ms=given.timeout_ms, owner=sink_commit.owner_of("write"), snapshot=False
            )
            self.transaction = begun.id

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
        return stream_work(self.app_id, context.getLocalProperty)


def batch_transaction(
    frame: DataFrame | SparkSession, batch_id: int, *, app_id: str, server: str, **options: str
) -> BatchTransaction:
    """Make the transaction of this batch under this name, for a `with` block. It begins when the block is entered.

    `options` are those of a sink: namespace, tokenEnv, callTimeout, txnTimeout.
    """
    session: SparkSession = frame.sparkSession if hasattr(frame, "sparkSession") else frame
    given = {**options, "server": server, "txnAppId": app_id, "txnVersion": str(batch_id)}
    return BatchTransaction(session, given)


class BatchTransaction:
    """Publishes what is written in the block when it ends without an exception: all of it, or nothing.

    If the batch was committed before, `committed_before` is true, and no call changes a topic.
    """

    def __init__(self, session: SparkSession, given: dict[str, str]) -> None:
        for name in given:
            if name.lower() in ("emitwatermark", "taskcount"):
                what = "tell watermarks by tx.watermark(topic, event_time_ms, task_count=…)"
                raise InputError(f"option {name} is of no use here: {what}", field=name)
            if name.lower() in ("group", "grouptopic"):
                what = "acknowledge by tx.acknowledge(topic, group=…, up_to=…)"
                raise InputError(f"option {name} is of no use here: {what}", field=name)
        if not hasattr(session, "sparkContext"):
            raise InputError(
                "a batch_transaction needs the driver's own session, and this one is of Spark Connect: write with"
                " writeStream.format('basalt')",
                field="spark",
            )
        self.options = write_options(given)
        assert self.options.app_id is not None
        assert self.options.version is not None
        self.committed_before = False
        self._session = session
        self._given = {name: text for name, text in given.items() if name not in ("txnAppId", "txnVersion")}
        self._client = client_of(self.options.server)
        property_of: Callable[[str], str | None] = session.sparkContext.getLocalProperty
        self._work = batch_work(self.options.app_id, self.options.version, uuid4().hex, property_of)
        self._transaction: str | None = None
        self._segments: list[int] = []
        self._markers: list[WorkMarker] = []
        self._acknowledge: list[WorkAcknowledge] = []
        self._ended = False

    def __enter__(self) -> BatchTransaction:
        joined = sink_commit.named(self._client, self._work, self.options.timeout_ms)
        self.committed_before = joined.committed_before
        self._transaction = None if joined.committed_before else joined.id
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        transaction, self._ended = self._transaction, True
        if transaction is None:
            return
        if error is not None:
            sink_commit.abort_transaction(self._client, transaction)
            return
        try:
            sink_commit.commit_segments(self._client, transaction, self._segments, self._markers, self._acknowledge)
        except BaseException:
            # An abort changes nothing in a committed transaction, and saves others the wait for the time-out of an open
            # one.
            sink_commit.abort_transaction(self._client, transaction)
            raise

    def write(self, frame: DataFrame, *, topic: str | None = None) -> None:
        """Store the rows of a data frame, in its order, behind those that were written before.

        Columns are those of a sink.
        """
        self._check_open()
        given = dict(self._given) if topic is None else {**self._given, "topic": topic}
        sink_columns(frame.schema, write_options(given))
        if self._transaction is None:
            # Read the frame all the same: a stateful operator keeps its state for the next batch only if its output was
            # read.
            frame.write.format("noop").mode("overwrite").save()
            return
        if self._session.conf.get(REGISTERED, "false") != "true":
            self._session.dataSource.register(PartDataSource)
            self._session.conf.set(REGISTERED, "true")
        with TemporaryDirectory(prefix="basalt-") as folder:
            report = Path(folder) / "segments"
            own = {TRANSACTION: self._transaction, REPORT: str(report)}
            frame.write.format(PART_FORMAT).mode("append").options(**given, **own).save()
            self._segments += msgspec.json.decode(report.read_bytes(), type=list[int])

    def watermark(self, topic: str, event_time_ms: int, *, task: str | None = None, task_count: int = 1) -> None:
        """Publish a watermark behind the batch's messages. The task is `app_id` if it is not named."""
        self._mark(topic, task, task_count, KIND_WATERMARK, event_time_ms)

    def end(self, topic: str, *, task: str | None = None, task_count: int = 1) -> None:
        """Publish the end of the task's stream behind the batch's messages."""
        self._mark(topic, task, task_count, KIND_END_OF_STREAM, None)

    def acknowledge(self, topic: str, *, group: str, up_to: bytes) -> None:
        """Acknowledge with the batch all messages of a topic up to this id, in a group that no other query or consumer uses."""
        self._check_open()
        name = topic_name(topic, self.options.server.namespace, "topic")
        self._acknowledge.append(WorkAcknowledge(name.namespace, name.topic, group, up_to=up_to))

    def _mark(self, topic: str, task: str | None, task_count: int, kind: str, event_time_ms: int | None) -> None:
        self._check_open()
        name = topic_name(topic, self.options.server.namespace, "topic")
        task = task or self._work.app_id
        self._markers.append(WorkMarker(name.namespace, name.topic, task, task_count, kind, event_time_ms))

    def _check_open(self) -> None:
        if self._ended or (self._transaction is None and not self.committed_before):
            raise TransactionEndedError("this transaction is not open", hint="Use it within its with block.")


class PartDataSource(DataSource):
    """The format of one write within a transaction."""

    @classmethod
    def name(cls) -> str:
        return PART_FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> PartWriter:
        return PartWriter(schema, self.options)


class PartWriter(SegmentSink, DataSourceArrowWriter):
    """Stores a data frame under segments of an open transaction, and reports them.

    Its commit publishes nothing. It writes the winning segments into a file, because the process that holds the
    transaction is another one on the same machine, and Spark offers no other way to pass them.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        own = (TRANSACTION, REPORT)
        super().__init__(schema, write_options({name: value for name, value in options.items() if name not in own}))
        self.transaction, self.report = (options[name] for name in own)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report the winning segments, in order, once every task has stored its rows."""
        found = sink_commit.verdict(sink_commit.stored(messages))
        aside = Path(f"{self.report}.new")
        aside.write_bytes(msgspec.json.encode(found.segments))
        aside.replace(self.report)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: the write raises, and the holder of the transaction ends it."""
