"""One client for each process and server: a Python worker of Spark runs many tasks, one after another.

What is kept is a client's idle connections. A worker is forked from Spark's daemon; the transport opens connections of
its own after a fork, and nothing here holds a lock across one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import basalt
from basalt.errors import InputError

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client import Client


class Server(NamedTuple):
    """Which server, and how to speak to it: all that a task needs to connect. Never holds a secret, for it is pickled."""

    url: str
    namespace: str = "default"
    token_variable: str | None = None
    timeout_ms: int = 30_000


_clients: dict[Server, Client] = {}


def client_of(server: Server) -> Client:
    """The client of this process for that server. It is never closed: it ends with the process."""
    client = _clients.get(server)
    if client is None:
        # Two threads that both come here make two clients, and one is dropped before it has opened anything.
        client = _clients.setdefault(server, _connect(server))
    return client


def _connect(server: Server) -> Client:
    return basalt.connect(
        server.url, namespace=server.namespace, timeout_ms=server.timeout_ms, headers=_headers(server.token_variable)
    )


def _headers(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    token = os.environ.get(variable, "").strip()
    if not token:
        raise InputError(
            f"option tokenEnv names the environment variable {variable}, which is not set in this process:"
            " set it for the driver and for every executor (spark.executorEnv.*)",
            field="tokenEnv",
        )
    return {"authorization": f"Bearer {token}"}
