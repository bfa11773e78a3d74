"""Named sessions: the newest run fences the older ones, and work that has a version is committed once."""

from __future__ import annotations

import pytest

from basalt.errors import (
    BusyError,
    InputError,
    InvalidNameError,
    SessionFencedError,
    SessionNotFoundError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.transactions.log.snapshot_format import decode_snapshot
from basalt.transactions.rules import edits, outcomes, transaction_table
from basalt.transactions.rules.transaction import (
    CHECKPOINTS_MAX,
    Kind,
    SessionBinding,
    State,
    TableJoin,
    TransactionLimits,
)
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.errors import CorruptionError
from tests.control.transactions.whole_bytes import encode_snapshot

DAY_MS = 86_400_000


def test_the_same_run_joins_and_another_one_raises_the_epoch(scene):
    assert scene.open("billing", "monday").epoch == 1
    assert scene.open("billing", "monday").epoch == 1
    assert scene.open("billing", "tuesday").epoch == 2
    assert scene.open("billing", "monday").epoch == 3, "a run that comes back takes it over like any other"
    assert scene.open("import", "tuesday").epoch == 1


def test_a_zombie_can_begin_nothing_and_is_told_who_holds_the_session(scene):
    old = scene.open("billing", "monday")
    scene.open("billing", "tuesday")
    with pytest.raises(
        SessionFencedError, match="epoch 1 of session 'billing' is over: run 'tuesday' holds it, at epoch 2"
    ):
        scene.begin_in(old, version=7)


def test_a_run_that_takes_over_ends_what_the_others_had_open_in_one_go(scene):
    old = scene.open("billing", "monday")
    plain, published, far, cells = (scene.begin_in(old) for _ in range(4))
    long = scene.begin_in(old, kind=Kind.LONG, external_writes=True)
    stranger = scene.begin()
    scene.join(published)
    scene.change(far, b"elsewhere")
    scene.join_table(cells)
    proposal = scene.state.sessions.open("billing", "tuesday", scene.now_ms)
    assert isinstance(proposal.edits[-1], edits.SessionOpened)
    scene.done(proposal)
    states = [scene.state.outcome(each.id).state for each in (plain, published, far, cells, long, stranger)]
    assert states == [State.ABORTED, State.ABORTING, *[State.INVALID] * 3, State.OPEN]
    with pytest.raises(SessionFencedError, match=r"was aborted at .*: run 'tuesday' holds it"):
        scene.commit(plain)
    with pytest.raises(SessionFencedError, match="is being aborted"):
        scene.commit(published)
    assert scene.state.sessions.transactions("billing") == (scene.state.get(published.id),)
    scene.finish(published)
    assert scene.state.sessions.transactions("billing") == ()


def test_a_zombie_learns_it_at_whatever_it_goes_on_with(scene):
    old = scene.open("billing", "monday")
    opened, cells = scene.checkpoint(scene.begin_in(old)), scene.begin_in(old)
    scene.join_table(cells)
    scene.open("billing", "tuesday")
    for zombie in (opened, cells):
        for call in (scene.checkpoint, scene.commit, scene.join, lambda each: scene.change(each, b"row")):
            with pytest.raises(SessionFencedError, match="run 'tuesday' holds it"):
                call(zombie)
        for pointer in zombie.pointers:
            with pytest.raises(SessionFencedError, match="run 'tuesday' holds it"):
                scene.state.writer(pointer, scene.now_ms)
        with pytest.raises(SessionFencedError):
            scene.state.get(zombie.id)
    scene.abort(opened)  # it may: nothing is begun by that


def test_who_was_not_replaced_is_told_that_its_transaction_has_ended(scene):
    session = scene.open("billing", "monday")
    aborted, committed = scene.begin_in(session), scene.begin_in(session)
    scene.abort(aborted)
    scene.commit(committed)
    for ended in (aborted, committed):
        with pytest.raises(TransactionEndedError):
            scene.checkpoint(ended)
    scene.open("billing", "tuesday")
    with pytest.raises(SessionFencedError):
        scene.checkpoint(aborted)
    with pytest.raises(TransactionEndedError, match="was committed"):
        scene.checkpoint(committed)


def test_a_zombie_is_known_however_many_transactions_ended_since_and_after_a_restart(scene_with, monkeypatch):
    monkeypatch.setattr(outcomes, "PACKED_TOGETHER", 3)
    scene = scene_with(TransactionLimits(outcomes_max=3))
    opened = scene.begin_in(scene.open("billing", "monday"))
    scene.open("billing", "tuesday")
    for _ in range(20):
        scene.one_shot()
    again = TransactionProposals(scene.limits, decode_snapshot(encode_snapshot(scene.state.image()), "a snapshot"))
    for state in (scene.state, again):
        with pytest.raises(SessionFencedError):
            state.checkpoint(opened.id, scene.now_ms)


def test_only_the_newest_pointers_of_replaced_runs_are_remembered(scene, monkeypatch):
    assert transaction_table.ENDED_CHECKPOINTS_MAX >= CHECKPOINTS_MAX
    monkeypatch.setattr(transaction_table, "ENDED_CHECKPOINTS_MAX", 2)
    opened = scene.begin_in(scene.open("billing", "monday"))
    pointers = [(opened := scene.checkpoint(opened)).write_pointer for _ in range(3)]
    scene.open("billing", "tuesday")
    expected = [TransactionNotFoundError, SessionFencedError, SessionFencedError]
    for pointer, error in zip(pointers, expected, strict=True):
        with pytest.raises(error):
            scene.state.writer(pointer, scene.now_ms)


def test_a_commit_that_is_decided_stays_decided_and_its_version_counts(scene):
    old = scene.open("billing", "monday")
    opened = scene.begin_in(old, version=7)
    scene.commit(opened, inline=False)
    new = scene.open("billing", "tuesday")
    late = scene.begin_in(new, version=7)
    with pytest.raises(TransactionConflictError, match="version 7 of session billing"):
        scene.commit(late)
    scene.finish(opened)
    assert scene.state.sessions.get("billing").version == 7
    assert scene.state.sessions.is_done(SessionBinding("billing", new.epoch, 7))


def test_a_version_is_committed_once(scene):
    session = scene.open()
    assert not scene.state.sessions.is_done(SessionBinding("billing", 1, 7))
    first, second = scene.begin_in(session, version=7), scene.begin_in(session, version=7)
    scene.commit(first)
    found = scene.state.sessions.get("billing")
    assert (found.version, found.committed_by) == (7, first.id)
    with pytest.raises(TransactionConflictError, match=f"'version 7 of session billing' to transaction {first.id}"):
        scene.commit(second)
    for version, done in ((6, True), (7, True), (8, False), (None, False)):
        assert scene.state.sessions.is_done(SessionBinding("billing", 1, version)) == done


def test_a_version_never_goes_back(scene):
    session = scene.open()
    older, newer = scene.begin_in(session, version=2), scene.begin_in(session, version=3)
    scene.commit(older, inline=False)
    scene.commit(newer, inline=False)
    scene.finish(newer)
    scene.finish(older)
    assert scene.state.sessions.get("billing").version == 3
    assert scene.state.sessions.get("billing").committed_by == newer.id


def test_a_transaction_without_a_version_leaves_it_alone(scene):
    session = scene.open()
    scene.commit(scene.begin_in(session, version=3))
    scene.commit(scene.begin_in(session))
    scene.abort(scene.begin_in(session, version=9))
    assert scene.state.sessions.get("billing").version == 3


def test_the_next_run_knows_what_the_last_one_committed(scene):
    scene.commit(scene.begin_in(scene.open("billing", "monday"), version=3))
    assert scene.open("billing", "tuesday").version == 3


def test_who_took_an_epoch_out_of_the_air_is_told_to_open_the_session(scene):
    with pytest.raises(SessionNotFoundError, match="there is no session 'billing'"):
        scene.begin(session=SessionBinding("billing", 1))
    scene.open()
    with pytest.raises(SessionNotFoundError, match=r"at epoch 1 .* never came to epoch 2"):
        scene.begin(session=SessionBinding("billing", 2))


def test_a_repeated_begin_answers_the_first_transaction_whatever_became_of_the_session(scene):
    session = scene.open("billing", "monday")
    first = scene.begin_in(session, version=1, request_id="r")
    scene.open("billing", "tuesday")
    assert (
        scene.state.begin(scene.now_ms, request_id="r", session=SessionBinding("billing", 1, 1)).transaction_id
        == first.id
    )


def test_a_deleted_session_is_forgotten_and_its_zombies_stay_fenced(scene):
    old = scene.open("billing", "monday")
    opened = scene.begin_in(old)
    scene.join_table(opened, TableJoin(b"n:~t:", 1))
    scene.open("import", "monday")
    scene.open("import", "tuesday")
    for name in ("billing", "import"):
        scene.done(scene.state.sessions.delete(name, scene.now_ms))
    assert scene.state.outcome(opened.id).state is State.INVALID
    with pytest.raises(SessionNotFoundError):
        scene.begin_in(old)
    assert scene.open("billing", "monday").epoch == 3, "above every epoch that any forgotten session had"
    with pytest.raises(SessionFencedError):
        scene.begin_in(old)
    with pytest.raises(SessionNotFoundError):
        scene.state.sessions.delete("never", scene.now_ms)


def test_what_a_deleted_session_is_committing_still_counts_in_the_next_one(scene):
    opened = scene.begin_in(scene.open(), version=3)
    scene.commit(opened, inline=False)
    scene.done(scene.state.sessions.delete("billing", scene.now_ms))
    late = scene.begin_in(scene.open(), version=3)
    with pytest.raises(TransactionConflictError):
        scene.commit(late)
    again = type(scene.state)(scene.limits, scene.state.image())
    assert again.sessions.transactions("billing") == scene.state.sessions.transactions("billing")


def test_epochs_stay_over_in_whichever_order_sessions_are_forgotten(scene):
    for run in ("monday", "tuesday"):
        scene.open("import", run)
    scene.open("billing")
    for name in ("import", "billing"):
        scene.done(scene.state.sessions.delete(name, scene.now_ms))
    assert scene.open("import", "monday").epoch == 3


def test_a_session_that_nobody_uses_is_forgotten_when_another_one_is_opened(scene):
    scene.open("idle")
    busy, held = scene.open("busy"), scene.open("held")
    for _ in range(8):
        scene.clock.advance(DAY_MS)
        scene.commit(scene.begin_in(busy))
    assert scene.begin_in(held, kind=Kind.LONG).session == SessionBinding("held", 1)
    scene.open("new")
    assert [session.name for session in scene.state.sessions.all()] == ["busy", "held", "new"]
    assert scene.state.sessions.get("new").epoch == 2


def test_opening_a_session_again_is_a_use_of_it(scene):
    scene.open("billing", "monday")
    for _ in range(9):
        scene.clock.advance(DAY_MS)
        scene.open("billing", "monday")
        scene.open("other", "monday")
    assert scene.state.sessions.get("billing").epoch == 1


def test_sessions_are_bounded_and_none_is_forgotten_that_is_in_use(scene_with):
    scene = scene_with(TransactionLimits(sessions_max=2))
    scene.open("first")
    scene.open("second")
    scene.open("first", "tuesday")
    with pytest.raises(BusyError, match=r"there are 2 sessions.*'second' was used longest ago"):
        scene.open("third")
    scene.clock.advance(7 * DAY_MS)
    scene.open("third")
    assert [session.name for session in scene.state.sessions.all()] == ["third"]


@pytest.mark.parametrize("name", ["", "a/b", "x" * 256, "a\nb", ".", ".."])
def test_a_name_that_is_none_is_refused(scene, name):
    with pytest.raises(InvalidNameError, match="session's name"):
        scene.open(name)


@pytest.mark.parametrize("run", ["", "x" * 256, "a\0b"])
def test_a_run_that_is_none_is_refused(scene, run):
    with pytest.raises(InputError, match="a run is 1 to 255"):
        scene.open("billing", run)


@pytest.mark.parametrize("version", [-1, 1 << 63])
def test_a_version_that_is_none_is_refused(scene, version):
    session = scene.open()
    with pytest.raises(InputError, match="a version is"):
        scene.begin_in(session, version=version)


def test_sessions_survive_a_snapshot_and_the_open_ones_are_found_by_it(scene):
    session = scene.open()
    scene.commit(scene.begin_in(session, version=3))
    opened = scene.begin_in(session, version=4)
    scene.open("import")
    scene.open("billing", "monday")
    scene.done(scene.state.sessions.delete("import", scene.now_ms))
    image = scene.state.image()
    read = decode_snapshot(encode_snapshot(image), "row")
    assert read == image
    again = type(scene.state)(scene.limits, read)
    assert [one.id for one in again.sessions.transactions("billing")] == [opened.id]
    assert again.sessions.open("new", "run", scene.now_ms).edits[-1].epoch == 2


BAD_EDITS = {
    "an epoch that is over": edits.SessionOpened("billing", "tuesday", 1, 5),
    "a higher epoch beside an open transaction": edits.SessionOpened("billing", "tuesday", 2, 5),
    "a lower epoch of the same run": edits.SessionOpened("billing", "monday", 0, 5),
    "a session forgotten that is open": edits.SessionsForgotten(("billing",)),
    "a session forgotten that there is not": edits.SessionsForgotten(("never",)),
    "a begin in a session that there is not": edits.SessionBegan(0, SessionBinding("never", 1)),
    "a begin at another epoch": edits.SessionBegan(0, SessionBinding("billing", 2)),
}


@pytest.mark.parametrize("case", list(BAD_EDITS))
def test_an_edit_that_could_not_have_been_logged_is_refused(scene, case):
    session = scene.open("billing", "monday")
    scene.begin_in(session)
    stranger = scene.begin()
    edit = BAD_EDITS[case]
    if isinstance(edit, edits.SessionBegan):
        edit = edits.SessionBegan(stranger.id, edit.session)
    before = scene.state.image()
    with pytest.raises(CorruptionError):
        scene.state.apply(edit)
    assert scene.state.image() == before
