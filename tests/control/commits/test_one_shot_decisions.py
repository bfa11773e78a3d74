"""The coordinator's stages of one-shot transactions: which pointers of which member are decided, and when."""

from __future__ import annotations

import pytest

from basalt.commits.linked_decisions import DecisionsForMembers
from basalt.commits.one_shot_decisions import OneShotDecisions
from basalt.errors import BusyError, UnavailableError
from basalt.runtime.group_commit import Group
from basalt.transactions.protocol import DecideOneShots, GiveBack, GivenBack, Lend, LentPointers, OneShotsDecided
from basalt.transactions.rules import loans
from basalt.transactions.rules.loans import LOAN_POINTERS, OneShotInFlight
from basalt_engine.stores.memory import MemoryStore
from tests.wiring import Wired

pytestmark = pytest.mark.anyio


class Asked:
    """A leader's decisions, as members ask for them."""

    def __init__(self, wired: Wired) -> None:
        self.wired = wired
        self.over: set[str] = set()
        decisions: OneShotDecisions = wired.transactions._decisions
        self.decisions = decisions
        self._members = DecisionsForMembers(
            wired.transactions.manager, decisions, lambda member: member not in self.over
        )

    async def lend(self, member: str, *, ends: bool = False) -> LentPointers:
        return await self._members.lend(member, Lend(ends))

    async def decide(
        self, member: str, *pointers: int, written: bool = True, request_id: str | None = None
    ) -> OneShotsDecided:
        placed = tuple(OneShotInFlight(pointer, "label", "", request_id) for pointer in pointers)
        return await self._members.decide(member, DecideOneShots(placed, written))

    async def give_back(self, member: str, *rests: tuple[int, int], ends: bool = False) -> GivenBack:
        return await self._members.give_back(member, GiveBack(rests, ends))

    def loans_of(self, member: str) -> list[tuple[int, int]]:
        return [tuple(loan.run) for loan in self.wired.transactions.state.loans.of(member)]

    @property
    def invalid(self) -> list[tuple[int, int]]:
        return [tuple(run) for run in self.wired.transactions.state.invalid.runs]


@pytest.fixture
async def asked() -> Asked:
    return Asked(await Wired.start(MemoryStore(atomic=False)))


async def test_members_have_loans_of_their_own(asked: Asked):
    a, b = await asked.lend("a"), await asked.lend("b")
    assert a.last - a.first == b.last - b.first == LOAN_POINTERS - 1
    assert a.last < b.first
    assert asked.loans_of("a") == [(a.first, a.last)]


async def test_all_of_a_group_are_committed_at_one_time_and_the_answer_names_none(asked: Asked):
    loan = await asked.lend("a")
    decided = await asked.decide("a", loan.first, loan.first + 1)
    assert decided.others == ()
    state = asked.wired.transactions.state
    assert [state.outcome(loan.first + n).at_ms for n in range(2)] == [decided.at_ms] * 2
    assert state.outcome(loan.first).owner == "label"
    assert asked.loans_of("a") == [(loan.first + 2, loan.last)]


async def test_pointers_of_no_loan_of_the_member_are_not_decided(asked: Asked):
    a, b = await asked.lend("a"), await asked.lend("b")
    entries = asked.wired.transactions.manager.log_length
    for member, pointer in (("a", b.first), ("c", a.first), ("a", a.first - 1), ("b", b.last + 1)):
        decided = await asked.decide(member, pointer)
        (other,) = decided.others
        assert other.error is not None
        assert other.error.code == "coordinator_unavailable"
    assert asked.wired.transactions.manager.log_length == entries
    assert asked.loans_of("a") == [(a.first, a.last)]


async def test_each_is_decided_once(asked: Asked):
    loan = await asked.lend("a")
    await asked.decide("a", loan.first)
    decided = await asked.decide("a", loan.first)
    assert decided.others[0].error is not None
    assert asked.wired.transactions.state.outcome(loan.first).state.name == "COMMITTED"
    assert asked.invalid == []


async def test_what_a_decision_leaves_out_is_given_up(asked: Asked):
    loan = await asked.lend("a")
    decided = await asked.decide("a", loan.first + 2)
    assert decided.others == ()
    assert asked.invalid == [(loan.first, loan.first + 1)]
    late = await asked.decide("a", loan.first, loan.first + 1)
    assert [other.number for other in late.others] == [0, 1]


async def test_what_was_not_written_is_given_up(asked: Asked):
    loan = await asked.lend("a")
    decided = await asked.decide("a", loan.first, loan.first + 1, written=False)
    assert [other.number for other in decided.others] == [0, 1]
    assert asked.invalid == [(loan.first, loan.first + 1)]
    assert asked.loans_of("a") == [(loan.first + 2, loan.last)]


async def test_a_request_that_was_carried_out_before_is_answered_with_the_first_outcome(asked: Asked):
    a, b = await asked.lend("a"), await asked.lend("b")
    await asked.decide("a", a.first, request_id="r")
    decided = await asked.decide("b", b.first, request_id="r")
    (other,) = decided.others
    assert other.first == asked.wired.transactions.state.outcome(a.first)
    assert asked.invalid == [(b.first, b.first)]


async def test_a_request_id_that_was_used_for_something_else_is_refused_and_given_up(asked: Asked):
    await asked.wired.transactions.begin(request_id="r")
    loan = await asked.lend("a")
    decided = await asked.decide("a", loan.first, request_id="r")
    assert decided.others[0].error is not None
    assert decided.others[0].error.code == "request_reused"
    assert asked.invalid == [(loan.first, loan.first)]


async def test_loans_of_before_end_with_the_first_one_over_a_new_link(asked: Asked):
    before, other = await asked.lend("a"), await asked.lend("b")
    loan = await asked.lend("a", ends=True)
    assert asked.loans_of("a") == [(loan.first, loan.last)]
    assert asked.loans_of("b") == [(other.first, other.last)]
    assert asked.invalid == [(before.first, before.last)]


async def test_rests_are_taken_back_once_all_before_them_is_decided(asked: Asked):
    loan = await asked.lend("a")
    rest = (loan.first + 2, loan.last)
    assert await asked.give_back("a", rest) == GivenBack((rest[0],))
    assert await asked.give_back("b", rest) == GivenBack()
    await asked.decide("a", loan.first, loan.first + 1)
    assert await asked.give_back("a", rest) == GivenBack()
    assert asked.loans_of("a") == []
    assert await asked.give_back("a", rest) == GivenBack()
    assert asked.invalid == []


async def test_ended_loans_are_given_up_as_they_are(asked: Asked):
    loan = await asked.lend("a")
    await asked.decide("a", loan.first)
    await asked.give_back("a", ends=True)
    assert asked.invalid == [(loan.first + 1, loan.last)]


async def test_a_membership_that_is_over_borrows_nothing(asked: Asked):
    asked.over.add("a")
    with pytest.raises(UnavailableError, match="membership of a is over"):
        await asked.lend("a")


async def test_who_has_too_many_loans_that_are_not_decided_gets_no_more(asked: Asked, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loans, "OPEN_LOANS_MAX", 1)
    await asked.lend("a")
    with pytest.raises(BusyError):
        await asked.lend("a")
    await asked.lend("b")


async def test_a_group_of_the_leaders_own_is_given_up_by_runs(asked: Asked):
    loan = await asked.lend("a")

    def stage(group: Group) -> None:
        asked.decisions.give_up(group, loan.first, loan.first + 3)

    await asked.wired.transactions.manager.run(stage)
    assert asked.invalid == [(loan.first, loan.first + 3)]
