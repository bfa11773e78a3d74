"""`make hbase-demo` on the HBase of the test run."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.hbase.runtime import ROOT
from deploy.hbase.standalone import Gateways

DEMO_TIMEOUT_S = 500  # a bound for a hang on a loaded machine
LINES = 10_000


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    """The first lines of the log that the environment names, or some of the same kind."""
    if named := os.environ.get("BASALT_ACCESS_LOG"):
        lines = Path(named).read_bytes().splitlines(keepends=True)[:LINES]
    else:
        lines = [
            b'10.0.0.%d - - [17/May/2015:10:00:00 +0000] "GET /%d\xff HTTP/1.1" 200 5\n' % (number % 200, number % 50)
            for number in range(LINES)
        ]
    path = tmp_path / "access.log"
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.hbase
@pytest.mark.system
def test_a_log_is_published_and_counted_exactly_once_on_hbase_through_kills_of_the_server_that_leads(
    tmp_path: Path, access_log: Path, hbase_gateways: Gateways, coprocessor_jar: Path
):
    command = [sys.executable, "-m", "demo.on_hbase", str(access_log), "--folder", str(tmp_path / "demo")]
    command += ["--gateways", f"{hbase_gateways.thrift},{hbase_gateways.thrift2}"]
    command += ["--prefix", f"demo{secrets.token_hex(4)}", "--jar", f"file:{coprocessor_jar}"]
    demo = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEMO_TIMEOUT_S, check=False)

    assert (demo.returncode, demo.stderr) == (0, ""), demo.stdout + demo.stderr
    assert "2 SIGKILLs" in demo.stdout
    assert "None lost, none twice, in order, nothing aborted seen." in demo.stdout
