"""The fixtures of the tests on Spark beside the session of the run (tests/conftest.py): a server per module, a topic per test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

import basalt
from basalt.client import Client
from tests.system.server_process import ServerProcess

__all__ = ["basalt_client", "basalt_server", "topic"]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def basalt_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of its own for the tests of a module, on RocksDB."""
    server = ServerProcess(tmp_path_factory.mktemp("server"))
    server.start()
    try:
        yield server
    finally:
        if server.alive():
            server.stop()


@pytest.fixture(name="basalt", scope="module")
def basalt_client(basalt_server: ServerProcess) -> Iterator[Client]:
    """A client of the module's server."""
    with basalt.connect(basalt_server.url) as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name that no other test has; the topic is not there yet."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    return f"{name}-{next(_numbers)}"
