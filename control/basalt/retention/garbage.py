"""Removes rows that no snapshot shows any more: rolled back ones, and those of failed writers.

Every roll back, and every failure of a writer, leaves a note of where the rows lie
(`basalt.messaging.log.garbage_notes`). The job finds the rows of each note, asks the retention rule about each of them,
and removes the note in the same write as the rows. A row that the rule cannot decide yet (the transaction manager reads
its log) keeps its note.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from itertools import takewhile
from typing import NamedTuple

from basalt.catalog.topics import Topic, topic_name
from basalt.errors import TopicNotFoundError
from basalt.messaging.index import RowCount
from basalt.messaging.log import garbage_notes, stored_log
from basalt.messaging.log.garbage_notes import GarbageRange
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.messaging.log.stored_log import counted, read_page
from basalt.messaging.log.topic_log import RolledBack, TopicLog
from basalt.messaging.log.topic_logs import TopicLogs
from basalt.messaging.read.first_unstable import KnownTransactions
from basalt.messaging.topic_stats import TopicStatistics
from basalt.retention.expired import last_payload_key
from basalt.runtime.group_commit import Group
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt_engine.keys import MessageKey, topic_prefix
from basalt_engine.messages import MessageRow, MessageTable
from basalt_engine.metadata import MetadataTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.retention import NO_SNAPSHOT, Fate, Verdict, is_old_generation, judge_message, judge_payload
from basalt_engine.snapshot import TransactionSnapshot, Visibility
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Delete, Store

NOTES_MAX = 64  # notes dealt with in one write
# Rows that are read and judged for one write: both happen on the event loop, and must take a few milliseconds. A page that
# begins below the limit of bytes is read whole.
GROUP_ROWS = 256
GROUP_BYTES = 2 << 20
ROWS_MAX = 200_000  # rows looked at by one run; the next one goes on from there


class _NoteRows(NamedTuple):
    """One note, the rows of its writers among the first rows of its range, and where the rest of the range begins."""

    note: GarbageRange
    rows: list[tuple[MessageRow, list[RowCount]]]
    looked_at: int
    rest: bytes | None


class GarbageRows:
    """Deals with the notes of all topics."""

    def __init__(
        self, store: Store, logs: TopicLogs, statistics: TopicStatistics, writer: TopicLanes, known_transactions: KnownTransactions,
        lifetime_ms_max: int, noted: NotedWriters,
    ) -> None:  # fmt: skip
        self._system = SystemTable(store.table(SystemTable.name))
        self._metadata = MetadataTable(store.table(MetadataTable.name))
        self._call = StoreCalls(store)
        self._messages = MessageTable.of(store)
        self._payloads = PayloadTable(store.table(PayloadTable.name))
        self._logs = logs
        self._statistics = statistics
        self._writer = writer
        self._noted = noted
        self._known_transactions = known_transactions
        self._lifetime_ms = lifetime_ms_max
        self._next = ""  # the name of the note with which the next run begins

    async def sweep(self, counts: Counter[str]) -> None:
        """Deal with the notes, a bounded number of rows at a time."""
        looked_at = 0
        while looked_at < ROWS_MAX:
            notes = await self._call(garbage_notes.read, self._system, NOTES_MAX, self._next)
            if not notes:
                self._next = ""
                return
            self._next, rows = await self._deal_with(_of_one_generation(notes), counts)
            looked_at += rows
            await asyncio.sleep(0)

    async def _deal_with(self, notes: list[GarbageRange], counts: Counter[str]) -> tuple[str, int]:
        """Deal with notes of one generation of a topic; the name from which to go on, and how many rows were looked at."""
        title = topic_name(notes[0].namespace, notes[0].topic)
        if not self._logs.gate.is_held(shard_of(topic_prefix(*title))):  # another server's
            return notes[-1].name + "\0", 0
        metadata = await self._call(self._metadata.get, topic_prefix(*title))
        if metadata is None:  # whatever is unknown is kept
            return notes[-1].name + "\0", 0
        if is_old_generation(notes[0].generation, metadata.generation):
            await self._writer.lane_of(topic_prefix(*title)).run(lambda group: self._remove_all(group, notes))
            return notes[-1].name + "\0", 0
        try:
            log = await self._logs.open(title)
        except TopicNotFoundError:
            return notes[-1].name + "\0", 0
        if log.topic.generation != notes[0].generation:
            return notes[-1].name + "\0", 0
        await self._statistics.ready(log)
        async with log.locks.rows:
            note_rows = await self._find(log.topic, notes)
            size_bytes = sum(row.size_bytes for each in note_rows for row, _ in each.rows)
            lane = self._writer.lane_of(log.topic.keys.prefix)
            reasons = await lane.run(lambda group: self._stage(group, log, note_rows), size_bytes)
        counts.update(reasons)
        last, looked_at = note_rows[-1], sum(each.looked_at for each in note_rows)
        if last.rest is None or reasons["undecided"]:
            return last.note.name + "\0", looked_at
        # Go on with the note that took its place. Its name may sort before this one, if this one has no start.
        return last.note.left(last.rest).name, looked_at

    async def _find(self, topic: Topic, notes: list[GarbageRange]) -> list[_NoteRows]:
        note_rows: list[_NoteRows] = []
        read_rows = read_bytes = 0
        for note in notes:
            if read_rows >= GROUP_ROWS or read_bytes >= GROUP_BYTES:
                break
            pointers = frozenset(note.write_pointers)
            stop = bytes.fromhex(note.last) + b"\0"
            start, rows_max = bytes.fromhex(note.start), GROUP_ROWS - read_rows
            page = await self._call(read_page, self._messages, topic.read_keys, start, stop, rows_max)
            read_rows += len(page.rows)
            read_bytes += sum(row.size_bytes for row in page.rows)
            rows = [row for row in page.rows if row.written_by is not None and abs(row.written_by) in pointers]
            note_rows.append(_NoteRows(note, await self._counted(topic, rows), len(page.rows), page.rest))
            if page.rest is not None:  # the notes behind it wait, or the rest of it would wait for the next run
                break
        return note_rows

    async def _counted(self, topic: Topic, rows: list[MessageRow]) -> list[tuple[MessageRow, list[RowCount]]]:
        counted_rows: list[tuple[MessageRow, list[RowCount]]] = [(row, []) for row in rows]
        by_position = {row.position: contents for row, contents in counted_rows}
        async with aclosing(counted(self._call, self._payloads, topic, rows)) as counts:
            async for row, content in counts:
                by_position[row.position].append(content)
        return counted_rows

    def _stage(self, group: Group, log: TopicLog, note_rows: list[_NoteRows]) -> Counter[str]:
        """Judge the rows by what is known now, which may be more than when they were found."""
        reasons: Counter[str] = Counter()
        if not log.live:  # deleted, or changed: the next run looks at it again
            return reasons
        current = log.topic
        snapshot = self._known_transactions.snapshot()
        gone: list[tuple[bytes, RowCount]] = []
        for note, rows, _, rest in note_rows:
            decided = True
            for row, contents in rows:
                verdict = self._judge(group, log, row, snapshot)
                if verdict is None:
                    decided = False
                    reasons["undecided"] += 1
                    continue
                reasons[verdict.reason.replace(",", "").replace(" ", "_")] += 1
                if verdict.fate is Fate.DROP:
                    gone += [(row.position, content) for content in contents]
            if decided:
                self._move_on(group, current, note, rest, snapshot)
        if gone:
            stored_log.note_newest(group, current, log.newest)
            self._statistics.remove(group, log, gone)
        return reasons

    def _judge(
        self, group: Group, log: TopicLog, row: MessageRow, snapshot: TransactionSnapshot | None
    ) -> Verdict | None:
        """Do what the rule says of the row; None when it cannot say yet."""
        topic, tails, written_by = log.topic, self._logs.tails, row.written_by
        rule = topic.metadata.rule
        assert written_by is not None
        verdict = judge_message(MessageKey.decode(row.key), written_by, row.expire_ms, rule, snapshot, group.now_ms)
        if verdict.fate is not Fate.KEEP and snapshot is not None and snapshot.judge(written_by) is Visibility.SKIP:
            gone = RolledBack({abs(written_by)}, row.position, row.position + b"\0")
            group.when_durable(lambda: log.roll_back(gone))
        if verdict.fate is Fate.DROP:
            group.add(MessageTable.name, Delete(row.key))
            if row.reference is not None:
                first, last, _ = row.reference
                rows = PayloadTable.remove_between(topic.keys, abs(written_by), first, last)
                group.add(PayloadTable.name, rows)
            group.when_durable(lambda: tails.remove(log, row.position))
            group.when_failed(lambda: tails.drop(log))
        elif verdict.fate is Fate.ROLL_BACK:
            group.add(MessageTable.name, MessageTable.roll_back(row.key, written_by))
            group.when_durable(lambda: tails.roll_back(log, row.position))
            group.when_failed(lambda: tails.drop(log))
        elif verdict is NO_SNAPSHOT or (snapshot is not None and snapshot.judge(written_by) is Visibility.HOLD):
            return None
        return verdict

    def _remove_all(self, group: Group, notes: list[GarbageRange]) -> None:
        self._logs.gate.require([topic_prefix(notes[0].namespace, notes[0].topic)])
        for note in notes:
            garbage_notes.remove(group, self._noted, note)

    def _move_on(
        self, group: Group, topic: Topic, note: GarbageRange, left: bytes | None, snapshot: TransactionSnapshot | None
    ) -> None:
        """Keep of the note what is left to do, or remove it."""
        garbage_notes.remove(group, self._noted, note, left)
        if left is not None:
            return
        rule = topic.metadata.rule
        for pointer in note.write_pointers:  # also what it never published
            last = last_payload_key(topic.keys, pointer, self._lifetime_ms)
            if judge_payload(last, rule, snapshot, self._lifetime_ms, group.now_ms).fate is Fate.DROP:
                group.add(PayloadTable.name, PayloadTable.remove(topic.keys, pointer))


def _of_one_generation(notes: list[GarbageRange]) -> list[GarbageRange]:
    """The notes at the beginning that are about the same generation of the same topic."""
    first = notes[0]
    topic = (first.namespace, first.topic, first.generation)
    return list(takewhile(lambda note: (note.namespace, note.topic, note.generation) == topic, notes))
