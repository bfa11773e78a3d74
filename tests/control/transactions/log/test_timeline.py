"""What happened to one transaction, told from the edits of all."""

from __future__ import annotations

import pytest

from basalt.transactions.log.timeline import timeline_of
from basalt.transactions.log.transaction_log import Journal, TransactionLog
from basalt.transactions.rules import edits
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.transaction import Join, Kind, Loss, State
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.whole_bytes import snapshot_mutations

T0 = 1_700_000_000_000
FIRST, SECOND = T0 * POINTERS_PER_MS, (T0 + 1) * POINTERS_PER_MS


def began(pointer: int, owner: str = "etl") -> edits.Began:
    return edits.Began(pointer, Kind.SHORT, False, T0, T0 + 30_000, owner, None)


def events(journal: Journal, *pointers: int, known=None) -> list[tuple[int, str]]:
    found = timeline_of(pointers, journal.entries(), known, journal.since_ms(T0))
    return [(step.at_ms - T0, step.event) for step in found.steps]


def test_each_step_is_told_with_its_time_and_those_of_others_are_not():
    journal = Journal()
    journal.add(T0, [began(FIRST), began(SECOND)])
    journal.add(T0 + 5, [edits.Joined(FIRST, Join(b"shop:orders:", 1, T0)), edits.Joined(SECOND, Join(b"a:b:", 1, T0))])
    journal.add(T0 + 7, [edits.Checkpointed(FIRST, (T0 + 7) * POINTERS_PER_MS)])
    journal.add(T0 + 9, [edits.Changed(FIRST, True, frozenset((b"a", b"b")))])
    journal.add(T0 + 12, [edits.Committing(FIRST, None, T0 + 12), edits.Committed(FIRST, T0 + 12, None)])
    assert events(journal, FIRST) == [
        (0, "begun"), (5, "topic_joined"), (7, "checkpoint"), (9, "changes_told"), (12, "committing"),
        (12, "committed"),
    ]  # fmt: skip
    steps = timeline_of((FIRST,), journal.entries(), None, T0).steps
    assert steps[0].detail == {"owner": "etl", "kind": "short", "expiresMs": T0 + 30_000}
    assert steps[1].detail == {"topic": "shop:orders"}
    assert steps[3].detail == {"changes": 2, "externalWrites": True}
    assert all(step.exact for step in steps)


def test_who_reads_the_journal_goes_on_where_it_was():
    journal = Journal()
    journal.add(T0, [began(FIRST), began(SECOND)])
    entries, place = journal.after(0)
    assert ([entry.at_ms for entry in entries], place) == ([T0], 2)
    assert journal.after(place) == ([], 2)
    journal.add(T0 + 1, [edits.Committed(FIRST, T0 + 1, None)])
    journal.add(T0 + 2, [edits.Committed(SECOND, T0 + 2, None)])
    entries, place = journal.after(place)
    assert ([entry.at_ms for entry in entries], place) == ([T0 + 1, T0 + 2], 4)
    assert [entry.at_ms for entry in journal.after(1)[0]] == [T0, T0 + 1, T0 + 2], "an entry comes whole"


def test_a_lost_conflict_names_who_won_it():
    journal = Journal()
    journal.add(T0, [began(FIRST)])
    journal.add(T0 + 3, [edits.Doomed(FIRST, Loss(SECOND, b"\xff\x00", "billing"), None, T0 + 3)])
    (_, lost) = timeline_of((FIRST,), journal.entries(), None, T0).steps
    assert (lost.at_ms, lost.event) == (T0 + 3, "conflict_lost")
    assert lost.detail == {"winner": SECOND, "winnerOwner": "billing", "key": "ff00"}


def test_what_happens_to_several_at_once_is_told_of_each():
    journal = Journal()
    journal.add(T0, [began(FIRST), began(SECOND)])
    journal.add(T0 + 1, [edits.Invalidated((FIRST, SECOND), T0 + 1, True)])
    journal.add(T0 + 2, [edits.Pruned((FIRST,))])
    journal.add(T0 + 3, [edits.Restored((FIRST,))])
    journal.add(T0 + 4, [edits.Truncated(SECOND)])
    assert events(journal, FIRST) == [
        (0, "begun"), (1, "invalidated"), (2, "pruned"), (3, "restored"), (4, "truncated"),
    ]  # fmt: skip
    assert events(journal, SECOND) == [(0, "begun"), (1, "invalidated")]
    assert timeline_of((SECOND,), journal.entries(), None, T0).steps[1].detail == {"timedOut": True}


def test_a_truncation_is_no_step_of_one_that_was_not_invalid():
    journal = Journal()
    journal.add(T0, [began(FIRST), edits.Committed(FIRST, T0, None)])
    journal.add(T0 + 4, [edits.Truncated(SECOND)])
    assert events(journal, FIRST) == [(0, "begun"), (0, "committed")]
    invalid = Outcome(FIRST, FIRST, State.INVALID, Kind.SHORT, "", T0, False)
    (_, end, truncated) = timeline_of((FIRST,), journal.entries()[1:], invalid, T0).steps
    assert (end.event, truncated.event) == ("invalidated", "truncated")


