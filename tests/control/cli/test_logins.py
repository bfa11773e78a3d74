"""`basalt auth login` and `logout`: a short token in place of a credential, kept for its owner alone, and sent to its server alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from basalt.cli.logins import Login, logins_path, read_logins, write_logins
from basalt_engine.clock import SystemClock
from tests.control.cli.asking_server import BOOTSTRAP, asking, root, sent_by
from tests.control.client.scripted import ScriptedServer, answer

__all__ = ["asking", "root", "sent_by"]


@pytest.fixture
def profiled(root, sent_by, asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`run` with a profile that names a token file, and without a token in the environment."""
    file = tmp_path / "etl.token"
    root("token", "create", "etl", "--to-file", str(file))
    root("grant", "add", "token:etl", "owner", "namespace:shop")
    monkeypatch.delenv("BASALT_TOKEN")
    monkeypatch.delenv("BASALT_URL")
    root("profile", "add", "dev", "--url", asking, "--namespace", "shop", "--token-file", str(file))
    return root


def whoami(run) -> dict[str, str]:
    ran = run("auth", "whoami", "-o", "json")
    assert ran.code == 0, ran
    found: dict[str, str] = json.loads(ran.out)
    return found


def test_a_login_takes_the_place_of_the_credential_until_one_logs_out(profiled, asking, tmp_path: Path):
    before = whoami(profiled)["credential"]
    ran = profiled("auth", "login", "--ttl", "1h")
    assert ran.code == 0, ran
    assert ran.out.startswith("logged in as token:etl until 2")
    path = logins_path()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (login,) = read_logins().values()
    assert login.token not in ran.out + ran.err + repr(login)
    (tmp_path / "etl.token").rename(tmp_path / "away")  # it is not needed meanwhile
    assert whoami(profiled)["credential"] == f"login {login.token.split('_')[1]}"
    assert profiled("topic", "create", "orders").code == 0
    (tmp_path / "away").rename(tmp_path / "etl.token")
    assert profiled("auth", "logout").out == "logged out token:etl\n"
    assert (read_logins(), whoami(profiled)["credential"]) == ({}, before)
    over = profiled("auth", "whoami", "--url", asking.replace("http://", ""))
    assert over.code == 0
    again = profiled("auth", "logout")
    assert (again.code, "there is no login at" in again.err) == (3, True)


def test_the_server_forgets_it_too(profiled, sent_by):
    profiled("auth", "login")
    (login,) = read_logins().values()
    assert sent_by(login.token, "auth", "whoami").code == 0
    profiled("auth", "logout")
    assert sent_by(login.token, "auth", "whoami").code == 5


def test_a_login_that_counts_no_more_says_what_to_do(profiled, sent_by):
    profiled("auth", "login")
    (login,) = read_logins().values()
    assert sent_by(BOOTSTRAP, "token", "revoke", login.token.split("_")[1], "--yes").code == 0
    ran = profiled("topic", "list")
    assert (ran.code, "log in again (`basalt auth login`)" in ran.err) == (5, True), ran
    assert (profiled("auth", "login").code, profiled("topic", "list").code) == (0, 0)


def test_another_login_is_made_with_the_credential_again(profiled):
    assert [profiled("auth", "login").code for _ in range(2)] == [0, 0]
    assert len(read_logins()) == 1


def test_a_login_goes_to_its_server_alone(profiled):
    profiled("auth", "login")
    stranger = ScriptedServer()
    stranger.script = [answer(200, b'{"topics":[]}')]
    assert profiled("topic", "list", "--url", stranger.url).code == 0
    assert stranger.seen[0].headers.get("authorization") is None
    stranger.close()


def test_the_environment_goes_before_a_login_which_says_so(profiled, monkeypatch):
    monkeypatch.setenv("BASALT_TOKEN", BOOTSTRAP)
    ran = profiled("auth", "login")
    assert (ran.code, "BASALT_TOKEN is set, and goes before this login" in ran.err) == (0, True)
    assert whoami(profiled)["credential"] == "token bootstrap"


def test_a_login_that_has_ended_is_not_sent(profiled, asking):
    write_logins({asking: Login("over", "token:etl", SystemClock().now_ms() - 1)})
    assert whoami(profiled)["credential"].startswith("token ")
    assert profiled("auth", "logout").code == 3


def test_a_login_of_a_server_that_is_gone_is_forgotten_here(profiled, asking):
    url = "http://127.0.0.1:1"
    write_logins({url: Login("one", "token:etl", SystemClock().now_ms() + 60_000)})
    ran = profiled("auth", "logout", "--url", url, "--timeout", "100ms")
    assert (ran.code, "the login is forgotten here, and counts there until" in ran.err) == (6, True)
    assert read_logins() == {}


def test_a_login_that_was_over_there_is_forgotten_here(profiled, asking):
    write_logins({asking: Login("one", "token:etl", SystemClock().now_ms() + 60_000)})
    assert (profiled("auth", "logout").code, read_logins()) == (0, {})


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", '{"u": {}}', '{"u": 1}', "\udcff", '{"u": {"token": 5, "principal": "x", "expires_ms": 1}}',
        '{"u": {"token": "x", "principal": "x", "expires_ms": "1"}}',
    ],
)  # fmt: skip
def test_a_broken_file_is_named_and_not_repeated(run, content):
    path = logins_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    ran = run("topic", "list", "--url", "http://127.0.0.1:1")
    assert (ran.code, ran.err.count("\n"), str(path) in ran.err) == (1, 1, True)


def test_what_is_written_is_for_its_owner_alone_whatever_the_umask(run):
    before = os.umask(0)
    try:
        write_logins({"http://a:1": Login("one", "token:etl", 1)})
    finally:
        os.umask(before)
    assert logins_path().stat().st_mode & 0o777 == 0o600


def test_an_embedded_store_has_no_logins(run, tmp_path: Path):
    for command in ("login", "logout"):
        ran = run("auth", command, "--url", f"embedded:{tmp_path}")
        assert (ran.code, "asks for no credential" in ran.err) == (2, True)


def test_what_would_be_refused_is_listed(root, sent_by):
    token = root("token", "create", "etl").out.strip()
    sent_by(token, "consume", "orders")
    ran = root("auth", "would-refuse", "-o", "json")
    (row,) = json.loads(ran.out)
    assert (row["principal"], row["verb"], row["resource"], row["count"]) == (
        "token:etl",
        "read",
        "topic:shop:orders",
        1,
    )
    assert "these were refused: auth.enforce is true" in root("auth", "would-refuse").err
