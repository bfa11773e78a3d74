"""The overview: whether the server is well, and what somebody should look at."""

from __future__ import annotations

import gzip

import pytest

from basalt.console.assets import ASSETS
from basalt.console.pages.overview import ALERTS_AGE_MS, AUDIT_LINES, GROUPS, HANGING_ROWS
from basalt.errors import StoreError
from basalt.http.routes.server import ALERTS_AGE_MS_MAX
from tests.control.console.conftest import Page

ORDERS = "/v1/namespaces/shop/topics/orders"
PANELS = ["readiness", "alerts", "hanging", "manager", "worst_groups", "history", "process", "store", "jobs", "audit"]
COMPRESSED_BYTES_MAX = 60_000  # of the page and all that it loads


def test_everything_is_well_and_the_page_says_so(browser):
    page = browser.page("/console")
    assert [each["data-live"] for each in page.all("section") if "data-live" in each] == PANELS
    for told in (
        "ready", "No alert would fire.", "No transaction holds readers back or takes long.", "No group is behind.",
        "The last run of each job went well.", "Nobody has done anything by hand.", "Calls a second", "Time of a publish",
        "Time of a fetch", "Time of a commit", "Kind memory", "basalt alerts", "basalt process",
    ):  # fmt: skip
        assert told in page.text


def test_the_groups_that_are_the_furthest_behind_are_there_the_worst_first(client, browser, api):
    client.topic()
    for number in range(GROUPS + 2):
        api("POST", f"{ORDERS}/publish", {"messages": ["m"]})
        api("PUT", f"{ORDERS}/groups/g{number}", {"start": "now" if number else "start"})
        client.clock.advance(60_000)
    page = browser.page("/console?panel=worst_groups")
    shown = [link.rpartition("/")[2] for link in page.links if "/groups/g" in link]
    assert shown[0] == "g0"
    assert len(shown) == GROUPS
    assert f"All {GROUPS + 2} groups" in page.text


def test_an_alert_that_fires_is_told_with_what_it_says(client, browser, api):
    for _ in range(40):
        api("POST", "/v1/transactions", {"snapshot": False, "timeoutMs": 300_000})
    for _ in range(30):
        client.clock.advance(60_000)
        api("GET", "/v1/admin/alerts")
    told = [each["name"] for each in api("GET", "/v1/admin/alerts")["alerts"]]
    page = browser.page("/console?panel=alerts")
    assert told
    for name in told:
        assert name in page.text
    assert "docs/operations/runbook.md#" in page.text


def test_an_open_overview_has_no_alerts_evaluated_that_the_server_has_just_looked_at(client, api):
    first = api("GET", "/v1/admin/alerts")["atMs"]
    assert ALERTS_AGE_MS < ALERTS_AGE_MS_MAX
    client.clock.advance(ALERTS_AGE_MS - 1)
    assert api("GET", f"/v1/admin/alerts?ageMs={ALERTS_AGE_MS}")["atMs"] == first
    assert api("GET", f"/v1/admin/alerts?all=true&ageMs={ALERTS_AGE_MS}")["atMs"] == client.clock.now_ms()
    client.clock.advance(1)
    assert api("GET", f"/v1/admin/alerts?ageMs={ALERTS_AGE_MS}")["atMs"] == client.clock.now_ms()
    assert api("GET", f"/v1/admin/alerts?ageMs={ALERTS_AGE_MS_MAX + 1}", status=400)


def test_a_job_that_is_paused_is_there_and_the_others_are_not(browser, api):
    api("POST", "/v1/admin/jobs/stats/pause")
    page = browser.page("/console?panel=jobs")
    assert "stats paused" in page.text
    assert "/console/jobs/stats" in page.links
    assert "/console/jobs/expiry" not in page.links


def test_a_job_whose_last_run_failed_is_told(client, browser, api, monkeypatch):
    async def fails(*_: object, **__: object) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(client.services.topic_stats, "save", fails)
    api("POST", "/v1/admin/jobs/stats/run")
    assert "stats" in browser.page("/console?panel=jobs").text
    assert "failed" in browser.page("/console?panel=jobs").text


def test_the_last_acts_are_there_and_no_more_than_that(client, browser, api):
    for _ in range(AUDIT_LINES + 2):
        begun = api("POST", "/v1/transactions", {"snapshot": False})
        api("POST", f"/v1/admin/transactions/{begun['id']}/abort?reason=x")
    page = browser.page("/console?panel=audit")
    assert page.text.count("forced abort") == AUDIT_LINES


def test_what_changes_slowly_is_asked_for_less_often(browser):
    every = {
        each["id"]: int(each.get("data-every", 1))
        for each in browser.page("/console").all("section")
        if "data-live" in each
    }
    assert every["panel-manager"] == 1
    assert every["panel-history"] == every["panel-store"] == every["panel-process"] > every["panel-alerts"] > 1
    assert "dataset.every" in ASSETS["console.js"].content.decode()


@pytest.mark.parametrize("panel", PANELS)
def test_each_panel_is_to_be_had_alone(browser, panel):
    assert [each["id"] for each in browser.page(f"/console?panel={panel}").all("section")] == [f"panel-{panel}"]


def test_the_page_and_all_that_it_loads_is_small_with_a_full_server(client, browser, api):
    client.topic()
    for number in range(20):
        api("PUT", f"{ORDERS}/groups/group-{number}", {})
    api("POST", f"{ORDERS}/publish", {"messages": ["m"]})
    for _ in range(HANGING_ROWS + 5):
        begun = api("POST", "/v1/transactions", {"snapshot": False, "owner": "an owner with a name"})
        api("POST", f"{ORDERS}/publish", {"messages": ["m"], "transactionWritePointer": begun["writePointer"]})
    for _ in range(600):
        client.clock.advance(1_000)
        client.app.sampler.sample(client.clock.now_ms(), client.clock.monotonic_ms())
    reply = browser.get("/console")
    assert Page(reply).status == 200
    loaded = sum(len(gzip.compress(asset.content)) for asset in ASSETS.values())
    assert len(gzip.compress(reply.body)) + loaded < COMPRESSED_BYTES_MAX


def test_who_may_not_see_a_part_is_told_so_there_and_sees_the_rest(signed_in):
    page = signed_in("ada").page("/console")
    assert page.status == 200
    assert "token:ada may not observe cluster" in page.text
    assert "No group is behind." in page.text
