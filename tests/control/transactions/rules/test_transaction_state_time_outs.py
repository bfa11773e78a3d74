"""What a deadline does to a transaction, depending on what it has written."""

from __future__ import annotations

import pytest

from basalt.errors import (
    TransactionEndedError,
)
from basalt.transactions.rules import transaction_proposals
from basalt.transactions.rules.transaction import Join, Kind, State

TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)


def test_a_time_out_of_a_transaction_without_writes_leaves_no_trace(scene):
    opened = scene.begin(timeout_ms=1_000)
    scene.clock.advance(999)
    assert scene.expire() == 0
    scene.clock.advance(1)
    assert scene.state.next_deadline_ms() == scene.now_ms
    assert scene.expire() == 1
    assert scene.state.outcome(opened.id).state is State.ABORTED
    assert scene.state.next_deadline_ms() is None


def test_a_time_out_of_a_transaction_with_topics_rolls_them_back(scene):
    opened = scene.begin()
    scene.join(opened)
    scene.clock.advance(scene.limits.timeout_ms_default)
    scene.expire()
    assert [found.id for found in scene.state.unfinished()] == [opened.id]
    assert scene.finish(opened).timed_out
    assert scene.state.invalid.pointers == ()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_time_out_of_a_transaction_with_writes_outside_makes_all_its_pointers_invalid(scene, kind):
    opened = scene.begin(kind, external_writes=True)
    marked = scene.checkpoint(opened)
    scene.join(opened)
    scene.clock.advance(scene.limits.long_timeout_ms)
    scene.expire()
    assert scene.state.invalid.pointers == marked.pointers
    assert scene.state.outcome(opened.id).timed_out


def test_a_transaction_may_say_at_any_time_that_it_writes_outside(scene):
    opened = scene.begin()
    scene.change(opened)
    scene.done(scene.state.mark_external_writes(opened.id, scene.now_ms))
    assert scene.state.mark_external_writes(opened.id, scene.now_ms).edits == ()
    assert scene.state.get(opened.id).changes == frozenset()
    scene.clock.advance(scene.limits.timeout_ms_default)
    scene.expire()
    assert scene.state.invalid.pointers == (opened.id,)
    with pytest.raises(TransactionEndedError, match="went to the invalid list"):
        scene.state.mark_external_writes(opened.id, scene.now_ms)


def test_many_time_outs_cost_one_copy_of_the_invalid_list(scene):
    opened = [scene.begin(external_writes=True) for _ in range(5)]
    scene.clock.advance(scene.limits.timeout_ms_default)
    version = scene.state.invalid.version
    assert scene.expire() == 1
    assert scene.state.invalid.pointers == tuple(found.id for found in opened)
    assert scene.state.invalid.version == version + 1


def test_one_call_of_expire_ends_a_bounded_number_earliest_first(scene, monkeypatch):
    monkeypatch.setattr(transaction_proposals, "EXPIRED_MAX", 2)
    opened = [scene.begin(timeout_ms=timeout_ms) for timeout_ms in (300, 100, 200)]
    scene.clock.advance(1_000)
    proposal = scene.state.expire(scene.now_ms)
    assert [edit.id for edit in proposal.edits] == [opened[1].id, opened[2].id]


def test_a_transaction_past_its_deadline_is_ended_by_the_first_call_that_meets_it(scene):
    for call in (scene.commit, scene.checkpoint, scene.join, lambda late: scene.change(late, b"row")):
        opened = scene.begin(owner="etl", timeout_ms=1_000)
        scene.clock.advance(1_000)
        with pytest.raises(TransactionEndedError, match=rf"{opened.id} \(owner etl\) timed out: its deadline was 2023"):
            call(opened)
        assert scene.state.outcome(opened.id).state is State.ABORTED
        assert scene.state.outcome(opened.id).timed_out


def test_a_commit_that_was_decided_before_the_deadline_is_finished_after_it(scene):
    opened = scene.begin()
    scene.commit(opened, inline=False)
    scene.clock.advance(10**8)
    assert scene.expire() == 0
    assert scene.finish(opened).state is State.COMMITTED


def test_a_write_after_the_deadline_is_refused_before_anyone_has_expired_the_transaction(scene):
    opened = scene.begin(timeout_ms=1_000)
    scene.clock.advance(1_000)
    with pytest.raises(TransactionEndedError, match="timed out"):
        scene.state.writer(opened.id, scene.now_ms)


def test_a_clock_step_forward_times_out_everything_and_back_nothing(scene):
    opened = scene.begin()
    scene.clock.step(scene.now_ms - 3_600_000)
    assert scene.expire() == 0
    scene.clock.step(scene.now_ms + 2 * 3_600_000)
    assert scene.expire() == 1
    assert scene.state.outcome(opened.id).timed_out
