"""`basalt alerts` and `basalt process`."""

from __future__ import annotations

import json

import pytest

from basalt.api.bodies.operations import Alert, AlertList
from basalt.cli.commands import operations
from basalt.client.blocking.client import Admin


def alert(state: str, severity: str) -> Alert:
    return Alert(
        "BasaltX", severity, state, "it is so", {}, 1.0, 1_000, 0, "x > 0", "docs/operations/runbook.md#basaltx"
    )  # type: ignore[arg-type]


def test_a_process_is_shown_as_tables(cli):
    shown = cli("process").out
    assert "loop lag" in shown
    assert "calls that wait for a group commit" in shown
    assert "newest rows of topics" in shown
    assert "MainThread" in shown


def test_a_program_gets_all_of_it(cli):
    shown = json.loads(cli("process", "-o", "json").out)
    assert shown["loop_lag_ms_max"] >= 0
    assert {each["name"] for each in shown["queues"]} >= {"fetches that wait for messages"}


def test_all_alerts_are_listed_with_those_that_only_prometheus_can_tell(cli):
    ran = cli("alerts", "--all", "-o", "jsonl")
    states = {each["name"]: each["state"] for each in map(json.loads, ran.out.splitlines())}
    assert states["BasaltServerDown"] == "elsewhere"
    assert states["BasaltPolicyStale"] == "ok"


@pytest.mark.parametrize(
    ("alerts", "code"),
    [
        ([], 0),
        ([alert("firing", "warning")], 1),
        ([alert("firing", "critical")], 1),
        ([alert("pending", "critical")], 0),
        ([alert("firing", "info")], 0),
    ],
)
def test_the_exit_code_says_whether_one_fires_that_is_more_than_a_notice(cli, monkeypatch, alerts, code):
    monkeypatch.setattr(Admin, "alerts", lambda self, *, everything=False: AlertList(2_000, 1_000, tuple(alerts)))
    ran = cli("alerts")
    assert ran.code == code
    assert ("no alert would fire" in ran.out) == (not alerts)
    assert operations.alerts.name == "alerts"
