"""Transaction snapshots: what a reader does at a row of each writer."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine import snapshot as snapshot_module
from basalt_engine.snapshot import (
    NO_INVALID,
    NO_RUNS,
    InvalidList,
    PointerRuns,
    TransactionSnapshot,
    Visibility,
    Writers,
)

relaxed = settings(deadline=None)

POINTERS = st.integers(1, 6)
SOME = st.sets(POINTERS, max_size=4)
RUNS = st.lists(st.tuples(POINTERS, POINTERS).map(lambda pair: (min(pair), max(pair))), max_size=2).map(PointerRuns)
INVALID_LISTS = st.builds(
    lambda alone, runs: InvalidList(tuple(sorted(one for one in alone if one not in runs)), 0, runs), SOME, RUNS
)


def pointers_of(runs: PointerRuns) -> set[int]:
    return {pointer for run in runs for pointer in range(run.first, run.last + 1)}


def listed(invalid: InvalidList) -> set[int]:
    return {*invalid.pointers, *pointers_of(invalid.runs)}


@st.composite
def snapshots(draw: st.DrawFn) -> TransactionSnapshot:
    own = draw(st.sets(POINTERS, max_size=3))
    return TransactionSnapshot(
        draw(st.integers(0, 7)),
        draw(st.integers(0, 7)),
        tuple(sorted(draw(SOME))),
        draw(INVALID_LISTS),
        draw(st.sampled_from([tuple(own), frozenset(own)])),
        draw(st.none() | POINTERS),
        draw(RUNS),
    )


def naively(snapshot: TransactionSnapshot, written_by: int | None) -> Visibility:
    """The definition, a question at a time, over plain sets."""
    if written_by is None:
        return Visibility.VISIBLE
    rolled_back = written_by < 0
    unwanted = written_by == snapshot.excluded
    mine = written_by in set(snapshot.own)
    failed = written_by in listed(snapshot.invalid)
    undecided = (
        written_by in {*snapshot.in_progress, *pointers_of(snapshot.in_progress_runs)}
        or written_by > snapshot.read_pointer
    )
    if rolled_back or unwanted or (failed and not mine):
        return Visibility.SKIP
    return Visibility.HOLD if undecided and not mine else Visibility.VISIBLE


@settings(deadline=None, max_examples=500)
@given(snapshots(), st.none() | st.integers(-7, 7).filter(bool))
def test_a_snapshot_judges_as_the_definition_says(snapshot: TransactionSnapshot, written_by: int | None) -> None:
    assert snapshot.judge(written_by) is naively(snapshot, written_by)
    assert snapshot.is_visible(written_by) == (naively(snapshot, written_by) is Visibility.VISIBLE)


@settings(deadline=None, max_examples=500)
@given(snapshots(), st.frozensets(st.integers(1, 7), min_size=1, max_size=4))
def test_who_certainly_sees_several_writers_sees_each_of_them(
    snapshot: TransactionSnapshot, pointers: frozenset[int]
) -> None:
    writers = Writers.of(pointers)
    assert writers is not None
    each = all(naively(snapshot, pointer) is Visibility.VISIBLE for pointer in pointers)
    others = pointers.isdisjoint(snapshot.own)
    assert snapshot.sees_all(writers) == each if others else each or not snapshot.sees_all(writers)


SNAPSHOT = TransactionSnapshot(10, 12, (5, 9), InvalidList((3, 11)), (12,))


@pytest.mark.parametrize(
    ("written_by", "seen"),
    [
        (None, Visibility.VISIBLE),
        (10, Visibility.VISIBLE),  # the newest commit that it may see
        (1, Visibility.VISIBLE),
        (5, Visibility.HOLD),  # open when it was taken
        (9, Visibility.HOLD),
        (13, Visibility.HOLD),  # began later: it may commit yet
        (3, Visibility.SKIP),
        (11, Visibility.SKIP),  # failed, though above the read pointer: it will not be seen by anyone
        (12, Visibility.VISIBLE),  # its own
        (-1, Visibility.SKIP),
        (-5, Visibility.SKIP),  # rolled back before its writer ended
        (-12, Visibility.SKIP),
    ],
)
def test_each_kind_of_writer_is_judged(written_by: int | None, seen: Visibility) -> None:
    assert SNAPSHOT.judge(written_by) is seen


def test_a_writer_that_excludes_its_current_pointer_sees_its_earlier_ones() -> None:
    snapshot = TransactionSnapshot(10, 14, (12, 13, 14), own=(12, 13, 14), excluded=14)
    assert [snapshot.judge(pointer) for pointer in (12, 13, 14)] == [
        Visibility.VISIBLE,
        Visibility.VISIBLE,
        Visibility.SKIP,
    ]


def test_a_writer_that_has_failed_sees_its_own_rows_all_the_same() -> None:
    assert TransactionSnapshot(10, 12, invalid=InvalidList((12,)), own=(12,)).judge(12) is Visibility.VISIBLE


def test_the_first_snapshot_of_all_sees_nothing_but_what_has_no_writer() -> None:
    snapshot = TransactionSnapshot(0)
    assert snapshot.judge(None) is Visibility.VISIBLE
    assert snapshot.judge(1) is Visibility.HOLD
    assert snapshot.judge(-1) is Visibility.SKIP


@relaxed
@given(SOME, POINTERS)
def test_an_invalid_list_holds_what_it_was_made_of(pointers: set[int], pointer: int) -> None:
    invalid = InvalidList(tuple(sorted(pointers)))
    assert (pointer in invalid) == (pointer in pointers)
    assert len(invalid) == len(pointers)


@relaxed
@given(SOME, SOME, SOME, st.sampled_from([0, 2, snapshot_module.SEARCHED_MAX]))
def test_adding_and_removing_leave_the_list_itself_alone(
    before: set[int], added: set[int], gone: set[int], searched_max: int
) -> None:
    invalid = InvalidList(tuple(sorted(before)), 7)
    with patch.object(snapshot_module, "SEARCHED_MAX", searched_max):  # of more the list is sorted anew
        more = invalid.with_added(added)
    fewer = more.without(gone)
    assert (set(invalid.pointers), invalid.version) == (before, 7)
    assert (more.pointers, more.version) == (tuple(sorted(before | added)), 8)
    assert (fewer.pointers, fewer.version) == (tuple(sorted((before | added) - gone)), 9)


@relaxed
@given(INVALID_LISTS, SOME, RUNS, SOME, RUNS)
def test_an_invalid_list_with_runs_is_the_set_of_all_its_pointers(
    invalid: InvalidList, added: set[int], added_runs: PointerRuns, gone: set[int], gone_runs: PointerRuns
) -> None:
    assert {pointer for pointer in range(8) if pointer in invalid} == listed(invalid)
    more = invalid.with_added(added, added_runs)
    assert listed(more) == listed(invalid) | added | pointers_of(added_runs)
    fewer = more.without(gone, gone_runs)
    assert listed(fewer) == listed(more) - gone - pointers_of(gone_runs)
    for each in (invalid, more, fewer):
        assert len(each) == len(listed(each)), "no pointer is in it twice"
        assert each.first == min(listed(each), default=None)
        assert InvalidList(each.pointers, 3, each.runs) == each


@given(snapshots())
def test_the_first_in_progress_is_the_lowest_undecided_one(snapshot: TransactionSnapshot) -> None:
    undecided = {*snapshot.in_progress, *pointers_of(snapshot.in_progress_runs)}
    assert snapshot.first_in_progress == min(undecided, default=None)


def test_a_pointer_in_a_run_of_the_list_is_not_beside_it_too() -> None:
    with pytest.raises(ValueError, match="in one of its runs"):
        InvalidList((5,), 0, PointerRuns([(3, 7)]))
    assert InvalidList().runs is NO_RUNS


def test_a_run_is_one_entry_of_a_list_whatever_its_length() -> None:
    listed = InvalidList((5, 900), runs=PointerRuns([(10, 200), (300, 300)]))
    assert (len(listed), listed.entries) == (194, 4)


def test_lists_are_equal_by_what_they_hold() -> None:
    assert InvalidList((1, 2), 1) == InvalidList((1, 2), 9)
    assert hash(InvalidList((1, 2), 1)) == hash(InvalidList((1, 2), 9))
    assert InvalidList((1,)) != InvalidList((2,))
    assert InvalidList((1,)) != (1,)
    assert len(NO_INVALID) == 0


@pytest.mark.parametrize("pointers", [(2, 1), (1, 1), (1, 3, 2), (1, 2, 2, 3)])
def test_a_list_that_is_not_sorted_or_holds_a_pointer_twice_is_refused(pointers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not sorted"):
        InvalidList(pointers)
