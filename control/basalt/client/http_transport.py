"""The blocking transport: `http.client` with a pool of kept connections, safe for threads and forks.

Why this library: docs/decisions/0005-client-transport.md. Nothing is ever sent twice here; that is decided in `attempts`.
"""

from __future__ import annotations

import http.client
import io
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from basalt.client import traces
from basalt.client.attempts import Send
from basalt.client.credential import TokenAwayError
from basalt.client.kerberos import Sign
from basalt.client.plans import Answer, AnswerLost, NoCredential, NotHttp, NotSent, Reply
from basalt.client.servers import ServerUrl
from basalt.client.tls import TlsContext
from basalt_engine.clock import SystemClock

IDLE_CONNECTIONS_MAX = 64  # kept for as many threads; a server with more clients than that has better use for them
IDLE_MS_MAX = 4_000  # below the 5 s after which many servers close: no request may meet a connection that just goes
CONNECT_MS_MAX = 5_000  # a host that is gone says nothing; nothing was sent, so another attempt is safe
READ_BUFFER_BYTES = 16_384  # an answer's head and a small body in one read; larger reads pass it by
# A body up to this size goes out with its head, in one piece: a server that gets a small request as a whole does half of the work for it.
JOINED_BYTES_MAX = 65_536
PIECE_BYTES = 262_144  # an answer is read in pieces of this size, through memory that stays in the cache

_monotonic_ms = SystemClock().monotonic_ms


