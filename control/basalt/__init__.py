"""Basalt: transactional messaging on HBase, with an embedded default.

`basalt.connect(url)` makes a client, `basalt.aio.connect(url)` an async one. Importing this package loads neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from basalt import aio
    from basalt.client import Client

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "aio", "connect"]


def connect(
    url: str,
    *,
    namespace: str = "default",
    timeout_ms: int = 30_000,
    attempts_max: int = 10,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    settings: Mapping[str, str] | None = None,
) -> Client:
    """A client of the server at `http://HOST:PORT`, or of a store in this process: `embedded:DIRECTORY`.

    Of servers that share a store name several, with commas between them: a call goes to the one that leads.

    Topic names are in `namespace` unless a call says otherwise. Each call has `timeout_ms` and `attempts_max` attempts,
    made only where a second one is safe. `headers` go with every request; `tls` is for https. `settings` are those of an
    embedded server, such as `{"store.kind": "memory"}`. Nothing is sent yet; an embedded store is opened.

    `InputError` for a URL that is neither; what a server would say at its start when a store cannot be opened.
    """
    if url.startswith("embedded:"):
        from basalt.embedded import connect_embedded

        return connect_embedded(
            url,
            namespace=namespace,
            timeout_ms=timeout_ms,
            attempts_max=attempts_max,
            headers=headers or {},
            settings=settings or {},
        )
    from basalt import client

    return client.connect(
        url, namespace=namespace, timeout_ms=timeout_ms, attempts_max=attempts_max, headers=headers, tls=tls
    )


if not TYPE_CHECKING:  # a type checker would take every name for one that exists

    def __getattr__(name: str) -> Any:
        if name == "aio":  # so that `import basalt` is enough for `basalt.aio.connect`
            import importlib

            return importlib.import_module("basalt.aio")
        raise AttributeError(f"module 'basalt' has no attribute {name!r}")
