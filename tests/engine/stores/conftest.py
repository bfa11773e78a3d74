"""What the tests of the RocksDB store share: a fast directory, and programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from basalt_engine.stores.rocks import RocksStore

HERE = Path(__file__).parent
MEMORY_DISK = Path("/dev/shm")


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "data"


@pytest.fixture(scope="module")
def fast_directory():
    """A directory in memory where there is one: tests that open many stores need no disk that they could wait for."""
    place = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="basalt-stores-", dir=place) as path:
        yield Path(path)


@pytest.fixture
def open_store():
    """Opens stores, and closes those that the test has left open."""
    opened = []

    def open_one(*arguments, **keywords):
        opened.append(RocksStore.open(*arguments, **keywords))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def start_program():
    """Starts a program of this directory; kills those that still run at the end."""
    started = []

    def start(name, *arguments):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, str(HERE / name), *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
