"""The only place that reads the time. Everything else is given a `Clock`, or a time as an argument."""

from __future__ import annotations

import time
from typing import Protocol


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
