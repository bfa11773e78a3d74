"""Real processes: Ctrl-C, and a server that is started, asked and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[3]
START_SECONDS_MAX = 240.0
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("BASALT")},
    "PYTHONPATH": f"{ROOT / 'engine'}:{ROOT / 'control'}",
    "PYTHONUNBUFFERED": "1",
}


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "basalt.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        # A test runner in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def done(*arguments: str) -> tuple[int, str]:
    process = start(*arguments)
    out, _ = process.communicate(timeout=START_SECONDS_MAX)
    return process.returncode, out


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a new data directory, and its URL."""
    port_file = tmp_path / "port"
    process = start("serve", "--data", str(tmp_path / "data"), "--port", "0", "--port-file", str(port_file))
    latest = time.monotonic() + START_SECONDS_MAX
    while not port_file.exists() and process.poll() is None and time.monotonic() < latest:
        time.sleep(0.02)
    if not port_file.exists():
        process.kill()
        pytest.fail(process.communicate()[1])
    yield process, f"http://127.0.0.1:{port_file.read_text().strip()}"
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_with_exit_code_0_when_told_to_and_keeps_what_it_took(served, tmp_path, number):
    process, url = served
    assert done("topic", "create", "orders", "--url", url)[0] == 0
    assert done("publish", "orders", "kept", "--url", url)[0] == 0
    process.send_signal(number)
    process.communicate(timeout=START_SECONDS_MAX)
    assert process.returncode == 0
    code, out = done("consume", "orders", "--format", "raw", "--url", f"embedded:{tmp_path / 'data'}")
    assert (code, out) == (0, "kept\n")


def test_a_second_server_on_the_same_directory_is_refused_on_one_line(served, tmp_path):
    process, _ = served
    second = start("serve", "--data", str(tmp_path / "data"), "--port", "0")
    _, err = second.communicate(timeout=START_SECONDS_MAX)
    assert second.returncode in (1, 6)
    assert err.count("\n") == 1
    assert f"process {process.pid}" in err


def test_ctrl_c_ends_a_follower_with_exit_code_130_and_without_a_word(served):
    _, url = served
    done("topic", "create", "orders", "--url", url)
    done("publish", "orders", "first", "--url", url)
    follower = start("consume", "orders", "--follow", "--format", "raw", "--url", url)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=START_SECONDS_MAX)
    assert (follower.returncode, err) == (130, "")


def test_on_a_terminal_a_table_keeps_brackets_and_escapes_and_a_pipe_gets_plain_text():
    def shown(*arguments: str) -> str:
        ours, theirs = os.openpty()
        command = [sys.executable, "-m", "basalt.cli.main", *arguments]
        with subprocess.Popen(
            command, stdout=theirs, env={**ENVIRONMENT, "COLUMNS": "200", "TERM": "xterm"}
        ) as process:
            process.wait(START_SECONDS_MAX)
        os.close(theirs)
        with os.fdopen(ours, "rb") as terminal:
            return terminal.read1().decode()

    setting = "store.hbase.thrift=[::1]:9090"
    for text in (
        shown("config", "show", "--changed", "--set", setting),
        done("config", "show", "--changed", "--set", setting)[1],
    ):
        assert "[::1]:9090" in text
    assert "\x1b[1m" in shown("config", "show", "--changed", "--set", setting)
    assert "\x1b" not in done("config", "show", "--changed", "--set", setting)[1]


def test_on_a_terminal_top_draws_its_screen_again_until_ctrl_c(served):
    _, url = served
    done("topic", "create", "orders", "--url", url)
    done("publish", "orders", "first", "--url", url)
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "basalt.cli.main", "top", "--interval", "100ms", "--url", url],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "COLUMNS": "200", "LINES": "40", "TERM": "xterm"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(theirs)
    seen = b""
    while seen.count(b"default:orders") < 3:
        seen += os.read(ours, 65_536)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=START_SECONDS_MAX)
    os.close(ours)
    assert (process.returncode, err) == (130, b"")
