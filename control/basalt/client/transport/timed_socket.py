"""A socket under one deadline, as `http.client` uses it.

Its own time-out holds for each read, so that a server which sends a byte a minute is never late. Here each read and
write gets what is left of the whole request's time.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable

READ_BUFFER_BYTES = 16_384  # an answer's head and a small body in one read; larger reads pass it by


class TimedSocket:
    """The parts of a socket that `http.client` needs. Set `deadline_ms` before each request."""

    def __init__(self, inner: socket.socket, monotonic_ms: Callable[[], float]) -> None:
        self._inner = inner
        self._monotonic_ms = monotonic_ms
        self._readers = 0
        self._closing = False
        self.deadline_ms = 0.0

    def sendall(self, data: bytes) -> None:
        """Send all of it, or raise TimeoutError at the deadline."""
        self._arm()
        self._inner.sendall(data)

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes, or raise TimeoutError at the deadline."""
        self._arm()
        return self._inner.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What an answer is read from."""
        self._readers += 1
        return io.BufferedReader(_SocketReader(self), READ_BUFFER_BYTES)

    def fileno(self) -> int:
        """The descriptor, to see whether the other side has closed."""
        return self._inner.fileno()

    def close(self) -> None:
        """Close it, once the answer that is being read has been: `http.client` closes before it reads the last one."""
        self._closing = True
        if not self._readers:
            self._inner.close()

    def reader_closed(self) -> None:
        """An answer was read, or given up."""
        self._readers -= 1
        if self._closing:
            self.close()

    def _arm(self) -> None:
        left_ms = self.deadline_ms - self._monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError("the deadline has passed")
        self._inner.settimeout(left_ms / 1_000)


class _SocketReader(io.RawIOBase):
    """Reads the socket; closing it leaves the socket open for the next request."""

    def __init__(self, source: TimedSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed has a wider Buffer here
        return self._source.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._source.reader_closed()
        super().close()
