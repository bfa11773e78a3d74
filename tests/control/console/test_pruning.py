"""The pages of pruning: the invalid list page by page, why a writer stays, a run by hand, and what a restore takes back."""

from __future__ import annotations

import pytest

from basalt.console.pages.pruning import HISTORY_ROWS, PAGE_ROWS, TIME_DIGITS_MAX, time_of
from basalt.http.routes.pruning import INVALID_MAX
from tests.control.console.conftest import TERMS, Api, Browser, Page, failed_writer, outlive
from tests.control.pruning.conftest import file

LIST = "/console/pruning"


@pytest.fixture
def client(connect):
    return connect(TERMS)


def why(pointer: object) -> str:
    return f"/console/prune/{pointer}"


def test_an_empty_list_says_so(browser):
    page = browser.page(LIST)
    assert "The list is empty: no failed writer has rows that must be hidden." in page.text
    assert "No writer was pruned yet." in page.text
    assert "Regions none: this store tells by notes" in page.text


def test_a_writer_is_listed_with_what_it_waits_for_and_leads_to_why_it_stays(client, browser, api):
    old = failed_writer(api)
    outlive(client)
    young = failed_writer(api)
    page = browser.page(LIST)
    assert {why(old), why(young), f"{LIST}?cause=note", f"{LIST}?cause=lifetime"} <= set(page.links)
    assert "2 of 2 shown, oldest first." in page.text
    assert "basalt prune list --limit 100" in page.text
    only = browser.page(f"{LIST}?cause=note&panel=invalid")
    assert (why(old) in only.links, why(young) in only.links) == (True, False)
    told = browser.page(why(old))
    assert "the next run of the job retention" in told.text
    assert f"/console/transactions/{old}" in told.links
    assert why(old) in browser.page(f"/console/transactions/{old}").links
    assert {LIST, "/console/jobs"} <= set(browser.page("/console").links)
    api("POST", "/v1/admin/jobs/retention/run")
    assert "the next run of the job prune forgets it" in browser.page(why(old)).text


def test_the_list_goes_on_page_by_page_and_keeps_its_filter(browser, api):
    assert PAGE_ROWS < INVALID_MAX
    pointers = [failed_writer(api) for _ in range(PAGE_ROWS + 2)]
    page = browser.page(f"{LIST}?cause=lifetime&panel=invalid")
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"])
    found = [link for each in (page, rest) for link in each.links if link.startswith(why(""))]
    assert [link for link in found if link in map(why, pointers)][:PAGE_ROWS] == [
        why(each) for each in pointers[:PAGE_ROWS]
    ]
    assert {why(each) for each in pointers} <= set(found)
    assert rest.all("a", rel="first") == [{"href": f"{LIST}?cause=lifetime", "rel": "first"}]


def test_the_size_of_the_list_is_drawn_over_time(client, browser):
    page = browser.page(f"{LIST}?range=1h&panel=history")
    assert len(page.all("svg", **{"class": "chart"})) == 1
    assert "?range=24h" in page.links
    assert browser.page(f"{LIST}?cause=note").all("section", id="panel-history")


def test_somebody_who_has_a_pointer_is_sent_to_its_page(browser):
    reply = browser.get(f"{LIST}?pointer=%2017%20")
    assert (reply.status, reply.header("location")) == (303, why(17))
    reply = browser.get(f"{LIST}?pointer=%2F..%2F%3Cb%3E")
    assert (reply.status, reply.header("location")) == (303, why("%2F..%2F%3Cb%3E"))


@pytest.mark.parametrize(
    ("pointer", "status"), [("17", 404), ("x", 400), ("%3Cscript%3E", 400), ("0", 400), ("9" * 30, 400)]
)
def test_what_is_no_writer_of_the_list_has_a_page_that_says_so(browser, pointer, status):
    page = browser.page(why(pointer))
    assert page.status == status
    assert page.all("section", id="panel-explained") == []


def test_a_region_and_a_file_are_named_that_hold_a_writer(clustered):
    client, cluster = clustered
    browser, api = Browser(client), Api(client)
    writer = failed_writer(api)
    outlive(client)
    cluster.report_all(client.clock.now_ms())
    cluster.report(client.clock.now_ms(), file(-1, writer, "0a<b>"))
    page = browser.page(why(writer))
    assert "/console/regions/m1" in page.links
    assert "file 0a<b> is of unknown origin" in page.text
    assert "a compaction that this file takes part in" in page.text
    status = browser.page(f"{LIST}?panel=status")
    assert "Regions 4, of which 4 have reported" in status.text
    cluster.listed.pop()
    assert "nothing is pruned table cell has no region" in browser.page(LIST).text
    assert browser.page(why(writer)).status == 200


