"""Holds topics to their size limit, the property `retainBytes`: the oldest blocks of a topic that is larger are truncated.

A block is a bucket of the topic's index: an hour, or 16 MiB, or several of them joined (`basalt.messaging.index`). The newest one stays, and
what is left is never less than the limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from basalt.catalog.topics import TopicName
from basalt.errors import ConflictError, GenerationError, TopicNotFoundError
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.topic_stats import TopicStatistics
from basalt.messaging.truncation import Truncation
from basalt_engine.keys import topic_prefix
from basalt_engine.metadata import TopicMetadata

RETAIN_BYTES = "retainBytes"
# Topics of which one run reads what memory lacks: some reads each, and the rows that no saved sum covers.
LOADS_MAX = 1_000


class OversizedTopics:
    """Finds topics that are larger than they may be, and truncates them."""

    def __init__(self, logs: TopicLogs, statistics: TopicStatistics, truncation: Truncation) -> None:
        self._logs = logs
        self._statistics = statistics
        self._truncation = truncation
        self._loads_left = 0
        self._from = b""  # the prefix from which this run loads topics,
        self._next = b""  # and from which the next one will: empty, if this one comes to the end

    def begin(self) -> None:
        """Before the first `sweep` of a run."""
        self._loads_left = LOADS_MAX
        self._from, self._next = self._next, b""

    async def sweep(
        self, described: Sequence[tuple[TopicName, TopicMetadata]], counts: Counter[str]
    ) -> list[tuple[TopicName, TopicMetadata]]:
        """Look at some topics, and return what describes them now."""
        now: list[tuple[TopicName, TopicMetadata]] = []
        for title, metadata in described:
            shrunk = None
            limit = metadata.others.get(RETAIN_BYTES, "")
            if metadata.generation > 0 and limit.isdecimal():
                bytes_max = int(limit)
                shrunk = await self._shrink(title, bytes_max, counts) if self._may_look(title, bytes_max) else None
            now.append((title, shrunk or metadata))
        return now

    def _may_look(self, title: TopicName, bytes_max: int) -> bool:
        """False where memory knows that there is nothing to do, and where this run has loaded enough."""
        log = self._logs.find(title)
        if log is not None and log.index is not None and log.index.complete:
            return self._truncation.excess_ms(log, bytes_max) is not None
        prefix = topic_prefix(*title)
        if prefix < self._from:
            return False
        if self._loads_left <= 0:
            self._next = self._next or prefix
            return False
        self._loads_left -= 1
        return True

    async def _shrink(self, title: TopicName, bytes_max: int, counts: Counter[str]) -> TopicMetadata | None:
        """Truncate the topic; what describes it then, None where it is another one, or gone."""
        try:
            log = await self._logs.open(title)
            await self._statistics.ready(log)
            is_whole = await self._truncation.shrink(log, bytes_max)
            await asyncio.sleep(0)
        except (TopicNotFoundError, GenerationError, ConflictError):
            return None  # it was changed meanwhile: the next run looks again
        if is_whole is not None:
            counts["oversized_topics" if is_whole else "oversized_topics_held"] += 1
        return log.topic.metadata
