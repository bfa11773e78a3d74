"""Calls to HBase's second Thrift gateway, tried again where that is safe: the one place that turns failures into the SPI's errors.

Reads are tried again on any lost connection. So are puts and deletes: each carries its own timestamp, so it has the same
effect whether it is carried out once or twice, and whenever the first one arrives. A conditional put is sent again only
when the gateway cannot have read it to its end; else its caller looks whether it took effect. A request that was not sent
to its end is never executed, because the gateway decodes the whole of it first. thriftpy2's compiled protocol and transport
are used, but not its socket, which has no deadline for a call as a whole.

HBase's own client, in the gateway, pauses between its tries: for 4 s, and then 10 s, once a region was away for two. A new call does
not wait for the end of such a pause. So whoever has a lease to renew makes a call that waits over further connections, too, and goes
by the first answer.

A pool lends connections to threads, and looks at each before its use. One that the gateway closed while it was idle is
noticed without a round trip. One that was idle for longer is asked for a sign of life, because a machine or a firewall on
the way may have dropped it without a word. One whose Kerberos ticket ends is replaced.

The gateway passes on the text of a Java exception, so HBase's refusals are told apart by their words alone.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, NamedTuple

from thriftpy2.protocol import TCyBinaryProtocol

# Of the compiled protocol, and none of the library's other errors; its stubs do not know it.
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TCyBufferedTransport, TTransportException

from basalt_engine.clock import Clock, Durations, SystemClock, stage
from basalt_engine.errors import BasaltError, FencedError, InputError, StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase import definitions, without_package
from basalt_engine.stores.hbase.gateway_socket import GatewaySocket, SaslSocket
from basalt_engine.stores.hbase.kerberos import KerberosError, KerberosLogin

types: Any = definitions()

BUFFER_BYTES = 64 * 1024  # what one receive asks for at least; thriftpy2's own 4 KiB cut a large answer into many
CONNECT_TIMEOUT_MS = 2_000  # a gateway that is there answers in milliseconds
LEND_TIMEOUT_MS = 10_000  # for how long a caller waits while all connections are in use
PING_AFTER_IDLE_MS = 10_000
PING_TIMEOUT_MS = 2_000
TRIES_MAX = 4
PAUSE_MS = 50  # before the second try, doubled before each further one; a random part of up to as much is added
CALL_TIMEOUT_MS = 10_000  # one try; a region that moves is away for a few seconds
TOTAL_MS_MAX = 15_000  # all tries together, after which the caller knows that the store is away
# Of one call that is made over and over while it waits. They begin a twelfth of a lease after each other, and a lease that was not
# renewed for ten of these is over for its holder.
CALLS_AT_A_TIME_MAX = 10

FENCED = "basalt fenced"  # says the coprocessor when a newer leader writes
REFUSED = "basalt refused"  # says the coprocessor when a writer has outlived its transaction
_FAILED_ACTIONS = re.compile(r"Failed (\d+) actions?:")
_TEXT_CHARS_MAX = 500
INSTALL = "make the tables with `basalt hbase install`, or set store.hbase.prefix to what they start with"


class NoTableError(StoreError):
    """HBase has no table of this name."""


class PoolFigures(NamedTuple):
    """The connections of one pool now; and how often a caller had to wait, for all were lent."""

    lent: int
    idle: int
    connections_max: int
    waits: int


OUTCOMES = ("answered", "refused", "lost")  # of a call


class CallFigures:
    """Calls of one gateway: how long each try took, and how it ended. Any thread may add one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.durations = Durations()
        self.ended: Counter[tuple[str, str]] = Counter()  # by method and outcome

    def add(self, method: str, outcome: str, duration_ms: float) -> None:
        """A try has ended."""
        with self._lock:
            if (
                method,
                outcome,
            ) not in self.ended:  # from 0 on, so that whoever compares two scrapes sees the first one
                self.ended.update({(method, each): 0 for each in OUTCOMES})
            self.ended[method, outcome] += 1
            self.durations.add(duration_ms / 1_000)


