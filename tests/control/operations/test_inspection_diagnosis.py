"""What a transaction waits for, holds back and comes to: in words, and by every state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from basalt.operations import inspection
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import Join, Kind, Loss, State, TableJoin
from basalt.transactions.rules.transaction_proposals import TransactionProposals

T0 = 1_700_000_000_000
ORDERS = Join(b"shop:orders:", 1, T0)


def begin(state: TransactionProposals, at_ms: int = T0, **given) -> int:
    made = state.begin(
        at_ms, given.pop("kind", Kind.SHORT), None, given.pop("owner", "etl"), given.pop("external_writes", False)
    )
    for edit in made.edits:
        state.apply(edit)
    return made.transaction_id


def apply(state: TransactionProposals, proposal) -> None:
    for edit in proposal.edits:
        state.apply(edit)


@pytest.fixture
def state() -> TransactionProposals:
    return TransactionProposals()


@pytest.mark.parametrize(
    ("given", "then", "next_step"),
    [
        ({}, "it is aborted; there is nothing to undo", "tx abort 7"),
        ({"topics": (ORDERS,)}, "rolled back", "tx abort 7"),
        ({"tables": (TableJoin(b"shop:~stock:", 1),)}, "becomes invalid: cells", "tx invalidate 7"),
        ({"external_writes": True, "topics": (ORDERS,)}, "becomes invalid: it has", "tx invalidate 7"),
        ({"kind": Kind.LONG}, "it is aborted", "tx invalidate 7"),
        ({"state": State.COMMITTING}, "undone if the server dies", "do not restart"),
        ({"state": State.ABORTING}, "will be aborted", "tx invalidate 7"),
    ],
)
def test_what_happens_when_its_time_is_up_and_what_to_do_before(state, given, then, next_step):
    transaction = replace(state.get(begin(state)), **given)
    assert then in inspection.at_deadline(transaction)
    assert next_step in inspection.next_step(transaction, "7", T0)


def test_who_has_to_do_something_next(state):
    transaction = state.get(begin(state))
    late_ms = transaction.deadline_ms
    doomed = replace(transaction, doomed=Loss(1, b"key", ""))
    assert "its client, which has to commit" in inspection.waits_for(transaction, T0)
    assert "lost a write conflict" in inspection.waits_for(doomed, T0)
    assert "expiry" in inspection.waits_for(doomed, late_ms)
    assert "1 topic" in inspection.waits_for(replace(transaction, state=State.COMMITTING, topics=(ORDERS,)), late_ms)
    assert "roll back" in inspection.waits_for(replace(transaction, state=State.ABORTING), T0)
    assert "expiry job ends it" in inspection.next_step(transaction, "7", late_ms).replace("job expiry", "expiry job")


def test_its_owner_is_the_first_to_ask(state):
    transaction = state.get(begin(state))
    assert inspection.next_step(transaction, "7", T0).startswith("ask its owner etl")
    assert inspection.next_step(replace(transaction, owner=""), "7", T0).startswith("find its client")


def test_a_transaction_hangs_for_a_reason(state):
    transaction = state.get(begin(state))
    lifetime_ms = transaction.deadline_ms - T0
    assert inspection.why_hanging(transaction, T0 + lifetime_ms // 2, None, False) == ()
    assert inspection.why_hanging(transaction, T0 + lifetime_ms // 2 + 1, None, False) == ("past half of its time-out",)
    assert inspection.why_hanging(transaction, T0, None, True) == ("holds readers back",)
    assert inspection.why_hanging(transaction, T0 + 5, 5, False) == ()
    assert inspection.why_hanging(transaction, T0 + 6, 5, False) == ("old",)
    ending = replace(transaction, state=State.ABORTING)
    assert inspection.why_hanging(ending, transaction.deadline_ms, 10**9, False) == ("its end is not finished",)
    assert inspection.why_hanging(replace(ending, was_invalid=True), 10**15, None, True) == ()


def test_only_the_oldest_holds_back_compactions_and_pruning(state):
    first = begin(state)
    second = begin(state, T0 + 1)
    held = inspection.held_back(state.image(), state.get(first))
    assert (held.visibility, held.pruning, held.decided) == (True, True, first - 1)
    assert held.visibility_bound == state.visibility_upper_bound()
    later = inspection.held_back(state.image(), state.get(second))
    assert (later.pruning, later.visibility_bound) == (False, held.visibility_bound)
    apply(state, state.abort(first, T0 + 2))
    # It began while the first one was open, so its snapshot still hides that one's writes.
    assert inspection.held_back(state.image(), state.get(second)).visibility


def test_one_that_sees_more_than_the_oldest_does_not_hold_compactions_back(state):
    first = begin(state)
    committed = begin(state, T0 + 1)
    second_reader = begin(state, T0 + 2)
    apply(state, state.commit(committed, T0 + 3, inline=True))
    assert inspection.held_back(state.image(), state.get(first)).visibility
    assert inspection.held_back(state.image(), state.get(second_reader)).visibility_bound < first
    apply(state, state.abort(first, T0 + 4))
    apply(state, state.abort(second_reader, T0 + 5))
    late = begin(state, T0 + 6)
    held = inspection.held_back(state.image(), state.get(late))
    assert held.visibility_bound == state.visibility_upper_bound() == committed


def test_change_sets_are_kept_because_of_the_oldest_short_one_alone(state):
    first = begin(state)
    winner = begin(state, T0 + 1)
    apply(state, state.set_changes(winner, [b"a", b"b"], T0 + 1))
    apply(state, state.commit(winner, T0 + 2, inline=True))
    later = begin(state, T0 + 3)
    held = inspection.held_back(state.image(), state.get(first))
    assert (held.change_sets, held.changes) == (1, 2)
    assert inspection.held_back(state.image(), state.get(later)).change_sets == 0
    other = begin(state, T0 + 4)
    apply(state, state.set_changes(other, [b"c"], T0 + 4))
    apply(state, state.commit(other, T0 + 5, inline=True))
    assert inspection.held_back(state.image(), state.get(first)).change_sets == 1, (
        "the second set is kept for `later` too"
    )
    assert isinstance(state.abort(first, T0 + 6).edits[0], edits.Aborted)
