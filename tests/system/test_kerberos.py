"""Kerberos from end to end: a real KDC, a server process with a keytab, and those who call it: curl, the command line, both clients."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from basalt.channel_binding import end_point_hash
from basalt.errors import ForbiddenError, UnauthenticatedError
from tests.certificates import Authority, Issued
from tests.kdc import Kdc, negotiate_token, running_kdc
from tests.system.command_line import CommandLine
from tests.system.server_process import ServerProcess

pytestmark = pytest.mark.system

WHOAMI = "/v1/auth/whoami"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A realm of these tests' own: its HTTP/localhost is theirs."""
    with running_kdc(tmp_path_factory.mktemp("realm")) as realm, pytest.MonkeyPatch.context() as patch:
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        realm.principal("alice", "of alice")
        realm.principal("root", "of root")
        yield realm


@pytest.fixture(scope="module")
def keytab(realm: Kdc) -> Path:
    return realm.keytab("HTTP/localhost")


@pytest.fixture(scope="module")
def server(realm: Kdc, keytab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    process.start(*settings(keytab))
    yield process
    process.kill()


def settings(keytab: Path, **more: str) -> list[str]:
    given = {
        "auth.kinds": "kerberos",
        "auth.superusers": "krb:root@EXAMPLE.TEST",
        "auth.kerberos.keytab": str(keytab),
        "auth.kerberos.realms": "EXAMPLE.TEST",
        **more,
    }
    return [word for key, value in given.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def as_user(realm: Kdc, monkeypatch: pytest.MonkeyPatch):
    def log_in(name: str) -> Path:
        cache = realm.ticket(name, f"of {name}")
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
        return cache

    return log_in


def by_name(server: ServerProcess) -> str:
    return f"http://localhost:{server.port}"


def test_clients_come_in_with_a_ticket_and_do_what_is_granted(server, as_user):
    as_user("alice")
    with basalt.connect(by_name(server), kerberos=True) as client:
        assert client.auth.whoami().principal == "krb:alice@EXAMPLE.TEST"
        with pytest.raises(ForbiddenError, match=r"krb:alice@EXAMPLE\.TEST"):
            client.topics.create("orders")
    as_user("root")

    async def prepare() -> None:
        async with basalt.aio.connect(by_name(server), kerberos=True) as client:
            await client.topics.create("orders")

    asyncio.run(prepare())
    body = json.dumps(
        {"subject": "krb:alice@EXAMPLE.TEST", "verbs": ["observe", "write"], "resource": "topic:default:orders"}
    )
    assert curl(server, "POST", "/v1/admin/grants", body)[0] == 200
    as_user("alice")
    with basalt.connect(by_name(server), kerberos=True) as client:
        for number in range(20):
            client.topic("orders").publish([str(number)])
    as_user("root")
    with basalt.connect(by_name(server), kerberos=True) as client:
        assert len(list(client.topic("orders").read())) == 20


def test_curl_negotiates(server, as_user):
    as_user("alice")
    status, answer = curl(server, "GET", WHOAMI)
    assert (status, json.loads(answer)["principal"]) == (200, "krb:alice@EXAMPLE.TEST")


def curl(server: ServerProcess, method: str, path: str, body: str = "") -> tuple[int, str]:
    program = shutil.which("curl")
    features = "" if program is None else subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    if "SPNEGO" not in features:
        pytest.skip("there is no curl that knows SPNEGO")
    command = [program, "--silent", "--negotiate", "--user", ":", "--request", method, "--write-out", "\n%{http_code}"]
    command += ["--header", "Content-Type: application/json", "--data", body] if body else []
    ran = subprocess.run([*command, by_name(server) + path], capture_output=True, text=True, check=True)
    answer, _, status = ran.stdout.rpartition("\n")
    return int(status), answer


def test_the_command_line_uses_a_ticket_where_its_profile_says_so(server, as_user, tmp_path):
    as_user("alice")
    line = CommandLine(tmp_path)
    assert line.run("profile", "add", "dev", "--url", by_name(server), "--kerberos").code == 0
    assert "kerberos = true" in (tmp_path / "config" / "basalt" / "profiles.toml").read_text()
    ran = line.run("auth", "whoami", "--output", "json")
    assert (ran.code, json.loads(ran.out)["principal"]) == (0, "krb:alice@EXAMPLE.TEST")
    assert line.run("auth", "whoami", "--url", server.url).code == 5  # another URL than the profile's gets no ticket
    assert line.run("auth", "whoami", BASALT_TOKEN="none").code == 5
    ran = line.run("auth", "whoami", KRB5CCNAME=f"FILE:{tmp_path / 'none'}")
    assert ran.code == 5
    assert "kinit" in ran.err


def test_a_token_counts_once_for_a_process_and_once_more_after_a_crash(realm, keytab, as_user, tmp_path):
    """What the decision on tokens says: what is remembered ends with the process."""
    header = {"Authorization": f"Negotiate {base64.b64encode(negotiate_token(as_user('alice'))).decode()}"}
    process = ServerProcess(tmp_path)
    process.start(*settings(keytab))
    assert [process.ask("GET", WHOAMI, b"", header).status for _ in range(2)] == [200, 401]
    process.kill()
    process.start(*settings(keytab))
    assert [process.ask("GET", WHOAMI, b"", header).status for _ in range(2)] == [200, 401]
    process.kill()


def test_where_the_operator_names_a_file_it_counts_once_for_all_time(realm, keytab, as_user, tmp_path):
    header = {"Authorization": f"Negotiate {base64.b64encode(negotiate_token(as_user('alice'))).decode()}"}
    process = ServerProcess(tmp_path)
    remembered = {"KRB5RCACHENAME": f"file2:{tmp_path / 'tokens'}"}
    for expected in (200, 401):
        process.launch(*settings(keytab), environment=remembered)
        process.wait_until_ready()
        assert process.ask("GET", WHOAMI, b"", header).status == expected
        process.kill()


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"auth.kerberos.keytab": "off"}, "auth.kerberos.keytab"),
        ({"auth.kerberos.realms": "off"}, "auth.kerberos.realms"),
        ({"auth.kerberos.keytab": "/nowhere/keytab"}, "auth.kerberos.keytab"),
        ({"auth.kerberos.service": "ftp"}, "auth.kerberos.keytab"),
        ({"auth.kerberos.binding": "require"}, "auth.kerberos.binding"),
    ],
)
def test_half_of_it_is_no_start_and_config_check_tells_too(keytab, tmp_path, more, key):
    process = ServerProcess(tmp_path)
    process.launch(*settings(keytab, **more))
    assert process.exit_code() == 2
    assert key in process.tail()
    assert not process.data.exists()
    ran = CommandLine(tmp_path).run("config", "check", *settings(keytab, **more))
    assert ran.code == 2
    assert key in ran.err


