"""rules.yml and rules_test.yml: the table of alerts as Prometheus has it, recording rules, and a case for and against each alert."""

from __future__ import annotations

import tomllib
from typing import Any

from basalt.operations.alerts.expressions import duration
from basalt.operations.alerts.rules import ALERTS, WORDS_OF_VALUE, Alert, Unit
from basalt_engine import __version__
from deploy.monitoring.cases import CASES, EVERY_S, Case
from deploy.reference import ROOT

RUNBOOK = "docs/operations/runbook.md"

# How Prometheus writes a value of an alert's text.
_TEMPLATES: dict[Unit, str] = {
    "seconds": "{{ $value | humanizeDuration }}",
    "share": "{{ $value | humanizePercentage }}",
    "count": "{{ $value | humanize }}",
}

# By name: level and name of what is recorded, as Prometheus' own practice has it. Dashboards and ad-hoc questions read them.
RECORDED: dict[str, str] = {
    "instance:basalt_published_messages:rate5m": "sum by (job, instance) (rate(basalt_published_messages_total[5m]))",
    "instance:basalt_fetched_messages:rate5m": "sum by (job, instance) (rate(basalt_fetched_messages_total[5m]))",
    "instance:basalt_transactions_committed:rate5m": (
        'sum by (job, instance) (rate(basalt_transactions_total{event="committed"}[5m]))'
    ),
    "instance:basalt_http_requests:rate5m": "sum by (job, instance) (rate(basalt_http_request_duration_seconds_count[5m]))",
    "instance:basalt_http_request_duration_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(basalt_http_request_duration_seconds_bucket[5m])))"
    ),
    "instance:basalt_transaction_commit_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(basalt_transaction_commit_seconds_bucket[5m])))"
    ),
    "instance:basalt_event_loop_lag_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(basalt_event_loop_lag_seconds_bucket[5m])))"
    ),
    "instance:basalt_store_disk_free:ratio": "basalt_store_disk_free_bytes / basalt_store_disk_bytes",
    "instance_pool:basalt_hbase_call_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (job, instance, pool, le) (rate(basalt_hbase_call_seconds_bucket[5m])))"
    ),
}


def rules() -> dict[str, Any]:
    """The content of rules.yml."""
    recorded = [{"record": name, "expr": expression} for name, expression in RECORDED.items()]
    return {
        "groups": [
            {"name": "basalt-recorded", "rules": recorded},
            {"name": "basalt-alerts", "rules": [_rule(alert) for alert in ALERTS]},
        ]
    }


def rules_test() -> dict[str, Any]:
    """The content of rules_test.yml."""
    tests = [test for alert in ALERTS for test in _tests(alert, CASES[alert.name])]
    return {"rule_files": ["rules.yml"], "evaluation_interval": f"{EVERY_S}s", "tests": tests}


def runbook_url(alert: Alert) -> str:
    """The address of the alert's section, where the source is published."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    return f"{hook['source'].format(version=__version__, path=RUNBOOK)}#{alert.section}"


def _rule(alert: Alert) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.name, "expr": alert.promql}
    if alert.for_s:
        rule["for"] = duration(alert.for_s)
    rule["labels"] = {"severity": alert.severity}
    rule["annotations"] = {"summary": _summary(alert), "runbook_url": runbook_url(alert)}
    return rule


def _summary(alert: Alert) -> str:
    """The alert's text with Prometheus' templates for the words in braces."""

    def template(word: Any) -> str:
        return _TEMPLATES[alert.unit] if word[1] == "value" else f"{{{{ $labels.{word[1]} }}}}"

    return WORDS_OF_VALUE.sub(template, alert.text)


def _tests(alert: Alert, case: Case) -> list[dict[str, Any]]:
    words = {**case.labels, "value": case.shown}
    fires = {
        "exp_labels": {**case.labels, "severity": alert.severity},
        "exp_annotations": {
            "summary": WORDS_OF_VALUE.sub(lambda word: words[word[1]], alert.text),
            "runbook_url": runbook_url(alert),
        },
    }
    return [
        _test(f"{alert.name} fires", alert, case.at, case.fires, [fires]),
        _test(f"{alert.name} does not fire", alert, case.at, case.quiet, []),
    ]


def _test(name: str, alert: Alert, at: str, series: dict[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "interval": f"{EVERY_S}s",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": alert.name, "exp_alerts": expected}],
    }
