"""The connections to the gateway that the store's threads share: a bounded number, looked at before each use.

A connection that the gateway hung up while it was idle is noticed without a round trip; one that was idle for longer is
asked for a sign of life, because a machine or a firewall on the way may have forgotten it without a word.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from basalt_engine.clock import Clock, SystemClock
from basalt_engine.errors import StoreError
from basalt_engine.stores.hbase.connection import Connection, LostError, RefusedError

CONNECTIONS_MAX = 32  # the gateway keeps a thread for each; a server has some twenty threads that call the store
CONNECT_TIMEOUT_MS = 2_000  # a gateway that is there answers in milliseconds
LEND_TIMEOUT_MS = 10_000  # for how long a caller waits while all connections are in use
PING_AFTER_IDLE_MS = 10_000
PING_TIMEOUT_MS = 2_000


class ConnectionPool:
    """Lends connections to threads. The one used last is lent first, so that spare ones grow old and are closed."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        connections_max: int = CONNECTIONS_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._slots = threading.BoundedSemaphore(connections_max)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """A connection that was fit for use just now. `LostError` when none can be had, `StoreError` when closed."""
        self._check_open()
        if not self._slots.acquire(timeout=LEND_TIMEOUT_MS / 1_000):
            raise LostError(f"all connections were in use for {LEND_TIMEOUT_MS} ms", asked=False)
        try:
            connection = self._take() or Connection(self._address, CONNECT_TIMEOUT_MS, self._clock)
            try:
                yield connection
            finally:
                self._put_back(connection)
        finally:
            self._slots.release()

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or self._is_alive(connection):
                return connection
            connection.close()

    def _is_alive(self, connection: Connection) -> bool:
        if not connection.is_usable():
            return False
        if self._clock.monotonic_ms() - connection.used_ms < PING_AFTER_IDLE_MS:
            return True
        try:
            connection.call("getThriftServerType", (), PING_TIMEOUT_MS)
        except RefusedError:
            return True  # an old gateway that does not know the call is alive as well
        except LostError:
            return False
        return True

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and connection.is_usable():
                self._idle.append(connection)
                return
        connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the HBase store is closed", hint="open a new store")

    def close(self) -> None:
        """Hang up; calls that are under way end as they do. Closing twice is fine."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
