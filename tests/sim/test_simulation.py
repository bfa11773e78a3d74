"""Seeded simulation of the whole core: a store that fails and dies between any two writes, and a clock that jumps.

A failing seed is printed; add it to `KEPT`. `BASALT_SIM_SEEDS=100000 pytest tests/sim` looks further.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator

import pytest

from tests.sim.world import World

SEEDS = int(os.environ.get("BASALT_SIM_SEEDS") or (10_000 if os.environ.get("CI") else 2_000))
KEPT: tuple[int, ...] = ()


def run_seed(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    try:
        loop.run_until_complete(World(seed).run())
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that takes a dying process for what it is; and no threads, whose order no seed decides."""
    monkeypatch.setattr("basalt.group_commit.INLINE_CALLERS_MAX", 1 << 30)
    made = asyncio.new_event_loop()
    made.set_exception_handler(lambda *_: None)
    logging.getLogger("basalt").setLevel(logging.CRITICAL)
    yield made
    logging.getLogger("basalt").setLevel(logging.NOTSET)
    made.close()


def test_no_seed_breaks_a_promise(loop: asyncio.AbstractEventLoop) -> None:
    for seed in (*KEPT, *range(SEEDS)):
        run_seed(loop, seed)
