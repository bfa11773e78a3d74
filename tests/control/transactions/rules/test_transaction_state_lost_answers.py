"""A client that lost the answer sends the same request again, and gets the first answer."""

from __future__ import annotations

import pytest

from basalt.errors import (
    RequestReusedError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.transactions.rules import outcomes
from basalt.transactions.rules.transaction import State, TransactionLimits


def test_a_repeated_begin_finds_the_first_transaction(scene):
    first = scene.begin(request_id="r1", owner="etl")
    assert scene.begin(request_id="r1") == first
    assert scene.state.in_progress_count == 1


def test_a_repeated_begin_finds_the_first_transaction_even_where_a_new_one_would_be_refused(scene_with):
    scene = scene_with(TransactionLimits(in_progress_max=1))
    first = scene.begin(request_id="r1")
    assert scene.begin(request_id="r1") == first


def test_a_repeated_begin_of_a_transaction_that_has_ended_is_told_its_outcome(scene):
    first = scene.begin(request_id="r1")
    scene.abort(first)
    with pytest.raises(TransactionEndedError, match="was aborted"):
        scene.begin(request_id="r1")


def test_a_repeated_one_shot_transaction_is_committed_once(scene):
    first = scene.one_shot(request_id="r1")
    assert scene.one_shot(request_id="r1") == first
    assert len(scene.edits) == 1


def test_a_one_shot_transaction_over_several_owners_counts_under_its_request_once_it_has_committed(scene):
    given_up, opened = scene.begin(), scene.begin()
    for each in (given_up, opened):
        scene.done(scene.state.commit(each.id, scene.now_ms))
    scene.done(scene.state.give_up(given_up.id, scene.now_ms))
    assert scene.state.first_one_shot("r1") is None
    scene.done(scene.state.finish(opened.id, scene.now_ms, "r1"))
    assert scene.state.first_one_shot("r1") == opened.id
    assert scene.one_shot(request_id="r1").id == opened.id
    with pytest.raises(RequestReusedError):
        scene.begin(request_id="r1")


@pytest.mark.parametrize("request_id", [None, "r1"])
def test_a_repeated_commit_succeeds_again(scene, request_id):
    opened = scene.begin()
    first = scene.commit(opened, request_id=request_id)
    scene.clock.advance(3_600_000)
    assert scene.commit(opened, request_id=request_id) == first
    assert scene.commit(opened) == first


def test_a_commit_repeated_while_it_is_being_finished_is_the_same_commit(scene):
    opened = scene.begin()
    scene.commit(opened, inline=False, request_id="r1")
    assert scene.commit(opened, inline=False, request_id="r1").state is State.COMMITTING
    scene.finish(opened)
    assert scene.commit(opened, request_id="r1").state is State.COMMITTED


def test_a_repeated_commit_that_lost_a_conflict_loses_it_again(scene):
    winner, loser = scene.begin(), scene.begin()
    scene.change(winner, b"row")
    scene.change(loser, b"row")
    scene.commit(winner)
    for _ in range(2):
        with pytest.raises(TransactionConflictError, match=f"to transaction {winner.id}"):
            scene.commit(loser, request_id="r1")
    with pytest.raises(RequestReusedError):
        scene.begin(request_id="r1")
    assert scene.replayed().image() == scene.state.image()


@pytest.mark.parametrize("inline", [True, False])
def test_a_repeated_abort_succeeds_again(scene, inline):
    opened = scene.begin()
    scene.join(opened)
    scene.abort(opened, inline=inline)
    scene.abort(opened, inline=inline)
    scene.finish(opened)
    assert scene.abort(opened).state is State.ABORTED
    assert scene.finish(opened).state is State.ABORTED


def test_a_request_id_serves_one_kind_of_call_and_one_transaction(scene):
    opened, other = scene.begin(request_id="begun"), scene.begin()
    scene.one_shot(request_id="shot")
    scene.commit(opened, request_id="committed")
    misuses = (
        lambda: scene.begin(request_id="shot"),
        lambda: scene.begin(request_id="committed"),
        lambda: scene.one_shot(request_id="begun"),
        lambda: scene.commit(other, request_id="begun"),
        lambda: scene.commit(other, request_id="committed"),
    )
    for misuse in misuses:
        with pytest.raises(RequestReusedError, match="use a new request id"):
            misuse()
    assert scene.state.get(other.id).state is State.OPEN


def test_requests_and_outcomes_are_found_again_after_a_recovery(scene):
    begun = scene.begin(request_id="begun")
    shot = scene.one_shot(request_id="shot")
    scene.commit(begun, request_id="committed")
    state = scene.replayed()
    assert state.begin_committed(scene.now_ms, request_id="shot").edits == ()
    assert state.outcome(shot.id) == shot
    assert state.commit(begun.id, scene.now_ms, request_id="committed").edits == ()
    with pytest.raises(RequestReusedError):
        state.begin(scene.now_ms, request_id="shot")


def test_outcomes_are_forgotten_by_size_and_then_not_found(scene_with, monkeypatch):
    monkeypatch.setattr(outcomes, "PACKED_TOGETHER", 1)
    scene = scene_with(TransactionLimits(outcomes_max=3, outcome_block_bytes_max=0, requests_max=2))
    ended = [scene.one_shot(request_id=f"r{number}") for number in range(4)]
    assert scene.state.outcome(ended[1].id) == ended[1]
    with pytest.raises(TransactionNotFoundError, match="forgotten; begin a new one"):
        scene.state.outcome(ended[0].id)
    assert scene.one_shot(request_id="r1") != ended[1], "its request id was forgotten, so this is a new call"


def test_outcomes_are_asked_for_hours_later(scene):
    opened = scene.begin()
    scene.commit(opened)
    scene.clock.advance(scene.limits.memory_ms_max)
    scene.one_shot()
    assert scene.commit(opened).state is State.COMMITTED
    scene.clock.advance(1)
    scene.one_shot()
    with pytest.raises(TransactionNotFoundError):
        scene.commit(opened)
