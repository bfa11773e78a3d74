"""The pages of regions: what each certifies and holds back, its files, and compactions by hand; and a store that has none."""

from __future__ import annotations

from typing import Any

from basalt.console.pages import regions
from basalt.console.pages.regions import PAGE_ROWS, SKIPPED_MAX
from basalt_engine.stores.hbase.regions import JAR_VERSION, OWN_VERSION, UNTOLD, version_text
from tests.control.console.conftest import Api, Browser, Page, failed_writer, outlive
from tests.control.pruning.conftest import file, region

LIST = "/console/regions"
HOSTILE = "<script>\"'&\u202e"


def held(clustered: Any) -> tuple[Browser, Any, int]:
    """A browser, a cluster on which a file of region m1 holds a writer back, and that writer."""
    client, cluster = clustered
    writer = failed_writer(Api(client))
    outlive(client)
    cluster.report_all(client.clock.now_ms())
    cluster.report(client.clock.now_ms(), file(-1, writer, HOSTILE), file(writer, writer, "new"))
    return Browser(client), cluster, writer


def test_an_embedded_store_has_no_regions_and_the_page_says_what_that_means(browser):
    page = browser.page(LIST)
    assert page.status == 200
    assert "This store has no regions: it is embedded in the server" in page.text
    assert "/console/jobs/retention" in page.links
    assert "no_regions" not in page.text
    one = browser.page(f"{LIST}/m1")
    assert (one.status, "this store has no regions" in one.text) == (409, True)
    assert browser.plan(f"{LIST}/compact").status == 409


def test_regions_are_listed_with_what_they_hold_back_and_summed_up_by_server(clustered):
    browser, cluster, writer = held(clustered)
    cluster.listed.append(region("cell", "c2", server="rs2,16020,1"))
    page = browser.page(LIST)
    assert "rs1,16020,1 4 0 0 ms ago none 2 version not told" in page.text
    assert "rs2,16020,1 1 1 \u2013 none 0" in page.text
    assert "5 of 5 shown." in page.text
    assert {f"{LIST}/m1", f"{LIST}/c2", f"/console/prune/{writer}"} <= set(page.links)
    assert "no report: there is no report" in page.text
    idle = browser.page(f"{LIST}?show=idle&panel=regions")
    assert [link for link in idle.links if link.startswith(f"{LIST}/")] == [f"{LIST}/c2"]
    assert "basalt prune regions --idle" in idle.text
    blocking = browser.page(f"{LIST}?show=blocking&panel=regions")
    assert f"{LIST}/m1" in blocking.links
    assert "must be all or blocking or idle" in browser.page(f"{LIST}?show=none").text


def test_more_regions_than_a_page_has_go_on_on_the_next_one(clustered, monkeypatch):
    browser, _, _ = held(clustered)
    assert PAGE_ROWS < SKIPPED_MAX
    monkeypatch.setattr(regions, "PAGE_ROWS", 3)
    page = browser.page(f"{LIST}?panel=regions")
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"])
    found = [link for each in (page, rest) for link in each.links if link.startswith(f"{LIST}/")]
    assert sorted(found) == [f"{LIST}/{name}" for name in ("c1", "m1", "m2", "p1")]
    assert rest.all("a", rel="next") == []
    assert rest.all("a", rel="first")
    assert browser.get(f"{LIST}?skip={SKIPPED_MAX + 1}").status == 400


def test_a_region_is_shown_with_its_files_and_what_each_may_hold(clustered):
    browser, _, writer = held(clustered)
    page = browser.page(f"{LIST}/m1")
    assert HOSTILE.replace("\u202e", "\\u202e") in page.text
    assert f"any: of unknown origin {writer} 1 100 B" in page.text
    assert f"new {writer} {writer} 0 100 B" in page.text
    assert f"Holds back 1 writers, the oldest {writer}" in page.text
    assert "kept 7" in page.text
    assert "basalt prune info m1" in page.text
    assert browser.page(f"{LIST}/gone").status == 404