def test_nothing_of_a_ticket_or_a_key_is_in_the_log(keytab, as_user, tmp_path):
    process = ServerProcess(tmp_path)
    process.start(*settings(keytab), "--set", "log.level=debug", "--set", "log.access=all")
    text = base64.b64encode(negotiate_token(as_user("alice"))).decode()
    for _ in range(2):
        process.ask("GET", WHOAMI, b"", {"Authorization": f"Negotiate {text}"})
    process.kill()
    log = process.log.read_text()
    assert "krb:alice@EXAMPLE.TEST" in log
    assert "Request is a replay" in log
    for start in range(0, len(text) - 40, 40):
        assert text[start : start + 40] not in log


def test_a_client_without_a_ticket_is_told_what_to_do(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none'}")
    with basalt.connect(by_name(server), kerberos=True) as client:
        with pytest.raises(UnauthenticatedError, match="no Kerberos ticket"):
            client.auth.whoami()
    reply = server.ask("GET", WHOAMI)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == "Negotiate"


class TlsServer:
    """A server that takes tickets over TLS, and requires that each is bound to its certificate."""

    def __init__(self, folder: Path, keytab: Path, **more: str) -> None:
        self.authority = Authority(folder / "pki")
        self.own = self.authority.server()
        self.process = ServerProcess(folder)
        tls = {"tls.certificate": str(self.own.certificate), "tls.key": str(self.own.key)}
        if "cert" in more.get("auth.kinds", ""):
            tls |= {"tls.client": "optional", "tls.client_ca": str(self.authority.file)}
        self.process.launch(*settings(keytab, **tls, **{"auth.kerberos.binding": "require", **more}))
        self.process.wait_until_ready()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.process.port}"

    def ask(self, token: bytes, client: Issued | None = None) -> tuple[int, str]:
        """The status of a call with this token, and who it is or why it is nobody."""
        line = http.client.HTTPSConnection("localhost", self.process.port, context=self.authority.trusting(client))
        line.request("GET", WHOAMI, headers={"Authorization": f"Negotiate {base64.b64encode(token).decode()}"})
        with line.getresponse() as answer:
            found = json.loads(answer.read())
        line.close()
        return answer.status, found.get("principal") or found["detail"]


