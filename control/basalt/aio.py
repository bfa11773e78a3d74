"""Connects the async client: `basalt.aio.connect(url)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from basalt.client import AsyncClient

__all__ = ["connect"]


def connect(
    url: str,
    *,
    namespace: str = "default",
    timeout_ms: int = 30_000,
    attempts_max: int = 10,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncClient:
    """The async twin of `basalt.connect`, with the same arguments: `async with basalt.aio.connect(url) as client:`.

    A client belongs to the event loop in which it is first used.
    """
    if url.startswith("embedded:"):
        from basalt.embedded import connect_embedded_async

        return connect_embedded_async(
            url,
            namespace=namespace,
            timeout_ms=timeout_ms,
            attempts_max=attempts_max,
            headers=headers or {},
            settings=settings or {},
        )
    from basalt import client

    return client.connect_async(
        url, namespace=namespace, timeout_ms=timeout_ms, attempts_max=attempts_max, headers=headers, tls=tls
    )
