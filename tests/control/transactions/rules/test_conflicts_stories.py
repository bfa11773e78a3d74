"""How transactions that changed the same thing clash, and what the loser is told."""

from __future__ import annotations

import pytest

from basalt.errors import (
    TooLargeError,
    TransactionConflictError,
)
from basalt.transactions.rules.transaction import Join, Kind, State, TransactionLimits
from basalt_engine.snapshot import Visibility

TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)


def test_the_first_committer_wins_and_the_loser_is_told_the_key_and_the_winner(scene):
    winner, loser = scene.begin(owner="etl"), scene.begin(owner="web")
    scene.change(winner, b"row 1")
    scene.change(loser, b"row 1", b"row 2")
    scene.commit(winner)
    with pytest.raises(TransactionConflictError) as caught:
        scene.commit(loser)
    assert str(caught.value) == (
        f"transaction {loser.id} (owner web) lost a write conflict on 'row 1' to transaction {winner.id} (owner etl),"
        " which committed first; abort it (or invalidate it, if its writes cannot be undone) and begin again"
    )


def test_a_doomed_transaction_can_only_be_aborted_or_invalidated(scene):
    winner, loser = scene.begin(), scene.begin()
    scene.change(winner, b"row")
    scene.change(loser, b"row")
    scene.commit(winner)
    for call in (scene.commit, scene.checkpoint, scene.join, lambda lost: scene.change(lost, b"other"), scene.commit):
        with pytest.raises(TransactionConflictError):
            call(loser)
    with pytest.raises(TransactionConflictError):
        scene.state.writer(loser.id, scene.now_ms)
    assert scene.state.view().judge(loser.id) is Visibility.HOLD
    assert scene.abort(loser).state is State.ABORTED


def test_a_change_set_that_clashes_already_dooms_its_transaction_and_marks_it(scene):
    winner, loser = scene.begin(), scene.begin()
    scene.change(winner, b"row")
    scene.commit(winner)
    with pytest.raises(TransactionConflictError):
        scene.change(loser, b"row")
    assert scene.state.get(loser.id).doomed.winner == winner.id
    assert scene.state.get(loser.id).external_writes
    with pytest.raises(TransactionConflictError):
        scene.commit(loser)


def test_a_second_change_set_replaces_the_first(scene):
    other, opened = scene.begin(), scene.begin()
    scene.change(other, b"a")
    scene.change(opened, b"a")
    scene.change(opened, b"b")
    scene.commit(other)
    assert scene.commit(opened).state is State.COMMITTED


def test_two_transactions_with_one_change_may_both_tell_it_before_one_commits(scene):
    first, second = scene.begin(), scene.begin()
    scene.change(first, b"row")
    scene.change(second, b"row")
    assert scene.commit(first).state is State.COMMITTED


def test_a_transaction_that_begins_while_another_is_being_committed_clashes_with_it(scene):
    committing = scene.begin()
    scene.change(committing, b"row")
    scene.commit(committing, inline=False)
    during = scene.begin()
    scene.finish(committing)
    after = scene.begin()
    with pytest.raises(TransactionConflictError):
        scene.change(during, b"row")
    scene.change(after, b"row")
    assert scene.commit(after).state is State.COMMITTED


def test_a_change_set_is_forgotten_once_no_older_short_transaction_runs(scene):
    old, winner = scene.begin(), scene.begin()
    scene.change(winner, b"row")
    scene.commit(winner)
    assert len(scene.state.image().committed) == 1
    scene.begin()
    scene.abort(old)
    assert scene.state.image().committed == ()


def test_long_transactions_take_no_part_in_conflicts(scene):
    long, short = scene.begin(Kind.LONG), scene.begin()
    scene.change(long, b"row")
    scene.change(short, b"row")
    scene.commit(short)
    assert scene.commit(long).state is State.COMMITTED
    late = scene.begin()
    scene.change(late, b"row")
    assert scene.commit(late).state is State.COMMITTED


def test_change_sets_are_limited_in_entries_and_bytes_inclusive(scene_with):
    scene = scene_with(TransactionLimits(changes_max=3, change_bytes_max=10))
    opened = scene.begin(owner="etl")
    scene.change(opened, b"1234", b"12345", b"1")
    for changes in ((b"a", b"b", b"c", b"d"), (b"123456", b"12345")):
        with pytest.raises(TooLargeError, match=rf"transaction {opened.id} \(owner etl\) .* limits are 3 and 10"):
            scene.change(opened, *changes)
    assert scene.state.get(opened.id).changes == {b"1234", b"12345", b"1"}


def test_a_change_set_says_that_there_are_writes_outside(scene):
    opened = scene.begin()
    scene.change(opened)
    assert not scene.state.get(opened.id).external_writes
    scene.change(opened, b"row")
    scene.change(opened)
    assert scene.state.get(opened.id).external_writes, "what was written once stays written"
