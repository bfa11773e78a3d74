"""Cuts ranges of topics into partitions: what one task of Spark reads, with the rows that are no messages.

A reader's `read()` runs in another process than the one that planned it, maybe on another machine, and maybe twice. So
a partition holds all that the task needs, and reads the same each time.

Rows are the Arrow columns as the server sent them, and three constant columns. Nothing is copied: a record batch is cut
into slices, and the constant columns are slices of arrays that are made once. Spark compares the schema of a task's
first record batch with its own, so the two must be equal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import ipc
from pyspark.sql.datasource import InputPartition

from basalt.errors import GenerationError, ProtocolError, TopicNotFoundError
from basalt_spark.columns import CONTROL, MADE_HERE, TOPIC, WATERMARK, arrow_schema
from basalt_spark.connection import QualifiedTopic, topic_of
from basalt_spark.option_table import PARTITIONS_MAX
from basalt_spark.options import ReadOptions

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client.calls.messages import ArrowPage


log = logging.getLogger(__name__)

# A task costs some 50 ms of a core and reads some 300 MB a second. Smaller tasks would spend a large read on starting
# them.
PARTITION_BYTES = 64 * 1024**2
ROWS_MAX = 10_000  # of a record batch: Spark's own number (spark.sql.execution.arrow.maxRecordsPerBatch)
COUNTED_BY = "sequence"  # asked for if no column of a message is wanted: rows must still be counted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ControlRow(NamedTuple):
    """A row that is no message: `control` is its kind, `key` the task it comes from."""

    control: str
    topic: str | None = None
    key: bytes | None = None
    event_time_ms: int | None = None


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The messages with after < id <= through of one generation of a topic, each with this watermark.

    `turn`: its number in its topic: of several servers neighbours are read by different ones. `size_bytes`: about how large it is; None: nobody knows.
    """

    topic: QualifiedTopic
    after: bytes | None
    through: bytes
    generation: int
    watermark_ms: int | None = None
    turn: int = 0
    size_bytes: int | None = None


@dataclass(frozen=True)
class ControlPartition(InputPartition):
    rows: tuple[ControlRow, ...]
    watermark_ms: int | None


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, RangePartition):
        yield from _read_range(options, partition)
    elif isinstance(partition, ControlPartition):
        yield RecordBatches(options.columns, None, partition.watermark_ms).of_control(partition.rows)
    # For a batch read without any range Spark makes one partition of its own, which is empty.


def _read_range(options: ReadOptions, partition: RangePartition) -> Iterator[pa.RecordBatch]:
    batches = RecordBatches(options.columns, partition.topic.topic, partition.watermark_ms)
    try:
        for page in _pages(options, partition):
            yield from batches.of_messages(page.body)
    except (GenerationError, TopicNotFoundError) as error:
        if options.fail_on_data_loss:
            raise
        log.warning("messages of topic %s are gone while they were read: %s", partition.topic, error)


def _pages(options: ReadOptions, partition: RangePartition) -> Iterator[ArrowPage]:
    """The server's answers to the range. The next one is fetched while Spark works on the one before."""
    topic = topic_of(options.server, partition.topic)
    columns = tuple(name for name in options.columns if name not in MADE_HERE) or (COUNTED_BY,)

    def ask(after: bytes | None) -> ArrowPage:
        return topic.range(
            after,
            partition.through,
            columns=columns,
            bytes_max=options.fetch_bytes,
            isolation=options.isolation,
            generation=partition.generation,
            turn=partition.turn,
            size_bytes=partition.size_bytes,
        )

    page = ask(partition.after)
    following = page.next_id
    if following is None:  # most tasks of micro-batches; they need no thread
        yield page
        return
    with ThreadPoolExecutor(1, "basalt-fetch") as ahead:
        while following is not None:
            coming = ahead.submit(ask, following)
            yield page
            page = coming.result()
            following = page.next_id
        yield page


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
        try:
            with ipc.open_stream(pa.py_buffer(body)) as stream:
                for sent in stream:
                    for start in range(0, sent.num_rows, ROWS_MAX):
                        yield self._completed(sent.slice(start, ROWS_MAX))
        except pa.ArrowInvalid as error:
            raise ProtocolError(f"a range was answered with what is no Arrow stream: {error}") from None

    def of_control(self, rows: Sequence[ControlRow]) -> pa.RecordBatch:
        """Control rows as a record batch; the columns of messages are null."""
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


def partitions_of(options: ReadOptions, whole: RangePartition, size_bytes: int | None = None) -> list[RangePartition]:
    """Cut a range into tasks, in its order, which Spark keeps.

    `size_bytes` is the size of the range, if it is known.
    """
    if (whole.after or b"") >= whole.through:
        return []
    wanted = ceil(options.partitions_min / len(options.topics))
    if wanted == 1 and size_bytes is not None and size_bytes <= PARTITION_BYTES:
        return [replace(whole, size_bytes=size_bytes)]  # most micro-batches: save the call that asks for splits
    topic = topic_of(options.server, whole.topic)
    if size_bytes is None:
        size_bytes = sum(
            split.bytes for split in topic.splits(whole.after, whole.through, 1, isolation=options.isolation)
        )
    wanted = min(PARTITIONS_MAX, max(wanted, ceil(size_bytes / PARTITION_BYTES)))
    if wanted <= 1:
        return [replace(whole, size_bytes=size_bytes)]
    splits = topic.splits(whole.after, whole.through, wanted, isolation=options.isolation)
    return [
        replace(whole, after=split.after, through=split.through, turn=turn, size_bytes=split.bytes)
        for turn, split in enumerate(splits)
    ]
