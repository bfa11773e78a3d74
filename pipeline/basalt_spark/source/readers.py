"""The readers behind `spark.read` and `spark.readStream`: the present messages of topics, and topics followed.

The end of a batch read is fixed when it is planned: the stable end of each topic, behind which nothing is decided yet.
So all tasks of a read, and their repetitions, agree on its rows. With option `pushdown` comparisons of `publish_time`
and `id` with constants bound the range.

Of a stream Spark asks for the end of a batch (`latestOffset`), writes it down, then has its partitions planned; after a
restart it plans the last batch again from what it wrote down. So a batch is a function of its two offsets, and its
partitions hold all that a task needs. An instance keeps only what it could find out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from basalt.api.markers import NOTHING_KNOWN, TaskState
from basalt.errors import GroupNotFoundError, InputError
from basalt_engine.clock import Clock, SystemClock
from basalt_spark.columns import END_OF_TIME_MS
from basalt_spark.connection import QualifiedTopic, client_of, instance_of, topic_of
from basalt_spark.offset import (
    ID_BYTES,
    Offset,
    TopicOffset,
    before_id,
    before_time,
    hex_of,
    offset_json,
    parse_offset,
    refuse_other_installation,
)
from basalt_spark.options import Edges, ReadOptions
from basalt_spark.source.micro_batch import BatchBudget, BatchEnd, BatchEndSearch, DataLoss
from basalt_spark.source.partitions import ControlPartition, ControlRow, RangePartition, partitions_of, read_partition

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.api.bodies.ranges import StableEnd
    from basalt.client import Client

log = logging.getLogger(__name__)

REPORTER = "spark"  # who reports positions, as operators see it


class TopicReader:
    """The part that both readers share: the options, the server, and the rows of a task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    @property
    def _client(self) -> Client:
        return client_of(self._options.server)

    def _topic_end(self, name: QualifiedTopic) -> StableEnd:
        return topic_of(self._options.server, name).stable_end(isolation=self._options.isolation)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NOWHERE = b""  # less than every id: a range through it is empty


class IdBounds(NamedTuple):
    """The range after < id <= through of the rows that filters let through; None: unbounded."""

    after: bytes | None = None
    through: bytes | None = None

    def both(self, other: IdBounds) -> IdBounds:
        after = max(filter(None, (self.after, other.after)), default=None)
        through = min((one for one in (self.through, other.through) if one is not None), default=None)
        return IdBounds(after, through)


EVERYTHING = IdBounds()


def bounds_of(filters: Iterable[Filter]) -> IdBounds:
    """The smallest range that holds every row which all these filters let through."""
    return reduce(IdBounds.both, map(_bounds, filters), EVERYTHING)


def _bounds(given: Filter) -> IdBounds:
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return EVERYTHING
    edges_of = _EDGES.get(given.attribute)
    edges = None if edges_of is None else edges_of(given.value)
    if edges is None:
        return EVERYTHING
    below, through = edges
    if isinstance(given, EqualTo):
        return IdBounds(below, through or _NOWHERE)
    if isinstance(given, GreaterThan):
        return IdBounds(after=through)
    if isinstance(given, GreaterThanOrEqual):
        return IdBounds(after=below)
    return IdBounds(through=(through if isinstance(given, LessThanOrEqual) else below) or _NOWHERE)


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


_EDGES: dict[tuple[str, ...], Callable[[Any], tuple[bytes | None, bytes | None] | None]] = {
    ("publish_time",): _edges_of_time,
    ("id",): _edges_of_id,
}


