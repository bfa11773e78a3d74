"""What a task does with its rows: it stores them under a write pointer of its own, its segment, and tells the driver which.

It joins the transaction when it has rows to send, so that no time-out runs while Spark computes. What a failed attempt has
stored stays behind under a pointer that nobody names, and the commit removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from basalt_spark.outgoing import REQUEST_BYTES_MAX, Outgoing, OutgoingRows
from basalt_spark.sink_schema import SinkColumns
from basalt_spark.sink_work import Segment, SegmentStored, SinkWork
from basalt_spark.topic_name import TopicName, topic_name

if TYPE_CHECKING:
    import pyarrow as pa

    from basalt.client import Client


class Store(Protocol):
    """Stores an Arrow stream of one topic's messages (None: the option's topic) under a write pointer."""

    def __call__(self, topic: str | None, body: bytes, write_pointer: int) -> None: ...


class SegmentWriter:
    """One attempt of a task. `join` gives its segment, or None where the work was committed before."""

    def __init__(
        self,
        columns: SinkColumns,
        join: Callable[[], Segment | None],
        store: Store,
        request_bytes_max: int = REQUEST_BYTES_MAX,
    ) -> None:
        self._rows = OutgoingRows(columns, request_bytes_max)
        self._join = join
        self._store = store
        self._segment: Segment | None = None
        self._committed_before = False
        self._stored_rows = 0

    def write(self, batches: Iterable[pa.RecordBatch], partition: int, work: SinkWork | None) -> SegmentStored:
        """Store all rows, and say where they are."""
        # All are taken, also when nothing is written: a stateful operator before the sink keeps its state for the next
        # batch only when its output was read to the end.
        for batch in batches:
            for request in self._rows.add(batch):
                self._send(request)
        for request in self._rows.rest():
            self._send(request)
        return SegmentStored(
            partition,
            work,
            segment=self._segment,
            committed_before=self._committed_before,
            rows=self._stored_rows,
            watermark_ms=self._rows.watermark_ms,
        )

    def _send(self, request: Outgoing) -> None:
        if self._segment is None and not self._committed_before:
            self._segment = self._join()
            self._committed_before = self._segment is None
        if self._segment is not None:
            self._store(request.topic, request.body, self._segment.write_pointer)
            self._stored_rows += request.rows


def storing(client: Client, named: TopicName | None, namespace: str) -> Store:
    """Stores in the topic of the option, or in the one that a row names."""

    def store(topic: str | None, body: bytes, write_pointer: int) -> None:
        title = named if topic is None else topic_name(topic, namespace, "topic (the column)")
        assert title is not None, "the columns were checked: one of both names the topic"
        client.topic(title.topic, namespace=title.namespace).store_arrow(body, write_pointer)

    return store
