"""The log in a table: recovery, snapshots that a crash cuts short, and damage that is refused by name."""

from __future__ import annotations

import pytest

from basalt.transactions.log import transaction_log as log_module
from basalt.transactions.log.entry_format import encode_entry, sealed
from basalt.transactions.log.transaction_log import (
    ENTRY,
    SEGMENT_ENTRIES,
    SNAPSHOT,
    Journal,
    TransactionLog,
    entry_key,
)
from basalt.transactions.rules.edits import Committed
from basalt.transactions.rules.transaction import Join, Kind, State, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.errors import CorruptionError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, Put, Row
from tests.control.transactions.whole_bytes import snapshot_mutations

NOW_MS = 1_700_000_000_000
TOPIC = Join(b"shop:orders:", 1, NOW_MS)


class Logged:
    """A state whose edits are logged before they are applied, one entry for each proposal."""

    def __init__(self, table=None, limits: TransactionLimits | None = None) -> None:
        self.table = table or MemoryStore().table("transaction_log")
        self.limits = limits or TransactionLimits()
        self.now_ms = NOW_MS
        self.restart()

    def restart(self) -> TransactionProposals:
        self.log = TransactionLog(self.table, self.limits)
        self.state = self.log.recover()
        return self.state

    def done(self, proposal) -> int:
        if proposal.edits:
            self.table.write([self.log.encode_next(proposal.edits)])
        for edit in proposal.edits:
            self.state.apply(edit)
        return proposal.transaction_id

    def begin(self, **options) -> int:
        return self.done(self.state.begin(self.now_ms, **options))

    def commit(self, key: int, inline: bool = True) -> int:
        return self.done(self.state.commit(key, self.now_ms, inline=inline))

    def snapshot(self, written: int | None = None) -> None:
        draft = self.log.draft(self.state)
        self.table.write(snapshot_mutations(draft)[:written])
        self.log.snapshot_written(draft)

    def rows(self) -> list[Row]:
        return list(self.table.scan(b"\0", None))

    def replace(self, key: bytes, column: bytes, data: bytes) -> None:
        self.table.write([Put(key, {column: data})])


@pytest.fixture
def logged() -> Logged:
    return Logged()


def busy(logged: Logged) -> None:
    """A bit of everything in twelve entries."""
    logged.begin(kind=Kind.LONG, owner="spark")
    for external_writes in (False, True):
        key = logged.begin(external_writes=external_writes, owner="etl", request_id=f"r{logged.state.edits_applied}")
        logged.done(logged.state.join(key, TOPIC, logged.now_ms))
        logged.done(logged.state.checkpoint(key, logged.now_ms))
        logged.done(logged.state.set_changes(key, [b"row %d" % key], logged.now_ms))
        logged.now_ms += 5
    logged.commit(key, inline=False)
    logged.done(logged.state.begin_committed(logged.now_ms))
    logged.done(logged.state.expire(logged.now_ms + 30_000))


def test_an_empty_log_is_a_new_state(logged):
    assert logged.state.image() == TransactionProposals().image()
    assert logged.state.edits_applied == 0


def test_the_state_is_read_back_from_the_log_after_every_entry(logged):
    for step in range(12):
        again = Logged(logged.table)
        assert again.state.image() == logged.state.image(), step
        if step % 4 == 3:
            logged.snapshot()
        busy(logged)
    assert logged.log.entries_since_snapshot == Logged(logged.table).log.entries_since_snapshot > 0
    assert logged.log.bytes_since_snapshot == Logged(logged.table).log.bytes_since_snapshot > 0