def test_a_coprocessor_of_another_version_than_the_server_is_told_of_its_regions_its_server_and_on_the_page_of_the_cluster(
    clustered,
):
    client, cluster = clustered
    browser, now_ms = Browser(client), client.clock.now_ms()
    versions = {"m1": OWN_VERSION, "m2": OWN_VERSION - 1, "p1": OWN_VERSION + 1, "c1": UNTOLD}
    for name, version in versions.items():
        cluster.report(now_ms, of=name, counters={JAR_VERSION: version})
    older = f"{version_text(OWN_VERSION - 1)}, older than this server"
    page = browser.page(LIST)
    for told in (older, f"{version_text(OWN_VERSION + 1)}, newer than this server", "version not told"):
        assert told in page.text
    assert f"Coprocessor {version_text(OWN_VERSION)} Oldest" in browser.page(f"{LIST}/m1").text
    assert f"Coprocessor {older}" in browser.page(f"{LIST}/m2").text
    cluster.report(now_ms, of="c1", counters={JAR_VERSION: OWN_VERSION})
    browser.page(LIST)
    assert f"rs1:16020 {older} 0 ms ago" in browser.page("/console/cluster?panel=store").text
    (server,) = Api(client)("GET", "/v1/admin/store")["regionServers"]
    assert (server["coprocessor"], server["coprocessorState"]) == (version_text(OWN_VERSION - 1), "older")
    (metric,) = [
        line
        for line in client.call("GET", "/metrics").body.decode().splitlines()
        if line.startswith("basalt_coprocessor_jar{")
    ]
    assert (
        metric
        == f'basalt_coprocessor_jar{{region_server="rs1:16020",state="older",version="{version_text(OWN_VERSION - 1)}"}} 1.0'
    )


def test_a_region_is_compacted_behind_a_plan_that_tells_its_size(clustered):
    browser, cluster, _ = held(clustered)
    plan = browser.plan(f"{LIST}/m1/compact")
    assert "Regions whose files would be written anew" in plan.text
    assert "m1 message rs1,16020,1 2 200 B" in plan.text
    assert "basalt prune compact m1 --dry-run" in plan.text
    assert cluster.compacted == []
    done = Page(browser.post(f"{LIST}/m1/compact", {**plan.fields, "reason": "old files"}))
    assert (done.status, cluster.compacted) == (200, ["m1"])
    assert "regions m1" in done.text
    cluster.refuses = True
    refused = browser.act(f"{LIST}/m1/compact", reason="again")
    assert (refused.status, "the gateway is away" in refused.text) == (503, True)


def test_those_that_hold_back_the_oldest_are_compacted_together_and_a_plan_is_stale_when_they_are_others(clustered):
    browser, cluster, writer = held(clustered)
    plan = browser.plan(f"{LIST}/compact")
    assert ("m1 message" in plan.text, "p1 payload" in plan.text) == (True, False)
    cluster.report(clustered[0].clock.now_ms(), file(-1, writer), of="p1")
    late = Page(browser.post(f"{LIST}/compact", {**plan.fields, "reason": "old files"}))
    assert (late.status, "p1 payload" in late.text, cluster.compacted) == (409, True, [])
    assert Page(browser.post(f"{LIST}/compact", {**late.fields, "reason": "old files"})).status == 200
    assert sorted(cluster.compacted) == ["m1", "p1"]


def test_a_plan_that_compacts_nothing_says_so(clustered):
    client, cluster = clustered
    cluster.report_all(client.clock.now_ms())
    assert "No region: the files of none hold writers back" in Browser(client).plan(f"{LIST}/compact").text


def test_the_snapshot_of_region_servers_is_told_with_its_age(clustered):
    client, _ = clustered
    browser = Browser(client)
    assert "Nothing was published" in browser.page(f"{LIST}?panel=published").text
    Api(client)("POST", "/v1/admin/snapshot/publish")
    assert "as number 1 of epoch 0" in browser.page(f"{LIST}?panel=published").text