class Gateway:
    """Makes calls over pooled connections. Any thread may use it.

    `again_ms`: a call that has no answer after so long is made over another connection as well, and after as long again over a third. For
    rows of which no value ever comes again, as that of a lease: a conditional write that arrives late finds another one.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        address: str,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        tries_max: int = TRIES_MAX,
        again_ms: float | None = None,
    ) -> None:
        self._pool = pool
        self.address = address
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._tries_max = tries_max
        self._again_ms = again_ms
        self._threads = (
            None if again_ms is None else ThreadPoolExecutor(CALLS_AT_A_TIME_MAX, thread_name_prefix="basalt-gateway")
        )
        self.calls = CallFigures()

    @property
    def pool(self) -> PoolFigures:
        """The connections now."""
        return self._pool.figures()

    def read(self, method: str, table: bytes, *arguments: object) -> Any:
        """The answer to a read; `StoreError` when no try got one."""
        try:
            return self._try(method, (table, *arguments), again_when_asked=True, may_double=True)
        except RefusedError as error:
            raise refused_read(str(error), table.decode()) from error
        except LostError as error:
            raise self._away(error) from error

    def write(self, method: str, table: bytes, *arguments: object, rows: int) -> None:
        """Make a write of so many rows that may be made twice; `StoreError` or `UnknownOutcomeError`."""
        self._write(method, table, arguments, rows, again_when_asked=True, may_double=True)

    def write_once(self, method: str, table: bytes, *arguments: object, may_double: bool = False) -> Any:
        """Make a write that is not sent again once the gateway may have it; `StoreError` or `UnknownOutcomeError`.

        `may_double`: its condition refuses a double of it, however late, so it may be made over another connection while it waits.
        """
        return self._write(method, table, arguments, 1, again_when_asked=False, may_double=may_double)

    def _write(
        self, method: str, table: bytes, arguments: tuple[object, ...], rows: int, *, again_when_asked: bool, may_double: bool,
    ) -> Any:  # fmt: skip
        try:
            return self._try(method, (table, *arguments), again_when_asked=again_when_asked, may_double=may_double)
        except RefusedError as error:
            raise refused_write(str(error), table.decode(), rows) from error
        except LostError as error:
            raise (self._unknown(error) if error.asked else self._away(error)) from error

    def _try(self, method: str, arguments: tuple[object, ...], *, again_when_asked: bool, may_double: bool) -> Any:
        deadline_ms = self._clock.monotonic_ms() + TOTAL_MS_MAX
        asked = False
        for number in range(self._tries_max):
            try:
                if may_double and self._threads is not None:
                    return self._first_answer(self._threads, method, arguments, deadline_ms)
                with self._pool.lent() as connection:
                    return self._call(connection, method, arguments, deadline_ms)
            except LostError as error:
                asked = asked or error.asked
                pause_ms = PAUSE_MS * 2**number
                last = number + 1 == self._tries_max or self._clock.monotonic_ms() + pause_ms >= deadline_ms
                if last or (error.asked and not again_when_asked):
                    raise LostError(f"{method}: {error}", asked=asked, hint=error.hint) from error
                self._sleep(pause_ms * (1 + random.random()) / 1_000)  # noqa: S311 - spreads callers, guards nothing
        raise AssertionError("the last try returns or raises")

    def _first_answer(
        self, threads: ThreadPoolExecutor, method: str, arguments: tuple[object, ...], deadline_ms: float
    ) -> Any:
        """Make the call over one more connection each time that it has waited for `again_ms`; what ends first is its end."""
        assert self._again_ms is not None
        race, begun = _Race(), set[Future[Any]]()

        def run() -> Any:
            with self._pool.lent() as connection, race.runs(connection):
                return self._call(connection, method, arguments, deadline_ms)

        try:
            while True:
                if len(begun) < CALLS_AT_A_TIME_MAX:
                    begun.add(self._submitted(threads, run))
                ended, _ = wait(begun, self._again_ms / 1_000, FIRST_COMPLETED)
                if ended:
                    return min(ended, key=lambda each: each.exception() is not None).result()  # of several, an answer
        except LostError as error:  # of one connection: the call may have been carried out over another, or will be
            raise LostError(str(error), asked=error.asked or len(begun) > 1, hint=error.hint) from error
        finally:
            race.end()

    @staticmethod
    def _submitted(threads: ThreadPoolExecutor, run: Callable[[], Any]) -> Future[Any]:
        try:
            return threads.submit(run)
        except RuntimeError as error:  # the threads have ended
            raise closed() from error

    def _call(
        self, connection: GatewayConnection, method: str, arguments: tuple[object, ...], deadline_ms: float
    ) -> Any:
        start_ms, outcome = self._clock.monotonic_ms(), "lost"
        try:
            with stage(f"hbase {method}"):
                answer = connection.call(method, arguments, min(CALL_TIMEOUT_MS, deadline_ms - start_ms))
            outcome = "answered"
            return answer
        except RefusedError:
            outcome = "refused"
            raise
        finally:
            self.calls.add(method, outcome, self._clock.monotonic_ms() - start_ms)

    def close(self) -> None:
        """Hang up; closing twice is fine."""
        self._pool.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _away(self, error: LostError) -> StoreError:
        return StoreError(
            f"HBase's Thrift 2 gateway at {self.address} does not answer: {error}",
            hint=error.hint
            or "see that `hbase thrift2 start` runs there, that store.hbase.thrift2 names it, and that store.hbase.sasl is what it asks for",
        )

    def _unknown(self, error: LostError) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"HBase's Thrift 2 gateway at {self.address} did not answer a write: {error}",
            hint="the write may have taken effect, and may still do so",
        )


class _Race:
    """The same call over several connections. Those that have not ended with the first one are cut off: a gateway may hold them for long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[GatewayConnection] = set()
        self._is_over = False

    @contextmanager
    def runs(self, connection: GatewayConnection) -> Iterator[None]:
        """The call is made over this connection; `LostError` where it has ended over another one."""
        with self._lock:
            if self._is_over:
                raise LostError("the call has ended over another connection", asked=False)
            self._running.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(connection)

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            for connection in self._running:
                connection.hang_up()


