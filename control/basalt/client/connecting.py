"""Making clients: of a server at a URL, or of any transport."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from basalt.client.async_client import AsyncClient
from basalt.client.blocking_client import Client
from basalt.client.plans.drivers import AsyncDriver, AsyncTransport, BlockingDriver, Transport, surroundings
from basalt.client.plans.retries import ATTEMPTS_MAX, TIMEOUT_MS_DEFAULT, RetryPolicy
from basalt.client.plans.scopes import ClientScope
from basalt.client.transport.http_transport import HttpTransport
from basalt.client.transport.servers import AsyncFollowingTransport, FollowingTransport
from basalt.client.transport.urls import EMBEDDED_SCHEME, ServerUrl, parse_urls, shown
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
    """A client of the server (or servers) at this URL; see `basalt.connect`, which also takes `embedded:`. Nothing is sent yet."""
    clock = SystemClock()
    servers = parse_urls(_of_a_server(url))

    def open_one(server: ServerUrl) -> HttpTransport:
        return HttpTransport(server, headers=headers or {}, tls=tls, monotonic_ms=clock.monotonic_ms)

    transport = FollowingTransport(servers, open_one, clock.monotonic_ms)
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
    """An async client of the server (or servers) at this URL; see `basalt.aio.connect`. Nothing is sent yet."""
    from basalt.client.transport.async_transport import (
        AiohttpTransport,  # a large library, which blocking clients do without
    )

    clock = SystemClock()
    servers = parse_urls(_of_a_server(url))

    def open_one(server: ServerUrl) -> AiohttpTransport:
        return AiohttpTransport(server, headers=headers or {}, tls=tls)

    transport = AsyncFollowingTransport(servers, open_one, clock.monotonic_ms)
    return async_client_of(transport, shown(servers), namespace, policy(timeout_ms, attempts_max), clock)


def client_of(transport: Transport, url: str, namespace: str, retries: RetryPolicy, clock: Clock) -> Client:
    """A client over this transport; `url` is for error messages."""
    return Client(
        ClientScope(namespace, clock.now_ms), BlockingDriver(transport, surroundings(url, retries, clock=clock))
    )


def async_client_of(
    transport: AsyncTransport, url: str, namespace: str, retries: RetryPolicy, clock: Clock
) -> AsyncClient:
    """An async client over this transport; `url` is for error messages."""
    return AsyncClient(
        ClientScope(namespace, clock.now_ms), AsyncDriver(transport, surroundings(url, retries, clock=clock))
    )


def policy(timeout_ms: int, attempts_max: int) -> RetryPolicy:
    """How to retry. `InputError` for a time-out or a number of attempts below 1."""
    for name, value in (("timeout_ms", timeout_ms), ("attempts_max", attempts_max)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be 1 or more", field=name)
    return RetryPolicy(timeout_ms=timeout_ms, attempts_max=attempts_max)


def _of_a_server(url: str) -> str:
    if url.startswith(EMBEDDED_SCHEME):
        raise InputError(f"{url!r} is no server", field="url", hint="Use basalt.connect or basalt.aio.connect for it.")
    return url
