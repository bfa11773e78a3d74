"""The only place that reads the time, and durations of things. All else is given a `Clock`, or a time as an argument."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

# From a small publish without a sync to a poll that takes long; one series each, so no finer.
DURATION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Clock(Protocol):
    """Wall time for what is stored and shown, monotonic time for how long something took."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z; may step in both directions."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000


class ManualClock:
    """A clock that moves only when told to: for tests and simulations."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, duration_ms: int) -> None:
        """Let time pass: both clocks move on."""
        if duration_ms < 0:
            raise ValueError(f"time does not pass backwards ({duration_ms} ms); use step() to set the wall clock")
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def step(self, now_ms: int) -> None:
        """Set the wall clock, as an operator or NTP would; monotonic time is untouched."""
        self._now_ms = now_ms


@dataclass(slots=True)
class Durations:
    """Durations of one kind of thing, such as commits, in the buckets of a histogram of GET /metrics."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(DURATION_BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative buckets by their upper bound."""
        bounds = [*map(str, DURATION_BOUNDS_S), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
