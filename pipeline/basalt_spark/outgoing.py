"""The rows of a task as requests of bounded size: by topic, in their order, as Arrow streams.

A task's rows are never held together: what waits here is at most `REQUEST_BYTES_MAX`, and one of Spark's own batches; one
request more is on its way meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from basalt.api.bodies.work import PUBLISH_MESSAGES_MAX
from basalt.errors import InputError
from basalt_spark.event_time import END_OF_TIME_MS
from basalt_spark.sink_schema import SinkColumns

REQUEST_BYTES_MAX = 4 * 1024 * 1024  # far below a request's 10 MiB, so that one large message still fits beside others
REQUEST_BATCHES_MAX = 512  # a server takes 1,024 record batches in a request

_UTC_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())]))


class Outgoing(NamedTuple):
    """One request: messages of one topic, as the bytes of an Arrow stream. `topic` is None for the option's."""

    topic: str | None
    body: bytes
    rows: int


class OutgoingRows:
    """Takes the record batches of a task, and gives requests as soon as they are full."""

    def __init__(self, columns: SinkColumns, request_bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self.watermark_ms: int | None = None  # the highest that was seen
        self._columns = columns
        self._bytes_max = request_bytes_max
        self._waiting: dict[str | None, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Take more rows; what comes is full and is to be sent, in this order."""
        batch = self._without_control(batch)
        if batch.num_rows == 0:
            return
        for topic, rows in self._by_topic(batch):
            for piece in _pieces(self._messages(rows), self._bytes_max):
                waiting = self._waiting.get(topic, ())
                if waiting and not _fit_together(waiting, piece, self._bytes_max):
                    yield self._taken(topic)
                self._waiting.setdefault(topic, []).append(piece)
                self._waiting_bytes += piece.nbytes
                if self._waiting_bytes > self._bytes_max:  # of one topic, or of many that have little each
                    yield from self.rest()

    def rest(self) -> Iterator[Outgoing]:
        """What waits."""
        for topic in list(self._waiting):
            yield self._taken(topic)

    def _taken(self, topic: str | None) -> Outgoing:
        pieces = self._waiting.pop(topic)
        self._waiting_bytes -= sum(piece.nbytes for piece in pieces)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pieces[0].schema) as stream:
            for piece in pieces:
                stream.write_batch(piece)
        return Outgoing(topic, sink.getvalue().to_pybytes(), sum(piece.num_rows for piece in pieces))

    def _without_control(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are messages; those that are not only tell how far event time has come."""
        if self._columns.has_watermark:
            # In microseconds since 1970. The end of time, which a source gives once its topics have ended, is no watermark.
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
        _refuse_nulls(batch, "topic", "where it goes")
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
            f"column {name} is null in {nulls} of {batch.num_rows} rows, and every message needs {what}: filter such rows"
            " out, or give them a value (coalesce)",
            field=name,
        )


def _plain(column: pa.Array, name: str) -> pa.Array:
    """The column as the server reads it, whatever Spark's settings make of its types."""
    if name == "headers":
        return column.cast(_HEADERS)
    if name == "event_time":
        return column.cast(_UTC_TIME)
    return column.cast(pa.binary())


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices that are within the limit; a row that is not makes one alone. Nothing is copied."""
    if batch.num_rows <= 1 or (batch.nbytes <= bytes_max and batch.num_rows <= PUBLISH_MESSAGES_MAX):
        yield batch
        return
    # By the average first. Where rows differ much a slice may still be too large, and is cut again.
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