class BasaltReader(TopicReader, DataSourceReader):
    """Reads topics up to an end."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._bounds = EVERYTHING

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the read: topic after topic, each in the order of its messages."""
        for option, edges in self._edges():
            if edges.offset is not None:
                instance = instance_of(self._client)
                refuse_other_installation(edges.offset, instance, f"the offset of option {option}", option)
        return [part for topic in self._options.topics for part in self._partitions(topic)]

    def _edges(self) -> tuple[tuple[str, Edges], ...]:
        return ("startingOffsets", self._options.start), ("endingOffsets", self._options.end)

    def _partitions(self, name: QualifiedTopic) -> list[RangePartition]:
        options, stable = self._options, self._topic_end(name)
        after, end = options.start.of(name).cut(stable.id), options.end.of(name)
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
        for option, edges in self._edges():
            if edges.offset is not None and edges.offset.topics[name].generation != stable.generation:
                raise InputError(
                    f"option {option} is of generation {edges.offset.topics[name].generation} of topic {name}, which is"
                    f" of generation {stable.generation} now: it was deleted and created again; give another start",
                    field=option,
                )
        if through is None:
            return []
        after, through = self._bounds.both(IdBounds(after, through))
        return partitions_of(options, RangePartition(name, after, through or _NOWHERE, stable.generation))


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


