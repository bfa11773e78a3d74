"""The rows of one task, stored under a write pointer of its own, its segment, in requests of bounded size.

A task joins the transaction when it has rows to send, so that no time-out runs while Spark computes. While one request
is on its way Spark computes the rows of the next; never are two on their way, because their order is that of the rows.
Memory holds at most `REQUEST_BYTES_MAX` of waiting rows, one of Spark's own batches and one request. The rows of a
failed attempt stay behind under a pointer that nobody names, and the commit removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX
from basalt.errors import InputError
from basalt_spark.columns import END_OF_TIME_MS, ID
from basalt_spark.connection import QualifiedTopic, topic_name
from basalt_spark.offset import ID_BYTES
from basalt_spark.options import SinkColumns
from basalt_spark.sink.commit import Segment, SegmentStored, SinkWork

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client import Client

REQUEST_BYTES_MAX = 4 * 1024 * 1024  # far below the server's 10 MiB: one large message still fits beside others
REQUEST_BATCHES_MAX = 512  # half of the 1,024 record batches that a server takes in a request

_UTC_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))


# Stores an Arrow stream of one topic's messages (None: the option's topic) under a write pointer.
Store: TypeAlias = Callable[[str | None, bytes, int], None]


class Outgoing(NamedTuple):
    """One request: messages of one topic, as the bytes of an Arrow stream. `topic` is None for the option's."""

    topic: str | None
    body: bytes
    rows: int


