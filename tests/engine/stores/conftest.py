"""What the tests of the RocksDB store share: a fast directory, and programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from basalt_engine.stores.rocks import RocksStore
from tests.contract.stores import fast_directory

HERE = Path(__file__).parent


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "data"


@pytest.fixture(scope="module")
def place():
    """A directory of the module's own, in memory where there is one."""
    with fast_directory() as directory:
        yield directory


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


@pytest.fixture(scope="module")
def start_program():
    """Starts a program of this directory; kills those that still run at the end of the module."""
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
