"""What a server says of itself: what it is, where, what it found, where it answers, and that it stopped."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that was not started."""
    process = ServerProcess(tmp_path)
    yield process
    process.kill()


def lines(server: ServerProcess) -> list[str]:
    """The messages of its log, which is JSON lines where no terminal is."""
    return [json.loads(line)["message"] for line in server.log.read_text().splitlines()]


def test_a_start_tells_version_store_directory_and_address_and_a_stop_that_it_stopped(fresh: ServerProcess):
    fresh.start()
    assert fresh.process is not None
    pid = fresh.process.pid
    assert fresh.stop() == 0
    said = lines(fresh)
    store = re.escape(f"Basalt {basalt.__version__}, process {pid}: opened RocksDB in {fresh.data}")
    assert re.fullmatch(store + r", in \d+ ms", said[0])
    assert re.fullmatch(
        r"recovered transactions in \d+ ms: \d+ log entries .*; 0 transactions go on, 0 are on the invalid list",
        said[1],
    )
    assert re.fullmatch(rf"serves at http://127\.0\.0\.1:{fresh.port}, \d+ ms after its start", said[2])
    assert said[3] == "stops because of SIGTERM, and answers what is open"
    assert re.fullmatch(r"stopped, \d+ s after its start; all that it acknowledged is kept", said[4])
    assert len(said) == 5


def test_a_start_after_a_kill_tells_what_it_recovered(fresh: ServerProcess):
    fresh.start()
    fresh.ask_json("PUT", ORDERS)
    fresh.ask_json("POST", f"{ORDERS}/publish", {"messages": ["x" * 10_000]})
    fresh.ask_json("POST", "/v1/transactions")
    fresh.kill()
    fresh.log.write_bytes(b"")
    fresh.start()
    said = "\n".join(lines(fresh))
    found = re.search(r"was not closed: (\d+) bytes of its log are read again", said)
    assert found is not None
    assert int(found[1]) > 10_000
    assert re.search(r"recovered transactions in \d+ ms: [1-9]\d* log entries were read; 1 transactions go on", said)


def test_a_server_that_listens_beyond_its_machine_warns(fresh: ServerProcess):
    for starts in (1, 2):  # each time
        fresh.start("--host", "0.0.0.0", "--set", "auth.kinds=none", "--set", "log.level=warning")
        said = lines(fresh)
        assert len(said) == starts
        assert said[-1].startswith(
            "listens on 0.0.0.0, beyond this machine, and asks nobody who they are (auth.kinds is none)"
        )
        assert fresh.stop() == 0


def test_a_data_directory_that_others_may_look_into_is_told_of_at_each_start(fresh: ServerProcess):
    fresh.data.mkdir(mode=0o700)
    fresh.data.chmod(0o750)
    fresh.start("--set", "log.level=warning")
    (said,) = lines(fresh)
    assert said == (
        f"other users of this machine may read, enter {fresh.data}, and so every payload in its files: chmod 700 {fresh.data}"
    )


def test_a_server_on_loopback_has_nothing_to_warn_of(fresh: ServerProcess):
    fresh.start("--host", "localhost", "--set", "log.level=warning")
    assert lines(fresh) == []


def test_a_settings_file_is_enough_for_a_start(fresh: ServerProcess, tmp_path: Path):
    file = tmp_path / "basalt.toml"
    file.write_text(f'[server]\ndata = "{tmp_path / "named"}"\nhost = "localhost"\nport = 0\n')
    fresh.names_its_place = False
    fresh.start("--config", os.fspath(file))
    assert (tmp_path / "named" / "FORMAT").exists()
    settings = {each["key"]: each for each in fresh.ask_json("GET", "/v1/admin/settings")}
    data = settings["server.data"]
    assert (data["value"], data["origin"], data["live"]) == (f"{tmp_path}/named", f"file {file}", False)
    assert settings["server.host"]["value"] == "localhost"
