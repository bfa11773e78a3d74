"""Write pointers only rise, and sets of them share what they have in common."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.transactions.rules.transaction import CHUNK_POINTERS_MAX, PointerSet, next_pointer
from basalt_engine.snapshot import POINTER_MAX

NOW_MS = 1_700_000_000_000


def test_a_pointer_is_the_time_in_milliseconds_and_a_counter():
    first = next_pointer(0, NOW_MS)
    assert first == NOW_MS * 1_000_000
    assert next_pointer(first, NOW_MS) == first + 1


def test_a_clock_that_steps_back_cannot_make_a_pointer_smaller():
    assert next_pointer(NOW_MS * 1_000_000 + 5, NOW_MS - 3_600_000) == NOW_MS * 1_000_000 + 6


def test_a_clock_beyond_the_year_2262_or_before_1970_cannot_break_a_pointer():
    last = 0
    for now_ms in (1 << 62, 1 << 62, -5, NOW_MS):
        pointer = next_pointer(last, now_ms)
        assert last < pointer <= POINTER_MAX
        last = pointer


@given(st.lists(st.integers(-10, 1 << 50), max_size=30))
def test_pointers_rise_strictly_whatever_the_clock_says(times_ms: list[int]):
    last = 0
    for now_ms in times_ms:
        pointer = next_pointer(last, now_ms)
        assert pointer > last
        last = pointer


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=300), st.booleans())
def test_a_pointer_set_holds_what_a_plain_set_holds(steps: list[tuple[bool, int]], dense: bool):
    start = range(0, 400, 1 if dense else 7)
    pointers, expected = PointerSet.of(start), set(start)
    before, before_expected = pointers, set(expected)
    for add, pointer in steps:
        if add and pointer not in expected:
            pointers = pointers.with_added(pointer)
            expected.add(pointer)
        elif not add:
            pointers = pointers.without(pointer)
            expected.discard(pointer)
    assert pointers.as_tuple() == tuple(sorted(expected)) == tuple(pointers)
    assert len(pointers) == len(expected)
    assert pointers.first == min(expected, default=None)
    assert [pointer for pointer in range(-1, 402) if pointer in pointers] == sorted(expected)
    assert pointers == PointerSet.of(expected)
    assert hash(pointers) == hash(PointerSet.of(expected))
    assert before.as_tuple() == tuple(sorted(before_expected)), "an older set never changes"
    assert pointers.difference(before) == sorted(expected - before_expected)
    assert before.difference(pointers) == sorted(before_expected - expected)


def test_sets_that_differ_by_one_pointer_share_their_chunks():
    older = PointerSet.of(range(10_000))
    newer = older.with_added(10_000).without(0)
    shared = {id(chunk) for chunk in older._chunks} & {id(chunk) for chunk in newer._chunks}
    assert len(shared) >= len(older._chunks) - 2


def test_a_set_that_shrinks_everywhere_does_not_keep_a_chunk_for_each_pointer():
    pointers = PointerSet.of(range(10_000))
    for pointer in range(10_000):
        if pointer % 100:
            pointers = pointers.without(pointer)
    assert len(pointers) == 100
    assert len(pointers._chunks) < 10
    assert max(map(len, pointers._chunks)) <= CHUNK_POINTERS_MAX
