"""Transactions that are begun by session, run and version: begun, joined, committed before, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.errors import (
    BasaltError,
    BusyError,
    InputError,
    InvalidNameError,
    SessionFencedError,
    SessionForeignError,
    TransactionConflictError,
)
from basalt.transactions.log.snapshot_format import decode_snapshot
from basalt.transactions.rules import edits
from basalt.transactions.rules.sessions import SessionState, WorkVersion
from basalt.transactions.rules.transaction import (
    CHECKPOINTS_MAX,
    REPLACED_RUNS_MAX,
    Kind,
    State,
    Transaction,
    TransactionLimits,
)
from basalt_engine.errors import CorruptionError
from tests.control.transactions.conftest import TOPIC, Scene
from tests.control.transactions.whole_bytes import encode_snapshot

DAY_MS = 86_400_000


def begin(
    scene: Scene, run: str = "r1", version: int = 5, counter_owner: str | None = None, name: str = "etl", **asked
) -> Any:
    """What a named begin answers: a transaction, or the session that has committed the version."""
    named = WorkVersion(name, run, version, counter_owner)
    done = scene.state.sessions.done_before(named)
    return done or scene.state.get(scene.done(scene.state.sessions.begin_named(scene.now_ms, named, **asked)))


def session(scene: Scene) -> SessionState:
    return scene.state.sessions.get("etl")


# What stands when a run begins a version, and what it is told. A transaction of run r1 for version 5, in session etl.


def nothing(scene: Scene) -> Transaction | None:
    return None


def opened(scene: Scene) -> Transaction:
    return begin(scene)


def over_time(scene: Scene) -> Transaction:
    found = begin(scene, timeout_ms=5)
    scene.clock.advance(5)
    return found


def doomed(scene: Scene) -> Transaction:
    found = begin(scene)
    other = scene.begin()
    for one in (other, found):
        scene.change(one, b"row")
    scene.commit(other)
    with pytest.raises(TransactionConflictError):
        scene.commit(found)
    return found


def committing(scene: Scene) -> Transaction:
    found = begin(scene)
    scene.commit(found, inline=False)
    return found


def committed(scene: Scene) -> Transaction:
    found = committing(scene)
    scene.finish(found)
    return found


def aborting(scene: Scene) -> Transaction:
    found = begin(scene)
    scene.join(found)
    scene.abort(found)
    return found


def aborted(scene: Scene) -> Transaction:
    found = aborting(scene)
    scene.finish(found)
    return found


def invalid(scene: Scene) -> Transaction:
    found = begin(scene)
    scene.invalidate(found)
    return found


def given_up(scene: Scene) -> Transaction:
    """A commit that got no outcome, as recovery leaves it."""
    found = committing(scene)
    scene.done(scene.state.give_up(found.id, scene.now_ms))
    scene.finish(found)
    return found


FENCED, BEFORE, JOINED, NEW = SessionFencedError, "committed before", "joined", "new"
# For each standing: what r1 is told of version 5, of 4 and of 6, and what r2 is told of 5.
EXPECTED = {
    nothing: (NEW, NEW, NEW, NEW),
    opened: (JOINED, NEW, NEW, NEW),
    over_time: (NEW, NEW, NEW, NEW),
    doomed: (NEW, NEW, NEW, NEW),
    committing: (NEW, NEW, NEW, NEW),
    committed: (BEFORE, BEFORE, NEW, BEFORE),
    aborting: (NEW, NEW, NEW, NEW),
    aborted: (NEW, NEW, NEW, NEW),
    invalid: (NEW, NEW, NEW, NEW),
    given_up: (NEW, NEW, NEW, NEW),
}
ASKED = [("r1", 5), ("r1", 4), ("r1", 6), ("r2", 5)]


@pytest.mark.parametrize("asked", range(len(ASKED)))
@pytest.mark.parametrize("standing", list(EXPECTED))
def test_what_a_begin_is_told_where_a_version_stands(scene, standing, asked):
    first = standing(scene)
    run, version = ASKED[asked]
    before = scene.state.image()
    answer, expected = begin(scene, run, version), EXPECTED[standing][asked]
    if expected == BEFORE:
        assert isinstance(answer, SessionState)
        assert (answer.version, answer.committed_by) == (5, first.id)
        assert scene.state.image() == before, "nothing began, and nobody was fenced"
    elif expected == JOINED:
        assert answer.id == first.id
        assert scene.state.image() == before
    else:
        assert first is None or answer.id > first.id
        assert (answer.session.name, answer.session.version) == ("etl", version)
        assert session(scene).run == run
    assert scene.replayed().image() == scene.state.image()


@pytest.mark.parametrize("standing", list(EXPECTED))
@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_run_that_was_replaced_is_refused_wherever_the_version_stands(scene, standing, version):
    standing(scene)
    scene.open("etl", "r1")
    scene.open("etl", "r2")
    before = scene.state.image()
    with pytest.raises(SessionFencedError, match="run 'r1' of session 'etl' was replaced: run 'r2' holds it, at epoch"):
        begin(scene, "r1", version)
    assert scene.state.image() == before


def test_a_new_run_ends_what_older_ones_had_open_in_the_same_decision(scene):
    old = [begin(scene, version=version) for version in (5, 6)]
    scene.join(old[1])
    new = begin(scene, "r2", 5)
    assert [scene.state.outcome(one.id).state for one in old] == [State.ABORTED, State.ABORTING]
    assert [type(edit) for edit in scene.edits[-5:]] == [
        edits.Aborted, edits.Aborting, edits.SessionOpened, edits.Began, edits.SessionBegan
    ]  # fmt: skip
    assert (session(scene).run, session(scene).epoch, session(scene).replaced) == ("r2", 2, ("r1",))
    assert new.session.epoch == 2
    for one in old:
        with pytest.raises(SessionFencedError):
            scene.commit(one)


def test_transactions_of_other_versions_are_left_alone_and_a_later_one_takes_the_earlier_ones_place(scene):
    earlier, later = begin(scene, version=5), begin(scene, version=6)
    assert begin(scene, version=5).id == earlier.id
    scene.commit(later)
    with pytest.raises(TransactionConflictError, match="'version 5 of session etl'"):
        scene.commit(earlier)
    assert isinstance(begin(scene, version=5), SessionState)


def test_the_first_one_s_kind_time_out_and_owner_are_the_transaction_s(scene):
    first = begin(scene, kind=Kind.LONG, timeout_ms=5_000, owner="driver")
    joined = begin(scene, kind=Kind.SHORT, timeout_ms=9_000, owner="executor")
    assert (joined.kind, joined.deadline_ms, joined.owner) == (Kind.LONG, first.deadline_ms, "driver")


def test_a_run_may_begin_by_name_in_a_session_that_it_opened_and_the_other_way_round(scene):
    scene.open("etl", "r1")
    named = begin(scene)
    assert (named.session.epoch, scene.open("etl", "r1").epoch) == (1, 1)
    plain = scene.begin_in(session(scene), version=6)
    assert begin(scene, version=6).id == plain.id, "who names its version joins it"


def test_a_run_that_opens_the_session_again_comes_back_and_the_other_one_is_replaced(scene):
    begin(scene, "r1")
    begin(scene, "r2")
    scene.open("etl", "r1")
    assert session(scene).replaced == ("r2",)
    begin(scene, "r1")
    with pytest.raises(SessionFencedError):
        begin(scene, "r2")


def test_of_the_replaced_runs_the_last_ones_are_remembered(scene):
    for number in range(REPLACED_RUNS_MAX + 2):
        begin(scene, f"r{number}", number)
    assert session(scene).replaced == tuple(f"r{number}" for number in range(1, REPLACED_RUNS_MAX + 1))
    with pytest.raises(SessionFencedError):
        begin(scene, "r1")
    assert begin(scene, "r0").session.epoch == REPLACED_RUNS_MAX + 3, "it counts as new, and fences"


def test_a_forgotten_zombie_whose_version_is_committed_takes_nothing_over(scene):
    for number in range(REPLACED_RUNS_MAX + 2):
        scene.commit(begin(scene, f"r{number}", number))
    held = session(scene)
    assert begin(scene, "r0", 0) == held == session(scene)


# Whose versions they are.


def test_a_session_keeps_the_counter_owner_of_its_versions_and_refuses_another_one(scene):
    scene.commit(begin(scene, "r1", 0, "query A"))
    assert session(scene).counter_owner == "query A"
    before = scene.state.image()
    for run, version in (("r1", 0), ("r1", 1), ("r2", 0), ("r2", 1)):
        with pytest.raises(
            SessionForeignError, match=r"written by counter owner 'query A', this is counter owner 'query B'"
        ):
            begin(scene, run, version, "query B")
    assert scene.state.image() == before, "a foreign one fences nobody"
    assert isinstance(begin(scene, "r2", 0, "query A"), SessionState)
    assert begin(scene, "r2", 1, None).session.epoch == 2, "who names none is not asked"
    assert session(scene).counter_owner == "query A"


def test_before_anything_is_committed_another_run_may_bring_another_counter_owner(scene):
    first = begin(scene, "r1", 0, "query A")
    with pytest.raises(SessionForeignError, match="none is committed yet"):
        begin(scene, "r1", 0, "query B")
    assert begin(scene, "r2", 0, "query B").id != first.id
    assert session(scene).counter_owner == "query B"


def test_a_counter_owner_may_be_named_late_but_not_for_versions_that_somebody_else_counted(scene):
    first = begin(scene, version=0)
    assert begin(scene, version=0, counter_owner="query A").id == first.id
    assert session(scene).counter_owner == "query A"
    scene.open("import")
    scene.commit(scene.begin_in(scene.state.sessions.get("import"), version=3))
    with pytest.raises(SessionForeignError, match="written by a writer that named no counter owner"):
        scene.state.sessions.done_before(WorkVersion("import", "monday", 4, "query A"))


# What cannot be.


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (WorkVersion("a/b", "r", 0), InvalidNameError),
        (WorkVersion("etl", "", 0), InputError),
        (WorkVersion("etl", "r", -1), InputError),
        (WorkVersion("etl", "r", 1 << 63), InputError),
        (WorkVersion("etl", "r", 0, ""), InputError),
        (WorkVersion("etl", "r", 0, "x" * 256), InputError),
        (WorkVersion("etl", "r", 0, "a\nb"), InputError),
    ],
)
def test_a_name_that_is_none_is_refused(scene, name, error):
    with pytest.raises(error):
        scene.state.sessions.done_before(name)


@pytest.mark.parametrize("asked", [{"timeout_ms": 0}, {"owner": "a\nb"}])
def test_a_begin_that_is_refused_fences_nobody(scene, asked):
    begin(scene, "r1")
    before = scene.state.image()
    with pytest.raises(InputError):
        begin(scene, "r2", **asked)
    assert scene.state.image() == before


def test_room_for_sessions_and_for_write_pointers_is_asked_for(scene_with):
    scene = scene_with(TransactionLimits(sessions_max=1, in_progress_max=3))
    first = begin(scene)
    with pytest.raises(BusyError, match="there are 1 sessions"):
        scene.state.sessions.begin_named(scene.now_ms, WorkVersion("other", "r1", 0))
    for _ in range(2):
        first = scene.checkpoint(first)
    with pytest.raises(BusyError, match="3 write pointers"):
        begin(scene, version=6)
    assert begin(scene).id == first.id, "to join takes no room"
    assert begin(scene, "r2").session.epoch == 2, "what it ends makes room"


def test_a_session_that_nobody_uses_is_forgotten_and_one_with_an_open_transaction_is_not(scene):
    begin(scene, kind=Kind.LONG)
    scene.clock.advance(8 * DAY_MS)
    scene.open("import")
    assert session(scene).run == "r1"
    scene.expire()
    scene.clock.advance(8 * DAY_MS)
    scene.done(scene.state.sessions.begin_named(scene.now_ms, WorkVersion("other", "r1", 0)))
    assert [known.name for known in scene.state.sessions.all()] == ["other"]


def test_a_session_that_counts_for_a_counter_owner_is_remembered_however_long_nobody_uses_it(scene):
    """Its query may have been paused before it noted down what it had committed."""
    scene.commit(begin(scene, version=7, counter_owner="query 1"))
    scene.commit(begin(scene, name="uncounted"))
    begin(scene, counter_owner="query 2", name="uncommitted")
    for _ in range(60):
        scene.clock.advance(8 * DAY_MS)
        scene.expire()
        scene.open("another")
    assert [known.name for known in scene.state.sessions.all()] == ["etl", "another"]
    assert begin(scene, "r2", version=7, counter_owner="query 1") == session(scene), "it was committed before"
    assert begin(scene, "r2", version=8, counter_owner="query 1").session.epoch == 2


def test_where_there_is_no_room_the_one_that_was_idle_longest_goes_and_never_one_in_use(scene_with):
    scene = scene_with(TransactionLimits(sessions_max=2))
    for session_name in ("first", "second"):
        scene.commit(begin(scene, counter_owner="query", name=session_name))
        scene.clock.advance(1)
    with pytest.raises(BusyError, match="2 sessions"):
        scene.open("third")
    scene.clock.advance(8 * DAY_MS)
    scene.open("first", "r2")
    assert len(scene.state.sessions.all()) == 2, "it needs no room"
    scene.open("third")
    assert [known.name for known in scene.state.sessions.all()] == ["first", "third"]


# How a long transaction of a session ends.


def test_an_abort_of_a_long_transaction_of_a_session_rolls_back_and_leaves_nothing_invalid(scene):
    for number in range(3):
        one = scene.checkpoint(begin(scene, version=number, kind=Kind.LONG))
        scene.join(one)
        assert scene.abort(one).state is State.ABORTING
        assert scene.finish(one).state is State.ABORTED
    assert scene.abort(begin(scene, kind=Kind.LONG)).state is State.ABORTED
    assert scene.state.invalid.pointers == ()


def test_an_abort_of_one_with_writes_elsewhere_or_cells_hides_it(scene):
    external_writes = begin(scene, version=1, kind=Kind.LONG, external_writes=True)
    cells = begin(scene, version=2, kind=Kind.LONG)
    scene.join_table(cells)
    for one in (external_writes, cells):
        assert scene.abort(one).state is State.INVALID
        assert scene.abort(one).state is State.INVALID
    assert scene.abort(scene.begin(Kind.LONG)).state is State.INVALID, "of no session: nobody knows where it wrote"


def test_the_time_out_of_a_long_transaction_of_a_session_rolls_it_back(scene):
    one = begin(scene, kind=Kind.LONG, timeout_ms=5)
    scene.join(one)
    scene.clock.advance(5)
    scene.expire()
    assert scene.state.outcome(one.id).state is State.ABORTING


def test_a_transaction_has_many_segments_and_no_more(scene, monkeypatch):
    one = begin(scene, kind=Kind.LONG)
    monkeypatch.setattr("basalt.transactions.rules.transaction_proposals.CHECKPOINTS_MAX", 3)
    for _ in range(3):
        one = scene.checkpoint(one)
    with pytest.raises(BasaltError, match="has 3 checkpoints"):
        scene.checkpoint(one)
    assert CHECKPOINTS_MAX >= 10_000, "a Spark job has a segment for each attempt of each task"


# What is on disk.


def test_a_session_survives_a_snapshot_with_its_counter_owner_and_the_runs_that_were_replaced(scene):
    begin(scene, "r1", 0, "query A")
    open_one = begin(scene, "r2", 0, "query A")
    scene.join(open_one, TOPIC)
    read = decode_snapshot(encode_snapshot(scene.state.image()), "row")
    assert read == scene.state.image() == scene.replayed().image()
    again = type(scene.state)(scene.limits, read)
    assert (
        again.sessions.begin_named(scene.now_ms, WorkVersion("etl", "r2", 0, "query A")).transaction_id == open_one.id
    )
    with pytest.raises(SessionFencedError):
        again.sessions.done_before(WorkVersion("etl", "r1", 0))


@pytest.mark.parametrize("edit", [edits.CounterOwnerClaimed("never", "q"), edits.CounterOwnerClaimed("etl", "query A"), edits.CounterOwnerClaimed("etl", "")])  # fmt: skip
def test_a_counter_owner_that_could_not_have_been_claimed_is_refused(scene, edit):
    begin(scene, counter_owner="query A")
    before = scene.state.image()
    with pytest.raises(CorruptionError):
        scene.state.apply(edit)
    assert scene.state.image() == before
