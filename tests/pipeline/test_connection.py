"""The client of a Spark process: its token and its certificates come from where the options say, in the process itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt.client.credential import FILE_KEPT_MS
from basalt.errors import InputError, UnauthenticatedError
from basalt_spark import connection
from basalt_spark.connection import Server, client_of
from tests.certificates import Authority
from tests.control.client.scripted import ScriptedServer
from tests.control.client.secure_server import authority, secure

__all__ = ["authority", "secure"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A server, and a process that has no client yet."""
    monkeypatch.setattr(connection, "_clients", {})
    scripted = ScriptedServer()
    yield scripted
    for client in connection._clients.values():
        client.close()
    scripted.close()


def sent(server: ScriptedServer) -> list[str | None]:
    return [each.headers.get("authorization") for each in server.seen]


def test_a_token_comes_from_the_variable_that_is_named(server, monkeypatch):
    monkeypatch.setenv("BASALT_SPARK_TOKEN", " one\n")
    client_of(Server(server.url, token_variable="BASALT_SPARK_TOKEN")).live()
    assert sent(server) == ["Bearer one"]


def test_a_token_comes_from_a_file_and_again_when_that_has_changed(server, tmp_path):
    file = tmp_path / "token"
    file.write_text("one")
    made = Server(server.url, token_file=str(file))
    client_of(made).live()
    file.write_text("two")
    kept = client_of(made)._driver._transport._credential._kept  # type: ignore[attr-defined]
    kept.ask_at_ms -= FILE_KEPT_MS
    client_of(made).live()
    assert sent(server) == ["Bearer one", "Bearer two"]
    assert len(connection._clients) == 1


def test_a_token_of_no_option_comes_from_the_environment_of_the_process(server, monkeypatch):
    monkeypatch.setenv("BASALT_TOKEN", "one")
    client_of(Server(server.url)).live()
    assert sent(server) == ["Bearer one"]


def test_a_file_that_is_not_on_this_machine_is_named(server, tmp_path):
    with pytest.raises(UnauthenticatedError, match=f"token file {tmp_path}/token cannot be read"):
        client_of(Server(server.url, token_file=str(tmp_path / "token"))).live()


def test_certificates_come_from_files(server, secure, authority: Authority):
    own = authority.client()
    files = {"ca_file": str(authority.file), "cert_file": str(own.certificate), "key_file": str(own.key)}
    client_of(Server(secure.url, **files)).live()  # type: ignore[arg-type]
    assert len(secure.seen) == 1
    with pytest.raises(InputError, match=r"/nowhere/ca\.pem"):
        client_of(Server(secure.url, ca_file=str(Path("/nowhere/ca.pem"))))
