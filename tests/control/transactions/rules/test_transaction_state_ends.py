"""How transactions end, and what a call that comes too late is told."""

from __future__ import annotations

import pytest

from basalt.errors import (
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.transactions.rules.transaction import Join, Kind, State
from basalt_engine.snapshot import Visibility

TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)


def test_an_abort_of_a_short_transaction_without_topics_is_done_at_once(scene):
    assert scene.abort(scene.begin()).state is State.ABORTED
    assert scene.state.invalid.pointers == ()


def test_an_abort_with_topics_waits_for_their_roll_back(scene):
    opened = scene.begin()
    scene.join(opened)
    assert scene.abort(opened).state is State.ABORTING
    assert scene.state.view().judge(opened.id) is Visibility.HOLD, "its rows are still there"
    assert scene.state.unfinished()[0].topics == (TOPIC,)
    assert scene.finish(opened).state is State.ABORTED


def test_an_abort_whose_roll_back_is_written_with_it_is_done_at_once(scene):
    opened = scene.begin()
    scene.join(opened)
    assert scene.abort(opened, inline=True).state is State.ABORTED


def test_an_operator_may_give_up_on_a_roll_back(scene):
    opened = scene.begin()
    scene.join(opened)
    scene.abort(opened)
    assert scene.invalidate(opened)
    assert scene.state.view().judge(opened.id) is Visibility.SKIP
    assert scene.finish(opened).state is State.INVALID, "a roll back that was under way changes nothing about it"


def test_the_abort_of_a_long_transaction_goes_to_the_invalid_list_and_stays_there(scene):
    opened = scene.begin(Kind.LONG)
    assert scene.abort(opened).state is State.INVALID
    assert scene.abort(opened).state is State.INVALID
    assert scene.state.invalid.pointers == (opened.id,)


def test_invalidate_is_true_only_from_in_progress(scene):
    opened, aborted, committed = scene.begin(), scene.begin(), scene.begin()
    assert scene.invalidate(opened)
    assert not scene.invalidate(opened)
    scene.abort(aborted)
    assert not scene.invalidate(aborted)
    scene.commit(committed)
    with pytest.raises(TransactionEndedError, match="was committed at"):
        scene.invalidate(committed)


def test_a_short_transaction_may_be_aborted_off_the_invalid_list(scene):
    opened = scene.begin()
    scene.checkpoint(opened)
    scene.invalidate(opened)
    assert len(scene.state.invalid) == 2
    assert scene.abort(opened).state is State.ABORTED
    assert scene.state.invalid.pointers == ()


def test_an_abort_off_the_invalid_list_rolls_its_topics_back_first(scene):
    opened = scene.begin(external_writes=True, owner="etl")
    scene.join(opened)
    marked = scene.checkpoint(opened)
    scene.clock.advance(scene.limits.timeout_ms_default)
    scene.expire()
    assert scene.state.outcome(opened.id).state is State.INVALID
    assert scene.abort(opened).state is State.ABORTING
    unfinished = scene.state.unfinished()[0]
    assert (unfinished.topics, unfinished.pointers, unfinished.owner) == ((TOPIC,), marked.pointers, "etl")
    assert scene.state.view().judge(opened.id) is Visibility.SKIP, "it stays hidden until its rows are gone"
    assert scene.replayed().image() == scene.state.image()
    assert scene.finish(opened).state is State.ABORTED
    assert scene.state.outcome(opened.id).timed_out
    assert scene.state.invalid.pointers == ()


def test_an_abort_off_the_invalid_list_is_not_in_progress_again(scene):
    older, opened = scene.begin(), scene.begin()
    scene.join(opened)
    scene.invalidate(opened)
    scene.abort(opened)
    assert scene.begin().in_progress == (older.id,)
    scene.abort(older)
    assert scene.state.unfinished()[0].id == opened.id
    later = scene.begin()
    assert older.id < opened.id < later.first_short


def test_a_commit_is_refused_once_another_end_is_decided_and_the_error_tells_it(scene):
    aborted = scene.begin(owner="etl")
    scene.abort(aborted)
    with pytest.raises(TransactionEndedError) as caught:
        scene.commit(aborted)
    assert str(caught.value) == (
        f"transaction {aborted.id} (owner etl) was aborted at 2023-11-14T22:13:20.000Z, so it takes no commit; begin again"
    )


def test_an_abort_is_refused_once_the_commit_is_decided(scene):
    committing, committed = scene.begin(), scene.begin()
    scene.commit(committing, inline=False)
    scene.commit(committed)
    with pytest.raises(TransactionEndedError, match="is being committed"):
        scene.abort(committing)
    with pytest.raises(TransactionEndedError, match="is being committed"):
        scene.invalidate(committing)
    with pytest.raises(TransactionEndedError, match="was committed at"):
        scene.abort(committed)


def test_an_unknown_transaction_is_not_found_by_any_call(scene):
    state, now_ms = scene.state, scene.now_ms
    calls = (
        lambda: state.get(17),
        lambda: state.outcome(17),
        lambda: state.writer(17, now_ms),
        lambda: state.checkpoint(17, now_ms),
        lambda: state.join(17, TOPIC, now_ms),
        lambda: state.set_changes(17, (), now_ms),
        lambda: state.commit(17, now_ms),
        lambda: state.abort(17, now_ms),
        lambda: state.invalidate(17, now_ms),
        lambda: state.finish(17, now_ms),
    )
    for call in calls:
        with pytest.raises(TransactionNotFoundError, match="17"):
            call()


def test_a_writer_that_has_ended_is_told_how(scene):
    opened = scene.begin(owner="etl")
    scene.commit(opened)
    with pytest.raises(TransactionEndedError, match=r"\(owner etl\) was committed"):
        scene.state.writer(opened.id, scene.now_ms)
    with pytest.raises(TransactionEndedError, match="was committed"):
        scene.state.get(opened.id)
