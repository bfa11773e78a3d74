"""A transaction for `foreachBatch`: several data frames, several topics and markers, published once for each batch.

    def publish(frame, batch_id):
        with basalt_spark.batch_transaction(frame, batch_id, app_id="orders", server=url) as tx:
            tx.write(frame.select("value"), topic="orders")
            tx.watermark("orders", event_time_ms)

For what `writeStream.format("basalt")` cannot do: output mode update, and more than one result. docs/spark/sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import uuid4

from basalt.api.bodies.work import WorkMarker
from basalt.api.markers.marker import KIND_END_OF_STREAM, KIND_WATERMARK
from basalt.errors import InputError, TransactionEndedError
from basalt_spark import sink_commit
from basalt_spark.connection import client_of
from basalt_spark.part_writer import PART_FORMAT, REPORT, TRANSACTION, PartDataSource, reported_segments
from basalt_spark.sink_schema import sink_columns
from basalt_spark.sink_work import batch_work
from basalt_spark.topic_name import topic_name
from basalt_spark.write_options import write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REGISTERED = "spark.basalt.partRegistered"  # registering twice makes Spark warn, with each batch


def batch_transaction(
    frame: DataFrame | SparkSession, batch_id: int, *, app_id: str, server: str, **options: str
) -> BatchTransaction:
    """The transaction of this batch under this name, for a `with` block. Begun when the block is entered.

    `options` are those of a sink: namespace, tokenEnv, callTimeout, txnTimeout.
    """
    session: SparkSession = frame.sparkSession if hasattr(frame, "sparkSession") else frame
    given = {**options, "server": server, "txnAppId": app_id, "txnVersion": str(batch_id)}
    return BatchTransaction(session, given)


class BatchTransaction:
    """What is written in the block is published when it ends without an exception, all of it, or nothing.

    Where the batch was committed before, `committed_before` is true, and every call leaves the topics alone.
    """

    def __init__(self, session: SparkSession, given: dict[str, str]) -> None:
        _refuse_options(given)
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
        self._ended = False

    def __enter__(self) -> BatchTransaction:
        joined = sink_commit.named(self._client, self._work, self.options)
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
            sink_commit.commit_segments(self._client, transaction, self._segments, self._markers)
        except BaseException:
            # It changes nothing where it is committed, and else nobody needs to wait for its time-out.
            sink_commit.abort_transaction(self._client, transaction)
            raise

    def write(self, frame: DataFrame, *, topic: str | None = None) -> None:
        """Store the rows of a data frame, in its order, behind those that were written before. Columns as a sink takes them."""
        self._check_open()
        given = dict(self._given) if topic is None else {**self._given, "topic": topic}
        sink_columns(frame.schema, write_options(given))
        if self._transaction is None:
            # A stateful operator keeps its state for the next batch only when what comes out of it was read.
            frame.write.format("noop").mode("overwrite").save()
            return
        self._register()
        with TemporaryDirectory(prefix="basalt-") as folder:
            report = Path(folder) / "segments"
            own = {TRANSACTION: self._transaction, REPORT: str(report)}
            frame.write.format(PART_FORMAT).mode("append").options(**given, **own).save()
            self._segments += reported_segments(report)

    def watermark(self, topic: str, event_time_ms: int, *, task: str | None = None, task_count: int = 1) -> None:
        """Tell behind the batch's messages how far event time has come. The task is `app_id` if it is not named."""
        self._mark(topic, task, task_count, KIND_WATERMARK, event_time_ms)

    def end(self, topic: str, *, task: str | None = None, task_count: int = 1) -> None:
        """Tell behind the batch's messages that the task has ended."""
        self._mark(topic, task, task_count, KIND_END_OF_STREAM, None)

    def _mark(self, topic: str, task: str | None, task_count: int, kind: str, event_time_ms: int | None) -> None:
        self._check_open()
        title = topic_name(topic, self.options.namespace, "topic")
        name = task or self._work.app_id
        self._markers.append(WorkMarker(title.namespace, title.topic, name, task_count, kind, event_time_ms))

    def _check_open(self) -> None:
        if self._ended or (self._transaction is None and not self.committed_before):
            raise TransactionEndedError("this transaction is not open", hint="Use it within its with block.")

    def _register(self) -> None:
        if self._session.conf.get(REGISTERED, "false") != "true":
            self._session.dataSource.register(PartDataSource)
            self._session.conf.set(REGISTERED, "true")


def _refuse_options(given: Iterable[str]) -> None:
    for name in given:
        if name.lower() in ("emitwatermark", "taskcount"):
            raise InputError(
                f"option {name} is of no use here: tell watermarks by tx.watermark(topic, event_time_ms, task_count=…)",
                field=name,
            )
