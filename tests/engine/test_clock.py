"""The clocks: the machine's, and the one that moves only when told to."""

from __future__ import annotations

import time

import pytest

from basalt_engine.clock import ManualClock, SystemClock


def test_the_system_clock_tells_the_machines_time() -> None:
    before = time.time_ns() // 1_000_000
    now_ms = SystemClock().now_ms()
    assert before <= now_ms <= time.time_ns() // 1_000_000
    assert isinstance(now_ms, int)


def test_the_system_clocks_monotonic_time_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic_ms() for _ in range(100)]
    assert readings == sorted(readings)


def test_a_manual_clock_moves_only_when_told_to() -> None:
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_000, 0)
    clock.advance(5)
    clock.advance(0)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_005, 5)


def test_a_step_of_the_wall_clock_leaves_monotonic_time_alone() -> None:
    clock = ManualClock(1_000)
    clock.advance(5)
    clock.step(10)
    assert (clock.now_ms(), clock.monotonic_ms()) == (10, 5)
    clock.step(2_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (2_000, 5)


def test_time_does_not_pass_backwards() -> None:
    clock = ManualClock(1_000)
    with pytest.raises(ValueError, match="use step"):
        clock.advance(-1)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_000, 0)
