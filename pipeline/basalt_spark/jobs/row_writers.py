"""The writers of stored rows, and the lists that decide about them: the rule of the prune audit.

A failed writer is on the invalid list, which hides its rows until pruning forgets the writer. After that its rows would
pass for committed ones. So no row of a forgotten writer may be left anywhere; and a writer without a row must not stay
on the list for ever. docs/spark/jobs.md has the rule as a table; docs/formats/system-table.md and
docs/formats/region-snapshot.md the lists.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from basalt.api.bodies.pruning import ExplainedWriter
from basalt.errors import InputError
from basalt_engine.cells.keys import CellKey
from basalt_engine.cells.table import CellTable
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import MessageKey, PayloadKey
from basalt_engine.messages import WRITER, MessageTable
from basalt_engine.metadata import MetadataTable
from basalt_engine.payloads import PayloadTable
from basalt_engine.regions import SNAPSHOT_KIND, SNAPSHOT_NAME, RegionSnapshot
from basalt_engine.retention import POINTERS_PER_MS, OnInvalid, is_old_generation
from basalt_engine.system import SystemTable
from basalt_engine.table import Row
from basalt_spark.jobs.stored_tables import OpenTables

WRITER_BYTES = 8
CLOCK_SKEW_MS = 3_600_000  # that pruning adds to a writer's lifetime, for clocks that differ
# HBase compacts each region within a week by itself; after that no file holds a writer back.
KEPT_MS_MAX = 7 * 86_400_000

TABLES = (MessageTable.name, PayloadTable.name, CellTable.name)  # the tables whose rows have writers
PRUNED_KIND = "pruned"
OUTSIDE_KIND = "outside"
PRUNE_STATE = ("prune", "state")  # kind and name
EXPLAINED_MAX = 1_000  # writers that a server explains in one call
UNDER_WAY = frozenset({"lifetime"})  # causes that only time ends: such a writer is not kept too long


class Finding(enum.Enum):
    """The state of a row's writer."""

    NONE = "no transaction"
    MARKED = "rolled back"  # the row itself is marked: no list is needed
    OPEN = "in progress"
    LATER = "began later"  # after the lists were read
    LISTED = "invalid"  # on the invalid list, which hides the row
    COMMITTED = "committed"
    RETAINED = "payload of a retained message"  # reached only through a message row that is marked
    UNREACHABLE = "old generation"  # of a topic that was deleted
    FORGOTTEN = "forgotten too early"
    UNREADABLE = "unreadable"


FAULTS = (Finding.FORGOTTEN, Finding.UNREADABLE)


class Held(NamedTuple):
    """The part of a topic's or table's metadata that the audit needs; `generation` is negative once it is deleted."""

    generation: int
    retains: bool = False


class Writers(NamedTuple):
    """The lists, as they were before the first row was read.

    `forgotten`: pruning took these writers off the invalid list, and nobody put them back. `newest`: the last pointer
    given out; 0 if it is not known. `outside`: these writers also wrote where the audit does not look. `young`: these
    wait for time alone. `restored`: the last pointer given out when forgotten writers were last put back on the list.
    `topics` are by prefix.
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
        """The state of a writer, whatever its row."""
        if writer in self.invalid:
            return Finding.LISTED
        if writer in self.forgotten:
            return Finding.FORGOTTEN
        if writer in self.in_progress:
            return Finding.OPEN
        return Finding.LATER if self.newest and writer > self.newest else Finding.COMMITTED

    def end_ms(self, writer: int) -> int:
        """The time from which pruning may forget the writer."""
        return max(writer, self.restored) // POINTERS_PER_MS + self.lifetime_ms + CLOCK_SKEW_MS

    def kept_too_long(self, seen: Iterable[int], now_ms: int, kept_ms_max: int = KEPT_MS_MAX) -> list[int]:
        """Writers without a row that could have been forgotten more than `kept_ms_max` ago, ascending."""
        left = self.invalid.difference(seen, self.outside, self.young)
        return sorted(writer for writer in left if self.end_ms(writer) + kept_ms_max < now_ms)


class Judged(NamedTuple):
    """A row's finding; the writer is 0 if there is none."""

    finding: Finding
    writer: int = 0


def judge_row(table: str, row: Row, writers: Writers) -> Judged:
    """Judge one row of a table in `TABLES`."""
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
    """Take the part of metadata that the audit needs."""
    return Held(generation, on_invalid is OnInvalid.RETAIN)


def _owner(table: str, row: Row) -> tuple[bytes, int, int | None]:
    """The owner of a row: prefix, generation, and writer (negative when rolled back)."""
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
        raise CorruptionError(f"message row {row.key.hex()} has an impossible write pointer")
    return message.prefix, message.generation, writer


class _Pruned(msgspec.Struct):
    """The part of an entry of kind `pruned` that is needed."""

    pointers: list[int]


class _State(msgspec.Struct):
    """The part of pruning's own state that is needed."""

    restored: int = 0


def read_writers(store: OpenTables) -> Writers:
    """Read the lists in a store. Without a published snapshot, as in RocksDB, the invalid list is not known.

    Call it before reading rows. It reads the snapshot before the forgotten writers: one that is forgotten in between is
    still on the list, and its rows are no fault.
    """
    system = SystemTable(store.table(SystemTable.name))
    body = system.get(SNAPSHOT_KIND, SNAPSHOT_NAME)
    snapshot = None if body is None else RegionSnapshot.decode(body)
    forgotten = {
        pointer
        for _, entry in system.scan(PRUNED_KIND)
        for pointer in msgspec.json.decode(entry, type=_Pruned).pointers
    }
    outside = frozenset(int(name) for name, _ in system.scan(OUTSIDE_KIND))
    metadata = MetadataTable(store.table(MetadataTable.name))
    state = system.get(*PRUNE_STATE)
    restored = 0 if state is None else msgspec.json.decode(state, type=_State).restored
    topics = {prefix: held(found.generation, found.on_invalid) for prefix, found in metadata.scan_all()}
    if snapshot is None:
        unknown = Writers(frozenset(), frozenset(forgotten), outside=outside, topics=topics, restored=restored)
        return unknown._replace(invalid_known=False)
    return Writers(
        frozenset(snapshot.invalid),
        frozenset(forgotten),
        frozenset(snapshot.in_progress),
        snapshot.write_pointer,
        snapshot.lifetime_ms_max,
        outside,
        topics,
        restored=restored,
    )


def with_explained(writers: Writers, explained: Iterable[ExplainedWriter], lifetime_ms: int) -> Writers:
    """Complete the lists of a store that publishes no snapshot by the writers that a server explains.

    It explains the oldest ones. Of a longer list the younger writers stay unknown, but they are not kept long yet.
    """
    holds = {each.write_pointer: {hold.cause for hold in each.holds} for each in explained}
    young = frozenset(writer for writer, causes in holds.items() if causes <= UNDER_WAY)
    return writers._replace(invalid=frozenset(holds), young=young, lifetime_ms=lifetime_ms, invalid_known=True)


def only(writers: Writers, wanted: Iterable[int]) -> frozenset[int]:
    """The part of the invalid list that was asked for; all if none were named. `InputError` for a writer not on it."""
    asked = frozenset(wanted)
    if not asked:
        return writers.invalid
    missing = asked - writers.invalid
    if missing and writers.invalid_known:
        raise InputError(
            f"write pointer {min(missing)} is not on the invalid list",
            hint="`basalt prune status` tells how long it is",
        )
    return asked
