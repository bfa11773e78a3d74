"""The writers of one store: several for what lies in topics and tables, and one for the log of transactions.

On a store that is atomic over rows and tables they are all one group commit, for a group is one batch. Elsewhere each *lane* has a
queue and a thread of its own, and what holds up one does not hold up the others. A topic's lane goes by its base bucket, and so a
region that does not answer holds up the topics of its lane. Docs: docs/decisions/0079-eight-topic-lanes.md.

    A stage writes rows, payloads, cells and notes of one lane.

So everything about a topic is written in one order. A call about several lanes takes a stage in each (`TopicLanes.split`), and what
must find no write under way in any of them waits until all rest (`TopicLanes.alone`). A call that needs a lane of topics and the log
takes its steps one after the other, each durable before the next: docs/architecture.md says in which order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from basalt.runtime.group_commit import QUEUE_BYTES_MAX, Group, GroupCommit, too_much_waits
from basalt_engine.clock import Clock, Durations
from basalt_engine.keys import base_bucket
from basalt_engine.stores.shards import SHARDS
from basalt_engine.table import Store

# Each lane has a thread, a connection to the store, and a group of up to GROUP_BYTES_MAX under way; and of the calls that meet only those
# of one lane share a write. `messaging.topic_lanes` says how many there are.
TOPIC_LANES_MAX = 8
LOG_LATE_MS_MAX = 4_000  # how long a call about transactions waits for the log: clients hear of it within five seconds
# A lane whose write takes longer may have its part of the queue only: what waits behind a region that does not answer must leave
# room for the others. A write takes some 5 ms, and one of 8 MiB some 100.
HELD_UP_MS = 1_000
QUEUE_PART_MAX = 2  # any lane has at most one part in so many of the queue, lest it be full before it is known that the lane is held up

T = TypeVar("T")
ItemT = TypeVar("ItemT")


class TopicLane(GroupCommit):
    """One of the lanes of topics: its queue shares the bytes that there are with those of the others."""

    lanes: TopicLanes

    def _check_room(self, size_bytes: int) -> None:
        lanes = self.lanes
        of_lane, of_all = self._queue_bytes_max, lanes.queue_bytes
        if len(lanes.each) > 1:
            of_lane //= len(lanes.each) if self.is_held_up else QUEUE_PART_MAX
            if of_all and of_all + size_bytes > self._queue_bytes_max:
                raise too_much_waits(of_all, self._queue_bytes_max)
        if self.queue_bytes and self.queue_bytes + size_bytes > of_lane:
            raise too_much_waits(self.queue_bytes, of_lane)

    @property
    def is_held_up(self) -> bool:
        """True while a write takes longer than any should."""
        return self.write_ms_so_far > HELD_UP_MS


class TopicLanes:
    """The lanes of topics and tables; only one where a group is one batch, or a store has only one bucket."""

    def __init__(self, each: Collection[TopicLane], buckets: int) -> None:
        self.each = tuple(each)
        self._buckets = buckets
        for lane in self.each:
            lane.lanes = self

    @classmethod
    def of(
        cls, store: Store, clock: Clock, buckets: int, *, queue_bytes_max: int = QUEUE_BYTES_MAX, number: int = 1
    ) -> TopicLanes:  # fmt: skip
        number = 1 if store.atomic else min(number, TOPIC_LANES_MAX, buckets)
        return cls([TopicLane(store, clock, queue_bytes_max=queue_bytes_max) for _ in range(number)], buckets)

    def number_of(self, prefix: bytes) -> int:
        """The number of the lane of a topic or table."""
        number = len(self.each)
        return 0 if number == 1 else base_bucket(prefix, self._buckets) % number

    def lane_of(self, prefix: bytes) -> GroupCommit:
        """The lane of the topic or table of this prefix."""
        return self.each[0] if len(self.each) == 1 else self.each[self.number_of(prefix)]

    def of_shards(self, shards: Collection[int]) -> list[GroupCommit]:
        """The lanes in which topics and tables of these shards may be."""
        number = len(self.each)
        if self._buckets % number or SHARDS % number:
            return list(self.each)
        # Shard, bucket and lane are remainders of one hash: number divides the buckets, and the shards.
        return [self.each[lane] for lane in sorted({shard % number for shard in shards})]

    def split(self, items: Iterable[ItemT], prefix_of: Callable[[ItemT], bytes]) -> dict[GroupCommit, list[ItemT]]:
        """The items by the lanes of their topics or tables, in their order in each."""
        parts: dict[GroupCommit, list[ItemT]] = {}
        for item in items:
            parts.setdefault(self.lane_of(prefix_of(item)), []).append(item)
        return parts

    async def passed(self, *, must_run: bool = False) -> None:
        """Return once all that was taken before is durable, or refused. Fails as `GroupCommit.run`.

        A stage may hand further steps to other lanes. So where there are several, the first round finds those steps in their queues.
        """
        for _ in self.each[:2]:
            await passed(self.each, must_run=must_run)

    async def alone(self, lanes: Collection[GroupCommit], call: Callable[[], T]) -> T:
        """The result of a call that is made in its turn, while none of these lanes writes anything. It writes nothing itself."""
        if len(lanes) == 1:
            (lane,) = lanes
            return await lane.run(lambda _: call())
        pauses = [asyncio.ensure_future(lane.pause()) for lane in lanes]
        try:
            await asyncio.gather(*pauses)
            return call()
        finally:
            for pause in pauses:
                if not pause.cancel() and not pause.cancelled() and pause.exception() is None:
                    pause.result()()

    async def stop(self) -> None:
        """Take no more calls; return once all that were taken are answered, with the steps that they hand to other lanes."""
        await asyncio.gather(*(lane.stop() for lane in self.each))
        while not all(lane.is_idle for lane in self.each):
            await asyncio.gather(*(lane.stop() for lane in self.each))

    # Figures, of all lanes together.

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self.each)

    @property
    def loading(self) -> int:
        return sum(lane.loading for lane in self.each)

    @property
    def queue_bytes(self) -> int:
        return self.each[0].queue_bytes if len(self.each) == 1 else sum([lane.queue_bytes for lane in self.each])

    @property
    def queue_bytes_max(self) -> int:
        return self.each[0].queue_bytes_max

    @property
    def groups(self) -> int:
        return sum(lane.groups for lane in self.each)

    @property
    def calls(self) -> int:
        return sum(lane.calls for lane in self.each)

    @property
    def write_ms(self) -> float:
        return sum(lane.write_ms for lane in self.each)

    @property
    def sizes(self) -> list[int]:
        """Groups, by the power of two up to which their calls come."""
        return [sum(counts) for counts in zip(*(lane.sizes for lane in self.each), strict=True)]

    @property
    def waits(self) -> Durations:
        """Of each group's first call, from its coming to the group's beginning."""
        waits = [lane.waits for lane in self.each]
        return Durations(
            [sum(counts) for counts in zip(*(each.counts for each in waits), strict=True)],
            sum(each.sum_s for each in waits),
        )

    @property
    def held_up(self) -> int:
        """The lanes whose write takes longer than any should."""
        return sum(lane.is_held_up for lane in self.each)


class WriteLanes(NamedTuple):
    """The writers of one store. Where the store is atomic the log's is the only one of topics, too."""

    topics: TopicLanes
    log: GroupCommit

    @classmethod
    def of(
        cls, store: Store, clock: Clock, buckets: int, *, queue_bytes_max: int = QUEUE_BYTES_MAX, topic_lanes: int = 1
    ) -> WriteLanes:  # fmt: skip
        topics = TopicLanes.of(store, clock, buckets, queue_bytes_max=queue_bytes_max, number=topic_lanes)
        if store.atomic:
            return cls(topics, topics.each[0])
        return cls(topics, GroupCommit(store, clock, queue_bytes_max=queue_bytes_max, late_ms=LOG_LATE_MS_MAX))

    @property
    def each(self) -> tuple[GroupCommit, ...]:
        """The lanes, each once."""
        return self.topics.each if self.log is self.topics.each[0] else (*self.topics.each, self.log)


async def in_each_lane(
    stages: Mapping[GroupCommit, tuple[Callable[[Group], object], int]], *, must_run: bool = True
) -> None:  # fmt: skip
    """Run a stage in each lane, with the bytes that it counts in the queue. Fails, once all have ended, as the first that failed."""
    if len(stages) == 1:
        ((lane, (stage, size_bytes)),) = stages.items()
        await lane.run(stage, size_bytes, must_run=must_run)
        return
    calls = [lane.run(stage, size_bytes, must_run=must_run) for lane, (stage, size_bytes) in stages.items()]
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def passed(lanes: Collection[GroupCommit], *, must_run: bool = False) -> None:
    """Return once all that these lanes took before is durable, or refused. Fails as `GroupCommit.run`."""
    if len(lanes) == 1:
        (lane,) = lanes
        await lane.passed(must_run=must_run)
        return
    await asyncio.gather(*(lane.passed(must_run=must_run) for lane in lanes))
