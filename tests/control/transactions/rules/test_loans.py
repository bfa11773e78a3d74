"""Loans: what is in progress, what is settled, and what a member that ended leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import CorruptionError
from basalt.transactions.rules import edits
from basalt.transactions.rules.loans import (
    ASKED_AHEAD_MS,
    ASKED_AHEAD_POINTERS,
    LOAN_POINTERS,
    OPEN_LOANS_MAX,
    USED_MS,
    LoanImage,
    LoanInUse,
    LoanTable,
    OneShotInFlight,
    OneShotsInFlight,
)
from basalt_engine.snapshot import POINTERS_PER_MS, PointerRun, PointerRuns

NOW_MS = 1_700_000_000_000
W = NOW_MS * POINTERS_PER_MS


@dataclass
class Lending:
    """A table of loans, and the same as plain sets."""

    table: LoanTable = field(default_factory=LoanTable)
    last_pointer: int = 0
    open: dict[int, str] = field(default_factory=dict)  # the member of each undecided pointer
    invalid: set[int] = field(default_factory=set)

    def lend(self, member: str, pointers: int) -> None:
        first = self.last_pointer + 2  # a begin may come in between
        self.table.lent(edits.Lent(member, first, first + pointers - 1), self.last_pointer)
        self.last_pointer = first + pointers - 1
        self.open |= dict.fromkeys(range(first, first + pointers), member)

    def first_of(self, member: str) -> int | None:
        return min((pointer for pointer, of in self.open.items() if of == member), default=None)

    def act(self, what: str, member: str, number: int) -> None:
        first = self.first_of(member)
        if what == "lend":
            self.lend(member, 1 + number)
        elif what == "end":
            gone = {pointer for pointer, of in self.open.items() if of == member}
            assert set(self.table.member_ended(edits.MemberEnded(member)).one_by_one()) == gone
            self._settle(gone, failed=True)
        elif first is not None:
            last = next(loan.last for loan in self.table if loan.undecided == first)
            if what == "decide":
                assert self.table.decided(first)
                self._settle({first})
            elif what == "give up":
                until = min(first + number, last)
                self.table.given_up(edits.GivenUp(first, until))
                self._settle(set(range(first, until + 1)), failed=True)
            else:
                self.table.returned(edits.LoanReturned(first, last))
                self._settle(set(range(first, last + 1)))

    def _settle(self, pointers: set[int], *, failed: bool = False) -> None:
        for pointer in pointers:
            del self.open[pointer]
        self.invalid |= pointers if failed else set()


ACTS = st.tuples(
    st.sampled_from(["lend", "lend", "decide", "decide", "give up", "return", "end"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 3),
)


@given(st.lists(ACTS, max_size=30))
def test_what_is_in_progress_is_what_was_lent_and_not_settled(acts):
    lending = Lending()
    for act in acts:
        lending.act(*act)
        assert set(lending.table.in_progress.one_by_one()) == set(lending.open)
    again = LoanTable(lending.table.image())
    assert again.in_progress == lending.table.in_progress
    assert again.image() == lending.table.image()


def test_a_loan_lies_behind_all_that_was_given_out():
    (lent,) = LoanTable().lend("a", W + 5, NOW_MS).edits
    assert lent == edits.Lent("a", W + 6, W + 5 + LOAN_POINTERS)
    (lent,) = LoanTable().lend("a", 7, NOW_MS).edits
    assert isinstance(lent, edits.Lent)
    assert lent.first == W
    with pytest.raises(CorruptionError, match="was given out"):
        LoanTable().lent(lent, W)


def test_a_member_has_so_many_loans_that_are_not_settled():
    table, last_pointer = LoanTable(), W
    for _ in range(OPEN_LOANS_MAX):
        (lent,) = table.lend("a", last_pointer, NOW_MS).edits
        assert isinstance(lent, edits.Lent)
        table.lent(lent, last_pointer)
        last_pointer = lent.last
    assert table.lend("a", last_pointer, NOW_MS).edits == ()
    assert table.lend("b", last_pointer, NOW_MS).edits
    assert table.decided(W + 1)
    assert table.lend("a", last_pointer, NOW_MS).edits == (), "one pointer of the first is decided, the rest is not"


@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.decided(W + 1),  # and what is before it is not
        lambda table: table.given_up(edits.GivenUp(W + 1, W + 2)),
        lambda table: table.given_up(edits.GivenUp(W, W + 10)),  # longer than the loan
        lambda table: table.given_up(edits.GivenUp(W + 20, W + 20)),
        lambda table: table.returned(edits.LoanReturned(W, W + 8)),
        lambda table: table.returned(edits.LoanReturned(W + 1, W + 9)),
    ],
)
def test_a_loan_is_settled_from_below_and_only_its_own_pointers(act):
    table = LoanTable([LoanImage("a", W, W + 9)])
    with pytest.raises(CorruptionError):
        act(table)
    assert list(table.in_progress) == [(W, W + 9)]


def test_a_pointer_of_no_loan_is_none_of_its_business():
    assert not LoanTable([LoanImage("a", W, W + 9)]).decided(W + 10)


def test_a_loan_comes_back_only_from_its_first_undecided_pointer_on():
    table = LoanTable([LoanImage("a", W + 3, W + 9)])
    assert table.give_back("a", W + 4).edits == ()
    assert table.give_back("b", W + 3).edits == ()
    (returned,) = table.give_back("a", W + 3).edits
    table.returned(returned)
    assert not table.in_progress


def test_of_members_that_ended_each_that_left_something_is_told_once():
    table = LoanTable([LoanImage("a", W, W + 9), LoanImage("b", W + 20, W + 29), LoanImage("a", W + 40, W + 49)])
    ended = table.end({"a", "c"}).edits
    assert ended == (edits.MemberEnded("a"),)
    assert table.member_ended(ended[0]) == PointerRuns([(W, W + 9), (W + 40, W + 49)])
    assert list(table.in_progress) == [(W + 20, W + 29)]
    assert table.end({"a"}).edits == ()


def test_a_member_takes_the_pointers_of_a_loan_in_turn_until_it_is_used_up():
    loan = LoanInUse(W, W + 2, 0)
    assert [loan.take(), loan.take()] == [W, W + 1]
    assert (loan.next, loan.rest, loan.is_over(0)) == (W + 2, PointerRun(W + 2, W + 2), False)
    assert loan.take() == W + 2
    assert (loan.rest, loan.is_over(0)) == (None, True)


def test_a_loan_is_over_after_its_time_and_the_next_one_is_asked_for_before():
    loan = LoanInUse(W, W + LOAN_POINTERS - 1, 1_000)
    assert [loan.is_ending(1_000 + USED_MS - ASKED_AHEAD_MS - 1), loan.is_ending(1_000 + USED_MS - ASKED_AHEAD_MS)] == [
        False, True,
    ]  # fmt: skip
    assert [loan.is_over(1_000 + USED_MS - 1), loan.is_over(1_000 + USED_MS)] == [False, True]
    for _ in range(LOAN_POINTERS - ASKED_AHEAD_POINTERS):
        assert not loan.is_ending(1_000)
        loan.take()
    assert loan.is_ending(1_000)
    assert loan.rest == PointerRun(W + LOAN_POINTERS - ASKED_AHEAD_POINTERS, W + LOAN_POINTERS - 1)


def test_one_shot_transactions_are_in_flight_until_they_are_decided_and_their_requests_too():
    flying, first, other = OneShotsInFlight(), *(OneShotInFlight(W + n, "", "", f"r{n}") for n in range(2))
    flying.add(first)
    flying.add(other)
    assert (list(flying), flying.first, flying.has_request("r0")) == ([first, other], W, True)
    flying.failed(first)
    assert (first.id in flying, flying.has_request("r0")) == (True, False)
    again = OneShotInFlight(W + 2, "", "", "r0")
    flying.add(again)
    flying.remove(first)
    assert (flying.first, flying.has_request("r0")) == (W + 1, True), "the request is another one's by now"
    flying.remove(other)
    flying.remove(again)
    assert (list(flying), flying.first, flying.has_request("r0")) == ([], None, False)
