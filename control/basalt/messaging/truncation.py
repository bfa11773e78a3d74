"""Truncating a topic: what was published before a time is out of reach for every reader, for ever.

The time stands in the topic's metadata and only rises; everybody who reads goes by it as by the TTL (`TopicLog.oldest_ms`).
The rows go later: the retention job removes them, or, where a store drops rows itself, the TTL does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from basalt.catalog.topics import TopicName
from basalt.errors import BusyError, ConflictError, InputError
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.markers import TopicMarkers
from basalt.messaging.ranges import Ranges
from basalt.messaging.read.first_unstable import FirstUnstable
from basalt.messaging.read.last_stable import StableEnds
from basalt.messaging.read.log_reader import before, end_of
from basalt_engine.clock import Clock
from basalt_engine.keys import position, position_fields
from basalt_engine.messages import POSITION_BYTES


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
        self, clock: Clock, logs: TopicLogs, markers: TopicMarkers, ends: StableEnds, first_unstable: FirstUnstable, ranges: Ranges,
        named: Callable[[int], str],
    ) -> None:  # fmt: skip
        self._clock = clock
        self._logs = logs
        self._markers = markers
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
            await self._markers.keep(log)
            await self._logs.truncate(title, before_ms, log.topic.generation)
        return found

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
        settled = await self._ends.settled(log)
        unstable = await self._first_unstable.of_topic(log, settled.position + b"\0" if settled.position else b"")
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