def test_a_run_by_hand_prunes_what_its_plan_told_and_the_audit_says_why(client, browser, api):
    writer = failed_writer(api)
    outlive(client)
    api("POST", "/v1/admin/jobs/retention/run")
    plan = browser.plan(f"{LIST}/run")
    assert f"Would be pruned 1: {writer}" in plan.text
    assert "basalt prune run --dry-run" in plan.text
    done = Page(browser.post(f"{LIST}/run", {**plan.fields, "reason": "the list is long"}))
    assert (done.status, f"Were pruned 1: {writer}" in done.text) == (200, True)
    assert "the list is long" in done.text
    assert browser.page(why(writer)).status == 404
    assert Page(browser.post(f"{LIST}/run", {**plan.fields, "reason": "again"})).status == 409
    pruned = api("GET", "/v1/admin/prune/history")[0]["prunedMs"]
    assert f"{LIST}?since={pruned}" in browser.page(LIST).links


def test_what_was_pruned_is_taken_back_behind_a_restore(client, browser, api):
    writer = failed_writer(api)
    outlive(client)
    api("POST", "/v1/admin/jobs/retention/run")
    api("POST", "/v1/admin/prune/run")
    since = api("GET", "/v1/admin/prune/history")[0]["prunedMs"]
    assert browser.page(LIST).all("form", action=f"{LIST}/since/{since}/restore?step=plan") == []
    offered = browser.page(f"{LIST}?since={since}")
    assert offered.all("form", action=f"{LIST}/since/{since}/restore?step=plan")
    plan = browser.plan(f"{LIST}/since/{since}/restore")
    assert "Writers that would be invalid again 1" in plan.text
    assert f"basalt prune restore --since @{since} --yes --dry-run" in plan.text
    done = browser.act(f"{LIST}/since/{since}/restore", reason="the table was restored")
    assert "Writers that are invalid again 1" in done.text
    assert browser.page(why(writer)).status == 200


def test_what_is_no_time_is_said_to_be_none(browser):
    page = browser.page(f"{LIST}?since=%3Cscript%3E")
    assert page.all("input", name="since")[0]["aria-invalid"] == "true"
    assert "That is no time" in page.text
    assert browser.post(f"{LIST}/since/then/restore?step=plan").status == 400


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000000", 1_700_000_000_000), ("@1700000000000", 1_700_000_000_000), (" 2023-11-14T22:13:20Z ", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000), ("2023-11-14T23:13:20+01:00", 1_700_000_000_000), ("", None), ("-1", None), ("then", None),
        ("0001-01-01T00:00:00+14:00", -62135647200000), ("\u0661", None),
        ("1" * TIME_DIGITS_MAX, int("1" * TIME_DIGITS_MAX)), ("1" * (TIME_DIGITS_MAX + 1), None), ("1" * 5_000, None),
    ],
)  # fmt: skip
def test_times_are_read_as_people_and_programs_write_them(text, time_ms):
    assert time_of(text) == time_ms


def test_a_long_history_says_that_it_goes_on(client, browser, api):
    for _ in range(HISTORY_ROWS):
        failed_writer(api)
        outlive(client)
        api("POST", "/v1/admin/jobs/retention/run")
        api("POST", "/v1/admin/prune/run")
    assert "the command takes a limit" in browser.page(f"{LIST}?panel=pruned").text


def test_who_may_only_look_sees_acts_disabled_and_who_may_not_look_sees_nothing(signed_in, root):
    writer = failed_writer(root)
    ada = signed_in("ada", ("observe", "cluster"))
    page = ada.page(LIST)
    assert "basalt grant add token:ada operate cluster" in page.text
    assert ada.plan(f"{LIST}/run").status == 403
    eve = signed_in("eve")
    assert str(writer) not in eve.page(LIST).text
    there, absent = eve.page(why(writer)), eve.page(why(17))
    assert there.status == absent.status == 403
    assert there.text.replace(str(writer), "17") == absent.text
