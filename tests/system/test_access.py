"""From nothing to a server that asks everybody: a first token, tokens and grants, clients that live through rotation and revocation."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import basalt
from basalt.client.credential import FILE_KEPT_MS
from basalt.errors import ForbiddenError, UnauthenticatedError
from tests.ports import reserved_port
from tests.system.command_line import CommandLine
from tests.system.server_process import ServerProcess
from tests.system.tls_server import TlsServer

pytestmark = pytest.mark.system


@pytest.fixture
def first_token(tmp_path: Path) -> Path:
    """The file of the first token, as an operator makes it."""
    file = tmp_path / "bootstrap"
    file.write_text(f"{secrets.token_hex(32)}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def server(tmp_path: Path, first_token: Path) -> Iterator[ServerProcess]:
    """A server that asks callers who they are, at a port that is its own while it is dead."""
    process = ServerProcess(tmp_path)
    with reserved_port() as port:
        start(process, first_token, port)
        yield process
        process.kill()


@pytest.fixture
def operator(tmp_path: Path, server: ServerProcess, first_token: Path) -> CommandLine:
    """Commands of whoever has the first token."""
    line = CommandLine(tmp_path, server.url)
    line.environment |= {"BASALT_TOKEN_FILE": str(first_token), "BASALT_NAMESPACE": "shop"}
    return line


def start(process: ServerProcess, first_token: Path, port: int) -> None:
    options = ("--set", "auth.kinds=token", "--set", f"auth.bootstrap_token_file={first_token}")
    process.launch(*options, "--set", "log.level=debug", "--set", "log.access=all", port=port)
    process.wait_until_ready()


def did(line: CommandLine, *command: str) -> str:
    ran = line.run(*command)
    assert ran.code == 0, ran
    return ran.out


def test_a_program_may_publish_and_not_read_and_lives_through_rotation_until_it_is_revoked(
    server: ServerProcess, operator: CommandLine, first_token: Path, tmp_path: Path
):
    did(operator, "topic", "create", "orders")
    did(operator, "grant", "add", "token:etl", "writer", "namespace:shop")
    did(operator, "grant", "add", "token:etl", "transact", "cluster")
    file = tmp_path / "etl.token"
    did(operator, "token", "create", "etl", "--to-file", str(file))
    old = file.read_text().strip()

    with basalt.connect(server.url, namespace="shop", token=file, attempts_max=3) as client:
        orders = client.topic("orders")
        orders.publish("first")
        with client.transaction() as tx:
            tx.publish("orders", ["second"])
        with pytest.raises(ForbiddenError, match="token:etl may not read topic:shop:orders"):
            orders.poll()
        with pytest.raises(ForbiddenError):
            client.topic("absent").poll()  # what is not there is refused alike

        did(operator, "token", "rotate", old.split("_")[1], "--overlap", "1h", "--to-file", str(file))
        new = file.read_text().strip()
        orders.publish("third")  # with the old one, which still counts
        did(operator, "token", "revoke", old.split("_")[1], "--yes")
        orders.publish("fourth")  # refused, read again, and sent with the new one
        assert client.auth.whoami().credential == f"token {new.split('_')[1]}"

        client._driver._transport._credential._kept.ask_at_ms -= FILE_KEPT_MS  # type: ignore[attr-defined]
        assert client.auth.whoami().principal == "token:etl"
        did(operator, "token", "revoke", new.split("_")[1], "--yes")
        with pytest.raises(UnauthenticatedError, match="the token is revoked"):
            orders.publish("fifth")

    read = json.loads(did(operator, "consume", "orders", "-o", "json"))
    assert [each["payload"] for each in read] == ["first", "second", "third", "fourth"]


def test_a_consumer_of_the_command_line_goes_on_with_the_token_that_its_program_prints(
    server: ServerProcess, operator: CommandLine, tmp_path: Path
):
    """A poll that waits is judged again before it answers; the next one is sent with another token."""
    did(operator, "topic", "create", "orders")
    did(operator, "grant", "add", "token:reader", "reader", "namespace:shop")
    file = tmp_path / "reader.token"
    did(operator, "token", "create", "reader", "--to-file", str(file))
    first = file.read_text().strip()
    did(operator, "profile", "add", "reader", "--url", server.url, "--token-command", f"cat {file}")
    del operator.environment["BASALT_TOKEN_FILE"]
    following = operator.start(
        "consume", "orders", "--follow", "--format", "raw", "--limit", "2", "--profile", "reader"
    )
    operator.environment["BASALT_TOKEN_FILE"] = str(tmp_path / "bootstrap")
    assert following.stdout is not None
    did(operator, "publish", "orders", "one")
    assert following.stdout.readline() == "one\n"
    did(operator, "token", "rotate", first.split("_")[1], "--overlap", "0ms", "--to-file", str(file))
    did(operator, "publish", "orders", "two")
    assert following.communicate(timeout=240)[0] == "two\n"
    assert following.returncode == 0


def test_tokens_and_grants_are_there_after_a_restart(server: ServerProcess, operator: CommandLine, first_token: Path):
    did(operator, "topic", "create", "orders")
    did(operator, "grant", "add", "token:etl", "writer", "topic:shop:orders")
    token = did(operator, "token", "create", "etl").strip()
    other = did(operator, "token", "create", "etl").strip()
    did(operator, "token", "revoke", other.split("_")[1], "--yes")
    server.kill()
    start(server, first_token, server.port)
    with basalt.connect(server.url, namespace="shop", token=token) as client:
        client.topic("orders").publish("one")
    with basalt.connect(server.url, namespace="shop", token=other) as client, pytest.raises(UnauthenticatedError):
        client.topic("orders").publish("two")


def test_nobody_comes_in_without_a_credential(server: ServerProcess, operator: CommandLine):
    del operator.environment["BASALT_TOKEN_FILE"]
    ran = operator.run("topic", "list")
    assert (ran.code, ran.err.count("\n"), "BASALT_TOKEN_FILE" in ran.err) == (5, 1, True), ran
    assert operator.run("wait").code == 0  # readiness is anybody's to ask


def test_a_login_that_was_made_with_a_certificate_stands_without_it(tmp_path: Path):
    """A browser, or a machine to which no key may go, gets by with the login."""
    secure = TlsServer(tmp_path)
    secure.ask_clients()
    secure.options += ["auth.kinds=cert,token", "auth.superusers=cert:CN=admin"]
    secure.start()
    own = secure.authority.client("admin")
    line = CommandLine(tmp_path)
    trusted = ("profile", "add", "admin", "--url", secure.url, "--ca-file", str(secure.authority.file))
    try:
        did(line, *trusted, "--cert-file", str(own.certificate), "--key-file", str(own.key))
        assert json.loads(did(line, "auth", "whoami", "-o", "json"))["principal"] == "cert:CN=admin"
        did(line, "auth", "login", "--ttl", "1h")
        did(line, *trusted)  # without the certificate
        found = json.loads(did(line, "auth", "whoami", "-o", "json"))
        assert (found["principal"], found["superuser"], found["credential"].split()[0]) == (
            "cert:CN=admin",
            True,
            "login",
        )
        did(line, "auth", "logout")
        assert line.run("auth", "whoami").code == 5
    finally:
        secure.process.kill()
