"""Profiles: servers under names, and where what proves who calls them is, in a file that holds no secret."""

from __future__ import annotations

import json
import tomllib

import pytest

CANARY = "canary-5e1f0c77"
LIST = ("topic", "list", "--all-namespaces")


def test_the_first_profile_is_used_at_once_and_another_when_told(run, tmp_path):
    assert run("profile", "add", "dev", "--url", "http://127.0.0.1:4780").code == 0
    assert run("profile", "add", "prod", "--url", "https://basalt.example:443", "--namespace", "shop").code == 0
    listed = json.loads(run("profile", "list", "-o", "json").out)
    assert [(row["name"], row["used"]) for row in listed] == [("dev", True), ("prod", False)]
    assert run("profile", "use", "prod", "--dry-run").code == 0
    assert json.loads(run("profile", "list", "-o", "json").out) == listed
    run("profile", "use", "prod")
    assert [row["used"] for row in json.loads(run("profile", "list", "-o", "json").out)] == [False, True]
    run("profile", "remove", "prod")
    path = tmp_path / "config" / "basalt" / "profiles.toml"
    assert tomllib.loads(path.read_text()) == {"profiles": {"dev": {"url": "http://127.0.0.1:4780"}}}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_profile_takes_a_host_and_a_port_for_a_url(run):
    run("profile", "add", "dev", "--url", "localhost:4780,127.0.0.1:4781")
    (row,) = json.loads(run("profile", "list", "-o", "json").out)
    assert row["url"] == "http://localhost:4780,http://127.0.0.1:4781"


def test_a_profile_that_is_not_there_is_exit_code_3_and_names_those_that_are(run):
    run("profile", "add", "dev", "--url", "http://127.0.0.1:4780")
    for arguments in (
        ("profile", "use", "prod"),
        ("profile", "remove", "prod"),
        ("topic", "list", "--profile", "prod"),
    ):
        ran = run(*arguments)
        assert ran.code == 3
        assert "there are: dev" in ran.err


def test_a_broken_profiles_file_is_named(run, tmp_path):
    path = tmp_path / "config" / "basalt" / "profiles.toml"
    path.parent.mkdir(parents=True)
    for content in (
        "current = 5\n",
        "[profiles.dev]\nurl = 3\n",
        "[profiles.dev]\npassword = 'x'\n",
        "profiles = 1\n",
        "x =",
    ):
        path.write_text(content)
        ran = run("profile", "list")
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert str(path) in ran.err


def test_a_relative_path_of_a_profile_is_kept_whole(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run("profile", "add", "dev", "--url", "localhost:1", "--token-file", "token").code == 0
    assert json.loads(run("profile", "list", "-o", "json").out)[0]["token_file"] == str(tmp_path / "token")
    for command, kept in (("./login.sh a/b", [str(tmp_path / "login.sh"), "a/b"]), ("vault x", ["vault", "x"])):
        assert run("profile", "add", "dev", "--url", "localhost:1", "--token-command", command).code == 0
        assert json.loads(run("profile", "list", "-o", "json").out)[0]["token_command"] == kept


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--token-file", "a", "--token-command", "b"], "a token comes from a file or from a command"),
        (["--token-file", "basalt_0123456789abcdef_" + CANARY], "a token itself is given"),
        (["--token-command", "echo basalt_0123456789abcdef_" + CANARY], "a token itself is given"),
        (["--token-command", f"echo eyJhbGciOiJSUzI1NiJ9.{CANARY}.x"], "a token itself is given"),
        (["--token-command", ""], "it is no command"),
        (["--token-command", "'open"], "it is no command"),
        (["--ca-file", "ca.pem"], "certificates are for https"),
        (["--url", "https://a", "--key-file", "key.pem"], "a key without the file of its certificate"),
        (["--url", "embedded:x", "--token-file", "a"], "an embedded store asks for no credential"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(run, arguments, says):
    url = () if "--url" in arguments else ("--url", "http://localhost:1")
    ran = run("profile", "add", "dev", *url, *arguments)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran
    assert says in ran.err
    assert CANARY not in ran.err
    assert run("profile", "list", "-o", "json").out.strip() == "[]"


@pytest.mark.parametrize(
    "content", ["token_command = 'x'", "token_command = []", "token_command = [1]", "token = 'x'", "token_file = 'a'\ntoken_command = ['b']", "key_file = 'a'"]
)  # fmt: skip
def test_a_profiles_file_that_makes_no_sense_is_named(run, tmp_path, content):
    path = tmp_path / "config" / "basalt" / "profiles.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f"[profiles.dev]\nurl = 'http://localhost:1'\n{content}\n")
    ran = run(*LIST)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert str(path) in ran.err
