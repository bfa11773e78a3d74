"""One-shot transactions of several servers hold what clients were told, and each fault that is planted breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from basalt.commits.linked_decisions import LinkedDecisions
from basalt.commits.one_shot_decisions import Answer, OneShotDecisions, UnderWay, given_up
from basalt.runtime.group_commit import Group
from basalt.transactions.rules.loans import OneShotInFlight
from tests.budgets import SIMULATION_SEEDS as SEEDS
from tests.sim.seeds import first_failure_of_linked_servers

FAULT_SEEDS = range(30)  # each fault is found by one of these


def test_no_seed_breaks_a_promise_of_one_shot_transactions_that_are_decided_over_links() -> None:
    failure = first_failure_of_linked_servers(range(SEEDS // 10))
    assert failure is None, failure


def lost_is_refused(linked: LinkedDecisions, one_shots: Sequence[UnderWay], settled: Any, _began_s: float) -> None:
    linked._tell(one_shots, [given_up() for _ in one_shots], settled)


def decides_what_was_not_written(
    decisions: OneShotDecisions, _member: str, placed: OneShotInFlight, _written: bool, group: Group
) -> Answer:
    loan = decisions._manager.state.loans.find(placed.id)
    if loan is None:
        return given_up()
    if loan.undecided < placed.id:
        decisions.give_up(group, loan.undecided, placed.id - 1)
    return decisions.decide(group, placed)


def decides_a_request_again(
    decisions: OneShotDecisions, group: Group, placed: OneShotInFlight, _plan: object = None
) -> Answer:
    state = decisions._manager.state
    id, owner, principal, request_id = placed  # noqa: A001
    decisions._manager.apply(group, state.committed_one_shot(id, group.now_ms, owner, request_id, principal))
    return state.outcome(id)


def ends_no_loans(_decisions: OneShotDecisions, _group: Group, _members: object) -> None:
    pass


def learns_nothing(_linked: LinkedDecisions, _one_shot: UnderWay) -> Answer:
    return given_up()


@pytest.mark.parametrize(
    ("part", "name", "fault"),
    [
        (LinkedDecisions, "_lost", lost_is_refused),
        (OneShotDecisions, "_decide_of", decides_what_was_not_written),
        (OneShotDecisions, "decide", decides_a_request_again),
        (OneShotDecisions, "end", ends_no_loans),
        (LinkedDecisions, "_answer_of", learns_nothing),
    ],
    ids=["lost is refused", "not written", "a request again", "loans of before stay", "nothing is learned"],
)
def test_a_planted_fault_is_found(part: type, name: str, fault: Callable[..., object]) -> None:
    with patch.object(part, name, fault):
        assert first_failure_of_linked_servers(FAULT_SEEDS) is not None
