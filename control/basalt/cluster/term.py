"""A term: the time in which one server leads, under one epoch. Once over, it stays over.

It is asked from the event loop and from the threads that write; it is extended by the thread that renews the lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from basalt_engine.clock import Clock
from basalt_engine.errors import FencedError


class Term:
    """The time during which this server leads under `epoch`: until its lease runs out, or it is ended."""

    def __init__(self, clock: Clock, epoch: int, until_ms: float) -> None:
        self.epoch = epoch
        self._clock = clock
        self._until_ms = until_ms
        self._over: str | None = None
        self._calls: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def is_on(self) -> bool:
        """True until the lease runs out or the term is ended. Cheap: every request and every write asks."""
        return self._over is None and self._clock.monotonic_ms() < self._until_ms

    def check(self) -> None:
        """`FencedError` unless the lease holds at this moment; one that has run out ends the term."""
        if not self.is_on():
            self.end("its lease ran out")
            raise FencedError(
                f"this server led under epoch {self.epoch} until {self._over}",
                hint="send the call again: it is answered by the server that leads now",
            )

    def extend(self, until_ms: float) -> None:
        """The lease was renewed. A term that is over takes no notice."""
        with self._lock:
            if self._over is None and self._clock.monotonic_ms() < self._until_ms:
                self._until_ms = until_ms

    def end(self, why: str) -> None:
        """It is over, for this reason; a second reason counts for nothing."""
        with self._lock:
            if self._over is not None:
                return
            self._over = why
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    @property
    def over(self) -> str | None:
        """Why it is over; None while nobody has said or noticed so."""
        return self._over

    def when_over(self, call: Callable[[], None]) -> None:
        """Call once it is over, from whichever thread ends it; at once when it is over already."""
        with self._lock:
            if self._over is None:
                self._calls.append(call)
                return
        call()
