"""The rule alone: which gap of a group is dealt next."""

from __future__ import annotations

import pytest

from basalt.groups.dealing import free_gaps
from basalt.groups.dealing.free_gaps import LAST_ID, FreeGaps, Gap
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.spans.spans import ZERO_ID, Spans


def place(number: int) -> bytes:
    return number.to_bytes(MESSAGE_ID_BYTES, "big")


def spans(*pairs: tuple[int, int]) -> Spans:
    return Spans([(place(after), place(through)) for after, through in pairs])


def test_of_an_untouched_group_all_is_free():
    assert FreeGaps().next([Spans()], LAST_ID) == Gap(ZERO_ID, None, ZERO_ID)


def test_the_first_gap_ends_where_something_is_taken_and_the_next_one_begins_behind_it():
    gaps, taken = FreeGaps(), [spans((0, 3)), spans((3, 5), (8, 9))]
    assert gaps.next(taken, LAST_ID) == Gap(place(5), place(8), place(5))
    taken.append(spans((5, 8)))
    assert gaps.next(taken, LAST_ID) == Gap(place(9), None, place(9))


def test_what_is_free_again_comes_before_what_was_never_dealt():
    gaps, taken = FreeGaps(), [spans((0, 9))]
    assert gaps.next(taken, LAST_ID) == Gap(place(9), None, place(9))
    taken[0] = spans((0, 2), (4, 9))
    gaps.add(spans((2, 4)))
    assert gaps.next(taken, LAST_ID) == Gap(place(2), place(4), place(2))
    gaps.forget(spans((2, 4)))
    taken[0] = spans((0, 9))
    assert gaps.next(taken, LAST_ID) == Gap(place(9), None, place(9))


def test_where_nothing_lives_is_not_read_again_until_something_is_free_before_it():
    gaps, taken = FreeGaps(), [spans((0, 3))]
    gaps.next(taken, LAST_ID)
    gaps.passed(place(7))
    assert gaps.next(taken, LAST_ID) == Gap(place(3), None, place(7))
    gaps.add(spans((2, 9)))  # up to beyond the open gap, of which it is a part now
    assert gaps.next([spans((0, 2))], LAST_ID) == Gap(place(2), None, place(2))
    gaps.passed(place(7))
    gaps.clear()
    assert gaps.next([Spans()], LAST_ID) == Gap(ZERO_ID, None, ZERO_ID)


def test_a_search_past_many_spans_is_made_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(free_gaps, "STEPS_MAX", 2)
    gaps, found = FreeGaps(), None
    taken = [
        spans(*((2 * each, 2 * each + 1) for each in range(5))),
        spans(*((2 * each + 1, 2 * each + 2) for each in range(5))),
    ]
    parts = 0
    while (found := gaps.next(taken, LAST_ID)) is None:
        parts += 1
    assert (found, parts > 1) == (Gap(place(10), None, place(10)), True)
