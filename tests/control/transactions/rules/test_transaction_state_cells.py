"""A transaction that has cells ends committed or invalid, whoever ends it: cells are not rolled back."""

from __future__ import annotations

import pytest

from basalt.errors import TooLargeError
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction import TABLES_MAX, Kind, State, TableJoin
from basalt_engine.errors import CorruptionError

TABLE = TableJoin(b"shop:~accounts:", 1)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("inline", [True, False])
def test_its_abort_is_an_invalidation(scene, kind, inline):
    opened = scene.begin(kind)
    scene.checkpoint(opened)
    scene.join(opened)
    scene.join_table(opened)
    pointers = scene.state.get(opened.id).pointers
    assert scene.abort(opened, inline=inline).state is State.INVALID
    assert scene.state.invalid.pointers == pointers


def test_its_time_out_is_one_too_and_leaves_the_others_alone(scene):
    other, opened = scene.begin(), scene.begin()
    scene.join_table(opened)
    scene.clock.advance(scene.limits.timeout_ms_default)
    scene.expire()
    assert [scene.state.outcome(each.id).state for each in (other, opened)] == [State.ABORTED, State.INVALID]
    assert scene.state.outcome(opened.id).timed_out


def test_its_late_call_is_one_too(scene):
    opened = scene.begin()
    scene.join_table(opened)
    scene.clock.advance(scene.limits.timeout_ms_default)
    proposal = scene.state.commit(opened.id, scene.now_ms)
    assert proposal.edits == (edits.Invalidated((opened.id,), scene.now_ms, True),)


@pytest.mark.parametrize("external_writes", [True, False])
def test_a_commit_of_it_that_is_given_up_is_one_too(scene, external_writes):
    """`external_writes`: the same of a transaction whose client wrote elsewhere; nobody has undone that."""
    opened = scene.begin(external_writes=external_writes)
    scene.join(opened)
    if not external_writes:
        scene.join_table(opened)
    scene.change(opened, b"row")
    scene.commit(opened, inline=False)
    late = scene.begin()
    scene.done(scene.state.give_up(opened.id, scene.now_ms))
    assert scene.state.outcome(opened.id).state is State.INVALID
    scene.change(late, b"row")
    assert scene.commit(late).state is State.COMMITTED, "what it had reserved is free again"


def test_an_abort_that_comes_late_changes_nothing(scene):
    opened = scene.begin()
    scene.join(opened)
    scene.join_table(opened)
    scene.invalidate(opened)
    for inline in (True, False):
        assert scene.state.abort(opened.id, scene.now_ms, inline=inline).edits == ()
    assert opened.id in scene.state.invalid
    outcome = scene.state.outcome(opened.id)
    assert (outcome.tables, outcome.topics) == ((TABLE,), scene.state.outcome(opened.id).topics)


def test_a_commit_is_as_of_any_other(scene):
    opened = scene.begin()
    scene.join_table(opened)
    assert scene.commit(opened).state is State.COMMITTED
    assert scene.state.outcome(opened.id).tables == ()


def test_a_table_joins_once_and_each_generation_of_it(scene):
    opened = scene.begin()
    scene.join_table(opened)
    assert scene.state.join_table(opened.id, TABLE, scene.now_ms).edits == ()
    scene.join_table(opened, TABLE._replace(generation=2))
    assert scene.state.get(opened.id).tables == (TABLE, TABLE._replace(generation=2))


def test_the_number_of_tables_is_bounded(scene):
    opened = scene.begin()
    for number in range(TABLES_MAX):
        scene.join_table(opened, TABLE._replace(generation=number + 1))
    with pytest.raises(TooLargeError, match="has 1,024 tables"):
        scene.join_table(opened, TABLE._replace(generation=TABLES_MAX + 1))


@pytest.mark.parametrize(
    "edit",
    [lambda key: edits.Aborting(key, False), lambda key: edits.Aborted(key, 1, False)],
    ids=["aborting", "aborted"],
)
def test_a_log_that_undoes_it_is_damaged(scene, edit):
    opened = scene.begin()
    scene.join_table(opened)
    with pytest.raises(CorruptionError, match="it can only be hidden"):
        scene.state.apply(edit(opened.id))
    with pytest.raises(CorruptionError, match="a second time"):
        scene.state.apply(edits.TableJoined(opened.id, TABLE))
    assert scene.state.get(opened.id).state is State.OPEN


def test_a_change_set_of_tables_alone_is_no_write_outside(scene):
    opened = scene.begin()
    scene.done(scene.state.set_changes(opened.id, [b"shop:~accounts:"], scene.now_ms, external_writes=False))
    assert (scene.state.get(opened.id).external_writes, scene.state.get(opened.id).changes) == (
        False,
        {b"shop:~accounts:"},
    )
    scene.change(opened, b"elsewhere")
    assert scene.state.get(opened.id).external_writes
