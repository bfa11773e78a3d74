"""At which row a reader of committed messages stops: the first one whose writer has not ended.

Only a transaction that published before its commit makes readers wait, so just the stretch of the log is searched in
which rows of transactions in progress may lie. For those of this process the stretch is known. Those that began before
it started are searched for from where they joined the topic, a bounded number of rows at a time.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from basalt.catalog.topics import Topic
from basalt.messaging.log.stored_log import pages
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.read.decisions import Decisions
from basalt.messaging.read.fetch import row_slices
from basalt.messaging.read.log_reads import LogReads
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.keys import MESSAGE_ID_BYTES, position
from basalt_engine.messages import MessageRow
from basalt_engine.snapshot import Visibility
from basalt_engine.table import Store

ROWS_MAX = 20_000  # rows that one search reads; a second or so where they are large

Range = tuple[bytes, bytes | None]


class HoldSearch(NamedTuple):
    """The writer that readers wait for and the id of its row's first message; None when there is none.

    `searched_to` is the position from which to search on; None when nothing is left to search.
    """

    held_by: int | None = None
    held_at: bytes | None = None
    searched_to: bytes | None = None


class Holds:
    """Searches topics for what makes readers wait."""

    def __init__(self, store: Store, clock: Clock, reads: LogReads, decisions: Decisions) -> None:
        self._call = StoreCalls(store)
        self._clock = clock
        self._reads = reads
        self._decisions = decisions

    async def first(self, log: TopicLog, start: bytes = b"") -> HoldSearch:
        """The first row, from a position on, at which a reader of committed messages stops."""
        snapshot = self._decisions.snapshot()
        topic, stretch = log.topic, self._stretch(log)
        if snapshot is None or stretch is None:
            return HoldSearch()
        oldest = position(topic.oldest_ms(self._clock.now_ms()), 0)
        first = max(start, stretch[0], oldest)
        searched = 0
        async with aclosing(pages(self._call, self._reads.messages, topic.read_keys, first, stretch[1])) as found:
            async for page in found:
                for row in page:
                    if snapshot.judge(row.written_by) is Visibility.HOLD:
                        return HoldSearch(row.written_by, await self._call(first_id, self._reads, topic, row))
                searched += len(page)
                if searched >= ROWS_MAX:
                    return HoldSearch(searched_to=page[-1].position + b"\0")
        return HoldSearch()

    def _stretch(self, log: TopicLog) -> Range | None:
        """The range of the topic in which rows of transactions in progress may lie; None when there are none."""
        ranges = []
        for transaction in self._decisions.in_progress():
            for join in transaction.topics:
                if join.topic == log.topic.keys.prefix and join.generation == log.topic.generation:
                    known = log.uncommitted_range(transaction, position(join.from_ms, 0))
                    ranges += [] if known is None else [known]
        if not ranges:
            return None
        stops = [stop for _, stop in ranges if stop is not None]
        return min(start for start, _ in ranges), max(stops) if len(stops) == len(ranges) else None


def first_id(reads: LogReads, topic: Topic, row: MessageRow) -> bytes:
    """The id of a row's first message; reads payload rows where it refers to some."""
    found = next(row_slices(row, lambda reference: reads.stored_rows(topic, reference), verify=True), None)
    return row.position.ljust(MESSAGE_ID_BYTES, b"\0") if found is None else found.ids()[0]
