"""The end of a micro-batch: as far as its topics are decided, and as much as the batch may take in.

Each topic gets the same share of what a batch takes in; what one topic leaves, the others share again. If there is less
than one message for each, the topics that are furthest behind in time come first. So no topic is starved, and the same
state gives the same shares.

A batch's rows are a function of its two offsets alone: Spark may plan a batch again after a restart and must get the
same rows. So the watermark is kept in the offset, even if a clock had its part in it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from basalt.api.markers import NOTHING_KNOWN, Idle, MarkerState, advanced, is_ended, merged, watermark_ms
from basalt.errors import GenerationError, InputError
from basalt_spark.columns import END_OF_TIME_MS
from basalt_spark.connection import QualifiedTopic, topic_of
from basalt_spark.offset import Offset, TopicOffset
from basalt_spark.options import ReadOptions

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.api.bodies.ranges import Advance, StableEnd

log = logging.getLogger(__name__)

Waiting: TypeAlias = tuple[QualifiedTopic, bytes | None]  # a topic, and the id up to which it was read

_GO_ON = "start the query with a new checkpoint, or set failOnDataLoss to false to go on with what there is"


@dataclass(slots=True)
class BatchBudget:
    """The rest of a micro-batch's limits, or of one topic's share of them; None: no limit."""

    rows: int | None
    bytes: int | None

    @property
    def spent(self) -> bool:
        """True when nothing more may be taken in."""
        return (self.rows is not None and self.rows <= 0) or (self.bytes is not None and self.bytes <= 0)

    def take(self, rows: int, size_bytes: int) -> None:
        if self.rows is not None:
            self.rows -= rows
        if self.bytes is not None:
            self.bytes -= size_bytes

    def shares(self, waiting: Iterable[Waiting]) -> list[tuple[QualifiedTopic, BatchBudget]]:
        """Divide the rest among these topics. Topics that would get nothing are left out."""
        order = [topic for topic, _ in sorted(waiting, key=lambda one: (one[1] or b"", one[0]))]
        rows, sizes = _parts(self.rows, len(order)), _parts(self.bytes, len(order))
        shares = zip(order, map(BatchBudget, rows, sizes), strict=True)
        return [(topic, share) for topic, share in shares if not share.spent]


def _parts(whole: int | None, count: int) -> list[int | None]:
    if whole is None:
        return [None] * count
    each, rest = divmod(max(whole, 0), max(count, 1))
    return [each + (place < rest) for place in range(count)]


class DataLoss:
    """The answer of option `failOnDataLoss` to messages that are gone before they were read: an error, or a warning."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def other_generation(self, topic: QualifiedTopic, known: int, present: int) -> None:
        what = (
            f"topic {topic} is of generation {present} now, and the checkpoint is of generation {known}:"
            " it was deleted and created again, and what was not read before is gone"
        )
        if self._fails:
            raise GenerationError(f"{what}; {_GO_ON}", field="failOnDataLoss")
        log.warning("%s; going on from its start", what)

    def expired(self, topic: QualifiedTopic, after: bytes | None) -> None:
        start = "the start" if after is None else after.hex()
        what = f"messages of topic {topic} behind {start} have expired before they were read"
        if self._fails:
            raise InputError(f"{what}; {_GO_ON}, and give the topic a longer ttl", field="failOnDataLoss")
        log.warning("%s; going on with the oldest that are left", what)


class Seen(NamedTuple):
    """The state of a topic's markers, and the time up to which they were read: now, or its last message's publish time.

    A reader that lags behind must not take a task for silent if it has not come to the task's next marker yet.
    """

    markers: MarkerState
    now_ms: int


def watermark_of(seen: Iterable[Seen], held_ms: int | None, idle: Idle | None) -> tuple[int | None, bool]:
    """The watermark of all topics together, never lower than the one held; and whether all of them have ended."""
    topics = list(seen)
    running = [topic for topic in topics if not is_ended(topic.markers)]
    marks = [advanced(topic.markers, held_ms, idle, topic.now_ms) for topic in running]
    if not running:
        highest = [mark for topic in topics if (mark := watermark_ms(topic.markers)) is not None]
        marks = [max(highest, default=None)]
    known = [mark for mark in marks if mark is not None]
    if not known or len(known) < len(marks):
        return held_ms, not running
    return (min(known) if held_ms is None else max(held_ms, min(known))), not running


@dataclass(slots=True)
class Taken:
    """The messages of one topic in a batch; `at_end`: they are all there are."""

    rows: int = 0
    bytes: int = 0
    at_end: bool = False

    def add(self, more: Taken) -> None:
        self.rows += more.rows
        self.bytes += more.bytes
        self.at_end = more.at_end


@dataclass(slots=True)
class BatchEnd:
    """The end of a batch, the messages of each topic up to it, and the topics that are read to their end by then."""

    offset: Offset
    taken: dict[QualifiedTopic, Taken]
    at_end: set[QualifiedTopic] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return sum(taken.rows for taken in self.taken.values())


