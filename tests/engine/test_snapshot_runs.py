"""Runs of write pointers behave as the set of all their pointers, whatever they are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt_engine.snapshot import NO_RUNS, PACKED_POINTERS_MIN, PointerRun, PointerRuns, pack_runs

HIGHEST = 40
PAIRS = st.lists(
    st.tuples(st.integers(1, HIGHEST), st.integers(1, HIGHEST)).map(lambda pair: (min(pair), max(pair))), max_size=6
)
POINTERS = st.frozensets(st.integers(1, HIGHEST))


def members(runs: PointerRuns) -> set[int]:
    return {pointer for pointer in range(HIGHEST + 2) if pointer in runs}


def listed(pairs: list[tuple[int, int]]) -> set[int]:
    return {pointer for first, last in pairs for pointer in range(first, last + 1)}


@given(PAIRS)
def test_runs_hold_the_pointers_that_they_are_made_of_in_one_form(pairs):
    runs = PointerRuns(pairs)
    assert members(runs) == listed(pairs) == listed(list(map(tuple, runs)))
    assert runs.pointers == len(listed(pairs))
    assert all(left.last + 1 < right.first for left, right in zip(list(runs), list(runs)[1:], strict=False))
    assert runs == PointerRuns(reversed(list(runs)))
    assert hash(runs) == hash(PointerRuns(list(runs)))
    assert (len(runs), bool(runs)) == (len(list(runs)), bool(pairs))


@given(PAIRS, PAIRS)
def test_they_are_added_and_cut_as_sets_are(one, other):
    first, second = PointerRuns(one), PointerRuns(other)
    assert members(first.with_added(second)) == listed(one) | listed(other)
    assert members(first.without(second)) == listed(one) - listed(other)


@given(PAIRS, st.integers(0, HIGHEST), st.integers(0, HIGHEST))
def test_those_within_bounds_are_those_that_share_a_pointer_with_them(pairs, low, more):
    runs = PointerRuns(pairs)
    high = low + more
    assert list(runs.within(low, high)) == [run for run in runs if run.first <= high and run.last >= low]


@given(POINTERS)
def test_pointers_without_a_gap_become_a_run_and_the_rest_stays(pointers):
    alone, runs = pack_runs(sorted(pointers))
    assert {*alone} | members(runs) == pointers
    assert not {*alone} & members(runs)
    assert list(alone) == sorted(alone)
    assert all(run.last - run.first + 1 >= PACKED_POINTERS_MIN for run in runs)
    neighbours = [pointer for pointer in alone if all(pointer + more in alone for more in range(PACKED_POINTERS_MIN))]
    assert not neighbours


def test_a_run_that_ends_before_it_begins_is_none():
    with pytest.raises(ValueError, match="from 5 to 4"):
        PointerRuns([(5, 4)])


def test_no_runs_hold_nothing():
    assert 5 not in NO_RUNS
    assert not NO_RUNS
    assert PointerRuns() == NO_RUNS != PointerRuns([(5, 5)])
    assert repr(PointerRuns([PointerRun(5, 9)])) == "PointerRuns([(5, 9)])"
