"""Seeds of the world of members: several servers that share an installation, as a model (`tests.sim.members.world`), with all that may go wrong.

A failing seed is named in the error. Each rule of the protocol is left out once (`tests.sim.members.faults`), and must be missed: the seeds that
miss it are kept here. tests/budgets.py says how many seeds there are without a fault; `BASALT_SIM_SEEDS=10000` looks further.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import pytest

from tests.budgets import MEMBER_SEEDS as SEEDS
from tests.sim.members import faults
from tests.sim.members.faults import Fault
from tests.sim.members.play import AbortedError, Play, Process, RefusedError, UnansweredError
from tests.sim.members.world import CleaningWorld, HarshWorld, LateWorld, LyingWorld, MembersWorld, SlowWorld

PROCESSES = 2
SLICE = 20
REPEATED = 6  # seeds of each world that are run in another process, too
MORE = 40  # seeds in which a fault is looked for when those that are kept miss it: every change of the world draws anew
WORLDS = (MembersWorld, LyingWorld, HarshWorld, CleaningWorld, SlowWorld, LateWorld)


class Planted(NamedTuple):
    """A rule that is left out, the world that misses it, and seeds in which it does."""

    fault: Fault
    world: type[MembersWorld]
    seeds: tuple[int, ...]


PLANTED = (
    Planted(faults.nobody_asks_at_a_hold, MembersWorld, (1, 2)),
    Planted(faults.dropped_places_are_given_out_again, CleaningWorld, (92, 490)),
    Planted(faults.rows_are_older_than_the_view, MembersWorld, (2, 29)),
    Planted(faults.snapshots_have_no_runs, MembersWorld, (1, 2)),
    Planted(faults.joins_are_not_logged, MembersWorld, (0, 1)),
    Planted(faults.commits_have_no_intent, HarshWorld, (3, 8)),
    Planted(faults.pointers_are_not_closed, MembersWorld, (0, 1)),
    Planted(faults.roll_backs_are_answered_at_once, MembersWorld, (8, 9)),
    Planted(faults.loans_of_the_dead_stay, MembersWorld, (2, 3)),
    Planted(faults.nothing_is_fenced, HarshWorld, (10, 28)),
    Planted(faults.doubts_are_forgotten, HarshWorld, (0, 1)),
    # MORE#
)
KEPT = (22, 54, 90, 212)  # each has found a rule that the protocol lacked


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """The processes in which seeds run."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit the test runner's threads
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        yield pool


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_no_seed_breaks_a_promise_of_members(pool: ProcessPoolExecutor, world: type[MembersWorld]) -> None:
    seeds = [*KEPT, *(seed for planted in PLANTED for seed in planted.seeds if planted.world is world), *range(SEEDS)]
    parts = [seeds[first : first + SLICE] for first in range(0, len(seeds), SLICE)]
    failures = [failure for failure in pool.map(partial(first_failure, world), parts) if failure is not None]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.fault.__name__)
def test_a_rule_of_members_that_is_left_out_is_missed(planted: Planted) -> None:
    with planted.fault():
        assert first_failure(planted.world, [*planted.seeds, *range(MORE)]) is not None


def test_a_seed_of_members_that_is_run_again_gives_the_same_run(pool: ProcessPoolExecutor) -> None:
    for world in WORLDS:  # another process has other hashes of texts
        here = [log_of(world, seed) for seed in range(REPEATED)]
        assert here == [each.result() for each in [pool.submit(log_of, world, seed) for seed in range(REPEATED)]]


def first_failure(world: type[MembersWorld], seeds: Iterable[int]) -> str | None:
    """The first seed that breaks a promise, and how; None when none does."""
    for seed in seeds:
        try:
            world(seed).run()
        except Exception as broken:
            return f"{world.__name__}, seed {seed}: {type(broken).__name__}: {broken}"
    return None


def log_of(world: type[MembersWorld], seed: int) -> str:
    """The log that a seed's coordinators wrote, and how often it has drawn."""
    made = world(seed)
    made.run()
    return f"{made.play.chances.random()} {made.hbase.log!r}"


# The play itself.


def test_a_process_that_is_stopped_takes_its_steps_in_order_when_it_goes_on() -> None:
    play, process, steps = Play(0), Process(), []

    async def step(number: int) -> None:
        await play.sleep(number)
        steps.append((number, play.now_ms))

    for number in range(1, 9):
        play.start(step(number), process)
    play.at(0.5, lambda: setattr(process, "stopped_until", 100.0))
    play.run(200)
    assert steps == [(number, 100.0) for number in range(1, 9)]


def test_a_process_that_is_killed_takes_no_step_more() -> None:
    play, process, steps = Play(0), Process(), []

    async def walk() -> None:
        while True:
            steps.append(play.now_ms)
            await play.sleep(1)

    play.start(walk(), process)
    process.steps_left = 4
    play.run(50)
    assert steps == [0, 1, 2]


def test_who_waits_in_vain_is_told_that_nobody_knows() -> None:
    play = Play(0)
    told: list[BaseException] = []

    async def wait() -> None:
        try:
            await play.within(10, play.answer())
        except UnansweredError as error:
            told.append(error)

    play.start(wait())
    play.run(20)
    assert len(told) == 1
    assert not isinstance(told[0], RefusedError | AbortedError)
