"""Snapshots that are being read under, outside of any transaction that is still open.

What no reader can see any more may be dropped. An open transaction counts as a reader by itself; a read without one, or one
whose transaction ends before its last row came, counts here for as long as it lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from basalt_engine.snapshot import TransactionSnapshot


class Readers:
    """The reads under way in this process."""

    def __init__(self) -> None:
        self._bounds: Counter[int] = Counter()

    @contextmanager
    def reading(self, snapshot: TransactionSnapshot) -> Iterator[None]:
        """Hold this from when the snapshot was taken until the last row was read."""
        bound = snapshot.in_progress[0] - 1 if snapshot.in_progress else snapshot.read_pointer
        bound = min(bound, snapshot.read_pointer)
        self._bounds[bound] += 1
        try:
            yield
        finally:
            self._bounds[bound] -= 1
            if not self._bounds[bound]:
                del self._bounds[bound]

    def bound(self, visibility_upper_bound: int) -> int:
        """The bound with these readers counted in."""
        return min(visibility_upper_bound, *self._bounds) if self._bounds else visibility_upper_bound
