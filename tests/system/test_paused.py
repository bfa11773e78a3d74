"""A server that is paused, as a virtual machine that moves or a long swap pauses it: what it missed it must not do later."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system

TIMEOUT_MS = 5_000  # the client must have stored by then, even if it is paused as well


def begun(server: ServerProcess, message: str, timeout_ms: int = 60_000) -> str:
    """A transaction with this message stored under it; its path."""
    transaction = server.ask_json("POST", "/v1/transactions", {"timeoutMs": timeout_ms})
    stored = {"transactionWritePointer": transaction["writePointer"], "messages": [message]}
    server.ask_json("POST", f"{ORDERS}/store", stored)
    return f"/v1/transactions/{transaction['id']}"


def test_no_second_server_takes_the_directory_of_a_paused_one_and_its_late_commits_are_refused(
    server: ServerProcess, tmp_path: Path
):
    assert server.process is not None
    late = begun(server, "too late", TIMEOUT_MS)
    over_s = time.monotonic() + TIMEOUT_MS / 1_000 + 0.1
    server.process.send_signal(signal.SIGSTOP)
    try:
        (tmp_path / "second").mkdir()
        second = ServerProcess(tmp_path / "second")
        second.data = server.data
        second.launch()
        assert second.exit_code() != 0
        assert f"in use by process {server.process.pid}" in second.tail()
        time.sleep(max(0.0, over_s - time.monotonic()))
    finally:
        server.process.send_signal(signal.SIGCONT)
    refused = server.ask_json("POST", f"{late}/commit", status=409)
    assert refused["code"] == "transaction_ended"
    in_time = begun(server, "in time")
    assert server.ask_json("POST", f"{in_time}/commit")["state"] == "COMMITTED"
    assert [one["payload"] for one in server.ask_json("POST", f"{ORDERS}/poll", {})] == ["in time"]
    assert server.ask_json("GET", "/v1/transactions")["transactions"] == []
