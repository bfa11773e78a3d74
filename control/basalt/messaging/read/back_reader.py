"""The way back: from which message on so many lie before a place. For who looks at the newest messages, or around one.

Readers go forward only. Going back finds where they are to begin: row by row, newest first, and no further than a bound.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from basalt.catalog.topics import Topic, TopicName
from basalt.messaging.log.topic_log import TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.log_reader import LogReader, before, start_from
from basalt.messaging.read.slices import Slice, row_slices
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.clock import Clock
from basalt_engine.messages import POSITION_BYTES, MessageRow
from basalt_engine.table import Store

BACK_MAX = 1_000  # messages that one may go back: a page of them
ROWS = 200  # of one look; some milliseconds, unless they are large,
LOOKS_MAX = 50  # and how many looks there are: of rows without a message, ten thousand are passed
BYTES_MAX = 16 << 20  # of payloads in rows that were passed, behind which no further row is looked at


class _Way:
    """The messages that were passed: how many are still wanted, and the id of the last that was."""

    def __init__(self, count: int, now_ms: int) -> None:
        self.left = count
        self.left_bytes = BYTES_MAX
        self.now_ms = now_ms
        self.first_id: bytes | None = None

    @property
    def is_over(self) -> bool:
        return self.left <= 0 or self.left_bytes <= 0

    def take(self, parts: list[Slice]) -> None:
        """Pass these messages, which are in the order of the log, from the last one on."""
        for whole in reversed(parts):
            for living in reversed(whole.unexpired(self.now_ms)):
                if self.left <= 0:
                    return
                self.first_id = living.id_at(living.stop - min(self.left, living.count))
                self.left -= living.count
            self.left_bytes -= whole.batch.body_bytes


class BackReader:
    """Goes back in all topics of one store."""

    def __init__(self, store: Store, clock: Clock, logs: TopicLogs, reader: LogReader) -> None:
        self._call = StoreCalls(store)
        self._clock = clock
        self._logs = logs
        self._reader = reader

    async def back(self, title: TopicName, at: bytes | int | None, count: int) -> bytes | None:
        """The id from which on `count` messages lie before a place (None: the end), whatever became of them.

        Where they are fewer, or lie far apart, of fewer of them; None: no message lies before it.
        """
        log = await self._logs.open(title)
        now_ms = self._clock.now_ms()
        way, oldest = _Way(count, now_ms), start_from(log.oldest_ms(now_ms), True).position
        stop = None if at is None else start_from(at, True).id
        place = None
        if stop is not None:
            place = stop[:POSITION_BYTES]
            await self._call(self._take_row_at, log.topic, way, place, stop)
        for _ in range(LOOKS_MAX):
            if way.is_over or place == b"":
                break
            place = await self._call(self._look, log, way, oldest, place)
            await asyncio.sleep(0)  # others get their turn on a long way
        return way.first_id

    def _take_row_at(self, topic: Topic, way: _Way, place: bytes, stop: bytes) -> None:
        """Of the row in which the place lies, take what lies before it: the row itself lies at its last message."""
        for row in islice(self._reader.messages.scan(topic.read_keys, place, rows_max=1), 1):
            last = before(stop)
            way.take([part.through(last) for part in self._parts(topic, row)] if last else [])

    def _look(self, log: TopicLog, way: _Way, oldest: bytes, stop: bytes | None) -> bytes:
        """Take the rows before a place; the place of the last one that was read, and nothing where there is none before it."""
        place = b""
        rows = self._reader.messages.scan(log.topic.read_keys, oldest, stop, reverse=True, rows_max=ROWS)
        for row in rows:
            way.take(self._parts(log.topic, row))
            place = row.position
            if way.is_over:
                break
        return place

    def _parts(self, topic: Topic, row: MessageRow) -> list[Slice]:
        return list(row_slices(row, lambda found: self._reader.stored_rows(topic, found), verify=True))
