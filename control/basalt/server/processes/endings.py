"""Ends of runs, written for servers whose process is gone: their leases and memberships are ended, on a thread with a handle on the store of its own.

A gateway that is away is asked again for as long as it would matter: after two leases the others have found out by themselves.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from basalt.cluster.ended_run import end_run
from basalt_engine.clock import Clock
from basalt_engine.errors import BasaltError
from basalt_engine.system import SystemTable
from basalt_engine.table import Store

LEASES_MAX = 2  # the time within which the end of a run is written down, or not at all
RETRY_S = 0.2
CLOSE_S = 1.0  # for what is under way when the supervisor ends

log = logging.getLogger("basalt.supervisor")


class Endings:
    """Ends runs, in the order in which they are given. `write` is for its thread, and for tests that have none."""

    def __init__(self, open_store: Callable[[], Store], clock: Clock, lease_ms: int, look: Callable[[], None]) -> None:
        self._open_store = open_store
        self._clock = clock
        self._lease_ms = lease_ms
        self._look = look
        self._store: Store | None = None
        self._gone: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="basalt-endings", daemon=True)

    def start(self) -> None:
        """Open the store, and wait for runs to end."""
        self._thread.start()

    def end(self, run: str) -> None:
        """Have it written down that the process of this run is gone."""
        self._gone.put(run)

    def close(self) -> None:
        """Write down what is left, if that is done in a moment."""
        self._gone.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self._closing.set()

    def write(self, run: str) -> bool:
        """Write the end of one run, and have the others look; False where the store does not answer."""
        began_ms = self._clock.monotonic_ms()
        try:
            store = self._opened()
            system = SystemTable(store.table(SystemTable.name))
            # Regions with Basalt's coprocessor keep the fence as well as the retention.
            ended = end_run(system, run, self._clock.now_ms(), fenced=store.applies_retention)
        except BasaltError as error:
            log.warning("the end of the run %s could not be written yet: %s", run, error.message)
            return False
        self._look()
        took_ms = self._clock.monotonic_ms() - began_ms
        if ended.epoch is not None:
            log.info("freed the lease of the run %s under epoch %d, in %d ms", run, ended.epoch, took_ms)
        elif ended.memberships:
            log.info("ended the membership of the run %s, in %d ms", run, took_ms)
        elif not store.applies_retention:
            log.info(
                "the run %s ends when its lease is over: without Basalt's coprocessor nothing keeps late writes out",
                run,
            )
        return True

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def _run(self) -> None:
        try:
            self._opened()  # before it is needed
        except BasaltError as error:
            log.warning("the store cannot be opened yet: %s", error.message)
        for run in iter(self._gone.get, None):
            until_ms = self._clock.monotonic_ms() + LEASES_MAX * self._lease_ms
            while not self._try(run) and self._clock.monotonic_ms() < until_ms and not self._closing.wait(RETRY_S):
                pass
        if self._store is not None:
            self._store.close()

    def _try(self, run: str) -> bool:
        try:
            return self.write(run)
        except Exception:  # the next run's end must be written all the same
            log.exception("the end of the run %s could not be written", run)
            return True
