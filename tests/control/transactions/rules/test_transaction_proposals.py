"""What transactions see of each other, and that only edits that fit can change the state."""

from __future__ import annotations

import pytest

from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import NO_SHORT, Join, Kind, State
from basalt_engine.errors import CorruptionError
from basalt_engine.snapshot import Visibility

TOPIC = Join(b"shop:orders:", 1, 1_700_000_000_000)


def test_a_proposal_changes_nothing(scene):
    opened = scene.begin()
    before = scene.state.image()
    scene.state.begin(scene.now_ms)
    scene.state.begin_committed(scene.now_ms)
    scene.state.checkpoint(opened.id, scene.now_ms)
    scene.state.commit(opened.id, scene.now_ms)
    scene.state.abort(opened.id, scene.now_ms)
    scene.state.invalidate(opened.id, scene.now_ms)
    scene.state.expire(scene.now_ms + 10**9)
    assert scene.state.image() == before


def test_a_commit_is_visible_to_those_who_begin_after_it_and_to_nobody_before(scene):
    first = scene.begin()
    before = scene.begin()
    assert before.snapshot().judge(first.id) is Visibility.HOLD
    assert scene.state.view().judge(first.id) is Visibility.HOLD
    scene.commit(first)
    assert before.snapshot().judge(first.id) is Visibility.HOLD, "a snapshot never changes"
    assert scene.begin().snapshot().judge(first.id) is Visibility.VISIBLE
    assert scene.state.view().judge(first.id) is Visibility.VISIBLE


def test_a_snapshot_names_everyone_who_was_in_progress_and_the_first_short_one(scene):
    long = scene.begin(Kind.LONG)
    short = scene.begin()
    marked = scene.checkpoint(short)
    last = scene.begin()
    assert long.first_short == NO_SHORT
    assert last.in_progress == (long.id, short.id, marked.write_pointer)
    assert last.first_short == short.id
    assert last.read_pointer == 0


def test_the_read_pointer_is_the_highest_commit_not_the_latest(scene):
    older, newer = scene.begin(), scene.begin()
    scene.commit(newer)
    scene.commit(older)
    assert scene.state.read_pointer == newer.id


def test_the_view_is_one_object_until_something_changes(scene):
    opened = scene.begin()
    view = scene.state.view()
    scene.join(opened)
    assert scene.state.view() is view
    scene.commit(opened)
    assert scene.state.view() is not view


def test_a_transaction_being_committed_is_held_until_its_rows_are_written(scene):
    opened = scene.begin()
    assert scene.commit(opened, inline=False).state is State.COMMITTING
    assert scene.state.view().judge(opened.id) is Visibility.HOLD
    assert [found.id for found in scene.state.unfinished()] == [opened.id]
    assert scene.finish(opened).state is State.COMMITTED
    assert scene.state.view().judge(opened.id) is Visibility.VISIBLE
    assert scene.state.unfinished() == []


def test_a_one_shot_transaction_is_never_in_progress(scene):
    done = scene.one_shot(owner="etl")
    assert (done.state, done.owner) == (State.COMMITTED, "etl")
    assert scene.state.view().judge(done.id) is Visibility.VISIBLE
    assert scene.state.in_progress_count == 0


def test_a_checkpoint_adds_a_pointer_and_keeps_the_read_snapshot(scene):
    opened = scene.begin()
    scene.one_shot()
    marked = scene.checkpoint(opened)
    assert marked.id == opened.id
    assert marked.write_pointer > opened.write_pointer
    assert marked.pointers == (opened.id, marked.write_pointer)
    assert (marked.read_pointer, marked.in_progress) == (opened.read_pointer, opened.in_progress)
    assert scene.state.writer(marked.write_pointer, scene.now_ms).id == opened.id


@pytest.mark.parametrize("end", ["commit", "abort", "invalidate"])
def test_all_pointers_of_a_transaction_live_and_die_together(scene, end):
    opened = scene.begin()
    marked = scene.checkpoint(scene.checkpoint(opened))
    getattr(scene, end)(opened)
    expected = {"commit": Visibility.VISIBLE, "abort": Visibility.HOLD, "invalidate": Visibility.SKIP}[end]
    assert {scene.state.view().judge(pointer) for pointer in marked.pointers} == {expected}
    assert scene.state.in_progress_count == 0


def test_an_edit_that_does_not_fit_is_refused_and_changes_nothing(scene):
    opened = scene.begin()
    committed = scene.begin()
    scene.commit(committed)
    aborting = scene.begin()
    scene.join(aborting)
    scene.abort(aborting)
    before = scene.state.image()
    wrong = (
        edits.Began(opened.id, Kind.SHORT, False, 0, 1, "", None),
        edits.OneShot(opened.id, 0, "", None),
        edits.Checkpointed(opened.id, opened.id),
        edits.Checkpointed(17, before.last_pointer + 1),
        edits.Committed(committed.id, 0, None),
        edits.Committed(aborting.id, 0, None),
        edits.Aborting(aborting.id, False),
        edits.Aborted(committed.id, 0, False),
        edits.Invalidated((opened.id, committed.id), 0, False),
    )
    for edit in wrong:
        with pytest.raises(CorruptionError):
            scene.state.apply(edit)
        assert scene.state.image() == before
