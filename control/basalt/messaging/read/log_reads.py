"""One look at a topic's log: from the tail in memory, or from the store, past what the reader may not see."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Iterable

from basalt.catalog.topics import Topic
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.fetch import LOOK_BYTES_MAX, ROWS_MAX, Fetch, Limits, Start, fetch, not_before
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.messages import ROW_BYTES_MAX, MessageRow, MessageTable
from basalt_engine.payloads import PayloadRow, PayloadTable
from basalt_engine.snapshot import TransactionSnapshot
from basalt_engine.table import Store


class LogReads:
    """Reads the logs of one store."""

    def __init__(self, store: Store, clock: Clock, logs: TopicLogs) -> None:
        self.messages = MessageTable(store.table(MessageTable.name))
        self.payloads = PayloadTable(store.table(PayloadTable.name))
        self._remote = store.remote
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs

    async def read(
        self, log: TopicLog, begin: Start, limits: Limits, seen: TransactionSnapshot | None, *, markers: bool = False
    ) -> Fetch:
        """One look at the log, past any stretch of rows that this reader may not see."""
        passed: bytes | None = None
        before: Fetch | None = None
        while True:
            look = functools.partial(self._look, markers=markers, before=before)
            if log.unconfirmed:
                await log.confirm_or_delete()
            topic = log.topic
            now_ms = self._clock.now_ms()
            begin = not_before(begin, topic.oldest_ms(now_ms))
            # The log belongs to the event loop: a thread gets what it says, and reads only the store.
            cached = self._logs.tails.rows(log.tail, begin.position, ROWS_MAX)
            if not self._remote:
                found = look(topic, begin, limits, seen, now_ms, cached, log.in_flight_stop)
            elif cached is None:
                found = await self._call(look, topic, begin, limits, seen, now_ms, None, log.durable_stop)
            elif any(row.reference is not None for row in cached):
                found = await self._call(look, topic, begin, limits, seen, now_ms, cached, None)
            else:
                found = look(topic, begin, limits, seen, now_ms, cached, None)
            passed = found.next_id or passed
            before = None if found.paused_rows is None else found
            if found.next_id is None or (
                before is None and (found.slices or found.held_by is not None or limits.end_at(found.next_id))
            ):
                return found._replace(next_id=passed)
            begin = Start(found.next_id, False)
            await asyncio.sleep(0)  # others get their turn on a long way through hidden rows

    def _look(
        self, topic: Topic, begin: Start, limits: Limits, seen: TransactionSnapshot | None, now_ms: int,
        cached: list[MessageRow] | None, stop: bytes | None, *, markers: bool, before: Fetch | None,
    ) -> Fetch:  # fmt: skip
        rows: Iterable[MessageRow] | None = cached
        if rows is None:
            bytes_max = limits.bytes_max + ROW_BYTES_MAX if self._remote else None
            rows = self.messages.scan(topic.read_keys, begin.position, stop, bytes_max=bytes_max)
        # A look at a remote store is made on a thread, and bounded by what one read brings.
        hidden_bytes_max = sys.maxsize if self._remote else LOOK_BYTES_MAX
        return fetch(
            rows, lambda row: self.stored_rows(topic, row), begin, limits, seen, now_ms,
            verify=cached is None, markers=markers, before=before, hidden_bytes_max=hidden_bytes_max,
        )  # fmt: skip

    def stored_rows(self, topic: Topic, row: MessageRow, *, reverse: bool = False) -> Iterable[PayloadRow]:
        """The payload rows that a reference publishes, in order, or the last one first."""
        assert row.reference is not None
        assert row.written_by is not None
        first, last, _ = row.reference
        return self.payloads.scan(topic.keys, abs(row.written_by), first, last, reverse=reverse)
