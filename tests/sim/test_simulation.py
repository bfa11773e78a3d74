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
    63,  # an abort of what had timed out before forgot where its rows were
    1710,  # a crash between a reference and the note that it binds its payloads
)


def test_no_seed_breaks_a_promise() -> None:
    slices = [KEPT, *(tuple(range(first, min(first + SLICE, SEEDS))) for first in range(0, SEEDS, SLICE))]
    context = multiprocessing.get_context("spawn")  # a fork would inherit the test runner's threads
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        failures = [failure for failure in pool.map(first_failure, slices) if failure is not None]
    assert not failures, "\n".join(failures)