def closed() -> StoreError:
    """The error for a call after the end of the store."""
    return StoreError("the HBase store is closed", hint="open a new store")


def no_table(table: str) -> NoTableError:
    """The error for a table of this name in HBase that is not there."""
    return NoTableError(f"HBase has no table {table}", hint=INSTALL)


def refused_read(text: str, table: str) -> StoreError:
    """The error for a read that HBase refused."""
    if _is_missing(text, table):
        return no_table(table)
    return StoreError(f"HBase cannot read this now: {_short(text)}")


def refused_write(text: str, table: str, rows: int) -> BasaltError:
    """The error for a write that HBase refused, as a whole or in part; `rows` is its size."""
    if _is_missing(text, table):
        return no_table(table)
    failed = _FAILED_ACTIONS.search(text)
    none_written = rows == 1 or (failed is not None and int(failed.group(1)) >= rows)
    if none_written and FENCED in text:
        return FencedError(f"another server leads: {_short(text)}")
    if none_written and REFUSED in text:
        return StoreError(_short(text))
    # HBase tells a write that failed before it was made from one whose answer got lost by nothing that reaches us.
    return UnknownOutcomeError(f"HBase did not say that it has written this: {_short(text)}")


def _is_missing(text: str, table: str) -> bool:
    # Of a TableNotFoundException the gateway passes on the message alone, which is the table's name and nothing else.
    return text.strip() == table or "TableNotFoundException" in text


def _short(text: str) -> str:
    """The exception's message without its stack and its package."""
    line = " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at "))
    line = without_package(line)
    return line if len(line) <= _TEXT_CHARS_MAX else line[:_TEXT_CHARS_MAX] + "…"


class LostError(Exception):
    """The connection failed during a call. `asked`: the request was sent, so the gateway may have carried it out.

    The hint is None where the gateway may just be away.
    """

    def __init__(self, message: str, *, asked: bool, hint: str | None = None) -> None:
        super().__init__(message)
        self.asked = asked
        self.hint = hint


class RefusedError(Exception):
    """HBase, or the gateway itself, answered with an error."""


