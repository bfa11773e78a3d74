"""A server that is told to stop: it answers what is open, loses nothing that it acknowledged, and ends with 0 within 10 s."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time

import pytest

from basalt.http.asgi.requests import BODY_SECONDS_MAX
from basalt.server.process import GRACE_S
from tests.system.caller import JSON, Caller
from tests.system.server_process import ORDERS, ServerProcess

pytestmark = pytest.mark.system

STOP_SECONDS_PROMISED = 10.0
STOP_SECONDS_FOR_THE_STORE = 2.0
STOP_SECONDS_MAX = 45.0  # on a machine that is slow or stands still; who waited for others would wait for a minute
WAIT_MS = 60_000


def everything(server: ServerProcess) -> list[str]:
    """All messages of the topic."""
    return [one["payload"] for one in server.ask_json("POST", f"{ORDERS}/poll", {"limit": 1_000_000})]


def stopped(server: ServerProcess, number: int = signal.SIGTERM) -> float:
    """Send the signal, and see it end as it must; the seconds that took."""
    assert server.process is not None
    began = time.monotonic()
    server.process.send_signal(number)
    assert server.exit_code() == 0, server.tail()
    seconds = time.monotonic() - began
    assert seconds < STOP_SECONDS_MAX
    return seconds


def test_what_open_requests_are_left_fits_into_what_is_promised():
    assert GRACE_S + STOP_SECONDS_FOR_THE_STORE <= STOP_SECONDS_PROMISED
    assert min(BODY_SECONDS_MAX, WAIT_MS / 1_000) > STOP_SECONDS_MAX


class Publishers:
    """Clients that publish as fast as they can, until the server answers no more."""

    def __init__(self, server: ServerProcess, count: int) -> None:
        self.taken: list[str] = []
        self.refused: list[str] = []
        self.unanswered: list[str] = []
        self.strange: list[object] = []
        self._port = server.port
        self._threads = [threading.Thread(target=self._publish, args=[number]) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _publish(self, client: int) -> None:
        caller = Caller(self._port)
        for number in range(1_000_000):
            name = f"{client}.{number}"
            reply = caller.ask("POST", f"{ORDERS}/publish", json.dumps({"messages": [name]}).encode(), JSON)
            if reply is None:
                self.unanswered.append(name)
                return
            if reply.status == 200:
                self.taken.append(name)
            else:
                self.refused.append(name)
                if (reply.status, reply.json()["code"]) != (503, "stopping"):
                    self.strange.append(reply)
                    return

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.taken) < count:
            assert time.monotonic() < deadline, "the clients get no answers"
            time.sleep(0.005)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_under_load_nothing_acknowledged_is_lost_and_nothing_refused_is_there(server: ServerProcess, number: int):
    publishers = Publishers(server, 6)
    publishers.wait_for(200)
    stopped(server, number)
    publishers.join()
    assert not publishers.strange
    server.start()
    found = everything(server)
    assert len(set(found)) == len(found)
    assert set(publishers.taken) <= set(found)
    assert not set(publishers.refused) & set(found)
    assert set(found) <= {*publishers.taken, *publishers.unanswered}
    assert [name for name in found if name.startswith("0.")] == sorted(
        (name for name in found if name.startswith("0.")), key=lambda name: int(name[2:])
    )


def test_polls_that_wait_are_answered_at_once(server: ServerProcess):
    replies: list[object] = []

    def wait() -> None:
        reply = Caller(server.port).ask("POST", f"{ORDERS}/poll?waitMs={WAIT_MS}", b"{}", JSON)
        replies.append(reply and (reply.status, reply.body))

    waiting = [threading.Thread(target=wait) for _ in range(20)]
    for thread in waiting:
        thread.start()
    deadline = time.monotonic() + 60
    while waiting_polls(server) < len(waiting):
        assert time.monotonic() < deadline, "the polls do not come to wait"
    stopped(server)
    for thread in waiting:
        thread.join()
    assert replies == [(200, b"[]")] * len(waiting)


def waiting_polls(server: ServerProcess) -> int:
    """How many polls wait for a message now."""
    found = re.search(r"^basalt_waiting_fetches (\d+)", server.ask("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def open_request(server: ServerProcess, body: bytes, length: int) -> socket.socket:
    """A publish of which this much of the body has come."""
    line = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = f"POST {ORDERS}/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: {length}\r\n"
    line.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
    assert line.recv(100).startswith(b"HTTP/1.1 100")  # the server has the head, and waits for the body
    line.sendall(body)
    return line


def test_a_request_that_was_being_sent_is_answered_and_kept(server: ServerProcess):
    body = b'{"messages": ["last"]}'
    line = open_request(server, body[:10], len(body))
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 60
    while True:  # until it takes no new connections
        assert time.monotonic() < deadline
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
        except OSError:
            break
    line.sendall(body[10:])
    assert line.recv(100).startswith(b"HTTP/1.1 200")
    line.close()
    assert server.exit_code() == 0
    server.start()
    assert everything(server) == ["last"]


def test_a_request_that_never_comes_to_its_end_does_not_hold_up_the_stop(server: ServerProcess):
    line = open_request(server, b'{"messages": ["half', 1_000)
    stopped(server)
    line.close()
    server.start()
    assert everything(server) == []


def test_the_start_after_a_stop_has_nothing_to_recover(server: ServerProcess):
    for number in range(50):
        server.ask_json("POST", f"{ORDERS}/publish", {"messages": [f"{number}" * 3_000]})
    stopped(server)
    marks = max(
        re.findall(r"turn=(\d+) .*?logs=(\S*) crc32c", (server.data / "SYNCED").read_text("latin-1")),
        key=lambda slot: int(slot[0]),
    )
    assert marks[1] == "", "after a clean stop no log holds anything that the tables lack"
    server.log.write_bytes(b"")
    server.start("--set", "log.level=warning")
    assert everything(server) == [f"{number}" * 3_000 for number in range(50)]
    assert server.log.read_text() == ""


def test_a_closed_pipe_signal_means_nothing(server: ServerProcess):
    assert server.process is not None
    server.process.send_signal(signal.SIGPIPE)
    assert server.ask_json("GET", "/readyz")["ready"]
