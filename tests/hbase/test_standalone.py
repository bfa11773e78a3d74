"""The standalone HBase that tests, the demo and newcomers start."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import happybase
import pytest

from deploy.hbase.standalone import Standalone
from tests.hbase.gateways import SHORT_LIVED_JAVA

pytestmark = pytest.mark.hbase


@pytest.mark.slow
@pytest.mark.usefixtures("hbase_runtime")
def test_what_was_written_survives_a_sigkill_of_the_whole_hbase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in SHORT_LIVED_JAVA.items():
        monkeypatch.setenv(name, value)
    hbase = Standalone(tmp_path / "hbase")
    rows = {b"%04d" % number: {b"m:x": b"value"} for number in range(200)}
    try:
        with closing(happybase.Connection("127.0.0.1", hbase.start().thrift_port)) as connection:
            connection.create_table("kept", {"m": {}})
            for key, columns in rows.items():
                connection.table("kept").put(key, columns)
        for pid in hbase.pids().values():
            os.kill(pid, signal.SIGKILL)
        with closing(happybase.Connection("127.0.0.1", hbase.start().thrift_port)) as connection:
            assert dict(connection.table("kept").scan()) == rows
    finally:
        hbase.stop()
