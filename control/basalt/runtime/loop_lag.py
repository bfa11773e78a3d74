"""The lag of the event loop: how much later than asked for it calls a timer. All that a server does waits as long.

A timer that is late says that something kept the loop: a handler that computes for long, a local store that writes slowly, a machine without a
free core. One look every quarter of a second costs some ten microseconds; a shorter stop than that between two looks is not seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from basalt_engine.clock import Clock, Durations

EVERY_MS = 250  # four looks a second: together some 0.01 % of a core
LOOKS_A_SECOND = 1_000 // EVERY_MS + 1  # as many as there can be between two looks at the figures of the server
LOOKS_KEPT = 240  # a minute's, of which the worst is shown: a scraper that comes every 15 s misses none


class LoopLag:
    """Measures one event loop from `start` to `stop`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=LOOKS_KEPT)
        self._due_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.looks = Durations()

    @property
    def is_measured(self) -> bool:
        """True between start and stop."""
        return self._timer is not None

    @property
    def max_s(self) -> float:
        """The worst lag of the last minute."""
        return max(self._recent, default=0.0)

    @property
    def second_max_s(self) -> float:
        """The worst lag of the last second."""
        return max(islice(reversed(self._recent), LOOKS_A_SECOND), default=0.0)

    @property
    def last_s(self) -> float:
        """The lag at the last look."""
        return self._recent[-1] if self._recent else 0.0

    def start(self) -> None:
        """Measure the running loop. A second call changes nothing."""
        if self._timer is None:
            self._plan(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more; stopping twice is fine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self, now_ms: float) -> None:
        """The timer was called: note by how much it was late."""
        lag_s = max(now_ms - self._due_ms, 0.0) / 1_000
        self._recent.append(lag_s)
        self.looks.add(lag_s)

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_ms = self._clock.monotonic_ms() + EVERY_MS
        self._timer = loop.call_later(EVERY_MS / 1_000, self._called, loop)

    def _called(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look(self._clock.monotonic_ms())
        self._plan(loop)
