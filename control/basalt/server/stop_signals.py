"""The signals that stop a server: heeded from its first line on, at each stage of its start, and while it serves.

A server that does not serve yet owes nobody an answer. So it says what it was doing and ends at once, however long that would
have taken; what it leaves is what `kill -9` leaves, which every start mends. One that serves drains. Python calls a handler
between two of its own steps: the longest call that cannot be interrupted is RocksDB's reading of its log, half a second of it.

Imports nothing of the server, whose imports are the first stage.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("basalt.server")


class StopSignals:
    """Handles SIGTERM, SIGINT and SIGHUP, which all mean the same, but where something can be read anew: then SIGHUP means that."""

    def __init__(self) -> None:
        self.stage = "it read its settings"  # of the start, for the last line of one that is broken off
        self._drain: Callable[[int], None] | None = None
        self._reload: Callable[[], None] | None = None

    def install(self) -> None:
        """Heed the signals from now on. SIGHUP stays ignored for a server that `nohup` started."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def drain_by(self, drain: Callable[[int], None]) -> None:
        """Call this for a signal from now on: there are clients to be answered."""
        self._drain = drain

    def reload_by(self, reload: Callable[[], None]) -> None:
        """Call this for SIGHUP from now on, also where `nohup` had it ignored: it ends nothing any more."""
        self._reload = reload
        signal.signal(signal.SIGHUP, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._reload is not None and number == signal.SIGHUP:
            self._reload()
            return
        if self._drain is not None:
            log.info("stops because of %s, and answers what is open", name)
            self._drain(number)
            return
        _say(f"stopped by {name} while {self.stage}, before it served")
        os._exit(0)


def _say(line: str) -> None:
    """Log the line, wherever in a call of the log the signal came; on standard error while there is no log yet."""
    try:
        if logging.getLogger().handlers:
            log.warning("%s", line)
            return
        sys.stderr.write(f"basalt: {line}\n")
        sys.stderr.flush()
    except RuntimeError:  # the stream was being written to
        os.write(2, f"basalt: {line}\n".encode())
