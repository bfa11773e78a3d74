"""Rows for Spark out of what a server answers to a range: the Arrow columns as they came, and three that are constant.

Nothing is copied or looked at: a record batch is cut into slices, and the constant columns are slices of arrays that are
made once. Spark compares the schema of a task's first record batch with its own, so it must be the very same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from basalt.errors import ProtocolError
from basalt_spark.columns import CONTROL, MADE_HERE, TOPIC, WATERMARK
from basalt_spark.schema import arrow_schema

ROWS_MAX = 10_000  # of a record batch: what Spark itself makes of rows (spark.sql.execution.arrow.maxRecordsPerBatch)
COUNTED_BY = "sequence"  # asked of the server where no column of a message is wanted, for rows must still be counted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ControlRow(NamedTuple):
    """A row that is no message: `control` says what it is, `key` which task said it."""

    control: str
    topic: str | None = None
    key: bytes | None = None
    event_time_ms: int | None = None


def sent_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the columns that a server sends; at least one, whatever is wanted."""
    return tuple(name for name in columns if name not in MADE_HERE) or (COUNTED_BY,)


class RecordBatches:
    """Makes the record batches of one task: of one topic, with one watermark."""

    def __init__(self, columns: tuple[str, ...], topic: str | None, watermark_ms: int | None) -> None:
        self._schema = arrow_schema(columns)
        self._made = {
            TOPIC: pa.repeat(pa.scalar(topic, pa.string()), ROWS_MAX),
            WATERMARK: pa.repeat(_timestamp(watermark_ms), ROWS_MAX),
            CONTROL: pa.nulls(ROWS_MAX, pa.string()),
        }
        self._watermark_ms = watermark_ms

    def of_messages(self, body: bytes) -> Iterator[pa.RecordBatch]:
        """The rows of an answer, in order."""
        try:
            with ipc.open_stream(pa.py_buffer(body)) as stream:
                for sent in stream:
                    for start in range(0, sent.num_rows, ROWS_MAX):
                        yield self._completed(sent.slice(start, ROWS_MAX))
        except pa.ArrowInvalid as error:
            raise ProtocolError(f"a range was answered with what is no Arrow stream: {error}") from None

    def of_control(self, rows: Sequence[ControlRow]) -> pa.RecordBatch:
        """Rows that are no messages: all but the columns that are about them are null."""
        given: dict[str, list[Any]] = {
            TOPIC: [row.topic for row in rows],
            "key": [row.key for row in rows],
            WATERMARK: [_moment(self._watermark_ms)] * len(rows),
            CONTROL: [row.control for row in rows],
            "event_time": [_moment(row.event_time_ms) for row in rows],
        }
        nothing = [None] * len(rows)
        arrays = [pa.array(given.get(field.name, nothing), field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _completed(self, sent: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [self._array(field, sent) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, sent: pa.RecordBatch) -> pa.Array:
        if field.name in MADE_HERE:
            return self._made[field.name].slice(0, sent.num_rows)
        array = sent.column(field.name)
        return array if array.type == field.type else array.cast(field.type)


def _timestamp(time_ms: int | None) -> pa.Scalar:
    return pa.scalar(None if time_ms is None else time_ms * 1_000, pa.timestamp("us", tz="UTC"))


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)
