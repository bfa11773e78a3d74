"""Seeds of the world of consumer groups that several servers deal; and faults that it must find."""

from __future__ import annotations

import pytest

from tests.budgets import SIMULATION_SEEDS
from tests.sim.seeds import first_failure_of_groups

SEEDS = SIMULATION_SEEDS // 10
SLICE = 10


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_no_seed_breaks_a_promise_of_groups_that_owners_deal(start: int) -> None:
    assert first_failure_of_groups(range(start, min(start + SLICE, SEEDS))) is None
