"""Servers that speak TLS, as real processes: what they tell, who gets in, and files that change under clients which go on."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import basalt
from tests.certificates import Authority, Issued, encrypted
from tests.system.command_line import CommandLine
from tests.system.server_process import START_SECONDS_MAX, STOP_SECONDS_MAX
from tests.system.tls_server import TlsServer

pytestmark = pytest.mark.system

RENEWALS = 4
HALF_HANDSHAKES = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TlsServer]:
    made = TlsServer(tmp_path)
    yield made
    made.process.kill()


@pytest.fixture
def commands(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def test_it_says_https_and_both_clients_and_the_command_line_reach_it(server: TlsServer, commands: CommandLine):
    server.start()
    assert f"serves at https://127.0.0.1:{server.process.port}" in server.process.log.read_text()
    trusted = {"SSL_CERT_FILE": str(server.authority.file)}
    assert commands.run("wait", "--url", server.url, **trusted).out.strip() == server.url
    assert commands.run("topic", "create", "orders", "--url", server.url, **trusted).code == 0
    assert commands.run("publish", "orders", "one", "--url", server.url, **trusted).code == 0
    with basalt.connect(server.url, tls=server.authority.trusting()) as client:
        assert [message.text for message in client.topic("orders").poll()] == ["one"]
    assert commands.run("topic", "list", "--timeout", "2s", "--url", server.url).code == 6  # who does not know the CA
    assert server.process.stop() == 0


@pytest.mark.parametrize("wanted", [True, False])
def test_browsers_are_told_to_stay_with_https_where_that_is_wanted(server: TlsServer, wanted: bool):
    server.options += ["tls.hsts=true"] if wanted else []
    server.start()
    connection = http.client.HTTPSConnection(
        "localhost", server.process.port, timeout=60, context=server.authority.trusting()
    )
    for path in ("/livez", "/v1/no/such/path"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.headers.get_all("strict-transport-security") == (["max-age=31536000"] if wanted else None)
    connection.close()


def test_in_the_background_it_prints_the_address_with_https(server: TlsServer, tmp_path: Path):
    command = [sys.executable, "-m", "basalt.cli.main", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    given = {name: value for name, value in os.environ.items() if not name.startswith("BASALT")}
    started = subprocess.run(
        [*command, "--background", *server.flags()], capture_output=True, text=True, check=False, env=given
    )
    try:
        assert started.stdout.startswith("https://127.0.0.1:"), started.stderr
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / "data" / "LOCK").read_text()), signal.SIGKILL)


def test_a_service_manager_is_told_of_https(server: TlsServer, tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(START_SECONDS_MAX)
        server.start(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert "STATUS=serves at https://127.0.0.1" in manager.recv(4_096).decode()


@pytest.mark.parametrize(
    ("wrong", "key"),
    [("no key", "tls.key"), ("foreign key", "tls.key"), ("encrypted key", "tls.key"), ("open key", "tls.key"), ("expired", "tls.certificate"),
     ("no ca", "tls.client_ca"), ("cert without ca", "tls.client_ca"), ("in clear", "tls.certificate")],
)  # fmt: skip
def test_what_is_wrong_ends_the_start_with_code_2_before_anything_is_opened(
    server: TlsServer, commands: CommandLine, wrong: str, key: str
):
    own = server.own
    if wrong == "no key":
        server.options.pop()
    elif wrong == "foreign key":
        own.key.write_bytes(server.authority.server("other").key.read_bytes())
    elif wrong == "encrypted key":
        encrypted(own)
    elif wrong == "open key":
        own.key.chmod(0o644)
    elif wrong == "expired":
        server.authority.server(starts_days=-2, ends_days=-1)
    elif wrong == "no ca":
        server.ask_clients()
        server.authority.file.write_text("what?")
    elif wrong == "cert without ca":
        server.options.append("auth.kinds=cert")
    else:
        server.options = ["auth.kinds=token", "server.host=0.0.0.0"]
    server.process.launch(*server.flags())
    assert server.process.exit_code() == 2
    said = server.process.log.read_text()
    assert said.startswith(f"basalt: setting {key}")
    assert said.count("\n") == 1
    assert not server.process.data.exists()
    checked = commands.run("config", "check", *server.flags())
    assert (checked.code, checked.err.splitlines()[-1]) == (2, said.strip())


def test_a_signal_has_new_files_read_and_stops_nothing(server: TlsServer):
    server.options.append("tls.reload_ms=1d")
    server.start()
    new = server.authority.server("server", starts_days=-2)
    server.signal(signal.SIGHUP)
    server.wait_until_shown(new.der)
    server.own.certificate.write_text("what?")
    server.signal(signal.SIGHUP)
    server.wait_until_it_says("goes on with the certificate and the CAs of before")
    assert server.shown() == new.der
    assert server.process.stop() == 0


def test_a_server_under_nohup_reads_its_files_at_the_signal_too(server: TlsServer):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` leaves it to what it starts
    try:
        server.options.append("tls.reload_ms=1d")
        server.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    new = server.authority.server("server", starts_days=-2)
    server.signal(signal.SIGHUP)
    server.wait_until_shown(new.der)


def test_without_a_signal_new_files_are_found_in_time(server: TlsServer):
    server.options.append("tls.reload_ms=1s")
    server.start()
    server.wait_until_shown(server.authority.server("server", starts_days=-2).der)


def test_a_bare_connection_waits_for_nothing_and_a_plain_request_is_told_why(server: TlsServer):
    server.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.process.port, timeout=60)
    connection.request("GET", "/livez")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["hint"]) == (400, "Use https:// in the URL.")
    with pytest.raises(basalt.errors.BasaltError, match="this port speaks TLS"):
        with basalt.connect(f"http://127.0.0.1:{server.process.port}") as client:
            client.topics.create("orders")


def test_half_handshakes_hold_up_nobody(server: TlsServer):
    server.start()
    halves = [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x16\x03\x01"]
    lines = []
    for number in range(HALF_HANDSHAKES):
        line = socket.create_connection(("127.0.0.1", server.process.port), timeout=60)
        line.sendall(halves[number % len(halves)])
        lines.append(line)
    with basalt.connect(server.url, tls=server.authority.trusting()) as client:
        client.topics.create("orders")
        for number in range(50):
            client.topic("orders").publish([f"{number}"])
        assert len(client.topic("orders").poll()) == 50
    for line in lines:
        line.close()
    assert server.process.stop() == 0


def test_handshakes_that_come_to_nothing_leave_nothing_behind(server: TlsServer):
    server.ask_clients("required")
    server.options.append("log.level=error")
    server.start()
    trusting = server.authority.trusting
    good = trusting(server.authority.client())
    foreign = Authority(server.authority.file.parent / "other", "other").client()
    bad = [trusting(foreign, version) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]

    def fail(number: int) -> None:
        """A plain request, garbage, half a handshake, nothing at all, a client that does not trust, and two that are not trusted."""
        plain = socket.create_connection(("127.0.0.1", server.process.port), timeout=60)
        with plain, suppress(OSError):
            if number % 7 < 4:
                plain.sendall([b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x16\x03", b""][number % 7])
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(65_536):
                    pass
            else:
                context = [ssl.create_default_context(), *bad][number % 7 - 4]
                with context.wrap_socket(plain, server_hostname="localhost") as line:
                    line.recv(1)

    def ask() -> None:
        with basalt.connect(server.url, tls=good) as client:
            assert client.ready().ready

    for number in range(14):
        fail(number)
    ask()
    before = server.process.open_files()
    for number in range(15 * 7):
        fail(number)
    ask()
    deadline = time.monotonic() + START_SECONDS_MAX
    while server.process.open_files() > before:
        assert time.monotonic() < deadline, server.process.tail()
        time.sleep(0.01)
    assert "Traceback" not in server.process.tail()
    assert "never retrieved" not in server.process.tail()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_certificates_and_cas_change_under_publishers_and_no_publish_fails(server: TlsServer, version: ssl.TLSVersion):
    """Three programs publish, one of them without a certificate, while everything is replaced several times."""
    server.options += ["tls.reload_ms=1d", "log.level=warning"]
    server.ask_clients()
    other = Authority(server.authority.file.parent / "other", "other")
    server.start()
    clients: list[Issued | None] = [
        server.authority.client("a", file="a"),
        server.authority.client("b", file="b"),
        None,
    ]
    errors: list[BaseException] = []
    counts = [0] * len(clients)
    over = threading.Event()
    with basalt.connect(server.url, tls=server.authority.trusting()) as client:
        client.topics.create("orders")

    def publish(number: int) -> None:
        tls = server.authority.trusting(clients[number], version)
        try:
            # An attempt that fails is an error here: nothing is sent a second time.
            with basalt.connect(server.url, tls=tls, attempts_max=1) as client:
                while not over.is_set():
                    client.topic("orders").publish([f"{number}"])
                    counts[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    try:
        for number in range(RENEWALS):
            before = min(counts)
            deadline = time.monotonic() + START_SECONDS_MAX
            while min(counts) < before + 5 and not errors:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            new = server.authority.server("server", starts_days=-2 - number)
            server.authority.file.write_bytes(server.authority.pem + (other.pem if number % 2 == 0 else b""))
            server.signal(signal.SIGHUP)
            server.wait_until_shown(new.der)
    finally:
        over.set()
        for thread in threads:
            thread.join(STOP_SECONDS_MAX)
    assert errors == []
    with basalt.connect(server.url, tls=server.authority.trusting()) as client:
        assert client.topic("orders").stats().messages == sum(counts)


def test_a_withdrawn_ca_ends_its_clients_and_lets_the_others_work(server: TlsServer):
    server.options += ["tls.reload_ms=1d"]
    server.ask_clients("required")
    other = Authority(server.authority.file.parent / "other", "other")
    both = server.authority.pem + other.pem
    (server.authority.file.parent / "cas.pem").write_bytes(both)
    server.options[-2] = f"tls.client_ca={server.authority.file.parent / 'cas.pem'}"
    server.options[-1] = "tls.client=required"
    server.start()

    def connected(authority: Authority) -> basalt.Client:
        return basalt.connect(
            server.url, tls=server.authority.trusting(authority.client("etl", file="etl")), attempts_max=1
        )

    with connected(server.authority) as stays, connected(other) as leaves:
        stays.topics.create("orders")
        leaves.topic("orders").publish(["a"])
        (server.authority.file.parent / "cas.pem").write_bytes(server.authority.pem)
        server.signal(signal.SIGHUP)
        server.wait_until_it_says("was read anew")
        leaves.topic("orders").publish(["b"])  # on the connection that it has: the last answer there
        with pytest.raises(basalt.errors.BasaltError):
            leaves.topic("orders").publish(["c"])
        for _ in range(3):
            stays.topic("orders").publish(["d"])
        server.wait_until_it_says("refused a client at 127.0.0.1 for its certificate")
