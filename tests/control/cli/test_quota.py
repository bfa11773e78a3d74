"""`basalt quota`: rules are set, put together with what was there, shown and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from basalt.access.policy import Caller, Policy
from basalt.access.principal import parse_principal
from basalt.access.quotas import QuotaLimits
from tests.control.cli.conftest import served, services_with_jobs


@pytest.fixture(scope="module")
def judging() -> Iterator[str]:
    """A server where the caller has no rights, and two requests a second."""

    async def services():
        opened = await services_with_jobs()
        opened.quotas.use({"token:slow": QuotaLimits(requests_per_s=1)})
        return opened

    with served(services, Caller(parse_principal("token:slow"), Policy())) as url:
        yield url


def rows(cli, *arguments: str):
    return json.loads(cli("quota", *arguments, "-o", "json").out)


def test_quotas_that_are_not_given_stay_as_they_are_and_unset_takes_one_away(cli):
    ran = cli("quota", "set", "token:etl", "--publish-bytes-per-s", "4MiB", "--topics", "off", "--reason", "noise")
    assert (ran.code, ran.out) == (0, "set the quotas of token:etl: publish_bytes_per_s 4194304, topics off\n")
    ran = cli("quota", "set", "token:etl", "--requests-per-s", "50000", "--topics", "unset")
    assert ran.out == "set the quotas of token:etl: requests_per_s 50000, publish_bytes_per_s 4194304\n"
    (row,) = rows(cli, "list")
    assert (row["subject"], row["requests_per_s"], row["topics"], row["made_by"]) == (
        "token:etl", 50_000, None, "anonymous",
    )  # fmt: skip
    shown = cli("quota", "show", "token:etl").out
    assert "requests_per_s       50,000  token:etl" in shown
    assert "publish_bytes_per_s  4 MiB   token:etl" in shown
    assert "topics               off     settings" in shown
    assert cli("quota", "remove", "token:etl", "--dry-run").out == "would remove the quotas of token:etl\n"
    assert cli("quota", "remove", "token:etl").out == "removed the quotas of token:etl\n"
    assert rows(cli, "list") == []


def test_a_rule_of_a_role_is_shown_as_it_is_also_where_its_name_has_a_slash(cli):
    cli("quota", "set", "role:a/b\\c~d", "--sessions", "3")
    shown = rows(cli, "show", "role:a/b\\c~d")
    assert (shown["subject"], shown["rule"]["sessions"], shown["in_force"]) == ("role:a/b\\c~d", 3, [])
    assert "sessions             3" in cli("quota", "show", "role:a/b\\c~d").out
    assert cli("quota", "remove", "role:a/b\\c~d").code == 0


def test_a_dry_run_sets_nothing(cli):
    ran = cli("quota", "set", "everyone", "--topics", "1", "--dry-run")
    assert ran.out == "would set the quotas of everyone: topics 1\n"
    assert rows(cli, "list") == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "no quota is given"),
        (("--topics", "0"), "out of range"),
        (("--topics", "many"), "not a whole number"),
        (("--topics", "1KiB"), "takes none"),
        (("--topics", "unset"), "nothing would be left of the rule"),
    ],
)
def test_what_is_no_rule_is_a_wrong_use(cli, arguments, error):
    ran = cli("quota", "set", "token:etl", *arguments)
    assert ran.code == 2
    assert error in ran.err


def test_a_rule_that_is_not_there_is_exit_code_3(cli):
    assert cli("quota", "remove", "token:nobody").code == 3


def test_a_quota_that_is_used_up_is_exit_code_6(run, judging: str):
    for _ in range(20):
        ran = run("auth", "whoami", "--url", judging, "--timeout", "200ms")
        if ran.code:
            break
    assert ran.code == 6
    assert "token:slow has used up its quota requests_per_s" in ran.err