class GatewayConnection:
    """An open connection, to a gateway that demands Kerberos when there is a login. After a `LostError` it is closed."""

    def __init__(
        self,
        address: tuple[str, int],
        connect_timeout_ms: int,
        clock: Clock,
        login: KerberosLogin | None = None,
        *,
        service: Any = types.THBaseService,
    ) -> None:
        self._clock = clock
        self._socket = _opened(address, connect_timeout_ms, clock, login)
        transport = TCyBufferedTransport(self._socket, BUFFER_BYTES)
        protocol = TCyBinaryProtocol(transport, decode_response=False)  # type: ignore[no-untyped-call]
        self._client = TClient(service, protocol)
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

    def begun(self, timeout_ms: float) -> Any:
        """The client of the service, for one call that must be answered within this time; whoever makes it sees Thrift's own errors."""
        self._socket.begin(timeout_ms)
        return self._client

    def is_usable(self) -> bool:
        """False when the gateway has hung up, or sent bytes that nobody asked for, or its ticket ends. Sends nothing to the gateway."""
        return self._socket.is_quiet() and not self._socket.has_ended()

    def hang_up(self) -> None:
        """Have the call that another thread makes on it fail now; that thread closes it."""
        self._socket.hang_up()

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
        login: KerberosLogin | None = None,
    ) -> None:
        self._address = address
        self._login = login
        self._clock = clock or SystemClock()
        self._slots = threading.BoundedSemaphore(connections_max)
        self._connections_max = connections_max
        self._lock = threading.Lock()
        self._lent = self._waits = 0
        self._idle: list[GatewayConnection] = []
        self._in_use: set[GatewayConnection] = set()
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[GatewayConnection]:
        """A connection that was found usable just now. `LostError` when none can be had, `StoreError` when the pool is closed."""
        self._check_open()
        if not self._slots.acquire(blocking=False):
            with self._lock:
                self._waits += 1
            if not self._slots.acquire(timeout=LEND_TIMEOUT_MS / 1_000):
                raise LostError(f"all connections were in use for {LEND_TIMEOUT_MS} ms", asked=False)
        with self._lock:
            self._lent += 1
        try:
            connection = self._take() or GatewayConnection(self._address, CONNECT_TIMEOUT_MS, self._clock, self._login)
            with self._lock:
                self._in_use.add(connection)
            try:
                yield connection
            finally:
                self._put_back(connection)
        finally:
            with self._lock:
                self._lent -= 1
            self._slots.release()

    def figures(self) -> PoolFigures:
        """The connections now."""
        with self._lock:
            return PoolFigures(self._lent, len(self._idle), self._connections_max, self._waits)

    def _take(self) -> GatewayConnection | None:
        if self._login is not None:
            self._login.renew_early()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or self._is_alive(connection):
                return connection
            connection.close()

    def _is_alive(self, connection: GatewayConnection) -> bool:
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

    def _put_back(self, connection: GatewayConnection) -> None:
        with self._lock:
            self._in_use.discard(connection)
            if not self._closed and connection.is_usable():
                self._idle.append(connection)
                return
        connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed()

    def close(self) -> None:
        """Hang up. A call that is under way is lost, so that no thread waits for a region that does not answer. Closing twice is fine."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._in_use:
                connection.hang_up()
        for connection in idle:
            connection.close()


def _opened(
    address: tuple[str, int], connect_timeout_ms: int, clock: Clock, login: KerberosLogin | None
) -> GatewaySocket:
    try:
        if login is None:
            return GatewaySocket(address, connect_timeout_ms, clock)
        return SaslSocket(address, connect_timeout_ms, clock, login)
    except KerberosError as error:
        raise LostError(str(error), asked=False, hint=error.hint) from error
    except OSError as error:
        raise LostError(error.strerror or str(error) or type(error).__name__, asked=False) from error


def _text(error: Exception) -> str:
    message = getattr(error, "message", None) or "no reason given"
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


def parse_address(address: str) -> tuple[str, int]:
    """The host and port of `host:port` or `[v6]:port`; `InputError` for anything else."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise InputError(f"{address!r} is no address of a gateway", hint="write it as host:port")
    return host.strip("[]"), int(port)
