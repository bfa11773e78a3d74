"""`spark.read.format("basalt")`: what is there now, or a part of it.

The end is fixed where the read is planned: the stable end of each topic, behind which nothing is decided yet. So all tasks
of a read, and their repetitions, agree on what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from basalt.errors import InputError
from basalt_spark.checkpoint import instance_of, refuse_other_installation
from basalt_spark.connection import client_of
from basalt_spark.planning import partitions_of
from basalt_spark.pushdown import EVERYTHING, bounds_of
from basalt_spark.read_options import ReadOptions
from basalt_spark.reading import RangePartition, read_partition
from basalt_spark.topic_name import TopicName

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client import Client


class BasaltReader(DataSourceReader):
    """Reads topics up to an end."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = EVERYTHING

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the read: topic after topic, each in the order of its messages."""
        client = client_of(self._options.server)
        _refuse_other_installation(client, self._options)
        return [part for topic in self._options.topics for part in self._partitions(client, topic)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_partition(self._options, partition)

    def _partitions(self, client: Client, name: TopicName) -> list[RangePartition]:
        options = self._options
        stable = client.topic(name.topic, namespace=name.namespace).stable_end(isolation=options.isolation)
        after = options.start.of(name).cut(lambda: stable.id)
        end = options.end.of(name)
        through = end.cut(lambda: stable.id)
        if end.kind == "id" and through is not None and (stable.id is None or through > stable.id):
            if options.end.by_topic:
                raise InputError(
                    f"option endingOffsets: topic {name} is decided up to {stable.id.hex() if stable.id else 'nowhere'},"
                    f" not up to {through.hex()}: what is behind may still change; wait, or end before",
                    field="endingOffsets",
                )
            through = stable.id  # a time that has not come yet, or no message since
        _refuse_other_generation(options, name, stable.generation)
        after, through = self._bounds.within(after, through)
        if through is None:
            return []
        whole = RangePartition(name, after, through, stable.generation)
        return partitions_of(client, options, whole)


class BasaltFilteringReader(BasaltReader):
    """The same, where filters by publish time and id bound the range.

    A class of its own, for Spark refuses a reader that defines `pushFilters` unless filter pushdown is switched on.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's name
        """Take what bounds the range. All are given back: Spark applies them to what is read, which is cheap and exact."""
        self._bounds = bounds_of(filters)
        return filters


def _refuse_other_installation(client: Client, options: ReadOptions) -> None:
    for option, edges in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        if edges.offset is not None:
            refuse_other_installation(edges.offset, instance_of(client), f"the offset of option {option}", option)


def _refuse_other_generation(options: ReadOptions, name: TopicName, generation: int) -> None:
    for option, edges in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        if edges.offset is not None and edges.offset.topics[name].generation != generation:
            raise InputError(
                f"option {option} is of generation {edges.offset.topics[name].generation} of topic {name}, which is of"
                f" generation {generation} now: it was deleted and created again; give another start",
                field=option,
            )
