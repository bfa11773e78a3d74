"""The rule alone: when a message that came back is dealt again, and in whose company."""

from __future__ import annotations

import pytest

from basalt.groups.claims import ALONE_ATTEMPTS
from basalt.groups.dealing import retries
from basalt.groups.dealing.retries import Held, Retries
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import NEVER_MS, Attempt, GroupState, Returns
from basalt_engine.keys import MESSAGE_ID_BYTES
from basalt_engine.spans.spans import Spans

NOBODY = Held(Spans(), Spans())


def place(number: int) -> bytes:
    return number.to_bytes(MESSAGE_ID_BYTES, "big")


def spans(*pairs: tuple[int, int]) -> Spans:
    return Spans([(place(after), place(through)) for after, through in pairs])


def state_of(*returned: tuple[int, int, int, int]) -> GroupState:
    """A group of which these came back: after, through, attempts and not before which time."""
    table = Returns()
    for after, through, attempts, not_before_ms in returned:
        table.fill([(spans((after, through)), Attempt(attempts, not_before_ms, ReturnReason.RELEASED))])
    return GroupState(1, b"shop:orders:", 1, "billing", b"{}", 0, 0, 1, returns=table)


def known(state: GroupState) -> Retries:
    made = Retries()
    made.rebuild(state.returns)
    return made


def test_what_is_due_comes_once_and_what_is_not_waits_for_its_time():
    state = state_of((0, 2, 1, 50), (4, 5, 1, 900), (6, 7, 1, NEVER_MS))
    made = known(state)
    assert made.next(state, NOBODY, 100) == (place(0), place(2), 1)
    assert made.next(state, NOBODY, 100) is None
    assert (made.is_sorted, made.due_ms) == (True, 900)
    assert made.next(state, NOBODY, 900) == (place(4), place(5), 1)
    assert made.next(state, NOBODY, 900) is None
    assert made.due_ms is None, "what is parked is never due"


def test_what_somebody_has_is_left_out_and_comes_once_nobody_has_it_any_more():
    state = state_of((0, 9, 1, 0))
    made, held = known(state), Held(spans((0, 2)), spans((5, 9)))
    assert list(made.unheld(held, place(0), place(9))) == [(place(2), place(5))]
    assert made.next(state, held, 0) == (place(2), place(5), 1)
    assert made.next(state, Held(spans((0, 5)), spans((5, 9))), 0) is None
    made.look_again(spans((5, 9)))
    assert made.next(state, Held(spans((0, 5)), Spans()), 0) == (place(5), place(9), 1)


def test_what_was_found_and_not_dealt_is_found_again():
    state = state_of((0, 4, 1, 0))
    made = known(state)
    assert made.next(state, NOBODY, 0) == (place(0), place(4), 1)
    made.goes_on(place(3), place(4))
    assert made.next(state, NOBODY, 0) == (place(3), place(4), 1)
    made.put_back(place(0), place(4))
    assert made.next(state, NOBODY, 0) == (place(0), place(4), 1)


@pytest.mark.parametrize("how", ["acknowledged", "no longer alive", "unparked"])
def test_what_is_done_comes_no_more(how: str):
    state = state_of((0, 4, 1, 0))
    made = known(state)
    if how == "acknowledged":
        made.forget(spans((0, 4)))
    elif how == "unparked":
        made.unparked(spans((0, 4)))
    else:
        made.close(place(0), place(4))
    assert made.next(state, NOBODY, 0) is None
    assert not made.spans


def test_the_company_of_a_message_that_failed_alone_is_spared_until_it_fails_again():
    state = state_of((0, 1, ALONE_ATTEMPTS + 1, 0), (1, 5, ALONE_ATTEMPTS, 0))
    made = known(state)
    assert made.next(state, NOBODY, 0) == (place(0), place(1), ALONE_ATTEMPTS + 1)
    assert made.spared == spans((1, 5))
    made.came_back(spans((1, 2)))
    assert made.spared == spans((2, 5))


def test_what_came_back_is_sorted_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retries, "READY_MAX", 2)
    state = state_of(*((2 * each, 2 * each + 1, 1, 900 + each) for each in range(5)))
    made, parts = known(state), 0
    assert made.next(state, NOBODY, 0) is None
    while not made.is_sorted:
        parts += 1
        assert made.next(state, NOBODY, 0) is None
    assert (parts > 1, made.due_ms) == (True, 900)


def test_the_first_of_a_stream_is_the_first_that_nobody_has_whenever_it_is_due():
    state = state_of((0, 1, 1, 0), (2, 3, 1, 900), (4, 5, 1, 0))
    made = known(state)
    assert made.first(state, Held(spans((0, 2)), Spans())) == (
        place(2),
        place(3),
        Attempt(1, 900, ReturnReason.RELEASED),
    )
    made.waits_for(state, place(3), Attempt(1, 900, ReturnReason.RELEASED))
    assert made.due_ms == 900
    assert made.first(state, Held(spans((0, 9)), Spans())) is None
    assert made.due_ms is None
