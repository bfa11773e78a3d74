"""What may be said of a stored row's writer: the rule of the prune audit, pure.

A writer that failed is on the invalid list, and its rows stay hidden by that, until pruning forgets it. Then a row of it
would pass for a committed one. So no row of a forgotten writer may be anywhere; and a writer of which no row is left is
not on the list for ever. docs/spark/jobs.md has the rule as a table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from basalt_engine.cells.keys import CellKey
from basalt_engine.cells.table import CellTable
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MessageKey, PayloadKey
from basalt_engine.messages import WRITER, MessageTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.retention import POINTERS_PER_MS, OnInvalid, is_old_generation
from basalt_engine.table import Row

WRITER_BYTES = 8
CLOCK_SKEW_MS = 3_600_000  # pruning adds it to a writer's lifetime, for clocks that differ
KEPT_MS_MAX = 7 * 86_400_000  # HBase compacts each region within a week by itself, and then no file holds a writer back

TABLES = (MessageTable.name, PayloadTable.name, CellTable.name)  # those whose rows have writers


class Finding(enum.Enum):
    """What a row's writer is."""

    NONE = "no transaction"
    MARKED = "rolled back"  # the row says so itself: no list is needed
    OPEN = "in progress"
    LATER = "began later"  # than the lists were read
    LISTED = "invalid"  # on the list, which hides the row
    COMMITTED = "committed"
    RETAINED = "payload of a retained message"  # reached only through a message row that is marked
    UNREACHABLE = "old generation"  # of a topic that was deleted
    FORGOTTEN = "forgotten too early"
    UNREADABLE = "unreadable"


FAULTS = (Finding.FORGOTTEN, Finding.UNREADABLE)


class Held(NamedTuple):
    """What the audit needs of a topic's or table's metadata; `generation` is negative once it is deleted."""

    generation: int
    retains: bool = False


class Writers(NamedTuple):
    """The lists, as they were before the first row was read.

    `forgotten` are those that pruning took off the invalid list and nobody put back. `newest` is the last pointer given
    out, and 0 where that is not known. `outside` also wrote where nobody looks, and `young` wait for time alone. `restored` is
    the last pointer given out when forgotten writers were last put back on the list. `topics` are by prefix.
    """

    invalid: frozenset[int]
    forgotten: frozenset[int]
    in_progress: frozenset[int] = frozenset()
    newest: int = 0
    lifetime_ms: int = 0
    outside: frozenset[int] = frozenset()
    topics: Mapping[bytes, Held] = {}
    invalid_known: bool = True
    young: frozenset[int] = frozenset()
    restored: int = 0

    def judge(self, writer: int) -> Finding:
        """What a writer is, whatever its row."""
        if writer in self.invalid:
            return Finding.LISTED
        if writer in self.forgotten:
            return Finding.FORGOTTEN
        if writer in self.in_progress:
            return Finding.OPEN
        return Finding.LATER if self.newest and writer > self.newest else Finding.COMMITTED

    def end_ms(self, writer: int) -> int:
        """From when on pruning may forget the writer at all."""
        return max(writer, self.restored) // POINTERS_PER_MS + self.lifetime_ms + CLOCK_SKEW_MS

    def kept_too_long(self, seen: Iterable[int], now_ms: int, kept_ms_max: int = KEPT_MS_MAX) -> list[int]:
        """Writers of which no row was seen, and that could have been forgotten so long ago; ascending."""
        left = self.invalid.difference(seen, self.outside, self.young)
        return sorted(writer for writer in left if self.end_ms(writer) + kept_ms_max < now_ms)


class Judged(NamedTuple):
    """A row's finding; the writer is 0 where there is none."""

    finding: Finding
    writer: int = 0


def judge_row(table: str, row: Row, writers: Writers) -> Judged:
    """The finding over one row of a table that rows with writers are in."""
    try:
        prefix, generation, writer = _owner(table, row)
    except CorruptionError:
        return Judged(Finding.UNREADABLE)
    if writer is None:
        return Judged(Finding.NONE)
    if writer < 0:
        return Judged(Finding.MARKED, -writer)
    finding = writers.judge(writer)
    held = writers.topics.get(prefix)
    if finding is Finding.FORGOTTEN and held is not None:
        if is_old_generation(generation, held.generation):
            return Judged(Finding.UNREACHABLE, writer)
        if table == PayloadTable.name and held.retains:
            return Judged(Finding.RETAINED, writer)
    return Judged(finding, writer)


def held(generation: int, on_invalid: OnInvalid) -> Held:
    """The part of metadata that the audit needs."""
    return Held(generation, on_invalid is OnInvalid.RETAIN)


def _owner(table: str, row: Row) -> tuple[bytes, int, int | None]:
    """Whose row it is: prefix, generation, and writer (negative when rolled back)."""
    if table == CellTable.name:
        cell = CellKey.decode(row.key)
        return cell.prefix, cell.generation, cell.write_pointer
    if table == PayloadTable.name:
        payload = PayloadKey.decode(row.key)
        return payload.prefix, payload.generation, payload.write_pointer
    message = MessageKey.decode(row.key)
    column = row.columns.get(WRITER)
    if column is None:
        return message.prefix, message.generation, None
    writer = int.from_bytes(column, "big", signed=True)
    if len(column) != WRITER_BYTES or writer == 0:
        raise CorruptionError(f"message row {row.key.hex()} has a write pointer that there cannot be")
    return message.prefix, message.generation, writer
