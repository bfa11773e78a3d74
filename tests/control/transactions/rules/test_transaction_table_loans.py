"""The state of transactions with loans: who sees what was written under their pointers."""

from __future__ import annotations

from basalt.transactions.log.snapshot_format import decode_snapshot
from basalt.transactions.rules import edits
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from basalt_engine.snapshot import PointerRuns, Visibility
from tests.control.transactions.whole_bytes import encode_snapshot


def lent(scene, member: str = "server-1") -> int:
    """The first pointer of a new loan."""
    (edit,) = scene.state.loans.lend(member, scene.state.last_pointer, scene.now_ms).edits
    scene.state.apply(edit)
    return edit.first


def test_a_one_shot_transaction_is_seen_by_who_begins_after_it_was_decided_though_its_pointer_is_older(scene):
    first = lent(scene)
    before = scene.begin()
    assert before.id > first + 4_000
    assert before.snapshot().judge(first) is Visibility.HOLD
    scene.state.apply(edits.OneShot(first, scene.now_ms, "etl", None))
    after = scene.begin()
    assert before.snapshot().judge(first) is Visibility.HOLD, "as it was when it began"
    assert after.snapshot().judge(first) is Visibility.VISIBLE
    assert scene.state.view().judge(first) is Visibility.VISIBLE
    assert after.snapshot().judge(first + 1) is Visibility.HOLD
    assert scene.state.last_pointer == after.id, "and pointers of begins rise as ever"


def test_what_is_given_up_or_left_by_a_member_that_ended_is_skipped_and_the_rest_of_a_loan_that_came_back_is_nothing(
    scene,
):
    first = lent(scene)
    scene.state.apply(edits.GivenUp(first, first + 1))
    scene.state.apply(edits.OneShot(first + 2, scene.now_ms, "etl", None))
    scene.state.apply(edits.LoanReturned(first + 3, first + 4_095))
    other = lent(scene)
    scene.state.apply(edits.OneShot(other, scene.now_ms, "etl", None))
    scene.state.apply(edits.MemberEnded("server-1"))
    view = scene.state.view()
    judged = [view.judge(pointer) for pointer in (first, first + 1, first + 2, other, other + 1, other + 4_095)]
    skip, seen = Visibility.SKIP, Visibility.VISIBLE
    assert judged == [skip, skip, seen, seen, skip, skip]
    assert scene.state.invalid.runs == PointerRuns([(first, first + 1), (other + 1, other + 4_095)])
    assert view.first_in_progress is None


def test_a_snapshot_of_the_log_keeps_loans_and_what_each_transaction_saw_of_them(scene):
    first = lent(scene)
    scene.begin()
    scene.state.apply(edits.OneShot(first, scene.now_ms, "etl", None))
    lent(scene, "server-2")
    scene.begin()
    image = scene.state.image()
    again = decode_snapshot(encode_snapshot(image), "row")
    assert again == image
    read = TransactionProposals(scene.state.limits, again)
    assert read.loans.in_progress == scene.state.loans.in_progress
    assert [one.concurrent_runs for one in read.transactions()] == [
        one.concurrent_runs for one in scene.state.transactions()
    ]
