"""Where a micro-batch ends: as far as its topics are decided, and as much as it may take in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from basalt_spark.admission import Budget, Share
from basalt_spark.data_loss import DataLoss
from basalt_spark.event_time import END_OF_TIME_MS, Seen, watermark_of
from basalt_spark.offset import Offset, TopicOffset
from basalt_spark.read_options import ReadOptions
from basalt_spark.topic_name import TopicName
from basalt_spark.topic_progress import Taken, advance_topic, markers_before

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.api.bodies.ranges import Advance, StableEnd
    from basalt.client import Client, Topic


@dataclass(slots=True)
class BatchEnd:
    """The end of a batch, how much of each topic there is up to it, and of which topics that is all."""

    offset: Offset
    taken: dict[TopicName, Taken]
    at_end: set[TopicName] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """How many messages the batch has."""
        return sum(taken.rows for taken in self.taken.values())


class _OtherGeneration(Exception):  # noqa: N818  # caught where it is raised from: no error of anybody
    def __init__(self, generation: int) -> None:
        super().__init__(generation)
        self.generation = generation


class BatchEndSearch:
    """Finds where batches end. `bounds` are where the topics ended when an AvailableNow query began (None: no such)."""

    def __init__(
        self, client: Client, options: ReadOptions, loss: DataLoss, bounds: Mapping[TopicName, StableEnd] | None
    ) -> None:
        self._client = client
        self._options = options
        self._loss = loss
        self._bounds = bounds

    def after(self, start: Offset, budget: Budget, now_ms: int) -> BatchEnd:
        """The end of the batch that begins at `start`."""
        begun = replace(start, topics=dict(self._begun(start)), initial=False)
        found = BatchEnd(begun, {name: Taken() for name in begun.topics})
        reached = dict(found.offset.topics)
        waiting = set(self._options.topics)
        while waiting and not budget.spent:
            ended = len(found.at_end)
            for name, share in budget.shares([(name, reached[name].id) for name in waiting]):
                reached[name], taken = self._advanced(name, reached[name], share, start.initial)
                budget.take(taken.rows, taken.bytes)
                found.taken[name].add(taken)
                if taken.at_end:
                    found.at_end.add(name)
            waiting -= found.at_end
            if len(found.at_end) == ended:
                break  # all that are left have had their share, and none has left anything of its own
        found.offset = self._described(replace(found.offset, topics=reached), found.at_end, now_ms)
        return found

    def _begun(self, start: Offset) -> Mapping[TopicName, TopicOffset]:
        if not start.initial:
            return start.topics
        return {
            name: reached
            if reached.id is None
            else replace(reached, markers=markers_before(self._topic(name), reached.id, self._options.isolation))
            for name, reached in start.topics.items()
        }

    def _advanced(
        self, name: TopicName, reached: TopicOffset, share: Share, initial: bool
    ) -> tuple[TopicOffset, Taken]:
        bound = None if self._bounds is None else self._bounds[name]
        if bound is not None and bound.generation > reached.generation:
            return self._restarted(name, reached, bound.generation)
        # Where the topic was created anew since the query began, nothing is left of what it was to read.
        anew = bound is not None and bound.generation < reached.generation
        if anew or (bound is not None and _is_up_to(reached.id, bound.id)):
            return reached, Taken(at_end=True)
        through = None if bound is None else bound.id

        def check(step: Advance) -> None:
            if step.generation != reached.generation:
                raise _OtherGeneration(step.generation)
            if step.expired and not initial and reached.id == reached.behind:
                self._loss.expired(name, reached.id)

        isolation = self._options.isolation
        try:
            return advance_topic(self._topic(name), reached, share, through=through, isolation=isolation, check=check)
        except _OtherGeneration as other:
            return self._restarted(name, reached, other.generation)

    def _restarted(self, name: TopicName, reached: TopicOffset, generation: int) -> tuple[TopicOffset, Taken]:
        self._loss.other_generation(name, reached.generation, generation)
        return TopicOffset(generation, None, None), Taken()

    def _described(self, offset: Offset, at_end: set[TopicName], now_ms: int) -> Offset:
        seen = [
            Seen(reached.markers, now_ms if name in at_end else _published_ms(reached.id))
            for name, reached in offset.topics.items()
        ]
        watermark_ms, ended = watermark_of(seen, offset.watermark_ms, self._options.idle)
        done = ended and at_end == set(offset.topics)
        if done and self._options.end_on_eos:
            # In two steps: the next batch, which has no rows, says that all is done. It runs under the end of time and closes
            # every window, and is planned also after a restart; Spark's own batch without data is not.
            watermark_ms, done = END_OF_TIME_MS, False
        return replace(offset, watermark_ms=watermark_ms, done=done)

    def _topic(self, name: TopicName) -> Topic:
        return self._client.topic(name.topic, namespace=name.namespace)


def _is_up_to(reached: bytes | None, bound: bytes | None) -> bool:
    return bound is None or (reached is not None and reached >= bound)


def _published_ms(message_id: bytes | None) -> int:
    return 0 if message_id is None else int.from_bytes(message_id[:8])
