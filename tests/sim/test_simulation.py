"""Seeded simulation of the whole core: a store that fails and dies between any two writes, and a clock that jumps.

A failing seed is named in the error; add it to `KEPT`. `BASALT_SIM_SEEDS=100000 pytest tests/sim` looks further.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from tests.sim.seeds import first_failure

SEEDS = int(os.environ.get("BASALT_SIM_SEEDS") or (10_000 if os.environ.get("CI") else 2_000))
SLICE = 250
PROCESSES = 2
KEPT: tuple[int, ...] = (
    188,  # fails when the abort of a transaction that had become invalid does not search for its rows
    481,  # fails when a bound counts before the reference that it announces is there
)


def test_no_seed_breaks_a_promise() -> None:
    slices = [KEPT, *(tuple(range(first, min(first + SLICE, SEEDS))) for first in range(0, SEEDS, SLICE))]
    context = multiprocessing.get_context("spawn")  # a fork would inherit the test runner's threads
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        failures = [failure for failure in pool.map(first_failure, slices) if failure is not None]
    assert not failures, "\n".join(failures)
