"""Makes clients: of a server at a URL, or of any transport."""

from __future__ import annotations

import random
import secrets
import ssl
import time
from collections.abc import Mapping

from basalt.client.asynchronous.client import AsyncClient
from basalt.client.asynchronous.driver import AsyncDriver, AsyncRedirectingTransport, AsyncTransport
from basalt.client.blocking.client import Client
from basalt.client.blocking.driver import Driver, RedirectingTransport, Transport
from basalt.client.plans.replies import ATTEMPTS_MAX, TIMEOUT_MS_DEFAULT, RetryPolicy
from basalt.client.plans.run_plan import Environment
from basalt.client.plans.scopes import ClientScope
from basalt.client.transport.http_transport import HttpTransport
from basalt.client.transport.servers import EMBEDDED_SCHEME, ServerUrl, parse_urls, shown
from basalt.errors import InputError
from basalt_engine.clock import Clock, SystemClock

NAMESPACE_DEFAULT = "default"


def connect(
    url: str,
    *,
    namespace: str = NAMESPACE_DEFAULT,
    timeout_ms: int = TIMEOUT_MS_DEFAULT,
    attempts_max: int = ATTEMPTS_MAX,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Client:
    """Make a client of the server (or servers) at this URL; see `basalt.connect`, which also takes `embedded:`. Nothing is sent yet."""
    clock = SystemClock()
    servers = _parse_server_urls(url)

    def open_one(server: ServerUrl) -> HttpTransport:
        return HttpTransport(server, headers=headers or {}, tls=tls, monotonic_ms=clock.monotonic_ms)

    transport = RedirectingTransport(servers, open_one, clock.monotonic_ms)
    return client_of(transport, shown(servers), namespace, policy(timeout_ms, attempts_max), clock)


def connect_async(
    url: str,
    *,
    namespace: str = NAMESPACE_DEFAULT,
    timeout_ms: int = TIMEOUT_MS_DEFAULT,
    attempts_max: int = ATTEMPTS_MAX,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncClient:
    """Make an async client of the server (or servers) at this URL; see `basalt.aio.connect`. Nothing is sent yet."""
    from basalt.client.transport.aiohttp_transport import AiohttpTransport  # large: blocking clients do without it

    clock = SystemClock()
    servers = _parse_server_urls(url)

    def open_one(server: ServerUrl) -> AiohttpTransport:
        return AiohttpTransport(server, headers=headers or {}, tls=tls)

    transport = AsyncRedirectingTransport(servers, open_one, clock.monotonic_ms)
    return async_client_of(transport, shown(servers), namespace, policy(timeout_ms, attempts_max), clock)


def client_of(transport: Transport, url: str, namespace: str, retries: RetryPolicy, clock: Clock) -> Client:
    """Make a client over this transport; `url` is for error messages."""
    driver = Driver(transport, _environment(url, retries, clock), time.sleep)
    return Client(ClientScope(namespace, clock.now_ms), driver)


def async_client_of(
    transport: AsyncTransport, url: str, namespace: str, retries: RetryPolicy, clock: Clock
) -> AsyncClient:
    """Make an async client over this transport; `url` is for error messages."""
    import asyncio  # here, because a blocking client need not load it

    driver = AsyncDriver(transport, _environment(url, retries, clock), asyncio.sleep)
    return AsyncClient(ClientScope(namespace, clock.now_ms), driver)


def policy(timeout_ms: int, attempts_max: int) -> RetryPolicy:
    """Make the policy of retries. `InputError` for a time-out or a number of attempts below 1."""
    for name, value in (("timeout_ms", timeout_ms), ("attempts_max", attempts_max)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be 1 or more", field=name)
    return RetryPolicy(timeout_ms=timeout_ms, attempts_max=attempts_max)


def _environment(url: str, retries: RetryPolicy, clock: Clock) -> Environment:
    return Environment(retries, url, clock.monotonic_ms, random.random, lambda: secrets.token_hex(16))


def _parse_server_urls(url: str) -> tuple[ServerUrl, ...]:
    if url.startswith(EMBEDDED_SCHEME):
        raise InputError(f"{url!r} is no server", field="url", hint="Use basalt.connect or basalt.aio.connect for it.")
    return parse_urls(url)
