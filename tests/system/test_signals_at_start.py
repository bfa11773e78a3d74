"""A start that is told to stop: it ends at once, at whatever stage it is, says so, and the next start finds everything."""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.held_start import STAGES
from tests.system.server_process import ORDERS, START_SECONDS_MAX, ServerProcess

pytestmark = pytest.mark.system

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAID = {
    "imports": "it loaded its parts",
    "settings": "it read its settings",
    "store": "it opened the store",
    "marks": "it opened the store",
    "transactions": "it recovered transactions",
    "address": "it opened its ports",
    "jobs": "it started its jobs",
    "thrift": "it opened its ports",
}


@pytest.fixture
def used(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that was killed with a message in its log and a transaction open, not started again."""
    server = ServerProcess(tmp_path)
    server.start("--set", "log.level=warning")
    server.ask_json("PUT", ORDERS)
    server.ask_json("POST", f"{ORDERS}/publish", {"messages": ["kept"]})
    server.ask_json("POST", "/v1/transactions")
    server.kill()
    yield server
    server.kill()


def wait_until_held(server: ServerProcess) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while "held" not in server.tail():
        assert server.alive(), server.tail()
        assert time.monotonic() < deadline, server.tail()
        time.sleep(0.01)


def send(server: ServerProcess, number: int) -> None:
    assert server.process is not None
    server.process.send_signal(number)


def ends_and_says_so(server: ServerProcess, number: int, stage: str) -> None:
    assert server.exit_code() == 0, server.tail()
    assert f"stopped by {signal.Signals(number).name} while {stage}" in server.tail()
    assert not server.port_file.exists()


@pytest.mark.parametrize("stage", STAGES)
def test_at_each_stage_of_the_start_a_signal_ends_it(used: ServerProcess, stage: str):
    used.program = ("-m", "tests.system.held_start", stage)
    used.launch()
    wait_until_held(used)
    number = SIGNALS[STAGES.index(stage) % len(SIGNALS)]
    send(used, number)
    ends_and_says_so(used, number, SAID[stage])
    used.program = ("-m", "basalt.cli.main")
    used.start()
    assert [one["payload"] for one in used.ask_json("POST", f"{ORDERS}/poll", {})] == ["kept"]
    assert used.stop() == 0


def test_while_it_waits_for_hbase_a_signal_ends_it(tmp_path: Path):
    server = ServerProcess(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        hbase = [f"store.hbase.thrift={address}", f"store.hbase.thrift2={address}", "store.kind=hbase"]
        server.launch(*(word for setting in hbase for word in ("--set", setting)))
        caller, _ = mute.accept()  # it has called, and waits for the answer
        with caller:
            send(server, signal.SIGTERM)
            ends_and_says_so(server, signal.SIGTERM, "it opened the store")


def test_a_signal_at_any_moment_ends_it(used: ServerProcess):
    """Real starts, broken off at moments that nobody chose; what they leave is whole."""
    chance = random.Random(13)
    for number in SIGNALS * 2:
        used.log.write_bytes(b"")
        used.launch()
        used.wait_until_it_recovers()
        time.sleep(chance.random() / 4)  # a start takes longer, on any machine
        send(used, number)
        assert used.exit_code() == 0, used.tail()
    used.start()
    assert [one["payload"] for one in used.ask_json("POST", f"{ORDERS}/poll", {})] == ["kept"]


def test_sighup_drains_as_sigterm_does(server: ServerProcess):
    server.ask_json("POST", f"{ORDERS}/publish", {"messages": ["kept"]})
    send(server, signal.SIGHUP)
    assert server.exit_code() == 0, server.tail()
    server.start()
    assert [one["payload"] for one in server.ask_json("POST", f"{ORDERS}/poll", {})] == ["kept"]
