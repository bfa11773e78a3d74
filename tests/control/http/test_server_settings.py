"""Settings that change while the server runs: every one that is declared live takes effect, and no other changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields

import pytest

from basalt.operations.jobs import Job, Report
from basalt.operations.scheduler import Scheduler
from basalt.settings import JobsSettings, Origin, Settings
from basalt.settings.tree import keys

SETTINGS = "/v1/admin/settings"
LIVE = [key.name for key in keys().values() if key.live]
JOBS = [each.name.replace("_", "-") for each in fields(JobsSettings)]
HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000  # ahead of the timer's own clock: nothing starts by itself


@pytest.fixture(autouse=True)
def _root_level_stays():
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def put(client, **changes):
    reply = client.call("PATCH", SETTINGS, {name.replace("__", "."): value for name, value in changes.items()})
    assert reply.status == 200, reply.body
    return reply.json()


def in_force(client):
    return {each["key"]: each for each in client.call("GET", SETTINGS).json()}


def see_level(client, caplog):
    put(client, log__level="error")
    assert logging.getLogger().level == logging.ERROR
    put(client, log__level="debug")
    assert logging.getLogger().level == logging.DEBUG


def test_the_level_of_the_log_is_again_that_of_the_start_when_the_services_are_closed(client):
    put(client, log__level="error")
    client.run(client.services.close())
    assert logging.getLogger().level == logging.INFO


def see_levels(client, caplog):
    loud, quiet = logging.getLogger("basalt.loud"), logging.getLogger("basalt.quiet")
    put(client, log__levels="basalt.loud=debug,basalt.quiet=error")
    assert (loud.level, quiet.level) == (logging.DEBUG, logging.ERROR)
    put(client, log__levels="basalt.quiet=warning")
    assert (loud.level, quiet.level) == (logging.NOTSET, logging.WARNING)
    put(client, log__levels="off")
    assert (loud.level, quiet.level) == (logging.NOTSET, logging.NOTSET)


def see_slow_ms(client, caplog):
    path, write = client.topic(), client.services.store.write

    def write_slowly(writes):
        client.clock.advance(40)
        write(writes)

    def publish_slowly():
        client.services.store.write = write_slowly
        client.call("POST", f"{path}/records", {"records": [{"payload": "x"}]})
        client.services.store.write = write

    put(client, log__slow_ms="off")
    publish_slowly()
    put(client, log__slow_ms=30)
    publish_slowly()
    lines = [record for record in caplog.records if record.name == "basalt.slow"]
    assert len(lines) == 1


def see_access(client, caplog):
    caplog.set_level(logging.INFO, "basalt.access")
    client.call("GET", "/v1/admin/jobs")
    put(client, log__access="all")
    client.call("GET", "/v1/admin/store")
    logged = [record.getMessage() for record in caplog.records if record.name == "basalt.access"]
    assert not [line for line in logged if "jobs" in line]
    assert [line for line in logged if "store" in line]


def see_flat_topics(client, caplog):
    path = client.topic(ttl=60)
    nested = client.call("GET", path).json()
    put(client, http__flat_topics=True)
    flat = client.call("GET", path).json()
    assert (nested["properties"]["ttl"], flat["ttl"]) == ("60", "60")


def see_fetch_messages_max(client, caplog):
    path = client.topic()
    client.publish(path, "a", "b", "c")
    put(client, messaging__fetch_messages_max=2)
    assert client.payloads(path) == ["a", "b"]


def see_fetch_bytes_max(client, caplog):
    path = client.topic()
    client.publish(path, "a" * 800, "b" * 800, "c" * 800)
    put(client, messaging__fetch_bytes_max="1KiB")
    assert len(client.payloads(path)) == 1


async def nothing() -> Report:
    return {}


def see_job(setting: str) -> Callable[..., None]:
    """The job's next start follows; all jobs are there, also those that only a server of HBase has."""
    _, job, word = setting.split(".")

    def see(client, caplog):
        services, settings = client.services, Settings().jobs
        client.clock.step(FAR_MS)
        jobs = [Job(name, name, getattr(settings, name.replace("-", "_")), nothing) for name in JOBS]
        services.scheduler = Scheduler(services.store, services.clock, jobs)
        client.run(services.scheduler.start())
        client.run(services.scheduler.run_now(job))
        now_ms = services.clock.now_ms()

        def next_run_ms():
            return next(each for each in client.call("GET", "/v1/admin/jobs").json() if each["name"] == job)[
                "nextRunMs"
            ]

        assert 0 < next_run_ms() - now_ms < 5 * HOUR_MS
        if word == "interval_ms":
            put(client, **{setting: "5h"})
            assert next_run_ms() == now_ms + 5 * HOUR_MS
        elif word == "enabled":
            put(client, **{setting: False})
            assert next_run_ms() is None
        else:
            hour = (now_ms // HOUR_MS + 7) % 24
            put(client, **{setting: f"{hour:02}:00-{hour:02}:30"})
            assert next_run_ms() // HOUR_MS % 24 == hour
            assert job != "prune" or services.pruner.window == services.settings.jobs.prune.window is not None

    return see


EFFECTS = {
    "http.flat_topics": see_flat_topics,
    "messaging.fetch_messages_max": see_fetch_messages_max,
    "messaging.fetch_bytes_max": see_fetch_bytes_max,
    "log.level": see_level,
    "log.access": see_access,
    "log.levels": see_levels,
    "log.slow_ms": see_slow_ms,
    **{
        f"jobs.{job}.{word}": see_job(f"jobs.{job}.{word}")
        for job in JOBS
        for word in ("interval_ms", "window", "enabled")
    },
}


def test_every_live_setting_has_an_effect_that_is_seen():
    assert set(EFFECTS) == set(LIVE)


@pytest.mark.parametrize("setting", LIVE)
def test_a_live_setting_takes_effect(client, caplog, setting):
    EFFECTS[setting](client, caplog)
    assert in_force(client)[setting]["origin"] == "config set"
    assert in_force(client)[setting]["live"]


def test_the_answer_tells_what_changed_and_the_line_that_keeps_it(client):
    assert put(client, **{"jobs.log-snapshot.interval_ms": "1h"}) == {
        "changed": [
            {"key": "jobs.log-snapshot.interval_ms", "before": "5m", "value": "1h", "section": "[jobs.log-snapshot]",
             "line": 'interval_ms = "1h"'}
        ],
        "until": "the server stops",
    }  # fmt: skip


def test_each_change_is_in_the_audit_and_in_the_log(client, caplog):
    asked = {"log.access": "all", "messaging.fetch_messages_max": 7}
    assert client.call("PATCH", f"{SETTINGS}?as=ann&reason=slow", asked).status == 200
    acts = client.call("GET", "/v1/admin/audit").json()
    assert {(act["act"], act["what"], act["outcome"], act["name"], act["reason"]) for act in acts} == {
        ("set", "setting log.access", "errors became all", "ann", "slow"),
        ("set", "setting messaging.fetch_messages_max", "10000 became 7", "ann", "slow"),
    }
    assert "set of setting log.access by ann from 192.0.2.7: errors became all (reason: slow)" in caplog.messages


def test_a_secret_is_not_told_when_it_is_replaced(client):
    client.services.settings.origins["log.access"] = Origin("file", secret=True)
    (change,) = put(client, log__access="all")["changed"]
    assert (change["before"], change["value"]) == ("(secret)", "all")


@pytest.mark.parametrize(
    ("bad", "status", "code", "says"),
    [
        ({"log.levle": "debug"}, 400, "invalid_setting", "did you mean log.level?"),
        ({"log.level": "loud"}, 400, "invalid_setting", "it takes debug, info, warning, error"),
        ({"messaging.fetch_messages_max": 0}, 400, "invalid_setting", "it takes 1 to 1000000"),
        ({"http.flat_topics": None}, 400, "malformed_body", ""),
        ({"jobs.prune": True}, 400, "invalid_setting", "it has the keys"),
        ({"store.sync": False}, 409, "setting_needs_start", "write sync = false under [store] in its settings file"),
    ],
)
def test_with_one_that_cannot_be_set_nothing_changes(client, bad, status, code, says):
    before = in_force(client)
    reply = client.call("PATCH", SETTINGS, {"log.access": "all", **bad})
    assert (reply.status, reply.code) == (status, code)
    assert says in (reply.json().get("hint") or "")
    assert in_force(client) == before
    assert client.call("GET", "/v1/admin/audit").json() == []


def test_a_dry_run_tells_and_changes_nothing(client):
    before = in_force(client)
    reply = client.call("PATCH", f"{SETTINGS}?dryRun=true", {"log.access": "all"})
    assert [change["value"] for change in reply.json()["changed"]] == ["all"]
    assert in_force(client) == before
    assert client.call("GET", "/v1/admin/audit").json() == []


@pytest.mark.parametrize("name", [name for name, key in keys().items() if not key.live])
def test_every_other_setting_needs_a_start(client, name):
    key = keys()[name]
    reply = client.call("PATCH", SETTINGS, {name: key.kind.write(key.default)})
    assert (reply.status, reply.code) == (409, "setting_needs_start")
