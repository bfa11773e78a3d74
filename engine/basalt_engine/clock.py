"""The only place that reads the time; durations of things, and where the time of a call goes. All else is given a `Clock`, or a time as an
argument.

Whoever answers a call sets `STAGES` to a value of its own; what makes the call wait adds a stage to it. A thread that works for one
call has it with the call's context. It is for the log of slow calls and for traces.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

# From a small publish without a sync to a poll that takes long; one series each, so no finer.
DURATION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STAGES_MAX = 64  # of one call: one that reads a thousand rows one by one is told by its first reads


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


class Stage(NamedTuple):
    """A time in which a call waited, in milliseconds of the monotonic clock."""

    name: str
    start_ms: float
    stop_ms: float

    @property
    def duration_ms(self) -> float:
        return self.stop_ms - self.start_ms


class Stages:
    """The stages of one call. Any thread may add one.

    Every publish has one of these, and few are ever looked at: what can be put together afterwards is.
    """

    __slots__ = ("_added", "began_ms", "left_out")

    def __init__(self, began_ms: float = 0.0) -> None:
        self.began_ms = began_ms  # when the call came
        self._added: list[tuple[str, float, float] | tuple[float, float, float, Stages | None]] = []
        self.left_out = 0

    def add(self, name: str, start_ms: float, stop_ms: float) -> None:
        """Note a stage; beyond `STAGES_MAX` it is only counted."""
        if len(self._added) < STAGES_MAX:
            self._added.append((name, start_ms, stop_ms))
        else:
            self.left_out += 1

    def add_write(self, queued_ms: float, start_ms: float, stop_ms: float, inside: Stages | None) -> None:
        """Note a write that the call shared with others: since when it waited for that, when it was made, and what the write waited for."""
        if len(self._added) < STAGES_MAX:
            self._added.append((queued_ms, start_ms, stop_ms, inside))
        else:
            self.left_out += 1

    @property
    def found(self) -> list[Stage]:
        """The stages in the order in which they were noted; a shared write is `queue`, what it waited for, and `write`."""
        found: list[Stage] = []
        for each in self._added:
            if len(each) == 3:
                found.append(Stage(*each))
                continue
            queued_ms, start_ms, stop_ms, inside = each
            found.append(Stage("queue", queued_ms, start_ms))
            if inside is not None:
                found += inside.found
            found.append(Stage("write", start_ms, stop_ms))
        return found

    def told(self) -> str:
        """The sum of each kind of stage, the longest first: `write 2300 ms, queue 3 ms`."""
        sums: dict[str, float] = {}
        for stage in self.found:
            sums[stage.name] = sums.get(stage.name, 0.0) + stage.duration_ms
        longest = sorted(sums.items(), key=lambda each: -each[1])
        return ", ".join(f"{name} {took_ms:.0f} ms" for name, took_ms in longest)


monotonic_ms = (
    SystemClock().monotonic_ms
)  # of this machine, whatever clock decides about a call: here times are only told

STAGES: ContextVar[Stages | None] = ContextVar("stages", default=None)


class stage:  # noqa: N801  # it is used as `with stage("read"):`, and a generator would cost twice as much
    """Notes the time of the block as a stage of the call that it works for, if it works for one."""

    __slots__ = ("_name", "_stages", "_start_ms")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._stages = STAGES.get()
        if self._stages is not None:
            self._start_ms = monotonic_ms()

    def __exit__(self, *_: object) -> None:
        if self._stages is not None:
            self._stages.add(self._name, self._start_ms, monotonic_ms())
