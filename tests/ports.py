"""Ports that are chosen before whoever is to listen on them, as one that two servers take turns at, or that outlives a killed one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(port: int = 0) -> Iterator[int]:
    """A port of 127.0.0.1 on which nobody listens, any or this one. Who names it may listen on it; nobody who asks for any port is given it meanwhile."""
    with socket.socket() as held:
        # Servers set it too, and so may bind the port beside this one.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        yield held.getsockname()[1]
