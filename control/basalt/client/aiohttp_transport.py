"""The async transport: aiohttp, told to leave retries, redirects, cookies and decompression alone.

Why this library: docs/decisions/0005-client-transport.md. Nothing is ever sent twice here; that is decided in `attempts`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping

import aiohttp
from yarl import URL

from basalt.client import traces
from basalt.client.attempts import Send
from basalt.client.credential import TokenAwayError
from basalt.client.http_transport import CONNECT_MS_MAX, IDLE_MS_MAX
from basalt.client.kerberos import Sign
from basalt.client.plans import Answer, AnswerLost, NoCredential, NotHttp, NotSent, Reply
from basalt.client.servers import ServerUrl
from basalt.client.tls import TlsContext

CONNECTIONS_MAX = 100  # at a time; what exceeds it waits its turn within its deadline
PIECE_BYTES = 256 * 1024  # larger bodies are sent in pieces, so that the event loop turns in between
READ_BUFFER_BYTES = 1 << 20  # with aiohttp's own 64 KiB an answer of 10 MiB stops and goes a hundred times


class _AnswerLostError(Exception):
    """A connection broke under a request. No aiohttp error: it would send some of those again by itself."""


class AiohttpTransport:
    """Sends requests to one server from one event loop, the one that first sends."""

    def __init__(
        self,
        url: ServerUrl,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | TlsContext | None,
        sign: Sign | None = None,
    ) -> None:
        self._url = url
        self._sign = sign
        self._headers = {"Accept-Encoding": "identity", **headers}
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def send(self, request: Send) -> Reply:
        """Send the request once, over a kept connection or a new one."""
        if self._closed:
            raise RuntimeError("this client is closed; connect again")
        span, tracing = traces.begun(request, self._url)
        reply: Reply | None = None
        try:
            reply = await self._exchange(request, tracing)
            return reply
        finally:
            traces.ended(span, reply)

    async def _exchange(self, request: Send, tracing: dict[str, str]) -> Reply:
        if self._session is None:
            self._session = self._open()  # here, for a session belongs to the loop that it is made in
        tls = self._tls
        if isinstance(tls, TlsContext):
            if tls.due:
                await asyncio.to_thread(tls.look)
            tls = tls.context
        headers = {**self._headers, **request.headers, **tracing}
        data: bytes | AsyncIterator[bytes] | None = request.body or None
        if len(request.body) > PIECE_BYTES:
            headers["Content-Length"] = str(len(request.body))
            data = _pieces(request.body)
        try:
            async with self._session.request(
                request.method,
                URL(self._url.text + request.target, encoded=True),
                data=data,
                headers=headers,
                allow_redirects=False,
                ssl=True if tls is None else tls,
                timeout=aiohttp.ClientTimeout(
                    total=max(0.001, request.timeout_ms / 1_000), sock_connect=CONNECT_MS_MAX / 1_000
                ),
            ) as response:
                return Answer(response.status, _headers(response), await response.read())
        except TokenAwayError as away:
            return NoCredential(str(away))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return NotSent(_reason(error))
        except TimeoutError:
            # It may have come while connecting; taking it for sent errs on the safe side.
            return AnswerLost(f"no answer within {request.timeout_ms:.0f} ms")
        except aiohttp.ClientResponseError as error:
            return NotHttp(error.message)
        except (_AnswerLostError, aiohttp.ClientError, OSError) as error:
            return AnswerLost(_reason(error))

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_MS_MAX / 1_000)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Content-Type",),  # it would name one for a POST without a body
            read_bufsize=READ_BUFFER_BYTES,
            middlewares=(_never_again,),
            request_class=aiohttp.ClientRequest if self._sign is None else _signing(self._sign, self._url.host),
        )


async def _never_again(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    # aiohttp sends a PUT or DELETE again by itself when a kept connection breaks under it. A topic created twice is an
    # error, so what it would catch leaves here as something else. What came before the connection was made stays.
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _AnswerLostError(str(error)) from error


def _signing(sign: Sign, host: str) -> type[aiohttp.ClientRequest]:
    """The requests that carry a credential of their own, made for the connection that each is sent over."""

    class Signed(aiohttp.ClientRequest):
        async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
            over_tls = None if conn.transport is None else conn.transport.get_extra_info("ssl_object")
            certificate = None if over_tls is None else over_tls.getpeercert(binary_form=True)
            self.headers["Authorization"] = await asyncio.to_thread(sign, host, certificate)
            return await super().send(conn)

    return Signed


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
        await asyncio.sleep(0)


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
