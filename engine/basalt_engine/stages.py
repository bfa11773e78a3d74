"""Where the time of a call goes: what it waits for, from when until when. For the log of slow calls, and for traces.

Whoever answers a call sets `STAGES` to a value of its own; what makes the call wait adds a stage to it. A thread that works for one
call has it with the call's context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from basalt_engine.clock import SystemClock

STAGES_MAX = 64  # of one call: one that reads a thousand rows one by one is told by its first reads


class Stage(NamedTuple):
    """A time in which a call waited, in milliseconds of the monotonic clock."""

    name: str
    start_ms: float
    stop_ms: float

    @property
    def duration_ms(self) -> float:
        return self.stop_ms - self.start_ms


class Stages:
    """The stages of one call, in the order in which they ended. Any thread may add one."""

    __slots__ = ("began_ms", "found", "left_out")

    def __init__(self) -> None:
        self.began_ms = monotonic_ms()  # when the call came
        self.found: list[Stage] = []
        self.left_out = 0

    def add(self, name: str, start_ms: float, stop_ms: float) -> None:
        """Note a stage; beyond `STAGES_MAX` it is only counted."""
        if len(self.found) < STAGES_MAX:
            self.found.append(Stage(name, start_ms, stop_ms))
        else:
            self.left_out += 1

    def add_all(self, others: Stages) -> None:
        """Note what another value has: a group's write is a stage of each call in the group."""
        for stage in others.found:
            self.add(*stage)
        self.left_out += others.left_out

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


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Note the time of the block as a stage of the call that it works for, if it works for one."""
    stages = STAGES.get()
    if stages is None:
        yield
        return
    start_ms = monotonic_ms()
    try:
        yield
    finally:
        stages.add(name, start_ms, monotonic_ms())
