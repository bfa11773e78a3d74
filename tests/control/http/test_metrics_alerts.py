"""GET /v1/admin/alerts, and the looks that a server takes by itself for it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from basalt.http import metrics
from basalt.http.metrics import Metrics
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

ALERTS = "/v1/admin/alerts"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_nothing_is_wrong_with_a_server_that_has_just_started(client):
    reply = client.call("GET", ALERTS)
    assert reply.json() == {"atMs": client.clock.now_ms(), "watchedMs": client.clock.now_ms(), "alerts": []}


def test_what_is_wrong_is_told_in_words_with_where_to_read_on(client):
    path = client.topic()
    client.publish(path, "m", pointer=client.begin(timeoutMs=600_000)["writePointer"])
    client.clock.advance(90_000)
    (pending,) = client.call("GET", ALERTS).json()["alerts"]
    assert pending["state"] == "pending"
    client.clock.advance(60_000)
    (firing,) = client.call("GET", ALERTS).json()["alerts"]
    assert firing == {
        "name": "BasaltReadersHeldBack", "severity": "warning", "state": "firing", "labels": {}, "value": 150.0,
        "text": "Readers of committed messages wait behind a transaction that has been open for 2 min",
        "sinceMs": client.clock.now_ms() - 60_000, "forMs": 60_000, "expression": "basalt_transactions_oldest_blocking_seconds > 60",
        "runbook": "docs/operations/runbook.md#basaltreadersheldback",
    }  # fmt: skip


def test_all_alerts_are_told_when_they_are_asked_for(client):
    shown = client.call("GET", f"{ALERTS}?all=true").json()["alerts"]
    assert {each["state"] for each in shown} == {"ok", "elsewhere"}
    assert client.call("GET", f"{ALERTS}?all=perhaps").status == 400


async def looks(watching: Metrics, count: int) -> None:
    """Until so many looks were taken."""
    async with asyncio.timeout(60):
        while len(watching.taken) < count:  # type: ignore[attr-defined]
            await asyncio.sleep(0)


async def test_a_server_looks_by_itself_again_and_again_also_after_a_look_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(metrics, "LOOK_EVERY_S", 0)
    services = await open_services(Settings(), None, store=MemoryStore(), clock=ManualClock())
    watching = Metrics(services)
    watching.taken = taken = []  # type: ignore[attr-defined]

    async def alerts(*, everything: bool = False) -> None:
        taken.append(everything)
        if len(taken) == 1:
            raise ZeroDivisionError("oops")

    monkeypatch.setattr(watching, "alerts", alerts)
    with caplog.at_level(logging.ERROR):
        watching.watch()
        await looks(watching, 3)
    assert [record.message for record in caplog.records] == ["the series that alerts go by could not be read"]
    assert services.loop_lag.is_measured
    await services.close()
    assert not services.loop_lag.is_measured
    assert services.watching is not None
    assert services.watching.cancelling() or services.watching.cancelled()


def test_what_happened_before_somebody_asks_is_known(client):
    client.run(client.app.metrics.alerts())  # the server's own look
    begun = client.begin()["id"]
    assert client.call("POST", f"/v1/admin/transactions/{begun}/abort?reason=test").status == 200
    client.clock.advance(15_000)
    (forced,) = client.call("GET", ALERTS).json()["alerts"]
    assert (forced["name"], forced["value"]) == ("BasaltForcedEnd", 1.0)
