"""The lag of the event loop: what a late timer says, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from basalt.runtime.loop_lag import EVERY_MS, LOOKS_A_SECOND, LOOKS_KEPT, LoopLag
from basalt_engine.clock import ManualClock, SystemClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_time_by_which_a_timer_is_late_is_the_lag():
    clock = ManualClock()
    lag = LoopLag(clock)
    assert (lag.last_s, lag.max_s) == (0.0, 0.0)
    lag.start()
    lag.look(EVERY_MS + 300.0)
    lag.look(EVERY_MS + 20.0)
    lag.look(EVERY_MS - 1.0)  # a timer may be called a moment too early
    lag.stop()
    assert (lag.last_s, lag.max_s) == (0.0, 0.3)
    assert sum(lag.looks.counts) == 3
    assert lag.looks.sum_s == pytest.approx(0.32)


async def test_the_worst_is_forgotten_after_a_minute():
    lag = LoopLag(ManualClock())
    lag.start()
    lag.look(EVERY_MS + 900.0)
    for _ in range(LOOKS_KEPT):
        assert lag.max_s == 0.9
        lag.look(EVERY_MS)
    assert lag.max_s == 0.0
    lag.stop()


async def test_the_worst_of_a_second_is_forgotten_after_the_looks_of_one():
    lag = LoopLag(ManualClock())
    assert lag.second_max_s == 0.0
    lag.start()
    lag.look(EVERY_MS + 900.0)
    for _ in range(LOOKS_A_SECOND):
        assert lag.second_max_s == 0.9
        lag.look(EVERY_MS)
    assert (lag.second_max_s, lag.max_s) == (0.0, 0.9)
    lag.stop()


async def test_it_looks_again_and_again_until_it_is_stopped():
    lag = LoopLag(SystemClock())
    assert not lag.is_measured
    lag.start()
    lag.start()
    async with asyncio.timeout(60):
        while sum(lag.looks.counts) < 2:
            await asyncio.sleep(EVERY_MS / 1_000)
    lag.stop()
    lag.stop()
    assert not lag.is_measured
