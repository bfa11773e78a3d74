"""Marks the rows of a rolled-back writer: no snapshot shows them any more. `retention.garbage` removes them later.

A row's write pointer is negated, a bounded number of rows at a time, and a note is left so that retention finds them. The
rows of a transaction that is older than this process are searched for, a page at a time.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from basalt.catalog.topics import title_of
from basalt.messaging.log import garbage_notes, stored_log
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.messaging.log.stored_log import read_page
from basalt.messaging.log.topic_log import RolledBack, TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.runtime.group_commit import Group
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt.transactions.rules.transaction import Join
from basalt_engine.messages import MessageRow, MessageTable
from basalt_engine.table import Store

GROUP_ROWS_MAX = 1_000  # rolled back by one group, so that a long roll back does not hold up publishing
LOCKED_PAGES_MAX = 64  # pages that are searched while the log's lock is held: retention may wait for it
ROW_BYTES = 100  # what the roll back of a row counts in the queue


class RowsOfWriter(NamedTuple):
    """The positions of the first and the last row of one writer."""

    first: bytes
    last: bytes


class _WriterRows(NamedTuple):
    """Rows without their batches, and the position from which to search on; None when all was searched."""

    rows: list[MessageRow]
    rest: bytes | None


class RollBacks:
    """Rolls back rows in the logs of one store."""

    def __init__(self, store: Store, logs: TopicLogs, writer: TopicLanes) -> None:
        self._messages = MessageTable.of(store)
        self._call = StoreCalls(store)
        self._store_drops = store.applies_retention
        self._logs = logs
        self._writer = writer
        self.noted = NotedWriters()  # of this store

    async def roll_back(self, log: TopicLog, write_pointers: list[int], start: bytes, stop: bytes | None) -> None:
        """Roll back these writers' rows with start <= position < stop; they take part in nothing that is in progress."""
        writers, first = frozenset(write_pointers), start
        rest: bytes | None = start
        durable_stop = log.durable_stop
        while rest is not None and not log.ended:
            if log.unconfirmed:
                await log.confirm_or_delete()
            durable_stop = log.durable_stop  # no row of theirs comes after it
            async with log.locks.rows:
                page = await self._find(log, writers, rest, stop)
                if page.rows:
                    pointers = [row.written_by for row in self._vanishing(page.rows) if row.written_by is not None]
                    release = await self._logs.staged.hold({log: pointers}, pinned=True)
                    try:
                        await self._writer.lane_of(log.topic.keys.prefix).run(
                            lambda group, rows=page.rows: self._stage(group, log, write_pointers, rows),  # type: ignore[misc]
                            len(page.rows) * ROW_BYTES,
                        )
                    finally:
                        release()
            rest = page.rest
        # Told here, and not of each write: one that failed may have come late, and left nothing to write.
        known_stop = durable_stop if stop is None else min(stop, durable_stop)
        log.roll_back(RolledBack(writers, first, known_stop))

    def note_garbage(
        self, group: Group, join: Join, write_pointers: list[int], start: bytes, last: bytes, log: TopicLog | None,
        *, in_log: bool = False,
    ) -> None:  # fmt: skip
        """In a stage: leave a note of rows that no snapshot shows any more, so that retention finds them.

        A store that drops rows itself may drop the newest one with them; its place must not be given out again. `in_log`: the
        stage is one of the log's.
        """
        garbage_notes.note(group, self.noted, title_of(join.topic), join.generation, write_pointers, start, last)
        if self._store_drops and log is not None:
            record = stored_log.NEWEST_OF_FAILED if in_log else stored_log.NEWEST
            stored_log.note_newest(group, log.topic, log.newest, record)

    async def rows_after(self, log: TopicLog, start: bytes, write_pointer: int) -> dict[int, RowsOfWriter]:
        """Of each writer after this pointer that has rows at or after a position: where they lie."""
        rows_of_writer: dict[int, RowsOfWriter] = {}
        rest: bytes | None = start
        while rest is not None:
            page = await self._call(read_page, self._messages, log.topic.read_keys, rest, None)
            for row in page.rows:
                if row.written_by is not None and row.written_by > write_pointer:
                    range_so_far = rows_of_writer.get(row.written_by)
                    rows_of_writer[row.written_by] = RowsOfWriter(
                        row.position if range_so_far is None else range_so_far.first, row.position
                    )
            rest = page.rest
            await asyncio.sleep(0)
        return rows_of_writer

    async def _find(self, log: TopicLog, writers: frozenset[int], start: bytes, stop: bytes | None) -> _WriterRows:
        rows: list[MessageRow] = []
        for _ in range(LOCKED_PAGES_MAX):
            page = await self._call(read_page, self._messages, log.topic.read_keys, start, stop)
            for row in page.rows:
                if row.written_by in writers:
                    rows.append(row._replace(batch=None))
                    if len(rows) >= GROUP_ROWS_MAX:
                        return _WriterRows(rows, row.position + b"\0")
            if page.rest is None:
                return _WriterRows(rows, None)
            start = page.rest
            await asyncio.sleep(0)
        return _WriterRows(rows, start)

    def _stage(self, group: Group, log: TopicLog, write_pointers: list[int], rows: list[MessageRow]) -> None:
        if log.ended:  # its rows are out of reach, and removed by retention
            return
        self._logs.present(log)
        for row in self._vanishing(rows):
            assert row.written_by is not None
            self._logs.staged.confirm(group, log, row.written_by, row.position)
        for row in rows:
            assert row.written_by is not None
            group.add(MessageTable.name, MessageTable.roll_back(row.key, row.written_by))
        join = Join(log.topic.keys.prefix, log.topic.generation, 0)
        self.note_garbage(group, join, write_pointers, rows[0].position, rows[-1].position, log)
        group.when_durable(lambda: self._rolled_back(log, rows))
        group.when_failed(lambda: log.memory.tails.drop(log))

    def _rolled_back(self, log: TopicLog, rows: list[MessageRow]) -> None:
        for row in rows:
            log.memory.tails.roll_back(log, row.position)
        log.notify()

    def _vanishing(self, rows: list[MessageRow]) -> list[MessageRow]:
        """The references that the store may drop by itself once they are rolled back."""
        return [row for row in rows if row.reference is not None] if self._store_drops else []
