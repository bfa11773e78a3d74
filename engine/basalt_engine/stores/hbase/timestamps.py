"""The timestamps of the cells that the store writes. HBase orders versions of a cell, and what a delete hides, by them.

Were they left to the region servers, a put in the same millisecond as a delete would vanish behind it, and so would a put
over a cell that another server wrote with its clock ahead, as happens when a region moves. So the store gives each write
its own: the epoch of the leader in the upper bits, a number that grows with every write in the lower ones. A later leader
writes above all earlier ones, whatever the clocks say. Within an epoch the number starts at the time in milliseconds, so
that a process that never led (a tool, or a server that is about to take the lease) follows the one before it too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

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
        """From now on above everything that leaders of lower epochs can have given."""
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
        """Stay above what another process wrote."""
        with self._lock:
            self._last = max(self._last, timestamp)
