"""The transaction log in a table: entries, snapshots of the whole state, and recovery. docs/formats/transaction-log.md.

    entry     key segment(8) entry(8), column e                   entries are numbered without a gap, 4,096 to a segment
    snapshot  key ff*8 segment(8) entry(8) part(2), column s      the state before that entry; sorts after all entries

The log encodes rows and reads them back; the group commit writes them, so that edits and message rows can be one batch.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from basalt.transactions.log.entry_format import FieldReader, decode_entry, encode_entry, opened, sealed
from basalt.transactions.log.snapshot_format import decode_snapshot, snapshot_pieces
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Edit
from basalt.transactions.rules.transaction import TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt.transactions.rules.transaction_table import StateImage
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.table import DeleteRange, Insert, Mutation, Put, Row, Table

ENTRY = b"e"
SNAPSHOT = b"s"
SEGMENT_ENTRIES = 4_096  # on disk for ever: a segment is one row where columns are cheap and rows are not
PART_BYTES_MAX = 1 << 20  # a snapshot is cut into rows of this size; HBase refuses cells of more than 10 MiB
PARTS_MAX = 0xFFFF
# Where several servers share the table, the newest entries before a snapshot stay: an append of a former leader that was
# long under way still finds its place taken. At a thousand groups a second this is a minute.
SHARED_ENTRIES_KEPT = 65_536
SNAPSHOTS = b"\xff" * 8  # what the keys of snapshot rows start with; no segment gets that far
JOURNAL_EDITS_MAX = 100_000  # some 15 MiB; half a minute of a busy server, days of a quiet one
JOURNAL_AGE_MS_MAX = 86_400_000  # later questions are for the audit lines and the logs
POINTERS_A_WEIGHT = 8  # so many pointers or ids within one edit count as one more edit

_SPANS = (edits.Acknowledged, edits.AcknowledgedIn, edits.Returned)
_HEAVY = {edits.Changed, edits.Invalidated, edits.Pruned, edits.Restored, *_SPANS}

_PART_VERSION = 1
_POSITION = struct.Struct(">QQ")
_PART_KEY = struct.Struct(">8sQQH")
_PART_NUMBER_BYTES = 2
_PART = struct.Struct(">BHQQ")


@dataclass(frozen=True, slots=True)
class SnapshotDraft:
    """A snapshot that is still to be encoded: that may happen on another thread, while the state moves on."""

    position: int
    image: StateImage
    entries_kept: int = 0
    replaced_entries: int = 0  # how many entries it stands for that the snapshot before it does not
    replaced_bytes: int = 0

    def parts(self) -> list[Put]:
        """The rows of the snapshot, encoded. Part 0 is to be written when all others are there: then it counts.

        They may be written any time after the rows that were encoded before the draft, also by a server that leads no more.
        """
        parts = list(_cut(snapshot_pieces(self.image)))
        assert len(parts) <= PARTS_MAX, f"a snapshot of {len(parts)} parts has more than can be numbered"
        header = _PART.pack(_PART_VERSION, len(parts), *divmod(self.position, SEGMENT_ENTRIES))
        return [
            Put(_part_key(self.position, part), {SNAPSHOT: sealed(header + data)}) for part, data in enumerate(parts)
        ]

    def replaced(self) -> list[Mutation]:
        """Delete what the snapshot replaces: to be written once its part 0 is there."""
        return [
            DeleteRange(entry_key(0), entry_key(max(0, self.position - self.entries_kept))),
            DeleteRange(_part_key(0, 0), _part_key(self.position, 0)),
        ]


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of `PART_BYTES_MAX`, the last one shorter."""
    part = bytearray()
    for piece in pieces:
        part += piece
        while len(part) > PART_BYTES_MAX:
            yield bytes(part[:PART_BYTES_MAX])
            del part[:PART_BYTES_MAX]
    yield bytes(part)


