"""`basalt top`: rates from two looks at a server's metrics, and its jobs."""

from __future__ import annotations

import json
import os

import pytest

from basalt.api.bodies.operations import JobInfo
from basalt.cli.commands import top
from basalt.operations.series.series import TOPICS_SHOWN_MAX

QUICKLY = ("--interval", "100ms")


def metrics(*topics: tuple[str, int, int], **others: float) -> str:
    """What a server answers whose topics (name, published, read) and other series are these."""
    lines = ["# HELP basalt_topic_published_messages_total Messages appended to the topic"]
    for name, published, read in topics:
        labels = f'{{namespace="shop",topic="{name}"}}'
        lines += [
            f"basalt_topic_published_messages_total{labels} {float(published)}",
            f"basalt_topic_published_bytes_total{labels} {published * 10.0}",
            f"basalt_topic_fetched_messages_total{labels} {float(read)}",
            f"basalt_topic_fetched_bytes_total{labels} {read * 10.0}",
        ]
    return "\n".join([*lines, *(f"{name} {value}" for name, value in others.items())])


def look(at_ms: float, text: str, *jobs: JobInfo) -> top.Look:
    return top.Look(at_ms, 1_000_000 + int(at_ms), top.parsed(text), jobs)


def job(name: str, next_run_ms: int | None, **state: bool) -> JobInfo:
    now = {"enabled": True, "paused": False, "running": False} | state
    return JobInfo(name, "", 1_000, None, **now, last_started_ms=None, last_outcome=None, next_run_ms=next_run_ms)


def shown(before: top.Look, after: top.Look, limit: int = 10, namespace: str | None = None) -> dict:
    return top.activity("http://a:1", before, after, limit, namespace)


def test_topics_are_listed_by_their_rates_the_busiest_first():
    before = look(0, metrics(("quiet", 900, 0), ("read", 5, 0), ("busy", 0, 0)))
    after = look(2_000, metrics(("quiet", 900, 0), ("read", 5, 100), ("busy", 300, 10), ("_other", 0, 0)))
    found = shown(before, after)["topics"]
    assert [(topic["topic"], topic["published_per_s"], topic["read_per_s"]) for topic in found] == [
        ("shop:busy", 150.0, 5.0),
        ("shop:read", 0.0, 50.0),
        ("shop:quiet", 0.0, 0.0),
        ("_other", 0.0, 0.0),
    ]
    assert [found[0][name] for name in ("published_bytes_per_s", "read_bytes_per_s", "published_messages")] == [
        1_500.0,
        50.0,
        300,
    ]
    assert len(shown(before, after, limit=2)["topics"]) == 2
    assert shown(before, after, namespace="elsewhere")["topics"] == []


def test_a_series_that_begins_anew_counts_from_zero():
    found = shown(look(0, metrics(("orders", 1_000, 0))), look(1_000, metrics(("orders", 40, 0))))
    assert found["topics"][0]["published_per_s"] == 40.0


def test_transactions_and_the_server_are_told_and_what_is_not_known_is_nothing():
    text = metrics(
        **{
            "basalt_published_messages_total": 10.0,
            'basalt_transactions_live{state="open"}': 3.0,
            'basalt_transactions_total{event="committed"}': 8.0,
            "basalt_transactions_oldest_seconds": 2.5,
            'basalt_server_info{store="rocks",version="1.2"}': 1.0,
            'basalt_http_request_duration_seconds_count{method="GET",route="/v1",status="2xx"}': 4.0,
            'basalt_http_request_duration_seconds_count{method="PUT",route="/v1",status="2xx"}': 6.0,
        }
    )
    found = shown(look(0, ""), look(2_000, text))
    assert (found["server"]["store"], found["server"]["version"]) == ("rocks", "1.2")
    assert (found["server"]["requests_per_s"], found["server"]["published_per_s"]) == (5.0, 5.0)
    transactions = found["transactions"]
    assert (transactions["open"], transactions["committed_per_s"], transactions["oldest_age_ms"]) == (3, 4.0, 2_500)
    assert (transactions["aborting"], found["server"]["memory_bytes"]) == (None, None)


def group_series(name: str, lag: float, age_s: float, acknowledged: float, returned: float) -> dict[str, float]:
    labels = f'group="{name}",namespace="shop",topic="orders"'
    return {
        f"basalt_group_lag_messages{{{labels}}}": lag,
        f"basalt_group_lag_seconds{{{labels}}}": age_s,
        f"basalt_group_members{{{labels}}}": 2.0,
        f"basalt_group_acknowledged_total{{{labels}}}": acknowledged,
        f'basalt_group_returned_total{{group="{name}",namespace="shop",reason="aborted",topic="orders"}}': returned,
    }


def test_groups_are_listed_that_which_is_furthest_behind_first():
    before = look(0, metrics(**group_series("near", 5, 0.5, 0, 0), **group_series("far", 90, 60, 10, 1)))
    after = look(2_000, metrics(**group_series("near", 0, 0, 100, 0), **group_series("far", 80, 62, 20, 5)))
    found = shown(before, after)["groups"]
    assert found == [
        {"group": "shop:orders/far", "lag_messages": 80, "oldest_ms": 62_000, "members": 2, "acknowledged_per_s": 5.0,
         "returned_per_s": 2.0},
        {"group": "shop:orders/near", "lag_messages": 0, "oldest_ms": 0, "members": 2, "acknowledged_per_s": 50.0,
         "returned_per_s": 0.0},
    ]  # fmt: skip
    assert len(shown(before, after, limit=1)["groups"]) == 1
    assert shown(before, after, namespace="elsewhere")["groups"] == []


def test_a_job_is_late_when_its_time_has_passed_and_nothing_stops_it():
    jobs = (
        job("on-time", 1_005_000),
        job("late", 998_000),
        job("paused", None, paused=True),
        job("running", None, running=True),
        job("off", None, enabled=False),
    )
    found = shown(look(0, ""), look(1_000, "", *jobs))["jobs"]
    assert [(each["name"], each["state"], each["late_ms"]) for each in found] == [
        ("on-time", "waiting", 0),
        ("late", "waiting", 3_000),
        ("paused", "paused", 0),
        ("running", "running", 0),
        ("off", "off", 0),
    ]


def test_without_a_terminal_it_is_shown_once(cli):
    cli("topic", "create", "orders")
    cli("publish", "orders", "a", "b")
    namespace = os.environ["BASALT_NAMESPACE"]
    ran = cli("top", *QUICKLY, "--limit", str(top.TOPICS_MAX))
    assert ran.code == 0
    assert "transactions: " in ran.out
    assert "retention" in ran.out
    found = json.loads(cli("top", *QUICKLY, "--namespace", namespace, "-o", "json").out)
    assert [(topic["topic"], topic["published_messages"]) for topic in found["topics"]] == [(f"{namespace}:orders", 2)]
    assert found["server"]["memory_bytes"] > 0
    assert {"retention", "stats"} <= {job["name"] for job in found["jobs"]}


@pytest.mark.parametrize(
    ("arguments", "expected"), [(("--interval", "99ms"), "shorter or longer"), (("--limit", "0"), "range")]
)
def test_what_it_cannot_do_is_refused(run, arguments, expected):
    ran = run("top", *arguments)
    assert (ran.code, expected in ran.err) == (2, True)


def test_it_takes_as_many_topics_as_a_server_has_series_and_the_others(run):
    assert top.TOPICS_MAX == TOPICS_SHOWN_MAX + 1
    assert run("top", "--limit", str(top.TOPICS_MAX + 1)).code == 2