def test_write_pointers_rise_across_recovery_with_the_clock_set_back(logged):
    last = logged.commit(logged.begin())
    for snapshot in (False, True):
        if snapshot:
            logged.snapshot()
        logged.now_ms -= 3_600_000
        logged.restart()
        key = logged.begin()
        assert key > last
        last = key
    assert logged.state.get(last).read_pointer > 0


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_committing_transaction_is_found_unfinished_after_a_crash_and_finished_once(logged, snapshot):
    key = logged.begin()
    logged.done(logged.state.join(key, TOPIC, logged.now_ms))
    logged.commit(key, inline=False)
    if snapshot:
        logged.snapshot()
    logged.restart()
    (unfinished,) = logged.state.unfinished()
    assert (unfinished.id, unfinished.state, unfinished.topics) == (key, State.COMMITTING, (TOPIC,))
    logged.done(logged.state.finish(key, logged.now_ms))
    logged.restart()
    assert logged.state.unfinished() == []
    assert logged.state.finish(key, logged.now_ms).edits == ()
    assert logged.state.outcome(key).state is State.COMMITTED


def test_an_entry_holds_the_edits_of_a_whole_group(logged):
    first = logged.state.begin(NOW_MS)
    logged.state.apply(first.edits[0])
    second = logged.state.begin(NOW_MS)
    logged.state.apply(second.edits[0])
    put = logged.log.encode_next([*first.edits, *second.edits])
    logged.table.write([put])
    assert len(logged.rows()) == 1
    assert TransactionLog(logged.table).recover().image() == logged.state.image()


def test_what_was_encoded_and_not_written_is_forgotten_by_recovery(logged):
    logged.begin()
    before = logged.state.image()
    lost = logged.state.begin(NOW_MS)
    logged.log.encode_next(lost.edits)
    logged.state.apply(lost.edits[0])
    logged.state = logged.log.recover()
    assert logged.state.image() == before
    logged.begin()
    assert Logged(logged.table).state.image() == logged.state.image(), "the entry's number was used again"


def test_a_snapshot_replaces_the_entries_and_snapshots_before_it(logged):
    busy(logged)
    logged.snapshot()
    busy(logged)
    logged.snapshot()
    assert logged.log.entries_since_snapshot == 0
    (row,) = logged.rows()
    assert set(row.columns) == {SNAPSHOT}
    assert Logged(logged.table).state.image() == logged.state.image()
    busy(logged)
    assert Logged(logged.table).state.image() == logged.state.image()


def test_a_snapshot_cut_short_by_a_crash_does_no_harm(monkeypatch, logged):
    monkeypatch.setattr(log_module, "PART_BYTES_MAX", 64)
    busy(logged)
    logged.snapshot()
    busy(logged)
    mutations = snapshot_mutations(logged.log.draft(logged.state))
    assert len(mutations) > 5
    before = logged.rows()
    for written in range(len(mutations) + 1):
        table = MemoryStore().table("transaction_log")
        table.write([Put(row.key, row.columns) for row in before])
        table.write(mutations[:written])
        again = Logged(table)
        assert again.state.image() == logged.state.image(), written
        busy(again)
        again.snapshot()
        assert Logged(table).state.image() == again.state.image(), written


def test_a_snapshot_taken_twice_at_one_entry_is_the_same_snapshot(logged):
    busy(logged)
    logged.snapshot()
    rows = logged.rows()
    for written in range(4):
        logged.snapshot(written)
        assert logged.rows() == rows


def test_a_snapshot_is_of_exactly_what_was_logged(logged):
    proposal = logged.state.begin(NOW_MS)
    logged.state.apply(proposal.edits[0])
    with pytest.raises(AssertionError, match="take the snapshot between two groups"):
        logged.log.draft(logged.state)


def test_a_draft_may_be_written_after_later_entries(logged):
    busy(logged)
    draft = logged.log.draft(logged.state)
    busy(logged)
    for mutation in snapshot_mutations(draft):
        logged.table.write([mutation])
    logged.log.snapshot_written(draft)
    again = Logged(logged.table)
    assert again.state.image() == logged.state.image()
    assert logged.log.entries_since_snapshot == again.log.entries_since_snapshot > 0
    assert logged.log.bytes_since_snapshot == again.log.bytes_since_snapshot > 0
    assert len(logged.rows()) > 1