@pytest.fixture
def over_tls(keytab: Path, tmp_path: Path) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path, keytab)
    yield server
    server.process.kill()


def test_over_tls_a_token_that_was_made_for_another_certificate_is_worth_nothing(over_tls, as_user):
    alice = as_user("alice")
    own = end_point_hash(over_tls.own.der)
    assert over_tls.ask(negotiate_token(alice, end_point=own)) == (200, "krb:alice@EXAMPLE.TEST")
    impostor = end_point_hash(Authority(over_tls.process.data.parent / "other").server().der)
    status, reason = over_tls.ask(negotiate_token(alice, end_point=impostor))
    assert (status, "another server" in reason) == (401, True)
    status, reason = over_tls.ask(negotiate_token(alice))
    assert (status, "not bound" in reason) == (401, True)


def test_clients_bind_their_tokens_also_to_a_certificate_that_was_changed_under_them(over_tls, as_user):
    as_user("root")
    trusted = basalt.Tls(ca_file=over_tls.authority.file)

    async def publish_async() -> None:
        async with basalt.aio.connect(over_tls.url, kerberos=True, tls=trusted) as client:
            for number in range(10):
                await client.topic("orders").publish([str(number)])

    with basalt.connect(over_tls.url, kerberos=True, tls=trusted) as client:
        client.topics.create("orders")
        before = shown(over_tls)
        over_tls.authority.server()
        assert over_tls.process.process is not None
        over_tls.process.process.send_signal(signal.SIGHUP)
        limit = time.monotonic() + 60
        while shown(over_tls) == before:
            assert time.monotonic() < limit, over_tls.process.tail()
        for number in range(10):  # over the connection that it has
            client.topic("orders").publish([str(number)])
        asyncio.run(publish_async())  # over one of the new certificate
        assert len(list(client.topic("orders").read())) == 20


def shown(server: TlsServer) -> bytes:
    with socket.create_connection(("127.0.0.1", server.process.port), timeout=60) as plain:
        with server.authority.trusting().wrap_socket(plain, server_hostname="localhost") as line:
            certificate = line.getpeercert(True)
            assert certificate is not None
            return certificate


def test_a_ticket_counts_before_the_certificate_of_the_connection(keytab, as_user, tmp_path):
    alice = as_user("alice")
    server = TlsServer(tmp_path, keytab, **{"auth.kinds": "kerberos,cert", "auth.kerberos.binding": "accept"})
    etl, token = server.authority.client(), negotiate_token(alice)
    found = [server.ask(token, etl) for _ in range(2)]
    server.process.kill()
    assert found[0] == (200, "krb:alice@EXAMPLE.TEST")
    assert (found[1][0], "it was sent before" in found[1][1]) == (
        401,
        True,
    )  # and it is not passed over for the certificate
