"""Seeds of the world of consumer groups that several servers deal; and faults that it must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.budgets import SIMULATION_SEEDS
from tests.sim.group_faults import FAULTS
from tests.sim.groups_world import GroupsWorld
from tests.sim.seeds import first_failure_of_groups, first_failure_with

SEEDS = SIMULATION_SEEDS // 5
SLICE = 10
FAULT_SEEDS = range(60)  # each fault is found by one of these


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_no_seed_breaks_a_promise_of_groups_that_owners_deal(start: int) -> None:
    assert first_failure_of_groups(range(start, min(start + SLICE, SEEDS))) is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: Callable[[], AbstractContextManager[object]]) -> None:
    assert first_failure_with(fault(), GroupsWorld, FAULT_SEEDS) is not None