def test_entries_go_on_over_the_end_of_a_segment(monkeypatch, logged):
    assert SEGMENT_ENTRIES == 4_096, "on disk for ever"
    monkeypatch.setattr(log_module, "SEGMENT_ENTRIES", 4)
    busy(logged)
    keys = [row.key for row in logged.rows()]
    assert keys[3:5] == [bytes(15) + b"\3", bytes(7) + b"\1" + bytes(8)]
    assert Logged(logged.table).state.image() == logged.state.image()
    logged.snapshot()
    busy(logged)
    assert Logged(logged.table).state.image() == logged.state.image()


# Damage.


def refused(logged: Logged, *words: str) -> None:
    before = logged.rows()
    with pytest.raises(CorruptionError) as caught:
        TransactionLog(logged.table).recover()
    for word in words:
        assert word in str(caught.value)
    assert logged.rows() == before, "a refused log is left as it is"


@pytest.mark.parametrize("missing", [0, 1, 5])
def test_a_missing_entry_is_refused(logged, missing):
    busy(logged)
    logged.table.write([Delete(entry_key(missing))])
    refused(
        logged,
        f"row {entry_key(missing + 1).hex()} of table transaction_log comes where",
        "entries are missing",
        "backup",
    )


def test_a_missing_entry_after_a_snapshot_is_refused(logged):
    busy(logged)
    logged.snapshot()
    first = logged.log._position
    busy(logged)
    logged.table.write([Delete(entry_key(first))])
    refused(logged, "entries are missing")


def test_a_log_whose_snapshot_is_gone_is_refused(logged):
    busy(logged)
    logged.snapshot()
    (row,) = logged.rows()
    busy(logged)
    logged.table.write([Delete(row.key)])
    refused(logged, "entries are missing")


def test_a_damaged_entry_is_refused_by_its_row(logged):
    busy(logged)
    row = logged.rows()[3]
    data = bytearray(row.columns[ENTRY])
    data[20] ^= 1
    logged.replace(row.key, ENTRY, bytes(data))
    refused(logged, f"row {row.key.hex()} of table transaction_log", "CRC-32C", "at offset")


def test_an_entry_in_another_s_place_is_refused(logged):
    busy(logged)
    rows = logged.rows()
    logged.replace(rows[3].key, ENTRY, rows[4].columns[ENTRY])
    refused(logged, rows[3].key.hex(), "goes on after edit 4, the log stands at 3")


def test_an_entry_that_contradicts_what_came_before_is_refused(logged):
    logged.begin()
    logged.replace(entry_key(1), ENTRY, encode_entry(1, [Committed(17, NOW_MS, None)]))
    refused(logged, entry_key(1).hex(), "does not fit what came before", "transaction 17")


@pytest.mark.parametrize("columns", [{b"x": b""}, {ENTRY: b"", b"x": b""}])
def test_an_entry_of_other_columns_is_refused(logged, columns):
    logged.table.write([Put(entry_key(0), columns)])
    refused(logged, entry_key(0).hex(), "columns")


@pytest.mark.parametrize("key", [b"\0" * 17, b"\0" * 15 + b"\7\0", b"\xfe" * 16])
def test_a_row_that_is_no_entry_is_refused(logged, key):
    busy(logged)
    logged.table.write([Put(key, {ENTRY: b""})])
    refused(logged, f"row {key.hex()} of table transaction_log")


def test_a_newer_entry_format_is_refused_untouched(logged):
    busy(logged)
    row = logged.rows()[2]
    logged.replace(row.key, ENTRY, sealed(b"\x02" + row.columns[ENTRY][1:-4]))
    refused(logged, row.key.hex(), "newer Basalt", "start that version again")


def snapshot_rows(logged: Logged, monkeypatch) -> list[Row]:
    monkeypatch.setattr(log_module, "PART_BYTES_MAX", 64)
    busy(logged)
    logged.snapshot()
    rows = logged.rows()
    assert len(rows) > 3
    return rows


@pytest.mark.parametrize("part", [1, 2, -1])
def test_a_snapshot_with_a_part_missing_is_refused(logged, monkeypatch, part):
    rows = snapshot_rows(logged, monkeypatch)
    logged.table.write([Delete(rows[part].key)])
    refused(logged, f"row {rows[0].key.hex()}", "is missing")


