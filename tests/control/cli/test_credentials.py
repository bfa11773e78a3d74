"""What the command line proves itself by: the environment, a profile's file, a program; and to whom it does."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt.cli.credentials import kerberos_for, token_of_command
from basalt.cli.profiles import Profile, profiles_path
from basalt.errors import UnauthenticatedError
from tests.certificates import Authority
from tests.control.client.scripted import ScriptedServer, answer, problem

CANARY = "canary-5e1f0c77"
TOPICS = answer(200, b'{"topics":[]}', content_type="application/json")
LIST = ("topic", "list", "--all-namespaces")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    scripted.script = [TOPICS]
    yield scripted
    scripted.close()


def sent(server: ScriptedServer) -> list[str | None]:
    return [each.headers.get("authorization") for each in server.seen]


def program(tmp_path: Path, code: str) -> str:
    """A command that runs this Python code, as a shell would have to be given it."""
    file = tmp_path / "token-command.py"
    file.write_text(code)
    return shlex.join([sys.executable, "-I", str(file)])


def test_a_token_of_the_environment_is_sent(run, server, monkeypatch, tmp_path):
    monkeypatch.setenv("BASALT_TOKEN", "one")
    assert run(*LIST, "--url", server.url).code == 0
    monkeypatch.delenv("BASALT_TOKEN")
    (tmp_path / "token").write_text("two\n")
    monkeypatch.setenv("BASALT_TOKEN_FILE", str(tmp_path / "token"))
    assert run(*LIST, "--url", server.url).code == 0
    assert sent(server) == ["Bearer one", "Bearer two"]


def test_a_profile_names_a_file_or_a_program_and_holds_no_secret(run, server, tmp_path):
    (tmp_path / "token").write_text(CANARY)
    printing = program(tmp_path, f"print('{CANARY}')")
    assert run("profile", "add", "dev", "--url", server.url, "--token-file", str(tmp_path / "token")).code == 0
    assert run("profile", "add", "ops", "--url", server.url, "--token-command", printing).code == 0
    for name in ("dev", "ops"):
        assert run(*LIST, "--profile", name).code == 0
    assert sent(server) == [f"Bearer {CANARY}"] * 2
    path = tmp_path / "config" / "basalt" / "profiles.toml"
    assert CANARY not in path.read_text()
    assert tomllib.loads(path.read_text())["profiles"] == {
        "dev": {"url": server.url, "token_file": str(tmp_path / "token")},
        "ops": {"url": server.url, "token_command": shlex.split(printing)},
    }
    listed = {row["name"]: row for row in json.loads(run("profile", "list", "-o", "json").out)}
    assert listed["dev"]["token_file"] == str(tmp_path / "token")
    assert listed["ops"]["token_command"] == shlex.split(printing)


def test_the_environment_goes_before_a_profile(run, server, monkeypatch, tmp_path):
    run("profile", "add", "dev", "--url", server.url, "--token-file", str(tmp_path / "nowhere"))
    monkeypatch.setenv("BASALT_TOKEN", "one")
    assert run(*LIST).code == 0
    assert sent(server) == ["Bearer one"]


def test_what_a_profile_names_goes_to_its_own_servers_alone(run, server, tmp_path):
    stranger = ScriptedServer()
    stranger.script = [TOPICS]
    (tmp_path / "token").write_text(CANARY)
    run("profile", "add", "dev", "--url", f"{server.url},http://127.0.0.1:1", "--token-file", str(tmp_path / "token"))
    assert run(*LIST, "--url", stranger.url).code == 0
    assert run(*LIST, "--url", stranger.url, "--profile", "dev").code == 0
    assert run(*LIST, "--url", f"{stranger.url},{server.url}", "--profile", "dev").code == 0
    assert set(sent(stranger)) == {None}
    assert run(*LIST, "--url", server.url.removeprefix("http://")).code == 0  # one of its own
    assert sent(server) == [f"Bearer {CANARY}"]
    stranger.close()


def test_a_profile_says_which_certificates_to_trust_and_to_show(run, secure, authority: Authority):
    own = authority.client()
    secure.script = [TOPICS]
    files = ("--ca-file", str(authority.file), "--cert-file", str(own.certificate), "--key-file", str(own.key))
    assert run("profile", "add", "dev", "--url", secure.url, *files).code == 0
    assert run(*LIST).code == 0
    assert run(*LIST, "--url", secure.url, "--profile", "dev").code == 0
    assert len(secure.seen) == 2
    secure.script = [answer(200, b'{"ready": true, "parts": []}')]
    waited = run("wait", "--timeout", "1s")
    assert (waited.code, waited.out) == (0, f"{secure.url}\n"), waited
    assert run("wait", "--timeout", "100ms", "--url", secure.url.replace("127.0.0.1", "localhost")).code == 6


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("raise SystemExit(3)", 5, "ended with exit code 3"),
        ("", 5, "printed is empty"),
        (f"print('{CANARY}', '{CANARY}')", 5, "printed has characters that no token has"),
        (f"print('{{\"token\": 5, \"x\": \"{CANARY}\"}}')", 5, "printed JSON that has no token in it"),
        (f"print('{{\"token\": \"{CANARY}\", \"expiresAt\": \"2030-01-01T00:00:00\"}}')", 5, "printed JSON that has no"),
        (f"print('{{ {CANARY}')", 5, "printed JSON that has no token in it"),
    ],
)  # fmt: skip
def test_a_program_that_gives_no_token_is_exit_code_5_and_not_repeated(run, server, tmp_path, code, status, says):
    run("profile", "add", "dev", "--url", server.url, "--token-command", program(tmp_path, code))
    ran = run(*LIST)
    assert (ran.code, ran.err.count("\n")) == (status, 1), ran
    assert says in ran.err
    assert CANARY not in ran.err + ran.out
    assert server.seen == []


def test_a_program_that_is_not_there_is_told_at_once(run, server):
    run("profile", "add", "dev", "--url", server.url, "--token-command", "no-such-program-at-all")
    ran = run(*LIST)
    assert (ran.code, "token command no-such-program-at-all cannot be run: No such file" in ran.err) == (5, True)


@pytest.mark.parametrize("expires", ['"2030-01-01T00:00:00Z"', '"2030-01-01T01:00:00+01:00"', "1893456000000"])
def test_a_program_may_tell_when_its_token_expires(tmp_path, expires):
    printing = program(tmp_path, f'print(\'{{"token": "one", "expiresAt": {expires}, "kind": "x"}}\')')
    token = token_of_command(shlex.split(printing))
    assert (token.value, token.expires_ms) == ("one", 1_893_456_000_000)


def test_a_program_gets_nothing_of_what_a_command_reads():
    reader, writer = os.pipe()
    os.write(writer, b"a message")
    os.close(writer)
    own = os.dup(0)
    os.dup2(reader, 0)
    try:
        token = token_of_command([sys.executable, "-I", "-c", "import sys; print(f't{len(sys.stdin.read())}')"])
    finally:
        os.dup2(own, 0)
        os.close(own)
        os.close(reader)
    assert token.value == "t0"


def test_a_program_is_asked_again_when_its_token_is_refused(run, server, tmp_path):
    counting = f"import pathlib; f = pathlib.Path({str(tmp_path / 'n')!r}); n = len(f.read_text()) if f.exists() else 0; f.write_text('x' * (n + 1)); print(f'token-{{n}}')"
    run("profile", "add", "dev", "--url", server.url, "--token-command", program(tmp_path, counting))
    server.script = [problem(401, "unauthenticated"), TOPICS]
    assert run(*LIST).code == 0
    assert sent(server) == ["Bearer token-0", "Bearer token-1"]


def test_a_completion_runs_no_program(run, server, monkeypatch, tmp_path):
    ran = tmp_path / "ran"
    run(
        "profile",
        "add",
        "dev",
        "--url",
        server.url,
        "--token-command",
        program(tmp_path, f"open({str(ran)!r}, 'w'); print('one')"),
    )
    monkeypatch.setenv("_BASALT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "basalt topic show ")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run().code == 0
    assert (sent(server), ran.exists()) == ([None], False)


def test_a_program_that_hangs_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr("basalt.cli.credentials.COMMAND_S_MAX", 0.01)
    with pytest.raises(UnauthenticatedError, match="took more than"):
        token_of_command([sys.executable, "-I", "-c", "import time; time.sleep(60)"])


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "unauthenticated", 5),
        (403, "forbidden", 5),
        (403, "cross_origin", 1),
        (429, "throttled", 6),
        (503, "authentication_unavailable", 6),
    ],
)
def test_exit_codes_of_refusals(run, server, status, code, exit_code):
    server.script = [problem(status, code, hint="ask an operator.")]
    ran = run(*LIST, "--url", server.url, "--timeout", "1s")
    assert (ran.code, ran.err.count("\n")) == (exit_code, 1)
    assert "ask an operator" in ran.err


def test_no_command_takes_a_token(run):
    ran = run(*LIST, "--token", CANARY)
    assert ran.code == 2
    assert "no such option --token" in ran.err
    assert CANARY not in ran.err


def test_a_profile_may_say_that_a_ticket_proves_who_calls_and_then_names_no_token(run, tmp_path):
    added = run("profile", "add", "dev", "--url", "https://basalt.example", "--kerberos")
    assert added.code == 0
    assert json.loads(run("profile", "list", "-o", "json").out)[0]["kerberos"] is True
    refused = run("profile", "add", "dev", "--url", "https://basalt.example", "--kerberos", "--token-file", "token")
    assert (refused.code, "not by both" in refused.err) == (2, True)
    refused = run("profile", "add", "dev", "--url", "embedded:data", "--kerberos")
    assert (refused.code, "asks for no credential" in refused.err) == (2, True)


def test_kerberos_in_the_file_of_profiles_is_true_or_false(run, tmp_path):
    run("profile", "add", "dev", "--url", "https://basalt.example", "--kerberos")
    path = profiles_path()
    assert "kerberos = true" in path.read_text()
    path.write_text(path.read_text().replace("true", '"yes"'))
    refused = run("profile", "list")
    assert (refused.code, "'kerberos'" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("https://a.example", {}, True),
        ("https://b.example", {}, False),
        ("https://a.example", {"BASALT_TOKEN": "one"}, False),
        ("https://a.example", {"BASALT_TOKEN_FILE": "one"}, False),
    ],
)
def test_a_ticket_is_for_the_profiles_servers_and_goes_behind_the_environment(url, environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert kerberos_for(url, Profile("https://a.example", kerberos=True)) is expected
    assert kerberos_for(url, Profile("https://a.example")) is False
