"""`basalt auth`: who one is to a server, and what one may do there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from basalt.access.policy import Caller, Policy, parse_grant
from basalt.access.principal import parse_principal
from tests.control.cli.conftest import served, services_with_jobs


@pytest.fixture(scope="module")
def judging() -> Iterator[str]:
    """A server where the caller may write to one topic alone."""
    policy = Policy([parse_grant("token:etl", ["write"], "topic:shop:orders")])
    with served(services_with_jobs, Caller(parse_principal("token:etl"), policy)) as url:
        yield url


def test_where_nobody_has_to_prove_who_they_are_everybody_may_do_everything(cli):
    found = json.loads(cli("auth", "whoami", "-o", "json").out)
    assert (found["principal"], found["judged"]) == ("anonymous", False)
    assert "principal   anonymous" in cli("auth", "whoami").out
    ran = cli("auth", "check", "operate", "cluster")
    assert (ran.code, ran.out) == (
        0, "anonymous may operate cluster: nobody has to prove who they are, and everybody may do everything\n",
    )  # fmt: skip


def test_a_right_that_one_has_is_told_with_the_grant(run, judging: str):
    ran = run("auth", "check", "observe", "topic:shop:orders", "--url", judging)
    assert (ran.code, ran.out) == (
        0, "token:etl may observe topic:shop:orders: it was granted (token:etl has write on topic:shop:orders)\n",
    )  # fmt: skip


def test_a_right_that_one_has_not_is_exit_code_5(run, judging: str):
    ran = run("auth", "check", "read", "topic:shop:orders", "--url", judging)
    assert (ran.code, ran.out) == (
        5,
        "token:etl may not read topic:shop:orders: no grant to token:etl, everyone gives read on topic:shop:orders\n",
    )
    found = json.loads(run("auth", "check", "read", "topic:shop:orders", "--url", judging, "-o", "json").out)
    assert (found["allowed"], found["grants"]) == (False, [])


def test_a_call_that_is_forbidden_is_exit_code_5_and_says_what_is_missing(run, judging: str):
    ran = run("topic", "show", "accounts", "--namespace", "shop", "--url", judging)
    assert ran.code == 5
    assert "token:etl may not observe topic:shop:accounts" in ran.err
    assert run("topic", "list", "--namespace", "shop", "--url", judging, "-o", "json").out.strip() == "[]"


def test_a_resource_that_is_none_is_told_so(cli):
    ran = cli("auth", "check", "read", "topic:shop")
    assert ran.code == 1
    assert "'topic:shop' is no resource" in ran.err
