"""Connections to HBase's second Thrift gateway: one of them, for one thread at a time, and the pool that threads share.

A call that fails tells whether the gateway can have had it: a request that was not sent to its end is never executed,
because the gateway decodes the whole of it first. thriftpy2's compiled protocol and transport are used, but not its
socket, which has no deadline for a call as a whole.

The pool looks at a connection before each use. One that the gateway closed while it was idle is noticed without a round
trip. One that was idle for longer is asked for a sign of life, because a machine or a firewall on the way may have
dropped it without a word.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol

# Of the compiled protocol, and none of the library's other errors; its stubs do not know it.
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TCyBufferedTransport, TTransportException

from basalt_engine.clock import Clock, SystemClock
from basalt_engine.errors import InputError, StoreError
from basalt_engine.stores.hbase.thrift2 import definitions

types: Any = definitions()

BUFFER_BYTES = 64 * 1024  # what one receive asks for at least; thriftpy2's own 4 KiB cut a large answer into many
CONNECT_TIMEOUT_MS = 2_000  # a gateway that is there answers in milliseconds
LEND_TIMEOUT_MS = 10_000  # for how long a caller waits while all connections are in use
PING_AFTER_IDLE_MS = 10_000
PING_TIMEOUT_MS = 2_000


class LostError(Exception):
    """The connection failed during a call. `asked`: the request was sent, so the gateway may have carried it out."""

    def __init__(self, message: str, *, asked: bool) -> None:
        super().__init__(message)
        self.asked = asked


class RefusedError(Exception):
    """HBase, or the gateway itself, answered with an error."""


class Connection:
    """An open connection. After a `LostError` it is closed."""

    def __init__(self, address: tuple[str, int], connect_timeout_ms: int, clock: Clock) -> None:
        self._clock = clock
        try:
            self._socket = _Socket(address, connect_timeout_ms, clock)
        except OSError as error:
            raise LostError(error.strerror or str(error) or type(error).__name__, asked=False) from error
        transport = TCyBufferedTransport(self._socket, BUFFER_BYTES)
        protocol = TCyBinaryProtocol(transport, decode_response=False)  # type: ignore[no-untyped-call]
        self._client = TClient(types.THBaseService, protocol)
        self.used_ms = self._clock.monotonic_ms()

    def call(self, method: str, arguments: tuple[object, ...], timeout_ms: float) -> Any:
        """The gateway's answer; `LostError` or `RefusedError`."""
        self._socket.begin(timeout_ms)
        whole = False
        try:
            answer = getattr(self._client, method)(*arguments)
            whole = True
            return answer
        except (types.TIOError, TApplicationException) as error:
            whole = True
            raise RefusedError(_text(error)) from error
        except (OSError, EOFError, TTransportException, TProtocolException, ProtocolError) as error:
            raise LostError(str(error) or type(error).__name__, asked=self._socket.asked) from error
        finally:
            self.used_ms = self._clock.monotonic_ms()
            if not whole:
                self.close()  # an answer may still be on its way, and would be taken for the next call's

    def is_usable(self) -> bool:
        """False when the gateway has hung up, or sent bytes that nobody asked for. Sends nothing to the gateway."""
        return self._socket.is_quiet()

    def close(self) -> None:
        """Hang up; closing twice is fine."""
        self._socket.close()


class ConnectionPool:
    """Lends a bounded number of connections to threads. The one used last is lent first, so spare ones grow old and are closed."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        connections_max: int,
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
        """A connection that was found usable just now. `LostError` when none can be had, `StoreError` when the pool is closed."""
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


def _text(error: Exception) -> str:
    message = getattr(error, "message", None) or "no reason given"
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


class _Socket:
    """A TCP socket for thriftpy2's transport, with one deadline for each call."""

    def __init__(self, address: tuple[str, int], connect_timeout_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._tcp = socket.create_connection(address, timeout=connect_timeout_ms / 1_000)
        self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._deadline_ms = 0.0
        self.asked = False

    def begin(self, timeout_ms: float) -> None:
        """Start a call, which must be answered within this time."""
        self._deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self.asked = False

    def _wait(self) -> None:
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError("timed out")
        self._tcp.settimeout(left_ms / 1_000)

    def read(self, size: int) -> bytes:
        """At least one byte and at most `size` of them."""
        self._wait()
        data = self._tcp.recv(size)
        if not data:
            raise EOFError("the gateway hung up")
        return data

    def write(self, data: bytes) -> None:
        """All of the bytes: a part of a request."""
        self._wait()
        self._tcp.sendall(data)

    def flush(self) -> None:
        """The request is whole."""
        self.asked = True

    def is_quiet(self) -> bool:
        if self._tcp.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._tcp, select.POLLIN)
        return not poll.poll(0)

    def is_open(self) -> bool:
        return self._tcp.fileno() >= 0

    def close(self) -> None:
        self._tcp.close()


def parse_address(address: str) -> tuple[str, int]:
    """The host and port of `host:port` or `[v6]:port`; `InputError` for anything else."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise InputError(f"{address!r} is no address of a gateway", hint="write it as host:port")
    return host.strip("[]"), int(port)
