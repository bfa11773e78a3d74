"""First committer wins, for exactly as long as someone could still clash with it."""

from __future__ import annotations

from basalt.transactions.rules.conflicts import CommittedChanges, CommittedSet, memory_bytes
from basalt.transactions.rules.transaction import NO_SHORT, Loss


def committed(key: int, seen_from: int, *changes: bytes) -> CommittedSet:
    return CommittedSet(key, f"owner {key}", seen_from, frozenset(changes))


def show(changes: CommittedChanges, shown: CommittedSet) -> None:
    changes.show(shown, memory_bytes(shown.changes))


def test_a_transaction_clashes_with_what_was_committed_after_it_began():
    changes = CommittedChanges()
    show(changes, committed(10, 21, b"a", b"b"))
    assert changes.conflict(20, {b"b", b"c"}) == Loss(10, b"b", "owner 10")
    assert changes.conflict(21, {b"b", b"c"}) is None
    assert changes.conflict(20, {b"c"}) is None
    assert changes.conflict(20, frozenset()) is None


def test_a_commit_whose_rows_are_being_written_clashes_with_everyone():
    changes = CommittedChanges()
    changes.reserve(10, "etl", frozenset({b"a"}))
    assert changes.conflict(1_000, {b"a"}) == Loss(10, b"a", "etl")
    show(changes, committed(10, 900, b"a"))
    assert changes.conflict(899, {b"a"}) is not None
    assert changes.conflict(1_000, {b"a"}) is None


def test_of_several_lost_keys_the_lowest_is_named():
    changes = CommittedChanges()
    show(changes, committed(10, 50, b"z"))
    show(changes, committed(11, 60, b"a"))
    assert changes.conflict(5, {b"z", b"a"}) == Loss(11, b"a", "owner 11")


def test_the_newest_commit_of_a_key_decides():
    changes = CommittedChanges()
    show(changes, committed(10, 50, b"a"))
    show(changes, committed(11, 60, b"a"))
    assert changes.conflict(55, {b"a"}) == Loss(11, b"a", "owner 11")


def test_sets_are_forgotten_once_no_older_short_transaction_runs():
    changes = CommittedChanges()
    show(changes, committed(10, 50, b"a", b"b"))
    show(changes, committed(11, 60, b"b"))
    changes.forget(55)
    assert changes.visible() == (committed(11, 60, b"b"),)
    assert changes.conflict(1, {b"a"}) is None
    assert changes.conflict(1, {b"b"}) is not None
    changes.forget(NO_SHORT)
    assert changes.visible() == ()
    assert changes._latest == {}


def test_a_reserved_set_survives_forgetting():
    changes = CommittedChanges()
    show(changes, committed(10, 50, b"a"))
    changes.reserve(11, "etl", frozenset({b"a"}))
    changes.forget(50)
    assert changes.conflict(99, {b"a"}) == Loss(11, b"a", "etl")


def test_of_a_commit_that_was_given_up_nobody_loses_to_it_and_to_those_before_still():
    changes = CommittedChanges()
    show(changes, committed(10, 50, b"a"))
    changes.reserve(11, "etl", frozenset({b"a", b"b"}))
    changes.release(11, frozenset({b"a", b"b"}))
    assert changes.conflict(49, {b"a"}) == Loss(10, b"a", "owner 10")
    assert changes.conflict(50, {b"a", b"b"}) is None
    changes.forget(NO_SHORT)
    assert changes._latest == {}


def test_an_empty_change_set_is_not_kept():
    changes = CommittedChanges()
    show(changes, committed(10, 50))
    assert changes.visible() == ()
