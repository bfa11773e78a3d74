"""Starts that must not be: each is refused on one line that says what to do, and leaves everything as it was."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system

NOBODY = 65_534


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one message, its server stopped; to be copied."""
    server = ServerProcess(tmp_path_factory.mktemp("used"))
    server.start()
    server.ask_json("PUT", ORDERS)
    server.ask_json("POST", f"{ORDERS}/publish", {"messages": ["kept"]})
    assert server.stop() == 0
    return server.data


@pytest.fixture
def server(tmp_path: Path, used: Path) -> ServerProcess:
    """A server on a copy of that directory, not started."""
    process = ServerProcess(tmp_path)
    shutil.copytree(used, process.data)
    yield process
    process.kill()


def refusal(server: ServerProcess, *options: str, code: int = 1, port: int = 0) -> str:
    """The one line with which it ends, beside what it tells of its start."""
    server.launch("--set", "log.level=warning", *options, port=port)
    assert server.exit_code() == code, server.tail()
    lines = server.log.read_text().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("basalt: ")
    server.log.unlink()
    return lines[0]


def content(folder: Path) -> dict[str, str]:
    """Every file and a hash of what is in it; but the lock, which names whoever came last, and RocksDB's own talk."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("LO")  # LOCK, LOG, LOG.old
    }


def serves_its_message(server: ServerProcess) -> None:
    server.start()
    assert [one["payload"] for one in server.ask_json("POST", f"{ORDERS}/poll", {})] == ["kept"]
    assert server.stop() == 0


def test_a_port_that_is_taken_is_named_and_the_directory_is_let_go(server: ServerProcess):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(server, port=port, code=6)
    assert f"cannot listen on 127.0.0.1 port {port}" in line
    assert "another process may have it" in line
    serves_its_message(server)


def test_an_address_that_is_not_ours_is_named(server: ServerProcess):
    said = refusal(server, "--host", "192.0.2.1", "--set", "auth.kinds=none", code=6)
    assert "cannot listen on 192.0.2.1 port 0" in said


def test_a_name_that_nobody_has_is_told_with_the_setting(server: ServerProcess):
    line = refusal(server, "--host", "nobody.invalid", code=6)
    assert "cannot listen on nobody.invalid: Name or service not known" in line


def test_an_address_beyond_this_machine_is_refused_until_the_word_is_given(server: ServerProcess):
    line = refusal(server, "--host", "0.0.0.0", code=2)
    assert "setting auth.kinds is not given, and server.host is 0.0.0.0" in line
    assert "BASALT__AUTH__KINDS=none" in line
    serves_its_message(server)


def test_a_port_file_that_cannot_be_written_ends_the_start(server: ServerProcess, tmp_path: Path):
    server.port_file = tmp_path / "nowhere" / "port"
    assert "nowhere/port" in refusal(server)
    server.port_file = tmp_path / "port"
    serves_its_message(server)


def test_a_directory_that_another_process_has_open_is_refused_with_that_process(server: ServerProcess, tmp_path: Path):
    server.start()
    assert server.process is not None
    second = ServerProcess(tmp_path / "second")
    (tmp_path / "second").mkdir()
    second.data = server.data
    line = refusal(second)
    assert f"{server.data} is in use by process {server.process.pid}" in line
    assert "stop that process" in line
    assert server.ask_json("GET", "/readyz")["ready"]
    server.kill()  # a killed process holds nothing
    serves_its_message(second)


def foreign(data: Path) -> str:
    shutil.rmtree(data)
    data.mkdir()
    (data / "thesis.tex").write_text("mine")
    return "thesis.tex"


def a_file(data: Path) -> str:
    shutil.rmtree(data)
    data.write_text("mine")
    return "is a file"


def newer(data: Path) -> str:
    text = (data / "FORMAT").read_text()
    (data / "FORMAT").write_text(text.replace("format: 1", "format: 2"))
    return "is in format 2"


def damaged_format(data: Path) -> str:
    text = (data / "FORMAT").read_text()
    (data / "FORMAT").write_text(text.replace("rocks", "rucks"))
    return str(data / "FORMAT")


def without(name: str) -> Callable[[Path], str]:
    def remove(data: Path) -> str:
        path = next(data.glob(name))
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return str(path)

    return remove


def not_ours(data: Path) -> str:
    """Files that this process may not write: as root of another owner, else without the right."""
    if os.geteuid() == 0:
        os.chown(data / "FORMAT", NOBODY, NOBODY)
        return f"belongs to user {NOBODY}"
    (data / "FORMAT").chmod(0o400)
    return "cannot be read and written"


CASES: list[tuple[str, Callable[[Path], str], int]] = [
    ("something else's", foreign, 1),
    ("a file", a_file, 2),
    ("a newer format", newer, 1),
    ("a damaged FORMAT", damaged_format, 1),
    ("no FORMAT", without("FORMAT"), 1),
    ("no SYNCED", without("SYNCED"), 1),
    ("no database", without("rocks"), 1),
    ("no CURRENT", without("rocks/CURRENT"), 1),
    ("no manifest", without("rocks/MANIFEST-*"), 1),
    ("no table file", without("rocks/*.sst"), 1),
    ("files of others", not_ours, 1),
]


@pytest.mark.parametrize(("damage", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_directory_that_is_not_whole_or_not_ours_is_refused_and_left_alone(
    server: ServerProcess, damage: Callable[[Path], str], code: int
):
    named = damage(server.data)
    before = content(server.data)
    line = refusal(server, code=code)
    assert named in line
    assert content(server.data) == before