class OutgoingRows:
    """Collects the record batches of a task, and gives requests as soon as they are full."""

    def __init__(self, columns: SinkColumns, request_bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self.watermark_ms: int | None = None  # the highest one in the rows so far
        self.through: bytes | None = None  # the highest id
        self._columns = columns
        self._bytes_max = request_bytes_max
        self._waiting: dict[str | None, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Take more rows; give the requests that are full, to be sent in this order."""
        if self._columns.has_id:
            self._note_ids(batch)
        batch = self._without_control(batch)
        if batch.num_rows == 0:
            return
        for topic, rows in self._by_topic(batch):
            for piece in _pieces(self._messages(rows), self._bytes_max):
                waiting = self._waiting.get(topic, ())
                if waiting and not _fit_together(waiting, piece, self._bytes_max):
                    yield self._request_of(topic)
                self._waiting.setdefault(topic, []).append(piece)
                self._waiting_bytes += piece.nbytes
                if self._waiting_bytes > self._bytes_max:  # of one topic, or of many that have little each
                    yield from self.remaining()

    def remaining(self) -> Iterator[Outgoing]:
        for topic in list(self._waiting):
            yield self._request_of(topic)

    def _request_of(self, topic: str | None) -> Outgoing:
        pieces = self._waiting.pop(topic)
        self._waiting_bytes -= sum(piece.nbytes for piece in pieces)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pieces[0].schema) as stream:
            for piece in pieces:
                stream.write_batch(piece)
        return Outgoing(topic, sink.getvalue().to_pybytes(), sum(piece.num_rows for piece in pieces))

    def _note_ids(self, batch: pa.RecordBatch) -> None:
        ids = batch.column(ID).cast(pa.binary())
        if pc.any(pc.not_equal(pc.binary_length(ids), ID_BYTES)).as_py():
            what = "column id has values that are no ids of messages"
            raise InputError(f"{what}: keep the column as a source of format basalt gives it", field=ID)
        highest = pc.max(ids).as_py()
        if highest is not None:
            self.through = highest if self.through is None else max(self.through, highest)

    def _without_control(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are messages. Control rows only raise the watermark."""
        if self._columns.has_watermark:
            # In microseconds since 1970. The end of time, which a source gives once its topics have ended, is no
            # watermark to publish.
            times = batch.column("watermark").cast(_UTC_TIME).cast(pa.int64())
            highest = pc.max(times.filter(pc.less(times, END_OF_TIME_MS * 1_000))).as_py()
            if highest is not None:
                known_ms = highest // 1_000  # rounded down: a watermark is never ahead of the data
                self.watermark_ms = known_ms if self.watermark_ms is None else max(known_ms, self.watermark_ms)
        return batch.filter(pc.is_null(batch.column("control"))) if self._columns.has_control else batch

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if not self._columns.has_topic:
            yield None, batch
            return
        _refuse_nulls(batch, "topic", "a topic")
        topics = batch.column("topic")
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        _refuse_nulls(batch, "value", "a payload, which may be empty")
        names = list(self._columns.message)
        return pa.record_batch([_plain(batch.column(name), name) for name in names], names=names)


def _refuse_nulls(batch: pa.RecordBatch, name: str, what: str) -> None:
    nulls = batch.column(name).null_count
    if nulls:
        raise InputError(
            f"column {name} is null in {nulls} of {batch.num_rows} rows, and every message needs {what}:"
            " filter such rows out, or give them a value (coalesce)",
            field=name,
        )


def _plain(column: pa.Array, name: str) -> pa.Array:
    """Cast a column to the server's type; Spark's settings decide the type it has."""
    if name == "headers":
        return column.cast(_HEADERS)
    if name == "event_time":
        return column.cast(_UTC_TIME)
    return column.cast(pa.binary())


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices within the limit; a larger row is a slice of its own. Nothing is copied."""
    if batch.num_rows <= 1 or (batch.nbytes <= bytes_max and batch.num_rows <= PUBLISH_MESSAGES_MAX):
        yield batch
        return
    # Cut by the average size. If rows differ much, a slice may still be too large, and is cut again.
    count = max(2, -(-batch.nbytes // bytes_max), -(-batch.num_rows // PUBLISH_MESSAGES_MAX))
    length = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, length):
        yield from _pieces(batch.slice(start, length), bytes_max)


def _fit_together(waiting: list[pa.RecordBatch] | tuple[()], piece: pa.RecordBatch, bytes_max: int) -> bool:
    return (
        sum(other.nbytes for other in waiting) + piece.nbytes <= bytes_max
        and sum(other.num_rows for other in waiting) + piece.num_rows <= PUBLISH_MESSAGES_MAX
        and len(waiting) < REQUEST_BATCHES_MAX
    )


class SegmentWriter:
    """One attempt of a task. `join` begins its segment, or gives None if the work was committed before."""

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
        """Store all rows, and report the segment."""
        # Take all batches, even if nothing is written: a stateful operator before the sink keeps its state for the next
        # batch only if its output was read to the end.
        with ThreadPoolExecutor(1, "basalt-store") as aside:  # its thread starts with the first request
            for batch in batches:
                for request in self._rows.add(batch):
                    pointer = self._pointer_for(request)
                    if pointer is not None:
                        self._on_its_way = aside.submit(self._store, request.topic, request.body, pointer)
            for request in self._rows.remaining():  # all requests of most micro-batches; they need no thread
                pointer = self._pointer_for(request)
                if pointer is not None:
                    self._store(request.topic, request.body, pointer)
            self._wait_for_request()
        return SegmentStored(
            partition,
            work,
            segment=self._segment,
            committed_before=self._committed_before,
            rows=self._stored_rows,
            watermark_ms=self._rows.watermark_ms,
            through=self._rows.through,
        )

    def _pointer_for(self, request: Outgoing) -> int | None:
        """The pointer for this request, once the one before it is stored; None if the work was committed before."""
        self._wait_for_request()
        if self._segment is None and not self._committed_before:
            self._segment = self._join()
            self._committed_before = self._segment is None
        if self._segment is None:
            return None
        self._stored_rows += request.rows
        return self._segment.write_pointer

    def _wait_for_request(self) -> None:
        """Wait for the request that is on its way. Raises its error."""
        sent, self._on_its_way = self._on_its_way, None
        if sent is not None:
            sent.result()


def storing(client: Client, named: QualifiedTopic | None, namespace: str) -> Store:
    """Make a function that stores in the topic of the option, or in the topic that a row names."""

    def store(topic: str | None, body: bytes, write_pointer: int) -> None:
        title = named if topic is None else topic_name(topic, namespace, "topic (the column)")
        assert title is not None, "the columns were checked: the option or the column names the topic"
        client.topic(title.topic, namespace=title.namespace).store_arrow(body, write_pointer)

    return store
