"""What a shell is offered: names that the server knows, and nothing, without a word, where it cannot be asked."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable

import pytest

from basalt.cli import options
from tests.control.cli.conftest import Ran, Run


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pressed Tab waits for as long as this machine takes; a test that is about the wait says how long it is."""
    monkeypatch.setattr(options, "COMPLETION_MS_MAX", 60_000)


@pytest.fixture
def asked(cli: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The answer to a shell that completes the last word of this command line; nothing may go wrong."""

    def answer(shell: str, *words: str) -> Ran:
        with monkeypatch.context() as patch:
            patch.setenv("_BASALT_COMPLETE", f"{shell}_complete")
            patch.setenv("COMP_WORDS", " ".join(("basalt", *words)))
            patch.setenv("COMP_CWORD", str(len(words)))
            ran = cli()
        assert (ran.code, ran.err) == (0, "")
        return ran

    return answer


@pytest.fixture
def offered(asked: Run) -> Callable[..., list[str]]:
    """The names among the answer."""
    return lambda *words: [line.removeprefix("plain,") for line in asked("bash", *words).out.splitlines() if line]


def test_topics_are_offered_wherever_one_is_named(cli, offered):
    for name in ("orders", "orders.eu", "invoices"):
        cli("topic", "create", name)
    for command in (
        ("consume",),
        ("publish",),
        ("topic", "show"),
        ("topic", "update"),
        ("topic", "delete"),
        ("topic", "truncate"),
        ("topic", "range"),
        ("message", "peek"),
        ("explain", "poll"),
        ("tx", "list", "--topic"),
    ):
        assert sorted(offered(*command, "or")) == ["orders", "orders.eu"], command
    assert offered("topic", "create", "or") == []


def test_what_else_has_a_name_is_offered_too(cli, offered):
    namespace = os.environ["BASALT_NAMESPACE"]
    cli("topic", "create", "orders")
    cli("table", "create", "stock")
    begun = json.loads(cli("tx", "begin", "-o", "json").out)
    assert offered("topic", "list", "--namespace", namespace[:-2]) == [namespace]
    assert offered("table", "scan", "") == ["stock"]
    assert "retention" in offered("job", "run", "")
    assert begun["id"] in offered("tx", "show", begun["id"][:4])
    cli("tx", "abort", begun["id"], "--yes")
    assert begun["id"] not in offered("tx", "show", begun["id"][:4])


def test_a_name_comes_from_the_server_and_namespace_that_the_command_line_names(cli, offered, monkeypatch):
    namespace, url = os.environ["BASALT_NAMESPACE"], os.environ["BASALT_URL"]
    cli("topic", "create", "orders")
    monkeypatch.delenv("BASALT_NAMESPACE")
    monkeypatch.delenv("BASALT_URL")
    assert offered("consume", "--url", url, "--namespace", namespace, "or") == ["orders"]
    cli("profile", "add", "here", "--url", url, "--namespace", namespace)
    cli("profile", "add", "elsewhere", "--url", url, "--namespace", f"{namespace}-other")
    assert offered("consume", "or") == ["orders"]
    assert offered("consume", "--profile", "elsewhere", "or") == []
    assert offered("consume", "--profile", "e") == ["elsewhere"]
    assert offered("profile", "use", "") == ["here", "elsewhere"]


def test_shells_that_show_a_line_of_help_get_it(asked):
    job = "remove expired"
    assert any(job in line for line in asked("zsh", "job", "run", "ret").out.splitlines())


def test_without_an_answer_nothing_is_offered_and_nothing_is_said(offered, monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(options, "COMPLETION_MS_MAX", 50)
        assert offered("consume", "--url", f"127.0.0.1:{port}", "") == []
    assert offered("consume", "--url", f"127.0.0.1:{port}", "") == []
    assert offered("consume", "--url", "ftp://x", "") == []
    assert offered("consume", "--url", f"embedded:{tmp_path / 'data'}", "") == []
    assert not (tmp_path / "data").exists()
    assert offered("consume", "--profile", "nowhere", "") == []
    profiles = tmp_path / "config" / "basalt" / "profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text("x =")
    assert offered("profile", "use", "") == []


def test_only_so_many_names_are_offered(cli, offered, monkeypatch):
    assert options.COMPLETIONS_MAX >= 100
    monkeypatch.setattr(options, "COMPLETIONS_MAX", 2)
    for name in "abc":
        cli("topic", "create", name)
    assert len(offered("consume", "")) == 2
