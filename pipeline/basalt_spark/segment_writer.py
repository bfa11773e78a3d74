"""What a task does with its rows: it stores them under a write pointer of its own, its segment, and tells the driver which.

It joins the transaction when it has rows to send, so that no time-out runs while Spark computes. While one request is on its
way Spark computes the rows of the next; never two are, for their order is that of the rows. What a failed attempt has
stored stays behind under a pointer that nobody names, and the commit removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
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
        self._on_its_way: Future[None] | None = None
        self._segment: Segment | None = None
        self._committed_before = False
        self._stored_rows = 0

    def write(self, batches: Iterable[pa.RecordBatch], partition: int, work: SinkWork | None) -> SegmentStored:
        """Store all rows, and say where they are."""
        # All are taken, also when nothing is written: a stateful operator before the sink keeps its state for the next
        # batch only when its output was read to the end.
        with ThreadPoolExecutor(1, "basalt-store") as aside:  # it starts its thread with the first request that it gets
            for batch in batches:
                for request in self._rows.add(batch):
                    pointer = self._pointer_for(request)
                    if pointer is not None:
                        self._on_its_way = aside.submit(self._store, request.topic, request.body, pointer)
            for request in self._rows.rest():  # all that there is of most micro-batches; it needs no thread
                pointer = self._pointer_for(request)
                if pointer is not None:
                    self._store(request.topic, request.body, pointer)
            self._settle()
        return SegmentStored(
            partition,
            work,
            segment=self._segment,
            committed_before=self._committed_before,
            rows=self._stored_rows,
            watermark_ms=self._rows.watermark_ms,
        )

    def _pointer_for(self, request: Outgoing) -> int | None:
        """Where to store this request, once the one before it is; None where its work was committed before."""
        self._settle()
        if self._segment is None and not self._committed_before:
            self._segment = self._join()
            self._committed_before = self._segment is None
        if self._segment is None:
            return None
        self._stored_rows += request.rows
        return self._segment.write_pointer

    def _settle(self) -> None:
        """Wait for the request that is on its way. Raises what it failed with."""
        sent, self._on_its_way = self._on_its_way, None
        if sent is not None:
            sent.result()


def storing(client: Client, named: TopicName | None, namespace: str) -> Store:
    """Stores in the topic of the option, or in the one that a row names."""

    def store(topic: str | None, body: bytes, write_pointer: int) -> None:
        title = named if topic is None else topic_name(topic, namespace, "topic (the column)")
        assert title is not None, "the columns were checked: one of both names the topic"
        client.topic(title.topic, namespace=title.namespace).store_arrow(body, write_pointer)

    return store