class BasaltStreamReader(TopicReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. Spark pickles an instance for its tasks before it has called any method but the constructor."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._loss = DataLoss(options.fail_on_data_loss)
        self._clock: Clock = SystemClock()
        self._initial: Offset | None = None
        self._bounds: dict[QualifiedTopic, StableEnd] | None = None
        self._found: tuple[Mapping[str, Any], Mapping[str, Any], BatchEnd] | None = None
        self._batch_ms: int | None = None
        self._reported: dict[QualifiedTopic, bytes] = {}

    def initialOffset(self) -> dict[str, Any]:  # Spark's names, here and below
        """The start of a new query. Spark asks more than once, and must be told the same."""
        if self._initial is None:
            given = self._options.start.offset
            self._initial = self._begin() if given is None else _restarted_at(given)
        return offset_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        admission = self._options.admission
        if admission.rows_max is not None:
            return ReadMaxRows(admission.rows_max)
        if admission.bytes_max is not None:
            return ReadMaxBytes(admission.bytes_max)
        return ReadMinRows(admission.rows_min) if admission.rows_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the present ends of the topics: this query reads no further."""
        self._bounds = {name: self._topic_end(name) for name in self._options.topics}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing to read yet."""
        begin = self._checked(start)
        now_ms = self._clock.now_ms()
        if self._options.end_on_eos and begin.watermark_ms == END_OF_TIME_MS:
            return start if begin.done else offset_json(replace(begin, done=True))
        admission = self._options.admission
        unlimited = isinstance(limit, ReadAllAvailable)
        budget = BatchBudget(None, None) if unlimited else BatchBudget(admission.rows_max, admission.bytes_max)
        found = BatchEndSearch(self._options, self._loss, self._bounds).after(begin, budget, now_ms)
        if not unlimited and self._waits(found, now_ms):
            return start
        end = offset_json(found.offset)
        if end != start:
            self._batch_ms = now_ms
        self._found = (start, end, found)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The present ends of the topics, for the query's progress."""
        if self._found is None:
            return None
        found = self._found[2]
        topics = {}
        for name, reached in sorted(found.offset.topics.items()):
            last = reached.id if name in found.at_end else self._topic_end(name).id
            topics[str(name)] = {"gen": reached.generation, "id": hex_of(last)}
        return {"topics": topics}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch: topic after topic, each in the order of its messages; control rows come last."""
        first, last = self._checked(start), self._checked(end)
        found = self._found[2] if self._found is not None and self._found[:2] == (start, end) else None
        if found is None:  # planned again after a restart: nobody has looked at the topics yet
            self._report_other_generations(last)
        parts: list[InputPartition] = []
        for name in self._options.topics:
            taken = None if found is None else found.taken[name]
            if taken is None or taken.rows:  # markers alone need no task
                parts += self._topic_partitions(name, first, last, None if taken is None else taken.bytes)
        rows = control_rows(first, last, self._options.control)
        if rows:
            parts.append(ControlPartition(rows, last.watermark_ms))
        return parts

    def commit(self, end: dict[str, Any]) -> None:
        """Report to the groups of option `group` how far the query has come, once a batch is written down as done.

        They are for people to look at; the query's place is in its checkpoint. So nothing that goes wrong here fails it.
        """
        if self._options.group is None:
            return
        try:
            for name, reached in parse_offset(end).topics.items():
                if reached.id is not None and self._reported.get(name) != reached.id:
                    self._report_position(name, self._options.group, reached.id)
                    self._reported[name] = reached.id
        except Exception as error:  # noqa: BLE001  # whatever it is, the batch is done
            log.warning("the position was not reported to group %s: %s", self._options.group, error)

    def _report_position(self, name: QualifiedTopic, group_name: str, up_to: bytes) -> None:
        group = topic_of(self._options.server, name).group(group_name)
        try:
            group.report_position(up_to, by=REPORTER)
        except GroupNotFoundError:
            group.create(mode="tracked")
            group.report_position(up_to, by=REPORTER)

    def _topic_partitions(
        self, name: QualifiedTopic, first: Offset, last: Offset, size_bytes: int | None
    ) -> list[RangePartition]:
        before, reached = first.topics[name], last.topics[name]
        if reached.id is None:
            return []
        # A query's first batch begins at the start that was noted then; another generation is read from its start.
        fresh = first.initial or before.generation != reached.generation
        after = reached.began if fresh else before.behind
        whole = RangePartition(name, after, reached.id, reached.generation, last.watermark_ms)
        return partitions_of(self._options, whole, size_bytes)

    def _report_other_generations(self, offset: Offset) -> None:
        """Report topics that were created again; `TopicNotFoundError` for one that does not exist."""
        for name, reached in offset.topics.items():
            present = topic_of(self._options.server, name).stable_end().generation
            if present != reached.generation:
                self._loss.other_generation(name, reached.generation, present)

    def _begin(self) -> Offset:
        topics = {}
        for name in self._options.topics:
            stable = self._topic_end(name)
            after = self._options.start.of(name).cut(stable.id)
            there = None if after is None or stable.id is None else min(after, stable.id)
            topics[name] = TopicOffset(stable.generation, there, after)
        return Offset(self._instance, topics, initial=True)

    def _waits(self, found: BatchEnd, now_ms: int) -> bool:
        """True while there are too few messages and they have not waited too long."""
        admission = self._options.admission
        ended = found.offset.done or found.offset.watermark_ms == END_OF_TIME_MS
        if found.rows >= admission.rows_min or self._bounds is not None or ended:
            return False
        if self._batch_ms is None:
            self._batch_ms = now_ms
        return now_ms - self._batch_ms < admission.delay_ms_max

    def _checked(self, members: Mapping[str, Any]) -> Offset:
        offset = parse_offset(members)
        if set(offset.topics) != set(self._options.topics):
            raise InputError(
                f"the checkpoint is of topics {', '.join(sorted(map(str, offset.topics)))}, and the query reads"
                f" {', '.join(map(str, self._options.topics))}: give each set of topics a checkpoint of its own",
                field="topics",
            )
        refuse_other_installation(offset, self._instance, "the checkpoint", "server")
        return offset

    @cached_property
    def _instance(self) -> str:
        return instance_of(self._client)


def _restarted_at(offset: Offset) -> Offset:
    """The start of a new query at another query's offset. It begins here, whatever the start of the other one was."""
    topics = {name: replace(reached, began=reached.behind) for name, reached in offset.topics.items()}
    return replace(offset, topics=topics)


def control_rows(start: Offset, end: Offset, control: Literal["hide", "heartbeat", "rows"]) -> tuple[ControlRow, ...]:
    """The rows of a batch that are no messages, in order: the tasks' markers, then a heartbeat if event time moved."""
    if control == "hide":
        return ()
    markers = tuple(_marker_rows(start, end)) if control == "rows" else ()
    if (start.watermark_ms, start.done) == (end.watermark_ms, end.done):
        return markers
    return (*markers, ControlRow("heartbeat"))


def _marker_rows(start: Offset, end: Offset) -> Iterator[ControlRow]:
    for name, reached in sorted(end.topics.items()):
        before = start.topics[name].markers if name in start.topics else NOTHING_KNOWN
        for task, state in sorted(reached.markers.tasks.items()):
            known = before.tasks.get(task, TaskState())
            if state.watermark_ms != known.watermark_ms:
                yield ControlRow("watermark", name.topic, task.encode(), state.watermark_ms)
            if state.ended and not known.ended:
                yield ControlRow("end", name.topic, task.encode())
