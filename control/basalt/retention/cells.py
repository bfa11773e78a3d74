"""Removes versions of cells that no reader can get any more: superseded, deleted, of failed writers, of past generations.

A look at a whole table is a *pass*. It reads the table in the order of its keys and goes on where the last run stopped,
so that every version of a cell comes by, the newest first. A pass judges by the transactions at one moment, durable
before the first row is read: a writer that was decided then writes nothing more.

A tombstone hides what is older, so it goes last: with the older versions of its cell in one atomic write, or in a write
after theirs. A crash in between leaves a tombstone over nothing, never an older version without it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from basalt.cluster.shard_gate import ShardGate
from basalt.commits.coordinator import Coordinator
from basalt.messaging.log import stored_log
from basalt.messaging.log.noted_writers import NotedWriters
from basalt.retention.expired import SWEPT, Swept
from basalt.runtime.group_commit import Group, Phase
from basalt.runtime.store_calls import StoreCalls
from basalt.runtime.write_lanes import TopicLanes
from basalt.tables import garbage_cells
from basalt.tables.garbage_cells import CellActivity, GarbageCells
from basalt.transactions.log_state import ManagerSnapshot
from basalt_engine.cells.keys import TableKeys
from basalt_engine.cells.table import CellTable, is_tombstone
from basalt_engine.metadata import TopicMetadata
from basalt_engine.retention import DELETED, UNREADABLE, CellRun, Fate, Horizon, judge_cells
from basalt_engine.snapshot import POINTER_MAX
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import Delete, DeleteRange, Store, prefix_stop

PAGE_ROWS = 1_000  # read on a thread, and removed in one write
PAGE_BYTES = 1 << 20
GROUP_NOTES = 256  # notes removed in one write
ROWS_MAX = 200_000  # versions looked at by one run; the next one goes on from there
BYTES_MAX = 256 << 20
_POINTER_BYTES = 8  # at the end of a key: the version; what is before them names the cell


class JudgedRows(NamedTuple):
    """The findings in some rows: keys to remove first and those of tombstones to remove after them, by reason how many.

    `waiting`: there are versions that a later pass may judge otherwise. `tombstone` hides older versions that may be yet to come by.
    """

    rows: int
    size_bytes: int
    next: bytes | None
    run: CellRun
    tombstone: bytes | None
    older: list[bytes]
    tombstones: list[bytes]
    reasons: Counter[str]
    waiting: bool


@dataclass
class Pass:
    """The state of the look at one table. It began after the write of number `writes`; `notes` are about writers that had ended then.

    It ends with the reign of this `epoch`: of what others wrote since then this server has counted nothing.
    """

    keys: TableKeys
    epoch: int
    next: bytes
    stop: bytes
    writes: int
    notes: list[GarbageCells]
    run: CellRun = field(default_factory=CellRun)
    tombstone: bytes | None = None
    waiting: bool = False


class CellVersions:
    """Looks through the tables, a bounded number of versions in each run."""

    def __init__(
        self, store: Store, buckets: int, transactions: Coordinator, writer: TopicLanes, activity: CellActivity,
        noted: NotedWriters, gate: ShardGate,
    ) -> None:  # fmt: skip
        self._store = store
        self._system = SystemTable(store.table(SystemTable.name))
        self._cells = store.table(CellTable.name)
        self._call = StoreCalls(store)
        self._buckets = buckets
        self._transactions = transactions
        self._writer = writer
        self._activity = activity
        self._noted = noted
        self._gate = gate
        self._swept: dict[bytes, int] = {}
        self._pass: Pass | None = None
        self._next = b""  # the prefix of the table with which the next run begins
        self._rows_left = self._bytes_left = 0

    async def sweep(self, tables: Sequence[tuple[bytes, TopicMetadata]], counts: Counter[str]) -> None:
        """Go on with the tables, which are all that there are, sorted by prefix."""
        if self._store.applies_retention or not tables:
            return
        self._rows_left, self._bytes_left = ROWS_MAX, BYTES_MAX
        noted = await self._call.long(self._notes)
        first = bisect_left(tables, self._next, key=lambda table: table[0])
        for prefix, metadata in tables[first:]:
            self._next = prefix
            notes = noted.get(prefix, [])
            await self._remove_old_generations(prefix, metadata.generation, notes, counts)
            keys = TableKeys(prefix, metadata.generation, self._buckets)
            present = [note for note in notes if note.generation == keys.generation]
            if metadata.generation > 0 and not await self._go_on(keys, present, counts):
                return
        self._next = b""

    def _notes(self) -> dict[bytes, list[GarbageCells]]:
        found: dict[bytes, list[GarbageCells]] = {}
        for note in garbage_cells.notes(self._system):
            found.setdefault(note.prefix.encode("ascii"), []).append(note)
        return found

    # Past generations.

    async def _remove_old_generations(
        self, prefix: bytes, generation: int, notes: list[GarbageCells], counts: Counter[str]
    ) -> None:
        living = generation if generation > 0 else 1 - generation
        # A transaction that was open when the table was deleted may fail, and be noted, long after its rows went.
        old = [note for note in notes if note.generation < living]
        if not old and (living <= 1 or await self._swept_to(prefix) >= living):
            return
        # After it, every write to a past generation is done, and no stage adds another one.
        await self._writer.lane_of(prefix).passed()
        start, stop = TableKeys(prefix, 0, self._buckets).start, TableKeys(prefix, living, self._buckets).start
        is_empty = await self._call(lambda: next(self._cells.scan(start, stop, rows_max=1), None) is None)
        await self._write(prefix, lambda group: _stage_generations(group, prefix, living, is_empty, start, stop))
        await self._remove_notes(prefix, old)  # last, so that a crash in between leaves them: pruning goes by them
        self._swept[prefix] = living
        counts["old_table_generations"] += 1

    async def _swept_to(self, prefix: bytes) -> int:
        if prefix not in self._swept:
            swept = await self._call(SWEPT.get, self._system, stored_log.entry_name(prefix))
            self._swept[prefix] = 0 if swept is None else swept.generation
        return self._swept[prefix]

    async def _write(self, prefix: bytes, stage: Callable[[Group], None], size_bytes: int = 0) -> None:
        """Run a stage that writes rows of one table, which it knows by the prefix alone."""

        def once_held(group: Group) -> None:
            self._gate.require([prefix])
            stage(group)

        await self._writer.lane_of(prefix).run(once_held, size_bytes)

    async def _remove_notes(self, prefix: bytes, notes: Sequence[GarbageCells]) -> None:
        for first in range(0, len(notes), GROUP_NOTES):
            done = notes[first : first + GROUP_NOTES]
            await self._write(prefix, partial(_stage_notes, noted=self._noted, done=done))

    # The present generation.

    async def _go_on(self, keys: TableKeys, notes: list[GarbageCells], counts: Counter[str]) -> bool:
        """Begin or go on with the pass over a table; False when this run has looked at enough."""
        epoch = self._gate.reigns[shard_of(keys.prefix)].epoch
        if self._pass is not None and (self._pass.keys, self._pass.epoch) != (keys, epoch):
            self._pass = None  # the table that it was about is gone, or was another server's meanwhile
        if self._pass is None and not notes and self._activity.is_quiet(keys.generation_key):
            return True
        writes = self._activity.writes(
            keys.generation_key
        )  # first: what was written before is there for the pass to see
        moment = await self._transactions.manager_snapshot()
        if self._pass is None:
            stop = prefix_stop(keys.start)
            assert stop is not None, "a prefix of names follows the salt"
            ended = [note for note in notes if _ended(note, moment)]
            self._pass = Pass(keys, epoch, keys.start, stop, writes, ended)
        return await self._continue(self._pass, moment, counts)

    async def _continue(self, current: Pass, moment: ManagerSnapshot, counts: Counter[str]) -> bool:
        bound = moment.visibility_upper_bound
        horizon = Horizon(moment.view.invalid, bound, purge_bound=bound)
        while self._rows_left > 0 and self._bytes_left > 0:
            judged = await self._call.long(self._judge_next, current, horizon)
            await self._remove(current, judged)
            counts.update(judged.reasons)
            self._rows_left -= judged.rows
            self._bytes_left -= judged.size_bytes
            current.run, current.tombstone = judged.run, judged.tombstone
            current.waiting |= judged.waiting
            if judged.next is None:
                self._end(current)
                return True
            current.next = judged.next
        return False

    def _end(self, current: Pass) -> None:
        self._pass = None
        if not current.waiting:
            self._activity.set_quiet(current.keys.generation_key, current.writes)

    def _judge_next(self, current: Pass, horizon: Horizon) -> JudgedRows:
        """Read the next rows and judge them."""
        rows = list(self._cells.scan(current.next, current.stop, rows_max=PAGE_ROWS, bytes_max=PAGE_BYTES))
        keys_and_tombstones = [(row.key, is_tombstone(row.columns)) for row in rows]
        size_bytes = sum(len(row.key) + sum(map(len, row.columns.values())) for row in rows)
        return judge_rows(keys_and_tombstones, size_bytes, current, horizon)

    async def _remove(self, current: Pass, judged: JudgedRows) -> None:
        if judged.older or judged.tombstones:
            removed_bytes = sum(map(len, judged.older)) + sum(map(len, judged.tombstones))
            await self._write(current.keys.prefix, lambda group: _stage(group, judged), removed_bytes)
        if judged.next is None:
            await self._remove_notes(current.keys.prefix, current.notes)


def judge_rows(rows: list[tuple[bytes, bool | None]], size_bytes: int, current: Pass, horizon: Horizon) -> JudgedRows:
    """Judge the rows (key, and whether it is a tombstone) that come next in a pass; none: it ends. Pure."""
    verdicts, run = judge_cells(rows, {current.keys.prefix: current.keys.generation}, horizon, current.run)
    older: list[bytes] = []
    tombstones: list[bytes] = []
    reasons: Counter[str] = Counter()
    tombstone, waiting = current.tombstone, False
    bound = (POINTER_MAX - horizon.upper_bound).to_bytes(_POINTER_BYTES, "big")
    for (key, _), verdict in zip(rows, verdicts, strict=True):
        cell = key[:-_POINTER_BYTES]
        if tombstone is not None and tombstone[:-_POINTER_BYTES] != cell:
            tombstones.append(tombstone)
            tombstone = None
        if verdict is UNREADABLE:
            tombstone = None  # what it hides is not gone
        elif verdict is DELETED:
            tombstone = key
        elif verdict.fate is Fate.DROP:
            older.append(key)
        else:
            waiting |= key[-_POINTER_BYTES:] < bound
        if verdict.fate is Fate.DROP or verdict is UNREADABLE:
            reasons[f"cells_{verdict.reason}"] += 1
    if not rows and tombstone is not None:
        tombstones.append(tombstone)
        tombstone = None
    following = rows[-1][0] + b"\0" if rows else None
    return JudgedRows(len(rows), size_bytes, following, run, tombstone, older, tombstones, reasons, waiting)


def _stage(group: Group, judged: JudgedRows) -> None:
    group.add(CellTable.name, *map(Delete, judged.older))
    group.add(CellTable.name, *map(Delete, judged.tombstones), phase=Phase.AFTER)


def _stage_notes(group: Group, noted: NotedWriters, done: Sequence[GarbageCells]) -> None:
    for note in done:
        garbage_cells.remove(group, noted, note)


def _stage_generations(group: Group, prefix: bytes, living: int, is_empty: bool, start: bytes, stop: bytes) -> None:
    if not is_empty:  # a range delete of nothing would be a burden all the same
        group.add(CellTable.name, DeleteRange(start, stop))
    group.add(SystemTable.name, SWEPT.put(Swept(living), stored_log.entry_name(prefix)), phase=Phase.AFTER)


def _ended(note: GarbageCells, moment: ManagerSnapshot) -> bool:
    """True when all that these writers wrote is there to be seen."""
    in_progress = moment.view.in_progress
    return all(pointer <= moment.write_pointer and pointer not in in_progress for pointer in note.write_pointers)
