"""Durations, counted in buckets: a histogram of GET /metrics is made of them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

# From a small publish without a sync to a poll that takes long; one series each, so no finer.
DURATION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Durations:
    """The durations of one kind of work: a count for each bucket, and the sum."""

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
