"""Kerberos from end to end: a real KDC, a server process with a keytab, and those who call it: curl, the command line, both clients."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from basalt.errors import ForbiddenError, UnauthenticatedError
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
