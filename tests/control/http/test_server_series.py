"""`GET /v1/admin/series`: what it answers, what it refuses, and to whom."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from basalt.http.routes.server import NAMES_CHARS_MAX
from basalt.operations.series.series import NAMES_MAX
from basalt.operations.series.table import FIGURES

SERIES = "/v1/admin/series"
LAG = "lag_messages:shop:orders/billing"


@pytest.fixture
def watched(client):
    """A server at which somebody has looked for five seconds, and that has a group."""
    client.topic("orders")
    client.call("PUT", "/v1/namespaces/shop/topics/orders/groups/billing", {})
    client.publish("/v1/namespaces/shop/topics/orders", "a", "b")
    for _ in range(5):
        client.clock.advance(1_000)
        client.app.sampler.sample(client.clock.now_ms(), client.clock.monotonic_ms())
        client.run(client.app.sampler.look_at_groups(client.clock.now_ms()))
    return client


def test_without_names_it_lists_what_there_is(watched):
    found = watched.call("GET", SERIES).json()
    names = [each["name"] for each in found["figures"]]
    topic = ["fetched_per_s:shop:orders", "published_per_s:shop:orders"]
    assert names == [*(figure.name for figure in FIGURES), LAG, LAG.replace("messages", "seconds"), *topic]
    assert (found["stepMs"], found["time"], found["values"]) == (0, [], {})


def test_it_answers_the_figures_that_are_asked_for_with_gaps_as_null(watched):
    found = watched.call("GET", f"{SERIES}?names=connections,{quote(LAG)}&from=-7s").json()
    now_ms = watched.clock.now_ms()
    assert found["stepMs"] == 1_000
    assert found["time"] == [now_ms - 1_000 * ago for ago in range(7, 0, -1)]
    assert found["values"] == {"connections": [None] * 3 + [0] * 4, LAG: [None] * 3 + [2] * 4}
    assert [(each["name"], each["unit"]) for each in found["figures"]] == [("connections", ""), (LAG, "")]


def test_a_longer_step_puts_several_together(watched):
    found = watched.call("GET", f"{SERIES}?names=groups&from=-10m&step=1m").json()
    assert (found["stepMs"], len(found["time"])) == (60_000, 10)
    assert found["values"]["groups"][-1] == 1


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("names=opne", 404, "names"),
        ("names=", 400, "names"),
        ("names=open,,groups", 400, "names"),
        ("names=open%0a", 400, "names"),
        ("names=open&step=0s", 400, "step"),
        ("names=open&step=2d", 400, "step"),
        ("names=open&step=ten", 400, "step"),
        ("names=open&from=soon", 400, "from"),
        ("names=open&from=start", 400, "from"),
        ("names=open&from=now", 400, "from"),
        ("names=open&from=-1m&to=-2m", 400, "from"),
        ("names=open&to=end", 400, "to"),
        ("names=lag_seconds:a", 404, "names"),
        ("names=lag_seconds:a:b/c", 404, "names"),
        ("names=published_per_s:a:b", 404, "names"),
        ("names=published_per_s:a", 404, "names"),
        ("names=" + ",".join(["open"] * (NAMES_MAX + 1)), 400, "names"),
        ("names=" + "n" * (NAMES_CHARS_MAX + 1), 400, "names"),
        ("nams=open", 400, "nams"),
    ],
)
def test_what_it_cannot_answer_is_refused_with_the_parameter(watched, query, status, field):
    reply = watched.call("GET", f"{SERIES}?{query}")
    assert (reply.status, reply.json()["field"]) == (status, field), reply.body


def test_as_many_names_as_fit_are_answered_and_one_twice_is_once(watched):
    names = ",".join([figure.name for figure in FIGURES] + ["open"] * (NAMES_MAX - len(FIGURES)))
    assert len(watched.call("GET", f"{SERIES}?names={names}").json()["values"]) == len(FIGURES)


def test_a_new_server_has_gaps_and_no_error(client):
    found = client.call("GET", f"{SERIES}?names=open&from=-3s").json()
    assert set(found["values"]["open"]) == {None}


def test_the_job_keeps_the_minutes_and_a_new_server_goes_on_with_them(watched):
    from basalt.operations.series.days import SeriesDays
    from basalt.operations.series.series import Series

    for _ in range(70):
        watched.clock.advance(1_000)
        watched.app.sampler.sample(watched.clock.now_ms(), watched.clock.monotonic_ms())
    assert watched.call("POST", "/v1/admin/jobs/stats/run", b"").status == 200
    later = Series(FIGURES)
    SeriesDays(watched.services.system, later).load(watched.clock.now_ms() + 60_000)
    ring = watched.services.series.minutes[0]
    assert later.minutes[0].newest == ring.newest
    assert list(later.minutes[0].read("groups", ring.newest, ring.newest)) == [1]


def test_a_job_that_cannot_keep_them_says_so_and_the_next_run_does(watched, monkeypatch):
    for _ in range(70):
        watched.clock.advance(1_000)
        watched.app.sampler.sample(watched.clock.now_ms(), watched.clock.monotonic_ms())
    days = watched.services.series_days
    write = days.write

    def broken(_days):
        raise OSError("the disk is full")

    monkeypatch.setattr(days, "write", broken)
    assert watched.call("POST", "/v1/admin/jobs/stats/run", b"").json()["run"]["outcome"] == "failed"
    monkeypatch.setattr(days, "write", write)
    watched.clock.advance(600_000)
    assert watched.call("POST", "/v1/admin/jobs/stats/run", b"").json()["run"]["outcome"] == "ok"
    assert list(watched.services.system.scan("series"))


def test_a_server_that_stops_keeps_them(connect, settings):
    client = connect(settings)
    for _ in range(70):
        client.clock.advance(1_000)
        client.app.sampler.sample(client.clock.now_ms(), client.clock.monotonic_ms())
    kept = []
    write = client.services.series_days.write
    client.services.series_days.write = lambda days: kept.extend(days) or write(days)
    client.run(client.services.close())
    ((number, day),) = kept
    last = number * 1_440 + day.first + len(day.columns["groups"]) - 1
    assert last == client.clock.now_ms() // 60_000  # the minute that was going on, as far as it came
    assert day.columns["groups"][-1] == 0
