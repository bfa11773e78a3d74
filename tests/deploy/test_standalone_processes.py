"""What the starter of the standalone HBase does with processes, shown with a stand-in for java that starts at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.hbase import java_process, standalone
from deploy.hbase.java_process import JavaProcess
from deploy.hbase.runtime import ROOT
from deploy.hbase.standalone import ROLES, Standalone, StandaloneError


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!{sys.executable} -S\n{Path(__file__).with_name('fake_java.py').read_text()}")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(standalone, "classpath", lambda: [Path("hbase.jar")])
    return java


@pytest.fixture
def hbase(fake_java: Path, tmp_path: Path):
    hbase = Standalone(tmp_path / "hbase")
    yield hbase
    java_process.stop_all(hbase.processes)


def kill(hbase: Standalone, *roles: str) -> None:
    for role, pid in hbase.pids().items():
        if role in roles:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_start_ends_when_both_gateways_answer_and_a_stop_leaves_nothing(hbase: Standalone):
    assert hbase.start().answer()
    assert set(hbase.pids()) == set(ROLES)
    hbase.stop()
    assert hbase.pids() == {}


def test_a_second_start_keeps_what_runs(hbase: Standalone):
    first, pids = hbase.start({"a": "1"}), hbase.pids()
    assert (hbase.start({"a": "1"}), hbase.pids()) == (first, pids)


def test_a_second_start_with_other_settings_is_refused_and_changes_nothing(hbase: Standalone):
    hbase.start({"a": "1"})
    pids = hbase.pids()
    with pytest.raises(StandaloneError, match=r"other settings: \{'a': '1'\}; stop it first"):
        hbase.start({"a": "2"})
    assert hbase.pids() == pids


@pytest.mark.parametrize("survivors", [(), ("master",), ("thrift", "thrift2")])
def test_what_an_earlier_start_left_is_cleared_by_the_next_one(hbase: Standalone, survivors: tuple[str, ...]):
    before = hbase.start()
    left = {pid for role, pid in hbase.pids().items() if role in survivors}
    kill(hbase, *set(ROLES) - set(survivors))

    assert hbase.start() == before  # at the same addresses
    assert set(hbase.pids()) == set(ROLES)
    assert left.isdisjoint(hbase.pids().values())


def test_a_start_that_fails_leaves_nothing_running_and_shows_the_log(hbase: Standalone, monkeypatch):
    monkeypatch.setenv("FAKE_JAVA_GOES", "thrift2")
    with pytest.raises(StandaloneError, match="thrift2 cannot start"):
        hbase.start()
    assert hbase.pids() == {}


def test_a_gateway_that_only_takes_connections_is_not_ready(hbase: Standalone, monkeypatch):
    monkeypatch.setenv("FAKE_JAVA_DEAF", "thrift2")
    with pytest.raises(StandaloneError, match="not ready within 1 s"):
        hbase.start(timeout_s=1)
    assert hbase.pids() == {}


def test_other_ports_are_tried_when_one_is_taken_meanwhile(hbase: Standalone, tmp_path: Path, monkeypatch):
    taken = tmp_path / "taken"
    taken.touch()
    monkeypatch.setenv("FAKE_JAVA_TAKEN", str(taken))
    assert hbase.start().answer()
    assert not taken.exists()


def test_a_process_that_does_not_end_is_killed(hbase: Standalone, monkeypatch):
    monkeypatch.setenv("FAKE_JAVA_STAYS", "master")
    monkeypatch.setattr(java_process, "STOP_TIMEOUT_S", 0.2)
    hbase.start()
    hbase.stop()
    assert hbase.pids() == {}


def test_a_process_that_has_lost_its_command_line_is_waited_for_until_it_has_ended(tmp_path: Path, monkeypatch):
    slow_to_end = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), exit()));"
    with subprocess.Popen(
        [sys.executable, "-c", slow_to_end + "print(flush=True); signal.pause()"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = JavaProcess(tmp_path, "master")
        listings = iter([[(child.pid, set(process._marks()))]])  # found once, then without a command line
        monkeypatch.setattr(java_process, "_command_lines", lambda: next(listings, []))
        java_process.stop_all([process])
        assert child.poll() is not None


def test_tables_are_not_removed_under_a_running_hbase(hbase: Standalone):
    hbase.start()
    with pytest.raises(StandaloneError, match="stop it first"):
        hbase.remove_data()


def runner(hbase: Standalone, fake_java: Path) -> subprocess.Popen[str]:
    """`run` as a process, with the stand-ins of these tests."""
    program = (
        "import deploy.hbase.standalone as s; s.classpath = lambda: []; from deploy.hbase.__main__ import main; main()"
    )
    arguments = ["run", str(hbase.directory), "--until-stdin-closes"]
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "its starter has gone"])
def test_run_stops_everything_when_it_is_ended(hbase: Standalone, fake_java: Path, end: str):
    with runner(hbase, fake_java) as process:
        assert json.loads(process.stdout.readline())["thrift"] == hbase.gateways.thrift
        if end.startswith("SIG"):
            process.send_signal(signal.Signals[end])
        else:
            process.stdin.close()
        process.wait(60)
    assert hbase.pids() == {}


def test_a_start_that_is_interrupted_half_way_leaves_nothing(hbase: Standalone, fake_java: Path, monkeypatch):
    monkeypatch.setenv("FAKE_JAVA_DEAF", "thrift")
    with runner(hbase, fake_java) as process:
        while set(hbase.pids()) != set(ROLES):
            assert process.poll() is None
        process.terminate()
        process.wait(60)
    assert hbase.pids() == {}


def test_what_a_killed_starter_left_can_be_stopped_from_elsewhere(hbase: Standalone, fake_java: Path):
    with runner(hbase, fake_java) as process:
        process.stdout.readline()
        process.kill()
    assert set(hbase.pids()) == set(ROLES)
    hbase.stop()
    assert hbase.pids() == {}
