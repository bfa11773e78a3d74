"""The topics in which one open transaction makes readers of committed messages wait, and how much waits behind it.

Only rows that its client published before the commit do that. `holds` answers the other question: at whose row a reader
of one topic stops.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from basalt.catalog.topics import Topic, TopicName
from basalt.messaging.log.stored_log import counted, pages
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.first_unstable import first_id
from basalt.messaging.read.log_reads import LogReads
from basalt.runtime.store_calls import StoreCalls
from basalt.transactions.rules.transaction import Join, Transaction
from basalt_engine.clock import Clock
from basalt_engine.keys import position
from basalt_engine.messages import MessageRow
from basalt_engine.table import Store

ROWS_MAX = 20_000  # rows that one search, or one count, reads: a second or so where they are large


class Blocked(NamedTuple):
    """Readers of a topic stop at the message `at`; None when the search was given up before a row was found.

    `messages` come after it (`exact` is false where there may be more), `waiting` long polls wait in the topic.
    """

    topic: TopicName
    at: bytes | None
    messages: int
    exact: bool
    waiting: int


class RowsLeft:
    """The rows that a call may still read, over all its searches and counts."""

    def __init__(self, count: int) -> None:
        self.count = count

    def for_one(self) -> int:
        """The most rows that the next search or count may read. Takes one off: a search that finds none costs too."""
        most = min(max(self.count, 0), ROWS_MAX)
        self.count -= 1
        return most


class Blocking:
    """Looks for the rows of open transactions in their topics."""

    def __init__(self, store: Store, clock: Clock, logs: TopicLogs, reads: LogReads) -> None:
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs
        self._reads = reads

    def surely(self, transaction: Transaction) -> bool:
        """True when it has published rows since this server started, by memory alone; costs its topics and pointers."""
        logs = map(self._logs.find_joined, transaction.topics)
        pointers = frozenset(transaction.pointers)
        return any(log.uncommitted_writers(pointers) for log in logs if log is not None)

    async def of(self, transaction: Transaction, rows: RowsLeft) -> list[Blocked]:
        """The topics in which it blocks readers, in the order of its joins. Each search and count uses up `rows`."""
        found = [await self._in_topic(transaction, join, rows) for join in transaction.topics]
        return [blocked for blocked in found if blocked is not None]

    async def _in_topic(self, transaction: Transaction, join: Join, rows: RowsLeft) -> Blocked | None:
        log = await self._logs.joined(join)
        stretch = None if log is None else log.uncommitted_range(transaction, position(join.from_ms, 0))
        if log is None or stretch is None:
            return None
        topic = log.topic
        oldest = position(topic.oldest_ms(self._clock.now_ms()), 0)
        row, given_up = await self._first(topic, transaction, max(stretch[0], oldest), stretch[1], rows)
        waiting = log.waiting
        if row is None:
            return Blocked(topic.title, None, 0, False, waiting) if given_up else None
        messages, exact = await self._behind(topic, row.position + b"\0", rows)
        return Blocked(topic.title, await self._call(first_id, self._reads, topic, row), messages, exact, waiting)

    async def _first(
        self, topic: Topic, transaction: Transaction, start: bytes, stop: bytes | None, rows: RowsLeft
    ) -> tuple[MessageRow | None, bool]:
        """Its first row in the range; and whether the search was given up."""
        searched, most = 0, rows.for_one()
        if not most:
            return None, True
        async with aclosing(pages(self._call, self._reads.messages, topic.read_keys, start, stop)) as found:
            async for page in found:
                rows.count -= len(page)
                for row in page:
                    if row.written_by in transaction.pointers:
                        return row, False
                searched += len(page)
                if searched >= most:
                    return None, True
        return None, False

    async def _behind(self, topic: Topic, start: bytes, rows: RowsLeft) -> tuple[int, bool]:
        messages, looked_at, most = 0, 0, rows.for_one()
        if not most:
            return 0, False
        async with aclosing(pages(self._call, self._reads.messages, topic.read_keys, start)) as found:
            async for page in found:
                kept = [row for row in page if row.written_by is None or row.written_by > 0]
                async with aclosing(counted(self._call, self._reads.payloads, topic, kept)) as contents:
                    async for _, content in contents:
                        messages += content.messages
                rows.count -= len(page)
                looked_at += len(page)
                if looked_at >= most:
                    return messages, False
        return messages, True