class HttpTransport:
    """Sends requests to one server. Each thread that sends has a connection to itself meanwhile."""

    def __init__(
        self,
        url: ServerUrl,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | TlsContext | None,
        sign: Sign | None = None,
        monotonic_ms: Callable[[], float] = _monotonic_ms,
    ) -> None:
        self._url = url
        self._headers = dict(headers)
        self._sign = sign
        self._tls: ssl.SSLContext | TlsContext | None = None
        if url.scheme == "https":
            self._tls = ssl.create_default_context() if tls is None else tls
        self._monotonic_ms = monotonic_ms
        self._idle: deque[_Connection] = deque()
        self._process = os.getpid()
        self._closed = False

    def send(self, request: Send) -> Reply:
        """Send the request once, over a kept connection or a new one."""
        if self._closed:
            raise RuntimeError("this client is closed; connect again")
        span, tracing = traces.begun(request, self._url)
        reply: Reply | None = None
        try:
            reply = self._exchange(replace(request, headers={**request.headers, **tracing}) if tracing else request)
            return reply
        finally:
            traces.ended(span, reply)

    def _exchange(self, request: Send) -> Reply:
        deadline_ms = self._monotonic_ms() + request.timeout_ms
        connection = self._kept()
        if connection is None:
            try:
                connection = self._connect(min(request.timeout_ms, CONNECT_MS_MAX))
            except OSError as error:
                return NotSent(_reason(error))
        try:
            headers = self._signed(connection)
            if self._sign is not None and self._monotonic_ms() >= deadline_ms:
                raise TokenAwayError("it took as long as the call may take")
            reply, reusable = connection.exchange(request, self._url.prefix, headers, deadline_ms)
        except TokenAwayError as away:
            reply, reusable = NoCredential(str(away)), True
        except BaseException:  # an interrupt: half an answer is on the line, so it carries nothing more
            connection.close()
            raise
        if reusable:
            self._keep(connection)
        else:
            connection.close()
        return reply

    def close(self) -> None:
        """Close every kept connection; those in use close after their answer."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _signed(self, connection: _Connection) -> dict[str, str]:
        if self._sign is None:
            return self._headers
        return {**self._headers, "Authorization": self._sign(self._url.host, connection.certificate)}

    def _keep(self, connection: _Connection) -> None:
        if self._closed or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            connection.idle_since_ms = self._monotonic_ms()
            self._idle.append(connection)

    def _kept(self) -> _Connection | None:
        if os.getpid() != self._process:
            # After a fork both processes hold the same sockets: using one would mix up their answers.
            self._process = os.getpid()
            self._idle = deque()
        while True:
            try:
                connection = self._idle.pop()  # the one used last: the others may go idle and be closed
            except IndexError:
                return None
            if self._monotonic_ms() - connection.idle_since_ms <= IDLE_MS_MAX and connection.is_quiet():
                return connection
            connection.close()

    def _connect(self, timeout_ms: float) -> _Connection:
        timeout_seconds = max(0.001, timeout_ms / 1_000)
        plain = socket.create_connection((self._url.host, self._url.port), timeout_seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            inner = plain if self._tls is None else self._secured(self._tls, plain)
        except BaseException:
            plain.close()
            raise
        return _Connection(self._url, _TimedSocket(inner, self._monotonic_ms))

    def _secured(self, tls: ssl.SSLContext | TlsContext, plain: socket.socket) -> socket.socket:
        if isinstance(tls, TlsContext):
            if tls.due:
                tls.look()
            tls = tls.context
        return tls.wrap_socket(plain, server_hostname=self._url.host)


class _Connection:
    """One connection, and the memory that its answers are read through."""

    def __init__(self, url: ServerUrl, timed: _TimedSocket) -> None:
        self._socket = timed
        self._http = http.client.HTTPConnection(url.host, url.port)
        self._http.auto_open = 0  # it must not connect again behind our back: a second connection is a second attempt
        self._http.sock = timed
        self._poll = select.poll()
        self._poll.register(timed.fileno(), select.POLLIN)
        self._piece = memoryview(bytearray(PIECE_BYTES))
        self.certificate = timed.certificate
        self.idle_since_ms = 0.0

    def is_quiet(self) -> bool:
        """Nothing has come since the last answer: not the close, which is readable too."""
        return not self._poll.poll(0)

    def exchange(
        self, request: Send, prefix: str, headers: Mapping[str, str], deadline_ms: float
    ) -> tuple[Reply, bool]:
        """Send the request and read its answer; and whether the connection can be used again."""
        self._socket.deadline_ms = deadline_ms
        try:
            try:
                self._socket.gathers = len(request.body) <= JOINED_BYTES_MAX
                self._http.request(
                    request.method, prefix + request.target, request.body or None, {**headers, **request.headers}
                )
                self._socket.send_gathered()
            except (BrokenPipeError, ConnectionResetError):
                pass  # a server may refuse a body before its end; then the reason is there to be read
            # Closed here, for what an interrupt raises while a finalizer closes it Python drops without a word.
            with self._http.getresponse() as response:
                answer = Answer(response.status, _headers(response), self._read(response))
        except TimeoutError as error:
            return AnswerLost(f"no answer in time: {error}"), False
        except (http.client.RemoteDisconnected, http.client.IncompleteRead) as error:
            return AnswerLost(f"the connection was closed: {error}"), False
        except http.client.HTTPException as error:
            return NotHttp(f"{type(error).__name__}: {error}"), False
        except OSError as error:
            return AnswerLost(_reason(error)), False
        return answer, not response.will_close

    def close(self) -> None:
        self._http.close()

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        if response.length is not None:
            return response.read()
        # An answer in chunks costs `read()`, which joins them all at the end, three times what it costs here.
        whole = bytearray()
        while count := response.readinto(self._piece):
            whole += self._piece[:count]
        return bytes(whole)


class _TimedSocket:
    """A socket under one deadline, with the parts that `http.client` needs. Set `deadline_ms` before each request.

    A socket's own time-out holds for each read, so that a server which sends a byte a minute would never be late. Here each
    read and write gets what is left of the whole request's time.
    """

    def __init__(self, inner: socket.socket, monotonic_ms: Callable[[], float]) -> None:
        self._inner = inner
        self._monotonic_ms = monotonic_ms
        self._readers = 0
        self._closing = False
        self.certificate = inner.getpeercert(binary_form=True) if isinstance(inner, ssl.SSLSocket) else None
        self.deadline_ms = 0.0
        self.gathers = False  # what is to be sent, until `send_gathered`: `http.client` sends head and body apart
        self._gathered: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        """Send all of it, or raise TimeoutError at the deadline."""
        if self.gathers:
            self._gathered.append(data)
            return
        self._arm()
        self._inner.sendall(data)

    def send_gathered(self) -> None:
        """Send what was gathered, in one piece."""
        self.gathers = False
        if self._gathered:
            whole, self._gathered = b"".join(self._gathered), []
            self.sendall(whole)

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes, or raise TimeoutError at the deadline."""
        self._arm()
        return self._inner.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Make the reader of an answer."""
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

    def __init__(self, source: _TimedSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed has a wider Buffer here
        return self._source.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._source.reader_closed()
        super().close()


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    # As they were read: `getheaders` looks through each name and value for what only mails have.
    return {name.lower(): value for name, value in response.headers.raw_items()}


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