class TransactionLog:
    """The log in a table: it encodes entries, which the group commit writes, and reads them back.

    Not thread-safe: its calls come from the one writer's stages.

    Of several servers that share it, one gets each next entry in: see docs/decisions/0008.
    """

    def __init__(self, table: Table, limits: TransactionLimits | None = None, *, entries_kept: int = 0) -> None:
        self._table = table
        self._entries_kept = entries_kept
        self.limits = limits or TransactionLimits()
        self._position = 0  # the number of the next entry
        self._edits = 0  # how many edits all entries before it hold
        self.entries_since_snapshot = 0
        self.bytes_since_snapshot = 0

    @property
    def table_name(self) -> str:
        return self._table.name

    @property
    def position(self) -> int:
        """The number of the next entry: so many there were since the log began."""
        return self._position

    def read_entries(self, position: int, bytes_max: int) -> list[bytes]:
        """Entries from this number on, without a gap: at least one if there is one, then up to so many bytes. For who follows the log."""
        rows = list(self._table.scan(entry_key(position), SNAPSHOTS, bytes_max=bytes_max))
        together = takewhile(lambda each: each[1].key == entry_key(each[0]), enumerate(rows, position))
        return [_only(row, ENTRY, self._named(row.key)) for _, row in together]

    def decoded(self, position: int, data: bytes) -> tuple[int, tuple[Edit, ...]]:
        """An entry that was read, or came from the server that wrote it: the number of edits before it, and its edits. `CorruptionError`"""
        return decode_entry(data, f"entry {position} of table {self._table.name}")

    def recover(self, journal: Journal | None = None) -> TransactionProposals:
        """The state that the log's edits make. `CorruptionError` naming the row when it is not what was written.

        To be called before anything else, and again after a write that failed or may have: what was encoded since the
        last call and was not written is forgotten, and its numbers are used again. The journal is told each edit.
        """
        self._position, image = self._newest_snapshot()
        self.entries_since_snapshot = self.bytes_since_snapshot = 0
        state = TransactionProposals(self.limits, image)
        if journal is not None:
            journal.recovering(state.edits_applied, state.last_pointer // POINTERS_PER_MS)
        # Entries before the snapshot are what a crash left of a clean-up; they are in it, and not looked at.
        for row in self._table.scan(entry_key(self._position), SNAPSHOTS):
            self._replay(state, row, journal)
        self._edits = state.edits_applied
        return state

    def encode_next(self, made: Sequence[Edit]) -> Insert:
        """The row of the next entry. Rows must be written in the order of the calls, and none after one that failed.

        The row is there already, and `RowExistsError` raised, when another server has added an entry meanwhile, or when
        an append of this one took effect after all.
        """
        return self.next_entry(made)()

    def next_entry(self, made: Sequence[Edit]) -> Callable[[], Insert]:
        """As `encode_next`, but the row is encoded by a call, which may come from the thread that writes it."""
        assert made, "an entry holds at least one edit"
        key, first_edit = entry_key(self._position), self._edits
        self._edits += len(made)
        self._count(0)

        def encode() -> Insert:
            data = encode_entry(first_edit, made)
            self.bytes_since_snapshot += len(data)
            return Insert(key, {ENTRY: data})

        return encode

    def draft(self, state: TransactionProposals) -> SnapshotDraft:
        """The snapshot of this state, to be encoded later; the state holds all edits that were encoded, and no others."""
        assert state.edits_applied == self._edits, (
            f"the state holds {state.edits_applied} edits, the log {self._edits}: take the snapshot between two groups"
        )
        replaced = self.entries_since_snapshot, self.bytes_since_snapshot
        return SnapshotDraft(self._position, state.image(), self._entries_kept, *replaced)

    def snapshot_written(self, draft: SnapshotDraft) -> None:
        """The draft is durable: what it replaces counts no more."""
        # Of two drafts that overlap, the second one to be written replaces less than it was drafted for.
        self.entries_since_snapshot = max(0, self.entries_since_snapshot - draft.replaced_entries)
        self.bytes_since_snapshot = max(0, self.bytes_since_snapshot - draft.replaced_bytes)

    def _count(self, entry_bytes: int) -> None:
        self._position += 1
        self.entries_since_snapshot += 1
        self.bytes_since_snapshot += entry_bytes

    def _replay(self, state: TransactionProposals, row: Row, journal: Journal | None) -> None:
        what = self._named(row.key)
        if row.key != entry_key(self._position):
            raise CorruptionError(
                f"{what} comes where entry {entry_key(self._position).hex()} is expected: entries are missing, or not from"
                " this log; restore the data directory from a backup"
            )
        data = _only(row, ENTRY, what)
        first_edit, group = decode_entry(data, what)
        if first_edit != state.edits_applied:
            raise CorruptionError(
                f"{what} goes on after edit {first_edit}, the log stands at {state.edits_applied}: entries are missing, or"
                " not from this log; restore the data directory from a backup"
            )
        for edit in group:
            try:
                state.apply(edit)
            except CorruptionError as error:
                raise CorruptionError(f"{what} does not fit what came before: {error}") from error
        if journal is not None:
            journal.replayed(first_edit, group)
        self._count(len(data))

    def _newest_snapshot(self) -> tuple[int, StateImage | None]:
        rows: dict[int, Row] = {}
        newest = b""
        for row in self._table.scan(SNAPSHOTS, None, reverse=True):
            if len(row.key) != _PART_KEY.size:
                raise CorruptionError(
                    f"{self._named(row.key)} has a key of {len(row.key)} bytes, a snapshot's has {_PART_KEY.size};"
                    " restore the data directory from a backup"
                )
            if row.key[:-_PART_NUMBER_BYTES] != newest:  # what came so far has no part 0: it was never finished
                rows, newest = {}, row.key[:-_PART_NUMBER_BYTES]
            part = int.from_bytes(row.key[-_PART_NUMBER_BYTES:], "big")
            rows[part] = row
            if part == 0:
                return self._read_snapshot(rows)
        return 0, None

    def _read_snapshot(self, rows: dict[int, Row]) -> tuple[int, StateImage]:
        pieces: list[bytes] = []
        position, count = 0, 1
        while len(pieces) < count:
            row = rows.get(len(pieces))
            if row is None:
                raise CorruptionError(
                    f"{self._named(rows[0].key)} begins a snapshot of {count} parts, of which part {len(pieces)} is missing;"
                    " restore the data directory from a backup"
                )
            what = self._named(row.key)
            part = opened(_only(row, SNAPSHOT, what), what, _PART_VERSION, _PART.size)
            _, count, segment, entry = _PART.unpack_from(part)
            position = segment * SEGMENT_ENTRIES + entry
            if row.key != _part_key(position, len(pieces)):
                raise FieldReader(part, what).failure(f"a part of the snapshot at segment {segment}, entry {entry}")
            pieces.append(part[_PART.size :])
        return position, decode_snapshot(b"".join(pieces), f"the snapshot from {self._named(rows[0].key)} on")

    def _named(self, key: bytes) -> str:
        return f"row {key.hex()} of table {self._table.name}"


def entry_key(position: int) -> bytes:
    """The key of the entry of this number, counted from 0 since the log began."""
    return _POSITION.pack(*divmod(position, SEGMENT_ENTRIES))


def _part_key(position: int, part: int) -> bytes:
    return _PART_KEY.pack(SNAPSHOTS, *divmod(position, SEGMENT_ENTRIES), part)


def _only(row: Row, column: bytes, what: str) -> bytes:
    if set(row.columns) != {column}:
        raise FieldReader(b"", what).failure(f"columns {sorted(row.columns)} instead of {[column]}")
    return row.columns[column]


class ToldChanges(NamedTuple):
    """The size of a change set, which the journal keeps in its place: a set may have 10 MiB."""

    id: int
    external_writes: bool
    changes: int


class LogEntry(NamedTuple):
    """The edits of one group. `exact` is false where the time is only the latest that is known to have passed."""

    at_ms: int
    edits: Sequence[Any]
    weight: int
    exact: bool


class Journal:
    """The newest edits of all transactions, bounded in count and age. Fed from one thread at a time."""

    def __init__(self, edits_max: int = JOURNAL_EDITS_MAX, age_ms_max: int = JOURNAL_AGE_MS_MAX) -> None:
        self._edits_max = edits_max
        self._age_ms_max = age_ms_max
        # Plain tuples, because there are many; readers get each as a `LogEntry`.
        self._entries: deque[tuple[int, Sequence[Any], int, bool]] = deque()
        self._next_edit = 0
        self._last_ms = 0
        self.weight = 0  # how many edits it holds, large ones counted several times

    def add(self, at_ms: int, group: Sequence[Edit]) -> None:
        """The edits of a group became durable at this time."""
        self._append(at_ms, True, group)

    def recovering(self, first_edit: int, after_ms: int) -> None:
        """The log is read again from this edit on, which was made after this time.

        Earlier edits stay, if nothing is missing in between.
        """
        if first_edit > self._next_edit:
            self._entries.clear()
            self.weight = 0
            self._next_edit, self._last_ms = first_edit, after_ms

    def replayed(self, first_edit: int, group: Sequence[Edit]) -> None:
        """An entry that was read from the log. Edits of it that are here already stay as they are."""
        if first_edit < self._next_edit:
            return
        times = [at_ms for edit in group if (at_ms := _time_in(edit)) is not None]
        self._append(max(times, default=self._last_ms), bool(times), group)

    def pushed(self, first_edit: int, group: Sequence[Edit], at_ms: int) -> None:
        """An entry that became durable elsewhere a moment ago; the same."""
        if first_edit >= self._next_edit:
            self._append(at_ms, True, group)

    def since_ms(self, now_ms: int) -> int:
        """From when on every edit is here; now, when it holds none that tells its time."""
        return next((at_ms for at_ms, _, _, exact in self._entries if exact), now_ms)

    def entries(self) -> list[LogEntry]:
        """A copy, oldest first; may be asked for, and looked through, on any thread."""
        return [LogEntry(*entry) for entry in list(self._entries)]

    def after(self, edit: int) -> tuple[list[LogEntry], int]:
        """The entries with edits behind this number, oldest first, and the number up to which there are edits now."""
        found, at = list[LogEntry](), self._next_edit
        for entry in reversed(self._entries):
            if at <= edit:
                break
            found.append(LogEntry(*entry))
            at -= len(entry[1])
        return found[::-1], self._next_edit

    def _append(self, at_ms: int, exact: bool, group: Sequence[Edit]) -> None:
        weight = len(group)
        if not _HEAVY.isdisjoint(map(type, group)):
            group, weight = _lightened(group)
        self._last_ms = at_ms
        self._next_edit += len(group)
        self.weight += weight
        entries = self._entries
        entries.append((at_ms, group, weight, exact))
        oldest_ms = at_ms - self._age_ms_max
        while entries and (self.weight > self._edits_max or entries[0][0] < oldest_ms):
            self.weight -= entries.popleft()[2]


def _time_in(edit: Any) -> int | None:
    """The time at which it was made, if the edit itself says so."""
    if type(edit) is edits.Checkpointed:
        return int(edit.write_pointer // POINTERS_PER_MS)
    for name in ("ended_ms", "at_ms", "began_ms"):
        at_ms: int | None = getattr(edit, name, None)
        if at_ms is not None:
            return at_ms
    return None


def _lightened(group: Sequence[Edit]) -> tuple[Sequence[Any], int]:
    """The edits with their change sets counted instead of kept; and what they weigh. A span takes as much as an edit."""
    kept: list[Any] = []
    weight = 0
    for edit in group:
        pointers: Sequence[int] = ()
        if isinstance(edit, edits.Changed):
            kept.append(ToldChanges(edit.id, edit.external_writes, len(edit.changes)))
        elif isinstance(edit, _SPANS):
            kept.append(edit)
            weight += len(edit.spans) - 1
        else:
            kept.append(edit)
            pointers = getattr(edit, "pointers", ()) or getattr(edit, "ids", ())
        weight += 1 + len(pointers) // POINTERS_A_WEIGHT
    return kept, weight
