"""Deadlines against a plain dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.transactions.rules.transaction_table import Deadlines


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 9)), max_size=60), st.integers(-1, 10))
def test_exactly_the_open_transactions_past_their_deadline_are_due(steps: list[tuple[bool, int, int]], now_ms: int):
    deadlines, expected, used = Deadlines(), {}, set()
    for add, key, deadline_ms in steps:
        if add and key not in used:
            deadlines.add(key, deadline_ms)
            expected[key] = deadline_ms
            used.add(key)
        elif not add:
            deadlines.remove(key)
            expected.pop(key, None)
    assert deadlines.next_ms() == min(expected.values(), default=None)
    due = sorted((deadline_ms, key) for key, deadline_ms in expected.items() if deadline_ms <= now_ms)
    assert deadlines.due(now_ms) == [key for _, key in due]
    assert deadlines.due(now_ms) == [key for _, key in due], "asking changes nothing"


def test_ended_transactions_do_not_pile_up_behind_an_old_one():
    deadlines = Deadlines()
    deadlines.add(0, 1)
    for key in range(1, 10_000):
        deadlines.add(key, 1_000)
        deadlines.remove(key)
    assert len(deadlines._deadlines) == 1
    assert deadlines.due(1_000) == [0]