@pytest.mark.parametrize("part", [0, 1, -1])
def test_a_damaged_part_of_a_snapshot_is_refused_by_its_row(logged, monkeypatch, part):
    rows = snapshot_rows(logged, monkeypatch)
    data = bytearray(rows[part].columns[SNAPSHOT])
    data[-10] ^= 1
    logged.replace(rows[part].key, SNAPSHOT, bytes(data))
    refused(logged, f"row {rows[part].key.hex()}", "CRC-32C")


def test_parts_of_a_snapshot_in_each_other_s_place_are_refused(logged, monkeypatch):
    rows = snapshot_rows(logged, monkeypatch)
    logged.replace(rows[1].key, SNAPSHOT, rows[2].columns[SNAPSHOT])
    refused(logged, "the snapshot from row", "CRC-32C")


def test_a_snapshot_under_another_entry_s_key_is_refused(logged):
    busy(logged)
    logged.snapshot()
    (row,) = logged.rows()
    key = row.key[:-3] + b"\x77" + row.key[-2:]
    logged.table.write([Delete(row.key), Put(key, row.columns)])
    refused(logged, f"row {key.hex()}", "a part of the snapshot at segment 0, entry")


def test_a_newer_snapshot_format_is_refused_untouched(logged):
    busy(logged)
    logged.snapshot()
    (row,) = logged.rows()
    logged.replace(row.key, SNAPSHOT, sealed(b"\x02" + row.columns[SNAPSHOT][1:-4]))
    refused(logged, row.key.hex(), "newer Basalt")


def test_a_snapshot_row_with_a_strange_key_is_refused(logged):
    busy(logged)
    logged.table.write([Put(b"\xff" * 9, {SNAPSHOT: b""})])
    refused(logged, "key of 9 bytes")


def test_a_damaged_snapshot_is_never_passed_over_for_an_older_one(logged):
    busy(logged)
    logged.snapshot()
    busy(logged)
    mutations = snapshot_mutations(logged.log.draft(logged.state))
    logged.table.write(mutations[:1])
    row = logged.rows()[-1]
    data = bytearray(row.columns[SNAPSHOT])
    data[30] ^= 1
    logged.replace(row.key, SNAPSHOT, bytes(data))
    refused(logged, row.key.hex())


def test_whoever_follows_reads_entries_without_a_gap_over_the_end_of_a_segment(monkeypatch, logged):
    monkeypatch.setattr(log_module, "SEGMENT_ENTRIES", 4)
    logged.restart()
    for _ in range(10):
        logged.begin()
    rows = [row.columns[ENTRY] for row in logged.rows()]
    assert logged.log.position == 10
    assert logged.log.read_entries(0, 1 << 20) == rows
    assert logged.log.read_entries(7, 1 << 20) == rows[7:]
    assert logged.log.read_entries(7, 1) == rows[7:8]
    assert logged.log.read_entries(10, 1 << 20) == []
    logged.table.write([Delete(entry_key(5))])
    assert logged.log.read_entries(3, 1 << 20) == rows[3:5]
    assert logged.log.read_entries(5, 1 << 20) == []


def test_entries_before_a_snapshot_are_not_there(logged):
    logged.begin()
    logged.snapshot()
    logged.begin()
    assert logged.log.read_entries(0, 1 << 20) == []
    (entry,) = logged.log.read_entries(1, 1 << 20)
    assert logged.log.decoded(1, entry)[0] == 1


def test_what_was_pushed_is_in_the_journal_once(logged):
    journal, made = Journal(), [Committed(1, NOW_MS, None)]
    journal.pushed(0, made, NOW_MS + 5)
    journal.pushed(0, made, NOW_MS + 6)
    journal.replayed(0, made)
    ((at_ms, edits, _, exact),) = journal.entries()
    assert (at_ms, list(edits), exact) == (NOW_MS + 5, made, True)
