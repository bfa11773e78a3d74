"""What tests of two servers share: tables with the coprocessor, and the servers on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.hbase.standalone import Gateways
from tests.hbase.server_pair import Installation, Pair, install, names, serves, until
from tests.hbase.tables import Tables
from tests.system.server_process import ServerProcess


@pytest.fixture(scope="module")
def guarded(hbase_gateways: Gateways, coprocessor_jar: Path) -> Iterator[Installation]:
    """Tables with the coprocessor."""
    prefix = f"pair-{os.getpid()}"
    try:
        yield install(hbase_gateways, prefix, "--jar", f"file:{coprocessor_jar}", "--refresh-interval", "1s")
    finally:
        Tables(hbase_gateways.thrift2, prefix).drop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    servers = Pair(tmp_path)
    yield servers
    servers.close()


@pytest.fixture
def two(pair: Pair, guarded: Installation) -> tuple[ServerProcess, ServerProcess]:
    """A leader, which has all topics while it lives, and a standby that knows it."""
    leader = pair.start(*guarded.still())
    until(lambda: serves(leader), leader)
    standby = pair.start(*guarded.still())
    until(lambda: names(standby, leader), standby)
    return leader, standby
