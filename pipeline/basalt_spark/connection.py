"""The server and the topics that a process of Spark speaks to: one client for each process and server.

A Python worker of Spark runs many tasks, one after another; what it keeps between them is the client's idle
connections. A worker is forked from Spark's daemon: the transport opens new connections after a fork, and no lock is
held across one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import basalt
from basalt.errors import InputError

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client import Client, Tls, Topic


_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


class Server(NamedTuple):
    """All that a task needs to connect to a server. It is pickled and sent to executors, so it holds no secret: only where each process finds one."""

    url: str
    namespace: str = "default"
    token_variable: str | None = None
    timeout_ms: int = 30_000
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


_clients: dict[Server, Client] = {}


def client_of(server: Server) -> Client:
    """The client of this process for that server. It is never closed: it ends with the process."""
    client = _clients.get(server)
    if client is None:
        # Two threads may make a client each here; one of them is dropped before it has opened a connection.
        made = basalt.connect(
            server.url,
            namespace=server.namespace,
            timeout_ms=server.timeout_ms,
            token=_token(server),
            tls=_tls(server),
        )
        client = _clients.setdefault(server, made)
    return client


def _token(server: Server) -> str | Path | None:
    """The token of this process; None: what BASALT_TOKEN or BASALT_TOKEN_FILE gives, as for any client."""
    if server.token_file is not None:
        return Path(server.token_file)  # which the client reads, and again now and then
    variable = server.token_variable
    if variable is None:
        return None
    if not os.environ.get(variable, "").strip():
        raise InputError(
            f"option tokenEnv names an environment variable{_named(variable)} that is not set in this process:"
            " set it for the driver and for every executor (spark.executorEnv.*)",
            field="tokenEnv",
        )
    return os.environ[variable].strip()


def _tls(server: Server) -> Tls | None:
    if server.ca_file is None and server.cert_file is None:
        return None
    return basalt.Tls(server.ca_file, server.cert_file, server.key_file)


def _named(variable: str) -> str:
    """The variable's name, where it looks like one: by mistake the token itself may have been given for it."""
    return f" {variable}" if _VARIABLE.fullmatch(variable) else " (not shown here: it may be the token itself)"


class QualifiedTopic(NamedTuple):
    """A topic of a namespace; options, offsets and rows write it as `namespace:topic`."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.topic}"


def topic_name(text: str, namespace: str, option: str) -> QualifiedTopic:
    """Parse `topic` or `namespace:topic`; `namespace` is the default."""
    parts = text.strip().split(":")
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise InputError(
            f"option {option}: {text!r} is not the name of a topic: write topic or namespace:topic,"
            " each 1 to 255 of A-Z a-z 0-9 _ - and ., not first a dot",
            field=option,
        )
    return QualifiedTopic(namespace, parts[0]) if len(parts) == 1 else QualifiedTopic(parts[0], parts[1])


def topic_of(server: Server, name: QualifiedTopic) -> Topic:
    return client_of(server).topic(name.topic, namespace=name.namespace)


def instance_of(client: Client) -> str:
    return str(client.admin.store().instance)