class BatchEndSearch:
    """Finds the ends of batches.

    `bounds` are the topics' ends when an AvailableNow query began; None for other queries.
    """

    def __init__(self, options: ReadOptions, loss: DataLoss, bounds: Mapping[QualifiedTopic, StableEnd] | None) -> None:
        self._options = options
        self._loss = loss
        self._bounds = bounds

    def after(self, start: Offset, budget: BatchBudget, now_ms: int) -> BatchEnd:
        """The end of the batch that begins at `start`."""
        reached = dict(start.topics)
        if start.initial:
            for name, place in start.topics.items():
                if place.id is not None:
                    reached[name] = replace(place, markers=self._markers_before(name, place.id))
        end = BatchEnd(start, {name: Taken() for name in reached})
        waiting = set(self._options.topics)
        while waiting and not budget.spent:
            ended = len(end.at_end)
            for name, share in budget.shares([(name, reached[name].id) for name in waiting]):
                reached[name], taken = self._advanced(name, reached[name], share, start.initial)
                budget.take(taken.rows, taken.bytes)
                end.taken[name].add(taken)
                if taken.at_end:
                    end.at_end.add(name)
            waiting -= end.at_end
            if len(end.at_end) == ended:
                break  # each topic that is left has used its share, and none has left a part of its own to others
        end.offset = self._described(replace(start, topics=reached, initial=False), end.at_end, now_ms)
        return end

    def _markers_before(self, name: QualifiedTopic, end: bytes) -> MarkerState:
        """The state of the markers up to an id, for a query that begins in the middle of the topic."""
        topic, markers, after = topic_of(self._options.server, name), NOTHING_KNOWN, None
        while True:
            step = topic.advance(after, through=end, isolation=self._options.isolation)
            markers = merged(markers, step.marker_state).expecting(step.tasks_property)
            if step.at_end or step.through is None or step.through == after:
                return markers
            after = step.through

    def _advanced(
        self, name: QualifiedTopic, reached: TopicOffset, share: BatchBudget, initial: bool
    ) -> tuple[TopicOffset, Taken]:
        bound = None if self._bounds is None else self._bounds[name]
        if bound is not None and bound.generation > reached.generation:
            return self._restarted(name, reached, bound.generation)
        # If the topic was created again since the query began, nothing is left of what the query was to read.
        created_again = bound is not None and bound.generation < reached.generation
        if created_again or (bound is not None and _is_up_to(reached.id, bound.id)):
            return reached, Taken(at_end=True)
        return self._taken(name, reached, share, None if bound is None else bound.id, initial)

    def _taken(
        self, name: QualifiedTopic, start: TopicOffset, share: BatchBudget, through: bytes | None, initial: bool
    ) -> tuple[TopicOffset, Taken]:
        """Go as far as the share allows, but not past `through` (None: the stable end).

        The server bounds its work in one call, so several calls may be needed. A message that does not fit any more is
        left for the next batch, unless it would be the only one.
        """
        topic, reached, taken = topic_of(self._options.server, name), start, Taken()
        while True:
            step = topic.advance(
                reached.id,
                messages_max=share.rows,
                bytes_max=share.bytes,
                through=through,
                isolation=self._options.isolation,
            )
            if step.generation != start.generation:
                return self._restarted(name, start, step.generation)
            if step.expired and not initial and start.id == start.behind:
                self._loss.expired(name, start.id)
            if share.bytes is not None and step.bytes > share.bytes and taken.rows:
                return reached, taken
            stood = step.through is None or step.through == reached.id
            reached = _moved(reached, step)
            taken.add(Taken(step.messages, step.bytes, step.at_end))
            share.take(step.messages, step.bytes)
            if stood or share.spent or step.at_end:
                return reached, taken

    def _restarted(self, name: QualifiedTopic, reached: TopicOffset, generation: int) -> tuple[TopicOffset, Taken]:
        self._loss.other_generation(name, reached.generation, generation)
        return TopicOffset(generation, None, None), Taken()

    def _described(self, offset: Offset, at_end: set[QualifiedTopic], now_ms: int) -> Offset:
        published_ms = {name: int.from_bytes((reached.id or b"")[:8]) for name, reached in offset.topics.items()}
        seen = [
            Seen(reached.markers, now_ms if name in at_end else published_ms[name])
            for name, reached in offset.topics.items()
        ]
        watermark, ended = watermark_of(seen, offset.watermark_ms, self._options.idle)
        done = ended and at_end == set(offset.topics)
        if done and self._options.end_on_eos:
            # End in two steps: the next batch, which has no rows, says that all is done. It runs under the end of time
            # and closes every window, and it is planned after a restart too; Spark's own batch without data is not.
            watermark, done = END_OF_TIME_MS, False
        return replace(offset, watermark_ms=watermark, done=done)


def _moved(reached: TopicOffset, step: Advance) -> TopicOffset:
    markers = merged(reached.markers, step.marker_state).expecting(step.tasks_property)
    return replace(reached, id=reached.id if step.through is None else step.through, markers=markers)


def _is_up_to(reached: bytes | None, bound: bytes | None) -> bool:
    return bound is None or (reached is not None and reached >= bound)
