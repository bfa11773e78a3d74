"""`basalt serve --background`: the command returns when the server answers, and the server stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from basalt.errors import InvalidSettingError
from basalt.server.background import with_log_file
from basalt.settings import load_settings
from tests.system.server_process import START_SECONDS_MAX, STOP_SECONDS_MAX

pytestmark = pytest.mark.system

BASALT = [sys.executable, "-m", "basalt.cli.main"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which is that of its output, too."""
    return subprocess.run(
        [*BASALT, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=START_SECONDS_MAX, check=False
    )


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory that is not there yet; no server has it open afterwards."""
    directory = tmp_path / "data"
    yield directory
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(pid_of(directory), signal.SIGKILL)


def pid_of(directory: Path) -> int:
    return int((directory / "LOCK").read_text())


def wait_until_gone(pid: int) -> None:
    """Wait until the process has ended, and whoever inherited it has taken note."""
    deadline = time.monotonic() + STOP_SECONDS_MAX
    with suppress(FileNotFoundError, ProcessLookupError):  # it is gone, perhaps between an open and a read
        while "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_it_prints_the_address_and_answers_there_after_the_command_has_ended(data: Path):
    started = run("serve", "--data", str(data), "--port", "0", "--background")
    assert (started.returncode, started.stdout.startswith("http://127.0.0.1:")) == (0, True), started.stderr
    url, pid = started.stdout.strip(), pid_of(data)
    log = data.with_name("data.log")
    assert started.stderr == f"basalt: it runs as process {pid} and logs to {log}; stop it with: kill {pid}\n"
    assert run("topic", "create", "orders", "--url", url).returncode == 0
    os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)
    assert f"serves at {url}" in log.read_text()
    assert "all that it acknowledged is kept" in log.read_text()


def test_it_outlives_its_terminal_and_has_let_go_of_it(data: Path):
    run("serve", "--data", str(data), "--port", "0", "--background")
    pid = pid_of(data)
    assert os.getsid(pid) == pid
    open_files = [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)]
    assert open_files == [os.devnull, *[str(data.with_name("data.log"))] * 2]


def test_a_start_that_is_refused_says_why_where_it_was_started(data: Path):
    run("serve", "--data", str(data), "--port", "0", "--background")
    second = run("serve", "--data", str(data), "--port", "0", "--background")
    assert (second.returncode, second.stdout) == (1, "")
    assert f"{data} is in use by process {pid_of(data)}" in second.stderr
    assert second.stderr.count("\n") == 1


def test_a_signal_to_the_command_that_waits_ends_the_server_too(data: Path):
    command = [
        sys.executable,
        "-m",
        "tests.system.held_start",
        "transactions",
        "serve",
        "--data",
        str(data),
        "--background",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        held.send_signal(signal.SIGTERM)
        out, _ = held.communicate(timeout=STOP_SECONDS_MAX)
    assert (held.returncode, out) == (0, "")
    assert "stopped by SIGTERM while it recovered transactions" in data.with_name("data.log").read_text()
    wait_until_gone(pid_of(data))


def test_without_a_directory_its_log_must_be_named():
    with pytest.raises(InvalidSettingError, match="needs a file for its log"):
        with_log_file(load_settings(["store.kind=memory"]))
    assert with_log_file(load_settings(["store.kind=memory", "log.file=server.log"])).log.file == "server.log"
