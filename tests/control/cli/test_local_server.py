"""Commands that come before their server listens."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

import basalt
from basalt.cli import local_server
from basalt.cli.local_server import START_MS_MAX, wait_for_start, wait_until_ready
from basalt.cli.options import Invocation
from basalt.client.servers import is_loopback
from tests.ports import reserved_port


@pytest.fixture
def port() -> Iterator[int]:
    """One on which nothing listens, and which nobody else is given."""
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The pauses of a wait, none of which is made."""
    made: list[float] = []
    monkeypatch.setattr(local_server, "sleep", made.append)
    yield made


def test_a_server_that_begins_to_listen_is_waited_for(port: int, monkeypatch: pytest.MonkeyPatch):
    listening: list[socket.socket] = []

    def third_time(_seconds: float) -> None:
        if len(tries) == 2:
            listening.append(socket.create_server(("127.0.0.1", port)))
        tries.append(_seconds)

    tries: list[float] = []
    monkeypatch.setattr(local_server, "sleep", third_time)
    assert wait_for_start(f"http://127.0.0.1:{port}", 60_000)
    assert len(tries) == 3
    listening[0].close()


def test_one_that_listens_is_not_waited_for(pauses: list[float]):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert wait_for_start(f"http://127.0.0.1:{listener.getsockname()[1]}", START_MS_MAX)
    assert pauses == []


def test_of_several_one_is_enough(port: int, pauses: list[float]):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert wait_for_start(f"http://127.0.0.1:{port},http://127.0.0.1:{listener.getsockname()[1]}", START_MS_MAX)
    assert pauses == []


def test_a_wait_has_an_end(port: int):
    assert not wait_for_start(f"http://127.0.0.1:{port}", 1)


def test_a_server_elsewhere_is_called_once_and_not_waited_for(pauses: list[float], monkeypatch: pytest.MonkeyPatch):
    called: list[str] = []

    def refuse(address: tuple[str, int], _timeout_s: float) -> None:
        called.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert not wait_for_start("http://broker.example:4780", START_MS_MAX)
    assert not wait_for_start("http://127.0.0.1:4780,http://broker.example:4780", START_MS_MAX)
    assert (called, pauses) == (["broker.example", "127.0.0.1", "broker.example"], [])


def test_a_server_that_listens_is_tried_for_as_long_as_a_call_may_take_and_none_five_times(
    port: int, monkeypatch: pytest.MonkeyPatch
):
    given: list[int | None] = []
    monkeypatch.setattr(local_server, "START_MS_MAX", 1)
    monkeypatch.setattr(basalt, "connect", lambda *_, attempts_max, **__: given.append(attempts_max))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Invocation(url=f"http://127.0.0.1:{listener.getsockname()[1]}").client()
    Invocation(url=f"http://127.0.0.1:{port}").client()
    Invocation(url=f"http://127.0.0.1:{port}").client(wait=False)
    Invocation(url=f"http://127.0.0.1:{port}", timeout_ms=100).client()
    assert given == [None, 5, 5, None]


def test_what_is_loopback_and_what_is_not():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("192.0.2.1", "0.0.0.0", "::2", "localhost.example", "broker")))


def test_a_command_is_done_by_a_server_that_starts_after_it(
    cli, server_url, port: int, monkeypatch: pytest.MonkeyPatch
):
    """The command is sent to a port on which something listens only once the command has found nothing there."""
    relay: list[socket.socket] = []

    def begin(_seconds: float) -> None:
        if not relay:
            relay.append(socket.create_server(("127.0.0.1", port)))
            threading.Thread(target=pass_on, args=[relay[0], int(server_url.rpartition(":")[2])], daemon=True).start()

    monkeypatch.setattr(local_server, "sleep", begin)
    made = cli("topic", "create", "early", "--url", f"http://127.0.0.1:{port}")
    assert (made.code, "created topic" in made.out, len(relay)) == (0, True, 1)
    relay[0].close()


def pass_on(listener: socket.socket, port: int) -> None:
    """Carry bytes between who calls and the port, one connection after the other."""
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        server = socket.create_connection(("127.0.0.1", port))
        for source, sink in ((caller, server), (server, caller)):
            threading.Thread(target=carry, args=[source, sink], daemon=True).start()


def carry(source: socket.socket, sink: socket.socket) -> None:
    while piece := source.recv(65_536):
        sink.sendall(piece)
    sink.shutdown(socket.SHUT_WR)


def test_basalt_wait_prints_the_address_of_a_server_that_is_ready(cli, server_url: str):
    assert cli("wait", "--url", server_url).out == f"{server_url}\n"


def test_basalt_wait_finds_the_one_server_that_is_ready(server_url: str, port: int):
    assert wait_until_ready(f"http://127.0.0.1:{port},{server_url}", 60_000) == (server_url, "")


def test_basalt_wait_says_why_none_is_ready(cli, port: int):
    found = cli("wait", "--url", f"http://127.0.0.1:{port}", "--timeout", "1ms")
    assert found.code == 6
    assert f"no server is ready at http://127.0.0.1:{port}" in found.err
    assert "Connection refused" in found.err
