"""A damaged data directory under the real server: refused with the damaged file's name, or all there; never a shorter topic.

A small sample. Every file, and many places in each: tests/engine/stores/test_rocks_damage.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system

# Small ones, and large ones, which RocksDB keeps in a blob file where they are not compressed.
MESSAGES = [f"{number}" * (10_000 if number % 10 == 0 else 10) for number in range(60)]


def publish(server: ServerProcess, messages: list[str]) -> None:
    for message in messages:
        server.ask_json("POST", f"{ORDERS}/publish", {"messages": [message]})


def everything(server: ServerProcess) -> list[str]:
    return [one["payload"] for one in server.ask_json("POST", f"{ORDERS}/poll", {})]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a killed server leaves it: messages in table files, in a blob file and in a log."""
    server = ServerProcess(tmp_path_factory.mktemp("killed"))
    server.start()
    server.ask_json("PUT", ORDERS, {"compression": "none"})
    publish(server, MESSAGES[:30])
    assert server.stop() == 0
    server.start()
    publish(server, MESSAGES[30:])
    server.kill()
    return server.data


@pytest.fixture
def server(tmp_path: Path, killed: Path):
    """A server on a copy of it, not started."""
    process = ServerProcess(tmp_path)
    shutil.copytree(killed, process.data)
    yield process
    process.kill()


def newest(server: ServerProcess, pattern: str) -> Path:
    """The file of this kind that was written last and is not empty."""
    return max(path for path in (server.data / "rocks").glob(pattern) if path.stat().st_size)


def flip(path: Path, part: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * part)] ^= 0x10
    path.write_bytes(content)


def refused(server: ServerProcess) -> str:
    """The one line with which the start ends."""
    server.launch()
    assert server.exit_code() == 1, server.tail()
    text = server.log.read_text()
    assert text.count("\n") == 1, text
    assert "put the data directory back from a backup" in text
    return text


def test_the_killed_directory_is_whole(server: ServerProcess):
    server.start()
    assert everything(server) == MESSAGES


def test_a_write_that_was_torn_by_a_power_failure_is_cut_off_and_told(server: ServerProcess):
    with newest(server, "*.log").open("ab") as log:
        log.write(os.urandom(57))
    server.start()
    assert everything(server) == MESSAGES
    assert "cut 57 bytes of a write that was never acknowledged" in server.log.read_text()


def test_a_log_that_lost_what_was_acknowledged_is_refused(server: ServerProcess):
    log = newest(server, "*.log")
    os.truncate(log, log.stat().st_size - 20)
    assert str(log) in refused(server)


def test_a_log_is_repaired_at_the_loss_that_was_shown_and_the_server_starts(server: ServerProcess):
    log = newest(server, "*.log")
    os.truncate(log, log.stat().st_size - 20)
    assert "`basalt repair` tells what can be mended" in refused(server)
    repair = [sys.executable, "-m", "basalt.cli.main", "repair", str(server.data), "-o", "json"]
    shown = json.loads(subprocess.run(repair, check=False, capture_output=True).stdout)
    subprocess.run([*repair, "--accept-loss", shown["loss"]], check=True, capture_output=True)
    server.start()
    left = everything(server)
    assert 0 < len(left) <= len(MESSAGES)
    assert left == MESSAGES[: len(left)]
    publish(server, ["goes on"])


@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*", "CURRENT", "../SYNCED"])
def test_a_flipped_bit_in_what_a_start_reads_is_refused_with_the_files_name(server: ServerProcess, pattern: str):
    path = newest(server, pattern)
    flip(path, 0.0 if pattern == "../SYNCED" else 0.5)
    if pattern == "../SYNCED":  # it has two halves, and one is enough
        flip(path, 0.5)
    assert path.name in refused(server)


def test_a_flipped_bit_in_a_message_is_told_when_it_is_read_and_hides_nothing(server: ServerProcess):
    blob = newest(server, "*.blob")
    flip(blob, 0.5)
    server.launch()
    server.wait_until_ready()
    reply = server.ask("POST", f"{ORDERS}/poll", b"{}", {"Content-Type": "application/json"})
    assert reply.status == 500
    assert reply.json()["code"] == "corruption"
    assert blob.name in reply.json()["detail"]
    assert server.ask_json("POST", f"{ORDERS}/poll", {"limit": 1})[0]["payload"] == MESSAGES[0]
    server.ask_json("POST", f"{ORDERS}/publish", {"messages": ["goes on"]})


def test_a_flipped_bit_in_a_table_file_is_refused_or_told_when_it_is_read(server: ServerProcess):
    for path in (server.data / "rocks").glob("*.sst"):
        flip(path, 0.1)
    server.launch()
    assert server.process is not None
    try:
        server.wait_until_ready()
    except AssertionError:
        assert server.exit_code() == 1
        assert ".sst" in server.log.read_text()
        return
    reply = server.ask("POST", f"{ORDERS}/poll", b"{}", {"Content-Type": "application/json"})
    assert (reply.status, reply.json()["code"]) == (500, "corruption")
