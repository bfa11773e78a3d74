"""The event loop of a simulation: its time is that of the simulated clock, and goes on when nobody has anything to do.

So a timer of the product runs when the play says, and a seed that is run again gives the same run.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import selectors

from basalt_engine.clock import ManualClock

HURRIES_MS = (1, 20, 300, 1_000, 2_000)  # a claim and a lease of a simulation last for a second, a transaction for two
RESTS_MAX = 20_000  # of one run: who waits for longer waits for ever, while timers are set again and again


class _Rest(selectors.SelectSelector):
    """What the loop does between two turns: it asks no socket and does not sleep, but has the clock pass."""

    def __init__(self, clock: ManualClock, chances: random.Random, hurry: float) -> None:
        super().__init__()
        self._clock = clock
        self._chances = chances
        self._hurry = hurry
        self._rests = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._hurry and self._chances.random() < self._hurry:
            self._clock.advance(self._chances.choice(HURRIES_MS))
            gc.collect(0)
        if timeout is None:
            raise AssertionError("somebody waits, and nothing will ever happen")
        if timeout > 0:
            self._rests += 1
            assert self._rests < RESTS_MAX, "somebody waits, and nothing happens but timers"
            self._clock.advance(math.ceil(timeout * 1_000))
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop that runs by this clock. Nothing may reach it from a thread.

    `hurry` says how often time passes, and garbage is collected, although there is work.
    """

    def __init__(self, clock: ManualClock, chances: random.Random, hurry: float = 0.0) -> None:
        super().__init__(_Rest(clock, chances, hurry))
        self._simulated = clock

    def time(self) -> float:
        """In seconds, as timers are given them."""
        return self._simulated.monotonic_ms() / 1_000
