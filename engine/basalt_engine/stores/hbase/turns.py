"""Who may write to a table at a time: any number of plain writes, or one conditional one.

HBase orders the cells of a row by their timestamps, and a timestamp is taken before its write is sent. A conditional put
is judged when it arrives; were a plain write of the same row under way meanwhile with a higher or lower timestamp, the
outcome could be one that no order of the two explains.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that plain writes share and a conditional write has to itself; who waits for the latter goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain = 0
        self._conditional = False
        self._waiting = 0

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Together with other plain writes."""
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
        """Alone."""
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
