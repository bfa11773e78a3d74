"""A history against a plain list, and what a copy of one costs, and of a state that holds several."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.transactions.rules import edits, history
from basalt.transactions.rules.history import History
from basalt.transactions.rules.transaction import Kind, TransactionLimits
from basalt.transactions.rules.transaction_proposals import TransactionProposals

PAGE = 4
ONE_SHOTS = 4_000
COMMITS = 2_000


@given(st.lists(st.sampled_from(["append", "append", "append", "popleft", "replace", "copy"]), max_size=80), st.data())
def test_a_history_is_a_list_that_copies_do_not_share(steps: list[str], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "PAGE_ITEMS", PAGE)
        made, expected = History[list[int]](), list[list[int]]()
        copies: list[tuple[History[list[int]], list[list[int]]]] = []
        for number, step in enumerate(steps):
            item = [number]
            if step == "append":
                expected.append(item)
                made.append(item)
            elif step == "copy":
                copies.append((made.copy(), list(expected)))
            elif expected and step == "popleft":
                assert made.popleft() is expected.pop(0)
            elif expected:
                place = data.draw(st.integers(0, len(expected) - 1))
                made.replace(expected[place], item)
                expected[place] = item
            for one, items in [(made, expected), *copies]:
                assert (len(one), list(one), list(reversed(one))) == (len(items), items, items[::-1])
                assert one == tuple(items) == History(items)
                assert not items or one.first is items[0]


def test_a_copy_goes_its_own_way() -> None:
    first = History(range(10))
    second = first.copy()
    second.append(10)
    assert [first.popleft(), first.popleft()] == [0, 1]
    assert (list(first), list(second)) == (list(range(2, 10)), list(range(11)))


def test_histories_of_other_items_differ() -> None:
    assert History([1, 2]) != History([1, 3])
    assert History([1]) != [1]


def test_the_image_of_a_state_visits_at_most_one_page_of_what_is_remembered() -> None:
    """A copy of an item is one more reference to it: what has as many as before was not visited on the event loop."""
    state = _state_that_remembers_much()
    first = state.image()
    assert all(len(part) >= COMMITS for part in _remembered(first))
    before = [_references(part) for part in _remembered(first)]
    second = state.image()
    for part, earlier in zip(_remembered(second), before, strict=True):
        visited = sum(now > then for now, then in zip(_references(part), earlier, strict=True))
        assert visited <= history.PAGE_ITEMS
    assert second == first


def _state_that_remembers_much() -> TransactionProposals:
    state = TransactionProposals(TransactionLimits(outcomes_max=ONE_SHOTS + COMMITS))
    state.apply(edits.Began(1, Kind.SHORT, False, 0, 600_000, "keeps the change sets", None))
    for number in range(2, 2 + COMMITS):
        state.apply(edits.Began(number, Kind.SHORT, False, 0, 600_000, "one", None))
        state.apply(edits.Changed(number, False, frozenset([b"row %d" % number])))
        state.apply(edits.Committed(number, 1, None))
    for number in range(2 + COMMITS, 2 + COMMITS + ONE_SHOTS):
        state.apply(edits.OneShot(number, 1, "one", f"call-{number}"))
    return state


def _remembered(image: Any) -> tuple[Sequence[object], ...]:
    return image.requests, image.outcomes.recent, image.committed


def _references(items: Sequence[object]) -> list[int]:
    return [sys.getrefcount(item) for item in items]
