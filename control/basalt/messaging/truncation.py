"""Truncating a topic: what was published before a time is out of reach for every reader, for ever.

An operator asks for it, or the topic has a size limit (property `retainBytes`), and the job retention does.

The time stands in the topic's metadata and only rises; everybody who reads goes by it as by the TTL (`TopicLog.oldest_ms`).
The rows go later: the retention job removes them, or a store that drops rows itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from basalt.catalog.topics import TopicName
from basalt.errors import BusyError, ConflictError, InputError
from basalt.messaging.log import stored_log
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.producers import Producers
from basalt.messaging.ranges import Ranges
from basalt.messaging.read.first_unstable import FirstUnstable, FirstUnstableRow
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import before, end_of
from basalt.runtime.group_commit import Group
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.clock import Clock
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import POSITION_BYTES
from basalt_engine.table import Store


class TruncationResult(NamedTuple):
    """Before which time the topic is truncated now, and whether this call did it, or would."""

    before_ms: int
    changed: bool


class TruncationLoss(NamedTuple):
    """The messages that a truncation would take from readers; a lower bound if not `exact`: there was more to read."""

    messages: int
    payload_bytes: int
    exact: bool


class Truncation:
    """Truncates the topics of one store. `named` gives the name of the transaction that has a write pointer."""

    def __init__(
        self, store: Store, clock: Clock, logs: TopicLogs, writer: TopicLanes, markers: TopicMarkers, producers: Producers,
        ends: StableEnds, first_unstable: FirstUnstable, ranges: Ranges, named: Callable[[int], str],
    ) -> None:  # fmt: skip
        self._store_drops = store.applies_retention
        self._clock = clock
        self._writer = writer
        self._logs = logs
        self._markers = markers
        self._producers = producers
        self._ends = ends
        self._first_unstable = first_unstable
        self._ranges = ranges
        self._named = named

    async def truncate(self, title: TopicName, before_ms: int, generation: int | None = None) -> TruncationResult:
        """Put what was published before a time out of reach; durable on return. An earlier time than before changes nothing.

        `ConflictError`: a transaction in progress has published before that time. `GenerationError`: the topic is another one.
        """
        log, found = await self._checked(title, before_ms, generation)
        if found.changed:
            await self._truncate(log, before_ms)
        return found

    def excess_ms(self, log: TopicLog, bytes_max: int) -> int | None:
        """The time before which blocks lie that are more than so many bytes need; None: there are none, or no index."""
        before_ms = None if log.index is None else log.index.buckets.start_of_newest(bytes_max)
        return None if before_ms is None or before_ms <= log.oldest_ms(self._clock.now_ms()) else before_ms

    async def shrink(self, log: TopicLog, bytes_max: int) -> bool | None:
        """Truncate the oldest blocks of a topic, as long as what is left has so many bytes. None: there is nothing to do.

        The topic's index is complete. False where not all of it could go: what a transaction in progress has published stays, and all
        that came after it.
        """
        before_ms = self.excess_ms(log, bytes_max)
        if before_ms is None:
            return None
        buckets, oldest_ms = log.present_index().buckets, log.oldest_ms(self._clock.now_ms())
        undecided_ms = await self._undecided_ms(log)
        is_whole = undecided_ms is None or before_ms <= undecided_ms
        if undecided_ms is not None and not is_whole:
            before_ms = buckets.start_at(undecided_ms)
        if before_ms > oldest_ms:
            await self._truncate(log, before_ms)
        return is_whole

    async def _truncate(self, log: TopicLog, before_ms: int) -> None:
        await self._markers.keep(log)
        if self._store_drops:
            # Its rows may go as soon as the topic says so. They would have told of producers, and the last where the log ends.
            await self._producers.keep(log)
            await self._writer.lane_of(log.topic.keys.prefix).run(lambda group: self._note_end(group, log))
        await self._logs.truncate(log.topic.title, before_ms, log.topic.generation)

    def _note_end(self, group: Group, log: TopicLog) -> None:
        if log.live:  # else it may be another generation, with a note of its own
            stored_log.note_newest(group, log.topic, log.newest)

    async def checked(self, title: TopicName, before_ms: int, generation: int | None = None) -> TruncationResult:
        """Return the answer that `truncate` would give, and fail where it would; changes nothing."""
        return (await self._checked(title, before_ms, generation))[1]

    async def _checked(
        self, title: TopicName, before_ms: int, generation: int | None
    ) -> tuple[TopicLog, TruncationResult]:
        now_ms = self._clock.now_ms()
        if before_ms > now_ms:
            raise InputError(
                f"a topic cannot be truncated before {before_ms}, which is {before_ms - now_ms} ms ahead of the server's clock",
                field="before",
                hint="give a time that has come, in milliseconds since 1970",
            )
        log = await self._logs.open(title)
        topic = log.topic.of_generation(generation)
        if before_ms <= topic.metadata.truncated_before_ms:
            return log, TruncationResult(topic.metadata.truncated_before_ms, False)
        await self._refuse_undecided(log, before_ms)
        return log, TruncationResult(before_ms, True)

    async def lost(self, title: TopicName, before_ms: int, *, committed: bool) -> TruncationLoss:
        """Count the messages that readers would not get any more after a truncation at `before_ms`."""
        stop = before(position(before_ms, 0))
        if not stop:
            return TruncationLoss(0, 0, True)
        found = await self._ranges.advance(title, None, through=end_of(stop), committed=committed)
        return TruncationLoss(found.messages, found.payload_bytes, found.at_end)

    async def _refuse_undecided(self, log: TopicLog, before_ms: int) -> None:
        """A transaction whose first messages are gone when it commits would not be one any more."""
        unstable = await self._unstable(log)
        stop = position(before_ms, 0)
        if unstable.held_by is not None and unstable.held_at is not None and unstable.held_at[:POSITION_BYTES] < stop:
            at_ms = position_fields(unstable.held_at[:POSITION_BYTES])[0]
            raise ConflictError(
                f"transaction {self._named(unstable.held_by)} has published messages in topic {log.topic.title} at {at_ms}, "
                f"before {before_ms}, and has not ended",
                field="before",
                hint="wait until it has ended, or give an earlier time",
            )
        if unstable.searched_to is not None and unstable.searched_to[:POSITION_BYTES] < stop:
            raise BusyError(
                f"topic {log.topic.title} is still being searched for messages of transactions in progress",
                hint="send the same call again: it goes on from there",
            )

    async def _unstable(self, log: TopicLog) -> FirstUnstableRow:
        settled = await self._ends.settled(log)
        return await self._first_unstable.of_topic(log, settled.position + b"\0" if settled.position else b"")

    async def _undecided_ms(self, log: TopicLog) -> int | None:
        """The publish time of the first row of a transaction in progress, or up to which none was found yet; None: there is none."""
        unstable = await self._unstable(log)
        at = unstable.held_at if unstable.held_by is not None else unstable.searched_to
        return None if at is None else position_fields(at[:POSITION_BYTES])[0]
