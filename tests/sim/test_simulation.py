"""Seeded simulation of the whole core: a store that fails and dies between any two writes, and a clock that jumps.

A failing seed is named in the error; keep it in `PLANTED`, with the fault that was mended. tests/budgets.py says how many seeds there are;
`BASALT_SIM_SEEDS=100000 pytest tests/sim` looks further.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

import pytest

from basalt_engine.clock import ManualClock
from tests.budgets import SIMULATION_SEEDS as SEEDS
from tests.sim import faults
from tests.sim.consumer_world import ConsumerWorld
from tests.sim.faulty_store import ProcessDied
from tests.sim.job_world import JobWorld
from tests.sim.late_writers_world import LateWritersWorld
from tests.sim.marked_world import MarkedWorld
from tests.sim.moving_world import MovingWorld
from tests.sim.one_shot_world import LateDeletesWorld, OneShotWorld
from tests.sim.producer_world import ProducerWorld, SharedProducerWorld
from tests.sim.seeds import (
    WORLDS,
    first_failure,
    first_failure_across_limits,
    first_failure_of_consumers,
    first_failure_of_jobs,
    first_failure_of_late_deletes,
    first_failure_of_late_writers,
    first_failure_of_markers,
    first_failure_of_moves,
    first_failure_of_one_shots,
    first_failure_of_producers,
    first_failure_of_producers_of_several_servers,
    first_failure_of_several_lanes,
    first_failure_of_several_servers,
    first_failure_with,
    first_failure_with_little_memory,
    first_failure_without_epochs,
    forgetful,
    writes_of,
)
from tests.sim.simulated_loop import SimulatedLoop
from tests.sim.world import World

SHARED_SEEDS = SEEDS // 10  # each is the life of several servers
SLICE = 50
SHARED_SLICE = 10
PROCESSES = 2


class Planted(NamedTuple):
    """A fault, the world that finds it, and seeds that do; some more are tried, for every change of a world draws anew."""

    fault: Callable[[], AbstractContextManager[object]]
    world: Callable[[int], World]
    seeds: tuple[int, ...]


PLANTED = (
    Planted(faults.aborts_search_nothing, World, (666, 1040)),
    Planted(faults.bounds_count_at_once, World, (3338,)),
    Planted(faults.references_in_doubt_count_as_absent, LateDeletesWorld, ()),
    Planted(faults.what_is_being_written_is_forgotten, partial(forgetful, World), (6,)),
    Planted(faults.writers_that_left_memory_pass_for_new_ones, partial(forgetful, World), (55, 86)),
    Planted(faults.moves_forget_doubts, MovingWorld, (262, 436)),
    Planted(faults.moves_forget_what_is_staged, MovingWorld, (20, 28)),
    Planted(faults.moves_forget_early_rows, MovingWorld, (19, 32)),
    Planted(faults.moves_drain_no_lane, MovingWorld, (424, 425)),
    Planted(faults.loans_of_the_dead_stay, OneShotWorld, ()),
    Planted(faults.loans_of_the_dead_are_forgotten, OneShotWorld, ()),
    Planted(faults.unknown_writes_count_as_never_made, OneShotWorld, ()),
    Planted(faults.snapshots_have_no_runs, OneShotWorld, (2467, 4136)),
    Planted(faults.pointers_are_used_before_the_log_has_their_loan, OneShotWorld, (17, 43)),
    Planted(faults.repeated_requests_are_carried_out_again, OneShotWorld, ()),
    Planted(faults.rows_come_before_committing, World, (69, 93, 459)),
    Planted(faults.committed_comes_before_rows, World, (29, 48)),
    Planted(faults.joins_come_after_rows, World, (30, 38)),
    Planted(faults.pointers_stay_open, LateWritersWorld, (2, 6)),
    Planted(faults.rows_are_older_than_the_view, LateWritersWorld, (33,)),
    Planted(faults.one_shots_are_decided_with_their_rows, OneShotWorld, ()),
    Planted(faults.nobody_waits_for_rows_under_way, LateWritersWorld, (52, 62, 101)),
    Planted(faults.a_lost_state_goes_on, World, (46, 56)),
    Planted(faults.roll_backs_are_not_told, MarkedWorld, (2, 6)),
    Planted(faults.gaps_are_accepted, ProducerWorld, ()),
    Planted(faults.failed_writes_leave_their_numbers, ProducerWorld, ()),
    Planted(faults.numbers_in_doubt_are_read, ProducerWorld, (2, 30)),
    Planted(faults.numbers_come_in_a_put_of_their_own, ProducerWorld, (5, 11)),
    Planted(faults.rows_of_a_producer_are_written_side_by_side, ProducerWorld, (183, 211)),
    Planted(faults.entries_come_before_their_rows, ProducerWorld, (132, 326)),
    Planted(faults.nothing_announces_numbers, ProducerWorld, ()),
    Planted(faults.repetitions_are_answered_at_once, ProducerWorld, ()),
    Planted(faults.aborted_cells_show, World, (7, 9)),
    Planted(faults.pruning_overlooks_cells, World, (379, 449)),
    Planted(faults.versions_are_not_logged, World, (1, 3)),
    Planted(faults.lost_sets_pass_for_empty, World, (25, 182)),
    Planted(faults.replaced_runs_come_back, JobWorld, (0, 2)),
    Planted(faults.every_segment_is_published, JobWorld, (1, 3)),
    Planted(faults.losers_stay, JobWorld, (0, 1)),
    Planted(faults.versions_are_committed_twice, JobWorld, (2, 41)),
    Planted(faults.acknowledgements_come_before_the_outcome, ConsumerWorld, (2, 3)),
    Planted(faults.plain_acknowledgements_swallow_what_is_pending, ConsumerWorld, (29, 68)),
    Planted(faults.snapshots_forget_what_is_pending, ConsumerWorld, (10, 26)),
    Planted(faults.aborts_keep_what_was_pending, ConsumerWorld, (0, 1)),
    Planted(faults.what_is_acknowledged_may_be_again, ConsumerWorld, (1, 3)),
    Planted(faults.order_is_not_checked, ConsumerWorld, (4, 8)),
    Planted(faults.deletes_in_doubt_are_forgotten, LateDeletesWorld, (10, 20)),
)
KEPT_OF_JOBS = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is JobWorld)
KEPT_OF_PRODUCERS = (89, *(seed for planted in PLANTED for seed in planted.seeds if planted.world is ProducerWorld))
KEPT = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is World)
KEPT_OF_ONE_SHOTS = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is OneShotWorld)
KEPT_OF_MOVES = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is MovingWorld)
KEPT_OF_LATE_DELETES = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is LateDeletesWorld)
KEPT_OF_LATE_WRITERS = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is LateWritersWorld)
KEPT_OF_CONSUMERS = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is ConsumerWorld)
KEPT_ACROSS_LIMITS = (
    20002,
)  # numbers saved with a place that a failed write had taken, and the next server gave out again
KEPT_OF_MARKERS = tuple(seed for planted in PLANTED for seed in planted.seeds if planted.world is MarkedWorld)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """The processes in which seeds run: each imports the whole core once."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit the test runner's threads
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        yield pool