def test_a_checkpoint_that_is_pruned_is_a_step_of_its_transaction():
    journal = Journal()
    checkpoint = FIRST + 7
    journal.add(T0, [edits.Pruned((checkpoint,))])
    assert events(journal, FIRST, checkpoint) == [(0, "pruned")]


def test_the_journal_keeps_the_newest_edits():
    journal = Journal(edits_max=3)
    for at in range(5):
        journal.add(T0 + at, [began(FIRST + at)])
    assert journal.weight == 3
    assert [entry.at_ms - T0 for entry in journal.entries()] == [2, 3, 4]
    assert journal.since_ms(0) == T0 + 2
    assert events(journal, FIRST) == []


def test_the_journal_keeps_no_edit_that_is_too_old():
    journal = Journal(age_ms_max=10)
    journal.add(T0, [began(FIRST)])
    journal.add(T0 + 10, [began(SECOND)])
    assert len(journal.entries()) == 2
    journal.add(T0 + 11, [edits.Aborted(SECOND, T0 + 11, False)])
    assert [entry.at_ms - T0 for entry in journal.entries()] == [10, 11]


def test_long_lists_count_as_several_and_change_sets_are_not_kept():
    journal = Journal(edits_max=100)
    journal.add(T0, [edits.Changed(FIRST, True, frozenset(bytes([n]) for n in range(200)))])
    assert journal.weight == 1
    assert not any(isinstance(edit, edits.Changed) for entry in journal.entries() for edit in entry.edits)
    journal.add(T0 + 1, [edits.Pruned(tuple(range(1, 801)))])
    assert journal.weight <= 100
    assert journal.since_ms(0) == 0, "an entry heavier than all room is not kept, and nothing is known since"


def test_what_the_journal_has_lost_is_taken_from_what_is_known():
    journal = Journal()
    journal.add(T0 + 500, [edits.Joined(FIRST, Join(b"shop:orders:", 1, T0))])
    state = TransactionProposals()
    state.apply(began(FIRST))
    open_one = state.get(FIRST)
    found = timeline_of((FIRST,), journal.entries(), open_one, T0 + 500)
    assert [(step.at_ms, step.event) for step in found.steps] == [(T0, "begun"), (T0 + 500, "topic_joined")]
    assert not found.whole
    ended = Outcome(FIRST, FIRST, State.INVALID, Kind.SHORT, "etl", T0 + 900, True)
    steps = timeline_of((FIRST,), [], ended, T0).steps
    assert [(step.at_ms, step.event, step.exact) for step in steps] == [
        (T0, "begun", False), (T0 + 900, "invalidated", True),
    ]  # fmt: skip


# Over a restart.


@pytest.fixture
def table():
    return MemoryStore().table("transaction_log")


def write(table, log: TransactionLog, state: TransactionProposals, *made: edits.Edit) -> None:
    for edit in made:
        state.apply(edit)
    table.write([log.encode_next(made)])


def test_after_a_restart_it_begins_with_what_the_log_holds_behind_its_snapshot(table):
    log = TransactionLog(table)
    state = log.recover()
    write(table, log, state, began(FIRST))
    table.write(snapshot_mutations(log.draft(state)))
    write(table, log, state, edits.Joined(FIRST, Join(b"shop:orders:", 1, T0)))
    write(table, log, state, edits.Aborting(FIRST, True), edits.Aborted(FIRST, T0 + 40, False))
    journal = Journal()
    TransactionLog(table).recover(journal)
    found = timeline_of((FIRST,), journal.entries(), None, journal.since_ms(T0))
    assert [step.event for step in found.steps] == ["topic_joined", "abort_decided", "aborted"]
    assert [step.exact for step in found.steps] == [False, True, True], "an entry has the time that an edit of it tells"
    assert [step.at_ms - T0 for step in found.steps] == [0, 40, 40]
    assert not found.whole


def test_what_is_known_already_is_not_read_a_second_time(table):
    log = TransactionLog(table)
    state = log.recover()
    journal = Journal()
    write(table, log, state, began(FIRST))
    journal.add(T0 + 3, [began(FIRST)])
    write(table, log, state, edits.Aborted(FIRST, T0 + 9, False))  # its answer was lost: nobody told the journal
    log.recover(journal)
    assert events(journal, FIRST) == [(3, "begun"), (9, "aborted")]
    log.recover(journal)
    assert len(journal.entries()) == 2
    assert journal.entries()[0].at_ms == T0 + 3


def test_a_gap_makes_it_begin_anew(table):
    log = TransactionLog(table)
    state = log.recover()
    write(table, log, state, began(FIRST))
    journal = Journal()
    journal.add(T0, [began(FIRST)])
    write(table, log, state, began(SECOND))
    table.write(snapshot_mutations(log.draft(state)))  # another server led meanwhile
    log.recover(journal)
    assert journal.entries() == []
    assert journal.since_ms(T0 + 77) == T0 + 77
