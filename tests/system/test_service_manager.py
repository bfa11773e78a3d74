"""What the server tells systemd, over the socket that systemd names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.server_process import ORDERS, START_SECONDS_MAX, ServerProcess

pytestmark = pytest.mark.system


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(START_SECONDS_MAX)
        yield listening


def told(manager: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in manager.recv(4_096).decode().splitlines())


def test_a_server_says_that_it_is_ready_once_it_answers_and_that_it_stops(manager: socket.socket, tmp_path: Path):
    server = ServerProcess(tmp_path)
    try:
        server.launch(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        first = told(manager)
        assert first["READY"] == "1"
        assert first["STATUS"].startswith("serves at http://")
        server.wait_until_ready()
        server.ask_json("PUT", ORDERS)
        assert server.stop() == 0
        assert told(manager)["STOPPING"] == "1"
    finally:
        server.kill()


def test_a_manager_that_does_not_listen_stops_no_server(tmp_path: Path):
    server = ServerProcess(tmp_path)
    try:
        server.launch(environment={"NOTIFY_SOCKET": str(tmp_path / "nobody")})
        server.wait_until_ready()
        server.ask_json("PUT", ORDERS)
    finally:
        server.kill()
