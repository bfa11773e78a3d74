"""Merges small rows at the end of a log: neighbours become one row, in the store and in the tail.

A row per message costs every later reader a look, a checksum and a decode each. The rows of a run are still in the tail, so
nothing is read: a stage of the group commit puts the merged row at the place of the last one and deletes the others, in one
write that is made as a whole or not at all. Before it and after it the same messages are there, under the same ids. Nobody
waits for it, and what cannot be merged at once stays as it is. Format: docs/formats/record-batch.md, "Merged batches".
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

from basalt.errors import BusyError, StoppingError
from basalt.messaging.log.tails import SmallRun, Tail
from basalt.messaging.log.topic_log import LogMemory, TopicLog
from basalt.runtime.group_commit import Group
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.errors import BasaltError
from basalt_engine.keys import position_fields
from basalt_engine.messages import MessageRow, MessageTable, merged_producers
from basalt_engine.records import can_merge, decode, merge
from basalt_engine.table import Delete

SMALL_ROW_BYTES_MAX = 16 << 10  # a larger one costs its reader little beside its bytes
MERGED_ROWS_MIN = 8  # fewer are not worth writing them again
RUNS_WAITING_MAX = 64  # runs that wait for their turn to be written; 8 MiB
ROW_BYTES = 200  # what the deletion of a row counts in the queue

log = logging.getLogger("basalt.merged_rows")


def merge_small_rows(writer: TopicLanes, memory: LogMemory) -> None:
    """Merge the small rows of all logs from now on, where the store writes several rows at once."""
    if memory.atomic:
        memory.appended = RowMerger(writer, memory).appended


class RowMerger:
    """Merges the small rows of all logs of a store that writes several rows at once. It is told of each durable row.

    It is the waiter of its own stages: nobody asks what became of them.
    """

    def __init__(self, writer: TopicLanes, memory: LogMemory) -> None:
        self._writer = writer
        self._memory = memory
        self._waiting = 0

    def appended(self, topic_log: TopicLog, row: MessageRow) -> None:
        """A row was added at the end of the log's tail."""
        tail = topic_log.tail
        if tail is None:
            return
        run, batch = tail.small_run, row.batch
        is_small = (
            batch is not None
            and len(batch) <= SMALL_ROW_BYTES_MAX
            and row.written_by is None
            and row.expire_ms is None
            and can_merge(batch)
        )
        if run is not None and is_small and batch is not None and run.takes(row, batch):
            run.join(row, batch)
            return
        tail.small_run = SmallRun(row, batch) if is_small and batch is not None else None
        if run is not None and run.rows >= MERGED_ROWS_MIN:
            self._hand_in(topic_log, run)

    def _hand_in(self, topic_log: TopicLog, run: SmallRun) -> None:
        if self._waiting >= RUNS_WAITING_MAX:
            return
        with suppress(BusyError, StoppingError):  # callers come first
            lane = self._writer.lane_of(topic_log.topic.keys.prefix)
            lane.submit(partial(self._stage, topic_log, run), self, run.batch_bytes + ROW_BYTES * run.rows)
            self._waiting += 1

    def _stage(self, topic_log: TopicLog, run: SmallRun, group: Group) -> None:
        self._waiting -= 1
        topic, tail = topic_log.topic, topic_log.tail
        # Who holds the lock may remove rows with this very group, and they must not come back. Over several buckets a scan that has
        # begun in one of them would miss what moves to another.
        if tail is None or not topic_log.live or topic_log.rows_locked or len(topic.read_keys.scanned()) > 1:
            return
        if run.first <= topic_log.divided_at <= run.last:
            return
        rows = tail.between(run.first, run.last)
        if len(rows) < MERGED_ROWS_MIN:
            return
        batches = [(row.position, decode(row.batch or b"", verify=False)) for row in rows]
        merged = MessageRow(rows[-1].position, None, merge(batches), producers=merged_producers(rows))
        gone = [Delete(topic.keys.message_key(*position_fields(row.position))) for row in rows[:-1]]
        topic_log.packing.add(group, topic, merged)
        group.add(MessageTable.name, *gone)
        group.when_durable(lambda: self._merged(tail, rows, merged))
        group.when_failed(lambda: self._memory.tails.drop(topic_log))

    def _merged(self, tail: Tail, rows: list[MessageRow], merged: MessageRow) -> None:
        self._memory.merged_rows_total += len(rows)
        self._memory.merged_bytes_total += merged.size_bytes
        self._memory.tails.replace(tail, rows, merged._replace(producers=None))  # of which only the store is ever asked

    # As a waiter.

    def cancelled(self) -> bool:
        """Never: a run that waits is looked at in its turn."""
        return False

    def done(self) -> bool:
        """Nothing more is told to anybody, but what is a bug."""
        return False

    def set_result(self, result: None, /) -> None:
        """Nobody waits for it."""

    def set_exception(self, exception: BaseException, /) -> None:
        """The rows stay as they are, or as the store says; only a bug is told."""
        if not isinstance(exception, BasaltError):
            log.error("rows could not be merged", exc_info=exception)
