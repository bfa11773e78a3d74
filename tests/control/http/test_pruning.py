"""The pruning calls: how it stands, run, what is in the way, history, restore; with regions and without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from basalt.http.routes.pruning import INVALID_MAX
from basalt.operations import prune_reports
from basalt.operations.prune_reports import COMPACTIONS_MAX
from basalt.pruning.prune import COMPACTIONS_BY_HAND
from basalt.server.wiring import open_services
from basalt.settings import Settings, TransactionSettings
from basalt.settings.tree import HBaseSettings, StoreSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable
from tests.control.http.conftest import Client
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, PaperCluster, file

PRUNE = "/v1/admin/prune"


@pytest.fixture
def settings() -> Settings:
    return Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS))


@pytest.fixture
def clustered(runner: asyncio.Runner, settings: Settings) -> Iterator[tuple[Client, PaperCluster]]:
    """A server whose store has regions on paper."""
    store = MemoryStore(atomic=False)
    cluster = PaperCluster(SystemTable(store.table("system")))
    services = runner.run(open_services(settings, None, store=store, clock=ManualClock(), cluster=cluster))
    yield Client(services, runner), cluster
    runner.run(services.close())


def failed_writer(client: Client) -> int:
    """A writer on the invalid list, with a row in a topic; its pointer."""
    begun = client.begin()
    client.publish("/v1/namespaces/shop/topics/orders", "lost", pointer=begun["writePointer"])
    assert client.call("POST", f"/v1/transactions/{begun['id']}/invalidate").json() == {"invalidated": True}
    return int(begun["writePointer"])


def ended_writer(client: Client) -> int:
    """One whose lifetime is over."""
    client.topic()
    writer = failed_writer(client)
    advance(client, LIFETIME_MS + SKEW_MS + 1_000)
    return writer


def advance(client: Client, duration_ms: int) -> None:
    assert isinstance(client.clock, ManualClock)
    client.clock.advance(duration_ms)


def get(client: Client, target: str = "") -> Any:
    reply = client.call("GET", PRUNE + target)
    assert reply.status == 200, reply.body
    return reply.json()


def test_the_embedded_store_tells_what_holds_a_writer_and_prunes_it(client: Client):
    writer = ended_writer(client)
    shown = get(client)
    assert (shown["invalid"], shown["free"], shown["regions"], shown["lastRun"]) == (1, 0, None, None)
    assert shown["causes"] == [{"cause": "note", "writers": 1, "freedBy": "the next run of the job retention"}]
    assert shown["oldest"]["writePointer"] == writer
    (explained,) = get(client, "/explain")
    assert (explained["writePointer"], explained["free"]) == (writer, False)
    assert explained["holds"][0]["region"] is None
    client.call("POST", "/v1/admin/jobs/retention/run")
    assert get(client)["free"] == 1
    assert get(client, "/explain") == []
    dry = client.call("POST", f"{PRUNE}/run?dryRun=true").json()
    assert (dry["pruned"], dry["dryRun"]) == (1, True)
    done = client.call("POST", f"{PRUNE}/run").json()
    assert (done["pruned"], done["pointers"], done["dryRun"]) == (1, [writer], False)
    assert get(client)["lastRun"]["pruned"] == 1
    (entry,) = get(client, "/history")
    assert (entry["writers"], entry["oldest"], entry["newest"]) == (1, writer, writer)
    assert client.call("GET", "/v1/admin/jobs/prune/history").json()[0]["report"]["pruned"] == 1


def test_a_store_without_regions_says_so(client: Client):
    for target in ("/regions", "/regions/abc"):
        reply = client.call("GET", PRUNE + target)
        assert (reply.status, reply.code) == (409, "no_regions")
    reply = client.call("POST", "/v1/admin/snapshot/publish")
    assert (reply.status, reply.code) == (409, "no_regions")
    assert client.call("GET", "/v1/admin/snapshot").json()["published"] is None


def test_the_invalid_list_is_read_page_by_page_and_by_what_its_writers_wait_for(client: Client):
    old = ended_writer(client)
    young = [failed_writer(client) for _ in range(3)]
    whole = get(client, "/invalid")
    assert [each["writePointer"] for each in whole["writers"]] == [old, *young]
    assert [each["cause"] for each in whole["writers"]] == ["note", *["lifetime"] * 3]
    assert (whole["invalid"], whole["next"], whole["writers"][0]["freedBy"]) == (
        4,
        None,
        "the next run of the job retention",
    )
    found, after = [], 0
    for _ in range(3):
        page = get(client, f"/invalid?limit=2&after={after}")
        found += [each["writePointer"] for each in page["writers"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [old, *young]
    assert [each["writePointer"] for each in get(client, "/invalid?cause=note")["writers"]] == [old]
    page = get(client, f"/invalid?cause=lifetime&limit=2&after={old}")
    assert ([each["writePointer"] for each in page["writers"]], page["next"]) == (young[:2], young[1])
    assert get(client, f"/invalid?cause=lifetime&after={young[1]}")["next"] is None
    client.call("POST", "/v1/admin/jobs/retention/run")
    first = get(client, "/invalid?limit=1")["writers"][0]
    assert (first["cause"], first["freedBy"]) == (None, None), "the next run prunes it"
    for target in ("/invalid?cause=bad%20luck", "/invalid?after=-1", f"/invalid?limit={INVALID_MAX + 1}"):
        assert client.call("GET", PRUNE + target).status == 400


def test_regions_are_compacted_by_name_or_those_that_hold_back_the_oldest_writers(
    clustered: tuple[Client, PaperCluster],
):
    client, cluster = clustered
    writer = ended_writer(client)
    cluster.report_all(client.clock.now_ms())
    cluster.report(client.clock.now_ms(), file(-1, writer))
    planned = client.call("POST", f"{PRUNE}/compact?dryRun=true").json()
    server = cluster.listed[0].server
    assert planned == {
        "regions": [{"id": "m1", "table": "message", "server": server, "files": 1, "bytes": 100}], "dryRun": True
    }  # fmt: skip
    assert cluster.compacted == []
    done = client.call("POST", f"{PRUNE}/compact?reason=old", {}).json()
    assert (done["regions"], done["dryRun"]) == (planned["regions"], False)
    assert cluster.compacted == ["m1"]
    client.call("POST", f"{PRUNE}/run")
    assert cluster.compacted == ["m1"], "no run asks for it again so soon"
    named = client.call("POST", f"{PRUNE}/compact", {"regions": ["p1", "m1", "p1"]}).json()
    assert [each["id"] for each in named["regions"]] == ["p1", "m1"]
    assert cluster.compacted == ["m1", "p1", "m1"]
    lines = client.call("GET", "/v1/admin/audit").json()
    assert [(line["act"], line["what"], line["reason"]) for line in lines if line["act"] == "compact"] == [
        ("compact", "regions p1, m1", ""),
        ("compact", "regions m1", "old"),
    ]


def test_compactions_that_cannot_be_are_refused_and_nothing_is_asked_for(
    clustered: tuple[Client, PaperCluster], client: Client
):
    there, cluster = clustered
    for regions, status in (([], 400), (["m1"] * (COMPACTIONS_MAX + 1), 400), (["m1", "gone"], 404)):
        assert there.call("POST", f"{PRUNE}/compact", {"regions": regions}).status == status
    assert cluster.compacted == []
    assert there.call("POST", f"{PRUNE}/compact").json()["regions"] == [], "nothing holds a writer back"
    assert there.call("GET", "/v1/admin/audit").json() == []
    cluster.refuses = True
    reply = there.call("POST", f"{PRUNE}/compact", {"regions": ["m1"]})
    assert (reply.status, there.call("GET", "/v1/admin/audit").json()[0]["outcome"]) == (
        503,
        "failed: the gateway is away",
    )
    assert client.call("POST", f"{PRUNE}/compact").code == "no_regions"


def test_where_no_run_asks_for_compactions_somebody_still_may(runner: asyncio.Runner, settings: Settings):
    store = MemoryStore(atomic=False)
    cluster = PaperCluster(SystemTable(store.table("system")))
    none = replace(settings, store=StoreSettings(hbase=HBaseSettings(prune_compactions=0)))
    services = runner.run(open_services(none, None, store=store, clock=ManualClock(), cluster=cluster))
    client = Client(services, runner)
    writer = ended_writer(client)
    for region in ("m1", "m2", "p1", "c1"):
        cluster.report(client.clock.now_ms(), file(-1, writer), of=region)
    planned = client.call("POST", f"{PRUNE}/compact?dryRun=true").json()["regions"]
    assert len(planned) == COMPACTIONS_BY_HAND
    runner.run(services.close())


def test_a_writer_that_is_not_invalid_is_not_explained(client: Client):
    reply = client.call("GET", f"{PRUNE}/explain?writePointer=5")
    assert (reply.status, reply.code) == (404, "not_found")


def test_regions_show_what_they_hold_back(clustered: tuple[Client, PaperCluster]):
    client, cluster = clustered
    writer = ended_writer(client)
    now_ms = client.clock.now_ms()
    cluster.report(now_ms, of="m2")
    cluster.report(now_ms, file(writer - 1, writer), file(-1, 5, "old"))
    shown = get(client, "/regions")
    assert [(region["id"], region["heldBack"]) for region in shown] == [
        ("c1", 1), ("m1", 1), ("p1", 1), ("m2", 0),
    ]  # fmt: skip
    assert shown[1]["files"] == 2
    assert shown[1]["unknownFiles"] == 1
    assert shown[2]["idle"] == "no report: there is no report"
    assert [region["id"] for region in get(client, "/regions?show=blocking")] == ["c1", "m1", "p1"]
    assert [region["id"] for region in get(client, "/regions?show=idle")] == ["c1", "p1"]
    detail = get(client, "/regions/m1")
    assert detail["counters"] == {"kept": 7}
    assert [(each["name"], each["heldBack"]) for each in detail["storeFiles"]] == [("f1", 1), ("old", 0)]
    (explained,) = get(client, f"/explain?writePointer={writer}")
    assert [(hold["cause"], hold["region"], hold["file"]) for hold in explained["holds"]] == [
        ("file", "m1", "f1"),
        ("no report", "p1", None),
        ("no report", "c1", None),
    ]
    status = get(client)
    assert (status["regions"], status["reports"]) == (4, 2)
    reply = client.call("GET", f"{PRUNE}/regions/abc")
    assert (reply.status, reply.code) == (404, "not_found")


def test_a_hole_in_the_key_space_is_told_and_stops_the_run(clustered: tuple[Client, PaperCluster]):
    client, cluster = clustered
    ended_writer(client)
    cluster.listed.pop()
    assert "no region" in get(client)["fault"]
    for target in ("/run", "/run?dryRun=true"):
        reply = client.call("POST", PRUNE + target)
        assert (reply.status, reply.code) == (503, "unavailable")


def test_a_snapshot_is_published_on_demand(clustered: tuple[Client, PaperCluster]):
    client, _ = clustered
    client.topic()
    failed_writer(client)
    published = client.call("POST", "/v1/admin/snapshot/publish").json()
    assert (published["sequence"], published["invalid"], published["lifetimeMsMax"]) == (1, 1, LIFETIME_MS)
    assert client.call("GET", "/v1/admin/snapshot").json()["published"] == published
    advance(client, 7_000)
    assert b"basalt_region_snapshot_age_seconds 7.0" in client.call("GET", "/metrics").body


def test_pruned_writers_are_restored(clustered: tuple[Client, PaperCluster]):
    client, cluster = clustered
    client.call("POST", "/v1/admin/snapshot/publish")
    ended_writer(client)
    cluster.report_all(client.clock.now_ms())
    assert client.call("POST", f"{PRUNE}/run").json()["pruned"] == 1
    assert b"basalt_pruned_writers_total 1.0" in client.call("GET", "/metrics").body
    dry = client.call("POST", f"{PRUNE}/restore?dryRun=true", {"sinceMs": 0}).json()
    assert dry == {"restored": 1, "dryRun": True}
    assert get(client)["invalid"] == 0
    assert client.call("POST", f"{PRUNE}/restore", {"sinceMs": 0}).json() == {"restored": 1, "dryRun": False}
    assert get(client)["invalid"] == 1
    assert get(client)["restored"] > 0


@pytest.mark.parametrize(
    "body", [{"sinceMs": -1}, {"sinceMs": 1 << 63}, {"sinceMs": "1"}, {}, {"sinceMs": 1, "x": 1}, []]
)
def test_a_restore_without_a_time_is_refused(client: Client, body: Any):
    assert client.call("POST", f"{PRUNE}/restore", body).status == 400


@pytest.mark.parametrize(
    "target",
    [
        "/explain?writePointer=0",
        "/explain?writePointer=x",
        "/explain?limit=1001",
        "/regions?show=all2",
        "/history?limit=0",
    ],
)
def test_bad_parameters_are_refused_by_name(client: Client, target: str):
    assert client.call("GET", PRUNE + target).status == 400


def test_a_run_shows_so_many_pointers_and_counts_all(client, monkeypatch):
    monkeypatch.setattr(prune_reports, "POINTERS_SHOWN_MAX", 2)
    path = client.topic()
    for _ in range(3):
        failed_writer(client)
    assert client.call("DELETE", path).status == 200
    client.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
    for job in ("retention", "retention"):
        assert client.call("POST", f"/v1/admin/jobs/{job}/run").json()["run"]["outcome"] == "ok"
    shown = client.call("POST", "/v1/admin/prune/run?dryRun=true").json()
    assert (shown["pruned"], len(shown["pointers"])) == (3, 2)


def test_a_writer_shows_so_many_holds_and_counts_those_left_out(client, monkeypatch):
    client.topic()
    writer = failed_writer(client)
    (whole,) = get(client, f"/explain?writePointer={writer}")
    monkeypatch.setattr(prune_reports, "HOLDS_SHOWN_MAX", len(whole["holds"]) - 1)
    (cut,) = get(client, f"/explain?writePointer={writer}")
    assert (cut["holds"], cut["holdsLeftOut"]) == (whole["holds"][:-1], 1)
