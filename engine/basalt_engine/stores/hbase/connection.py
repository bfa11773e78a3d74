"""One TCP connection to HBase's second Thrift gateway, for one thread at a time: a call, its deadline, and how it ended.

A call that fails tells whether the gateway can have had it: a request that was not sent to its end is never executed,
for the gateway decodes the whole of it first. thriftpy2's compiled protocol and transport are used; its socket is not,
which knows no deadline for a call as a whole.
"""

from __future__ import annotations

import select
import socket
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol

# Of the compiled protocol, and none of the library's other errors; its stubs do not know it.
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TCyBufferedTransport, TTransportException

from basalt_engine.clock import Clock
from basalt_engine.errors import InputError
from basalt_engine.stores.hbase.thrift2 import definitions

types: Any = definitions()

BUFFER_BYTES = 64 * 1024  # what one receive asks for at least; thriftpy2's own 4 KiB make many of a large answer


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
        """False when the gateway has hung up, or sent what nobody asked for. Asks nothing of the gateway."""
        return self._socket.is_quiet()

    def close(self) -> None:
        """Hang up; closing twice is fine."""
        self._socket.close()


def _text(error: Exception) -> str:
    message = getattr(error, "message", None) or "no reason given"
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


class _Socket:
    """What thriftpy2's transport reads from and writes to, within one deadline per call."""

    def __init__(self, address: tuple[str, int], connect_timeout_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._tcp = socket.create_connection(address, timeout=connect_timeout_ms / 1_000)
        self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._deadline_ms = 0.0
        self.asked = False

    def begin(self, timeout_ms: float) -> None:
        """A call starts here, and must be answered in this time."""
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
    """The host and port of `host:port` or `[v6]:port`; `InputError` when it is neither."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise InputError(f"{address!r} is no address of a gateway", hint="write it as host:port")
    return host.strip("[]"), int(port)
