"""What all tests with real processes share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.server_process import ORDERS, ServerProcess


@pytest.fixture(scope="session", autouse=True)
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Python may not keep bytecode beside the sources, a place for it: else each of some hundred starts compiles all."""
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE")
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with one topic."""
    process = ServerProcess(tmp_path)
    process.start("--set", "log.level=warning")
    process.ask_json("PUT", ORDERS)
    yield process
    process.kill()