def test_no_seed_breaks_a_promise(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure, [KEPT, *slices(SEEDS, SLICE)])


def test_no_seed_breaks_a_promise_while_servers_lead_in_turn(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_several_servers, slices(SHARED_SEEDS, SHARED_SLICE))


def test_no_seed_breaks_a_promise_of_one_shot_transactions_that_the_log_hears_of_late(
    pool: ProcessPoolExecutor,
) -> None:
    run(pool, first_failure_of_one_shots, [KEPT_OF_ONE_SHOTS, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_while_topics_are_in_several_lanes(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_several_lanes, slices(SEEDS // 4, SLICE))


def test_no_seed_breaks_a_promise_of_rows_in_doubt_whose_deletes_come_late(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_late_deletes, [KEPT_OF_LATE_DELETES, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_to_clients_that_write_while_their_transaction_is_ended(
    pool: ProcessPoolExecutor,
) -> None:
    run(pool, first_failure_of_late_writers, [KEPT_OF_LATE_WRITERS, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_while_shards_move(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_moves, [KEPT_OF_MOVES, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_of_markers(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_markers, [KEPT_OF_MARKERS, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_of_consumers(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_consumers, [KEPT_OF_CONSUMERS, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_of_named_transactions_and_their_segments(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_jobs, [KEPT_OF_JOBS, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_of_producers(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_producers, [KEPT_OF_PRODUCERS, *slices(SEEDS // 4, SLICE)])


def test_no_seed_breaks_a_promise_of_producers_while_servers_lead_in_turn(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_of_producers_of_several_servers, slices(SHARED_SEEDS, SHARED_SLICE))


def test_no_seed_breaks_a_promise_of_servers_that_keep_little_in_memory(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_with_little_memory, slices(SHARED_SEEDS, SHARED_SLICE))


def test_no_seed_breaks_a_promise_of_servers_that_cross_their_limits(pool: ProcessPoolExecutor) -> None:
    run(pool, first_failure_across_limits, [KEPT_ACROSS_LIMITS, *slices(SHARED_SEEDS, SHARED_SLICE)])


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.fault.__name__)
def test_a_planted_fault_is_found(planted: Planted) -> None:
    assert first_failure_with(planted.fault(), planted.world, [*planted.seeds, *range(40)]) is not None


def test_without_epochs_former_leaders_do() -> None:
    """That the test above would see a former leader's write."""
    failure = first_failure_without_epochs(range(20))
    assert failure is not None
    assert "former leader" in failure


@pytest.mark.parametrize("world", [*WORLDS, SharedProducerWorld], ids=lambda world: world.__name__)
def test_a_seed_that_is_run_again_gives_the_same_run(pool: ProcessPoolExecutor, world: type[World]) -> None:
    """In another process too, where sets of bytes and of objects have another order."""
    for seed in range(1, 8, 2):
        for made in (world, partial(forgetful, world)):
            again = pool.submit(writes_of, made, seed)
            pairs = zip_longest(writes_of(made, seed), again.result())
            assert next((pair for pair in pairs if pair[0] != pair[1]), None) is None


def test_time_passes_when_nobody_has_anything_to_do() -> None:
    clock = ManualClock()
    loop = SimulatedLoop(clock, random.Random(0))
    try:
        loop.run_until_complete(asyncio.sleep(3_600))
    finally:
        loop.close()
    assert clock.monotonic_ms() == 3_600_000


def test_who_waits_for_what_never_happens_is_told() -> None:
    loop = SimulatedLoop(ManualClock(), random.Random(0))
    try:
        with pytest.raises(AssertionError, match="nothing will ever happen"):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()


def slices(seeds: int, size: int) -> list[tuple[int, ...]]:
    return [tuple(range(first, min(first + size, seeds))) for first in range(0, seeds, size)]


def run(pool: ProcessPoolExecutor, check: Callable[[Iterable[int]], str | None], parts: list[tuple[int, ...]]) -> None:
    failures = [failure for failure in pool.map(check, parts) if failure is not None]
    assert not failures, "\n".join(failures)


def test_a_process_writes_nothing_once_another_has_the_store_open() -> None:
    async def run() -> None:
        world = ConsumerWorld(0)
        await world._prepare()
        former = world.store
        await world._start(0.0)
        with pytest.raises(ProcessDied):
            former.write([])

    asyncio.run(run())
