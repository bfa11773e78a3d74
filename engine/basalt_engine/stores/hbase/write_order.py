"""The order in which writes of a row take effect: the timestamps of their cells, and a lock around taking one.

HBase orders the versions of a cell, and what a delete hides, by timestamps. Were these left to the region servers, a put
in the same millisecond as a delete would vanish behind it. So would a put over a cell that another server wrote with its
clock ahead, as happens when a region moves. So the store gives each write its own timestamp: the epoch of the leader in
the upper bits, a number that grows with every write in the lower ones. A later leader writes above all earlier ones,
whatever the clocks say. Within an epoch the number starts at the time in milliseconds, so that a process that never led
(a tool, or a server that is about to take the lease) follows the one before it too.

A timestamp is taken before its write is sent, and a conditional put is judged when it arrives. If a plain write of the
same row were under way meanwhile, with a higher or lower timestamp, the outcome could be one that no order of the two
explains. So a conditional put runs alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from basalt_engine.errors import InputError

TIME_BITS = 42  # milliseconds until the year 2109
EPOCH_MAX = (1 << (63 - TIME_BITS)) - 2  # a timestamp is a signed 64-bit number, and HBase keeps the highest for itself


class Timestamps:
    """Gives each write of this process a timestamp above all that it gave or saw before."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._last = 0
        self._base = 0

    def lead(self, epoch: int) -> None:
        """From now on give timestamps above all that leaders of lower epochs can have given."""
        if not 0 <= epoch <= EPOCH_MAX:
            raise InputError(f"epoch {epoch} is out of range; the highest is {EPOCH_MAX}")
        with self._lock:
            self._base = epoch << TIME_BITS

    def next(self) -> int:
        """The next write's timestamp."""
        with self._lock:
            self._last = max(self._last + 1, self._base + self._now_ms())
            return self._last

    def saw(self, timestamp: int) -> None:
        """Stay above a timestamp that another process wrote."""
        with self._lock:
            self._last = max(self._last, timestamp)


class SharedWriteLock:
    """Lets any number of plain writes to a table run side by side, or one conditional write alone.

    A waiting conditional write goes before plain writes that come later, so that these cannot keep it out for ever.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain = 0
        self._conditional = False
        self._waiting = 0

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Hold the lock together with other plain writes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._conditional and not self._waiting)
            self._plain += 1
        try:
            yield
        finally:
            with self._changed:
                self._plain -= 1
                self._changed.notify_all()

    @contextmanager
    def conditional(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._conditional and not self._plain)
                self._conditional = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._conditional = False
                self._changed.notify_all()
