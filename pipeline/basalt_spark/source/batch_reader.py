"""`spark.read.format("basalt")`: the present messages of topics, or a part of them.

The end is fixed when the read is planned: the stable end of each topic, behind which nothing is decided yet. So all
tasks of a read, and their repetitions, agree on its rows. With option `pushdown` comparisons of `publish_time` and `id`
with constants bound the range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from basalt.errors import InputError
from basalt_spark.connection import TopicName, client_of, instance_of
from basalt_spark.offset import ID_BYTES, before_id, before_time, refuse_other_installation
from basalt_spark.options.read_options import ReadOptions
from basalt_spark.source.partitions import RangePartition, partitions_of, read_partition

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client import Client


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NOWHERE = b""  # less than every id: a range through it is empty


class Bounds(NamedTuple):
    """The range after < id <= through of the rows that filters let through; None: unbounded."""

    after: bytes | None = None
    through: bytes | None = None

    def within(self, after: bytes | None, through: bytes | None) -> tuple[bytes | None, bytes | None]:
        """The part of a range that lies within the bounds; `through` is None if that is empty."""
        if self.after is not None:
            after = self.after if after is None else max(after, self.after)
        if self.through is not None and through is not None:
            through = min(through, self.through)
        return after, None if not through or (after is not None and after >= through) else through

    def both(self, other: Bounds) -> Bounds:
        """The bounds of the rows that lie within these and within others."""
        after = max(filter(None, (self.after, other.after)), default=None)
        through = min((one for one in (self.through, other.through) if one is not None), default=None)
        return Bounds(after, through)


EVERYTHING = Bounds()


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The smallest range that holds every row which all these filters let through."""
    bounds = EVERYTHING
    for given in filters:
        bounds = bounds.both(_bounds(given))
    return bounds


def _bounds(given: Filter) -> Bounds:
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return EVERYTHING
    if given.attribute == ("publish_time",):
        edges = _edges_of_time(given.value)
    elif given.attribute == ("id",):
        edges = _edges_of_id(given.value)
    else:
        return EVERYTHING
    if edges is None:
        return EVERYTHING
    below, through = edges
    if isinstance(given, EqualTo):
        return Bounds(below, through or _NOWHERE)
    if isinstance(given, GreaterThan):
        return Bounds(after=through)
    if isinstance(given, GreaterThanOrEqual):
        return Bounds(after=below)
    return Bounds(through=(through if isinstance(given, LessThanOrEqual) else below) or _NOWHERE)


def _edges_of_time(value: Any) -> tuple[bytes | None, bytes | None] | None:
    """The last ids before this moment and at it. Messages have whole milliseconds; a moment between two is at none."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - _EPOCH
    if since < timedelta(0):
        return None
    whole_ms = since // _MILLISECOND
    before = before_time(whole_ms if whole_ms * _MILLISECOND == since else whole_ms + 1)
    return before, before_time(whole_ms + 1)


def _edges_of_id(value: Any) -> tuple[bytes | None, bytes | None] | None:
    """The last ids before these bytes and at them. Bytes of another length are compared as bytes are, as Spark does."""
    if not isinstance(value, bytes | bytearray):
        return None
    padded = bytes(value[:ID_BYTES]).ljust(ID_BYTES, b"\0")
    if len(value) <= ID_BYTES:
        # Shorter bytes are less than every id that starts with them; longer ones are greater than the id they start
        # with.
        return before_id(padded), padded if len(value) == ID_BYTES else before_id(padded)
    return padded, padded


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
        after = options.start.of(name).cut(stable.id)
        end = options.end.of(name)
        through = end.cut(stable.id)
        if end.kind == "id" and through is not None and (stable.id is None or through > stable.id):
            if options.end.by_topic:
                raise InputError(
                    f"option endingOffsets: topic {name} is decided up to"
                    f" {stable.id.hex() if stable.id else 'nowhere'}, not up to {through.hex()}:"
                    " what is behind may still change; wait, or end the read earlier",
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
    """A reader whose range is bounded by filters of publish time and id.

    It is a class of its own because Spark refuses a reader that defines `pushFilters` unless filter pushdown is
    switched on.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's name
        """Bound the range by the filters.

        All are given back: Spark applies them to the rows, which is cheap and exact.
        """
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
