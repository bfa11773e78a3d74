"""Seeds of the world of commits over several owners; and faults that it must find, each by a seed that is known to, or by one of some more.

`BASALT_SIM_SEEDS=100000 pytest tests/sim/test_owners_world.py` looks further.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import pytest

from tests.budgets import SIMULATION_SEEDS
from tests.sim import faults, owner_faults
from tests.sim.owners_world import OwnersWorld
from tests.sim.seeds import first_failure_of_owners, first_failure_with

SEEDS = SIMULATION_SEEDS // 4
SLICE = 25
MORE = 40  # seeds that are tried when those of a fault find it no more: every change of the world draws anew
KEPT = (43, 131, 253)  # with numbers that began anew in each run


class Planted(NamedTuple):
    """A fault, and seeds that find it."""

    fault: Callable[[], AbstractContextManager[object]]
    seeds: tuple[int, ...]


PLANTED = (
    Planted(owner_faults.numbers_begin_at_nothing, (39, 60, 88)),
    Planted(owner_faults.a_topic_that_moved_is_placed_by_its_new_owner_alone, ()),
    Planted(owner_faults.a_silent_owner_has_placed, ()),
    Planted(owner_faults.only_this_server_rolls_back, ()),
    Planted(owner_faults.a_roll_back_goes_on_without_an_answer, ()),
    Planted(owner_faults.late_places_are_taken, ()),
    Planted(owner_faults.requests_are_not_looked_for_at_the_end, ()),
    Planted(owner_faults.a_new_owner_knows_all_writers, ()),
    Planted(faults.pointers_stay_open, ()),
)


@pytest.mark.parametrize("start", range(0, SEEDS, SLICE))
def test_no_seed_breaks_a_promise_of_commits_over_several_owners(start: int) -> None:
    assert first_failure_of_owners(range(start, min(start + SLICE, SEEDS))) is None


def test_no_seed_that_found_a_fault_finds_it_again() -> None:
    assert first_failure_of_owners(KEPT) is None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.fault.__name__)
def test_a_planted_fault_is_found(planted: Planted) -> None:
    assert first_failure_with(planted.fault(), OwnersWorld, (*planted.seeds, *range(MORE))) is not None
