"""`spark.readStream.format("basalt")`: topics followed in micro-batches.

Spark asks where a batch ends (`latestOffset`), writes that down, then has its partitions planned; after a restart it plans
the last one again from what was written down. So a batch is a function of its two offsets, and all that a task needs is in
its partition. What an instance keeps is only what would be found out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from basalt_engine.clock import Clock, SystemClock
from basalt_spark.admission import Budget
from basalt_spark.batch_end import BatchEnd, BatchEndSearch
from basalt_spark.checkpoint import instance_of, refuse_foreign, refuse_other_generations
from basalt_spark.connection import client_of
from basalt_spark.data_loss import DataLoss
from basalt_spark.event_time import END_OF_TIME_MS, control_rows
from basalt_spark.offset import Offset, TopicOffset, offset_json, parse_offset
from basalt_spark.planning import partitions_of
from basalt_spark.read_options import ReadOptions
from basalt_spark.reading import ControlPartition, RangePartition, read_partition
from basalt_spark.topic_name import TopicName

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.api.bodies.ranges import StableEnd
    from basalt.client import Client


class BasaltStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. Spark pickles an instance for its tasks before it has called any method but the constructor."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._loss = DataLoss(options.fail_on_data_loss)
        self._clock: Clock = SystemClock()
        self._initial: Offset | None = None
        self._bounds: dict[TopicName, StableEnd] | None = None
        self._found: tuple[Mapping[str, Any], Mapping[str, Any], BatchEnd] | None = None
        self._batch_ms: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # Spark's names, here and below
        """Where a new query begins. Spark asks more than once, and must be told the same."""
        if self._initial is None:
            given = self._options.start.offset
            self._initial = self._begin() if given is None else _begun_at(given)
        return offset_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a batch may take in."""
        admission = self._options.admission
        if admission.rows_max is not None:
            return ReadMaxRows(admission.rows_max)
        if admission.bytes_max is not None:
            return ReadMaxBytes(admission.bytes_max)
        return ReadMinRows(admission.rows_min) if admission.rows_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the topics end now: this query reads no further."""
        self._bounds = {name: self._topic_end(name) for name in self._options.topics}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; `start` itself when there is nothing to read yet."""
        begin = self._checked(start)
        now_ms = self._clock.now_ms()
        if self._options.end_on_eos and begin.watermark_ms == END_OF_TIME_MS:
            return start if begin.done else offset_json(replace(begin, done=True))
        admission = self._options.admission
        unlimited = isinstance(limit, ReadAllAvailable)
        budget = Budget(None, None) if unlimited else Budget(admission.rows_max, admission.bytes_max)
        found = BatchEndSearch(self._client, self._options, self._loss, self._bounds).after(begin, budget, now_ms)
        if not unlimited and self._waits(found, now_ms):
            return start
        end = offset_json(found.offset)
        if end != start:
            self._batch_ms = now_ms
        self._found = (start, end, found)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the topics go now, for the query's progress."""
        if self._found is None:
            return None
        found = self._found[2]
        topics = {}
        for name, reached in sorted(found.offset.topics.items()):
            last = reached.id if name in found.at_end else self._topic_end(name).id
            topics[str(name)] = {"gen": reached.generation, "id": None if last is None else last.hex()}
        return {"topics": topics}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch: topic after topic, each in the order of its messages; what is no message comes last."""
        first, last = self._checked(start), self._checked(end)
        found = self._found[2] if self._found is not None and self._found[:2] == (start, end) else None
        if found is None:  # planned again after a restart: nobody has looked at the topics yet
            refuse_other_generations(self._client, last, self._loss)
        parts: list[InputPartition] = []
        for name in self._options.topics:
            taken = None if found is None else found.taken[name]
            if taken is None or taken.rows:  # markers alone need no task
                parts += self._topic_partitions(name, first, last, None if taken is None else taken.bytes)
        rows = control_rows(first, last, self._options.control)
        if rows:
            parts.append(ControlPartition(rows, last.watermark_ms))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_partition(self._options, partition)

    def _topic_partitions(
        self, name: TopicName, first: Offset, last: Offset, size_bytes: int | None
    ) -> list[RangePartition]:
        before, reached = first.topics[name], last.topics[name]
        if reached.id is None:
            return []
        # The first batch began where `latest` was then; another generation begins at its start.
        fresh = first.initial or before.generation != reached.generation
        after = reached.began if fresh else before.behind
        whole = RangePartition(name, after, reached.id, reached.generation, last.watermark_ms)
        return partitions_of(self._client, self._options, whole, size_bytes)

    def _begin(self) -> Offset:
        topics = {}
        for name in self._options.topics:
            stable = self._topic_end(name)
            after = self._options.start.of(name).cut(lambda stable=stable: stable.id)  # type: ignore[misc]
            there = None if after is None or stable.id is None else min(after, stable.id)
            topics[name] = TopicOffset(stable.generation, there, after)
        return Offset(self._instance, topics, initial=True)

    def _waits(self, found: BatchEnd, now_ms: int) -> bool:
        """Whether to wait for more messages: there are too few, and they have not waited for too long."""
        admission = self._options.admission
        ended = found.offset.done or found.offset.watermark_ms == END_OF_TIME_MS
        if found.rows >= admission.rows_min or self._bounds is not None or ended:
            return False
        if self._batch_ms is None:
            self._batch_ms = now_ms
        return now_ms - self._batch_ms < admission.delay_ms_max

    def _checked(self, members: Mapping[str, Any]) -> Offset:
        offset = parse_offset(members)
        refuse_foreign(offset, self._options.topics, self._instance)
        return offset

    def _topic_end(self, name: TopicName) -> StableEnd:
        return self._client.topic(name.topic, namespace=name.namespace).stable_end(isolation=self._options.isolation)

    @property
    def _client(self) -> Client:
        return client_of(self._options.server)

    @cached_property
    def _instance(self) -> str:
        return instance_of(self._client)


def _begun_at(offset: Offset) -> Offset:
    """A query of its own that goes on from another one's offset: here it began, wherever that one did."""
    topics = {name: replace(reached, began=reached.behind) for name, reached in offset.topics.items()}
    return replace(offset, topics=topics)
