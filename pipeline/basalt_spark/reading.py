"""What a task of Spark reads: a range of a topic, or rows that are no messages.

A reader's `read()` runs in another process than the one that planned it, maybe on another machine, and maybe twice. So
a partition holds all that it takes, and a range reads the same each time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from basalt.errors import GenerationError, TopicNotFoundError
from basalt_spark.connection import client_of
from basalt_spark.read_options import ReadOptions
from basalt_spark.record_batches import ControlRow, RecordBatches, sent_columns
from basalt_spark.topic_name import TopicName

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client.calls.arrow import ArrowPage


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The messages of (after, through] of one generation of a topic, each with this watermark."""

    topic: TopicName
    after: bytes | None
    through: bytes
    generation: int
    watermark_ms: int | None = None


@dataclass(frozen=True)
class ControlPartition(InputPartition):
    """Rows that are no messages."""

    rows: tuple[ControlRow, ...]
    watermark_ms: int | None


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    if isinstance(partition, RangePartition):
        yield from _read_range(options, partition)
    elif isinstance(partition, ControlPartition):
        yield RecordBatches(options.columns, None, partition.watermark_ms).of_control(partition.rows)
    # A batch read without any range gets one partition from Spark, which says nothing.


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
    """The answers that make up the range. The next one is on its way while Spark works on what came."""
    topic = client_of(options.server).topic(partition.topic.topic, namespace=partition.topic.namespace)
    columns = sent_columns(options.columns)

    def ask(after: bytes | None) -> ArrowPage:
        return topic.range(
            after,
            partition.through,
            columns=columns,
            bytes_max=options.fetch_bytes,
            isolation=options.isolation,
            generation=partition.generation,
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
