"""Clients that take their time, and more of them than there are file descriptors: everybody else is served as ever."""

from __future__ import annotations

import json
import socket
import statistics
import time
from pathlib import Path

import pytest

from basalt.http.asgi.protocol import HEAD_SECONDS_MAX
from tests.system.caller import JSON, Caller
from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system

FILES_MAX = 64
HALF_REQUESTS = 200
CALLS = 50
OTHERS_SECONDS_MAX = 1.0  # for most calls beside 200 slow ones; they take a few milliseconds
WAIT_SECONDS_MAX = 15.0  # for any of them, on a machine that stands still; a half head is waited for for longer


@pytest.fixture
def server(tmp_path: Path):
    """A process, not started."""
    process = ServerProcess(tmp_path)
    yield process
    process.kill()


def connected(server: ServerProcess, head: bytes) -> socket.socket:
    """A connection on which only this was sent."""
    line = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    line.sendall(head)
    return line


def publish(caller: Caller, text: str) -> int:
    reply = caller.ask("POST", f"{ORDERS}/publish", json.dumps({"messages": [text]}).encode(), JSON)
    return 0 if reply is None else reply.status


def everything(server: ServerProcess) -> list[str]:
    return [one["payload"] for one in server.ask_json("POST", f"{ORDERS}/poll", {})]


def post(body: bytes, length: int) -> bytes:
    head = (
        f"POST {ORDERS}/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: {length}\r\n\r\n"
    )
    return head.encode() + body


def test_half_requests_do_not_hold_up_others_and_have_no_effect(server: ServerProcess):
    server.start("--set", "log.level=error")
    server.ask_json("PUT", ORDERS)
    halves = [
        b"",
        b"POST ",
        b"POST /v1 HTTP/1.1\r\nHost: localhost\r\nX:",
        post(b"", 1_000),
        post(b'{"messages": ["half', 1_000),
    ]
    lines = [connected(server, halves[number % len(halves)]) for number in range(HALF_REQUESTS)]
    caller = Caller(server.port)
    seconds: list[float] = []
    for number in range(CALLS):
        for line in lines[3::10]:
            line.sendall(b" ")  # a byte now and then
        began = time.monotonic()
        assert publish(caller, f"{number}") == 200
        seconds.append(time.monotonic() - began)
    assert statistics.median(seconds) < OTHERS_SECONDS_MAX
    assert max(seconds) < WAIT_SECONDS_MAX < HEAD_SECONDS_MAX
    assert everything(server) == [f"{number}" for number in range(CALLS)]
    for line in lines:
        line.close()
    assert everything(server) == [f"{number}" for number in range(CALLS)]


def test_readers_that_take_nothing_do_not_hold_up_others(server: ServerProcess):
    server.start("--set", "log.level=error")
    server.ask_json("PUT", ORDERS)
    for number in range(8):
        server.ask_json("POST", f"{ORDERS}/publish", {"messages": [f"{number}" * 1_000_000]})
    poll = f"POST {ORDERS}/poll HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    before_bytes = server.peak_memory_bytes()
    lines = [connected(server, poll) for _ in range(30)]
    caller = Caller(server.port)
    for number in range(CALLS):
        assert publish(caller, f"{number}") == 200
    # An answer waits in pieces: 30 whole ones of 8 MB would be 240 MB.
    assert server.peak_memory_bytes() - before_bytes < 150_000_000
    for line in lines:
        line.close()
    assert server.ask_json("GET", "/readyz")["ready"]


def test_with_few_file_descriptors_it_serves_whom_it_can_and_all_of_them_later(server: ServerProcess):
    server.launch("--set", "log.level=error", files_max=FILES_MAX)
    server.wait_until_ready()
    server.ask_json("PUT", ORDERS)
    caller = Caller(server.port)
    assert publish(caller, "before") == 200
    lines = [connected(server, b"") for _ in range(2 * FILES_MAX)]
    for number in range(CALLS):
        assert publish(caller, f"{number}" * 1_000) == 200  # on a connection that was there before
    for line in lines:
        line.close()
    deadline = time.monotonic() + 60
    while publish(Caller(server.port), "after") != 200:  # until it has seen that the others have gone
        assert time.monotonic() < deadline
    found = everything(server)
    assert [text[:1] for text in found] == ["b", *(f"{number}"[:1] for number in range(CALLS)), "a"]
    server.kill()
    server.start()
    assert everything(server) == found


def test_when_no_file_can_be_opened_a_write_is_refused_and_nothing_that_was_taken_is_lost(server: ServerProcess):
    server.launch("--set", "log.level=error", files_max=FILES_MAX)
    server.wait_until_ready()
    server.ask_json("PUT", ORDERS)
    caller = Caller(server.port)
    statuses = {"0": publish(caller, "0")}
    lines = [connected(server, b"") for _ in range(2 * FILES_MAX)]
    statuses |= {f"{number}": publish(caller, f"{number}") for number in range(1, 5)}
    backup = caller.ask("POST", "/v1/admin/backups", b'{"name": "now"}', JSON)  # opens files, and cannot
    assert backup is not None
    assert (backup.status, backup.json()["code"]) == (503, "store_unavailable")
    statuses |= {f"{number}": publish(caller, f"{number}") for number in range(5, 10)}
    assert set(statuses.values()) <= {200, 503}
    for line in lines:
        line.close()
    deadline = time.monotonic() + 60
    while publish(Caller(server.port), "after") != 200:
        assert time.monotonic() < deadline
    taken = [text for text, status in statuses.items() if status == 200]
    found = everything(server)
    assert [text for text in found if text in taken] == taken
    assert found[-1] == "after"
    assert len(set(found)) == len(found)
    assert "Traceback" not in server.log.read_text()


def test_a_start_with_too_few_file_descriptors_is_refused_and_leaves_nothing_behind(server: ServerProcess):
    server.launch(files_max=24)
    assert server.exit_code() == 6
    assert "Too many open files" in server.log.read_text()
    assert server.log.read_text().count("\n") == 1
    server.start()
    assert server.ask_json("GET", "/readyz")["ready"]
