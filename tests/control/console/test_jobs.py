"""The pages of jobs: schedules, the last runs with what they did, and acts on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from basalt.console.pages.jobs import ACTS, RUNS_SHOWN
from basalt.operations.scheduler import RUNS_MAX, Run
from tests.control.console.conftest import Page

LIST = "/console/jobs"
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def test_jobs_are_listed_with_schedule_and_outcome(browser, api):
    api("POST", "/v1/admin/jobs/stats/run")
    api("POST", "/v1/admin/jobs/prune/pause")
    page = browser.page(LIST)
    assert {f"{LIST}/stats", f"{LIST}/prune", f"{LIST}/retention"} <= set(page.links)
    assert "✓" not in page.text, "the state is in the word"
    assert "paused" in page.text
    assert "basalt job list" in page.text


def test_a_job_is_shown_with_its_runs_their_reports_and_durations_as_bars(client, browser):
    runs = client.services.scheduler._jobs["retention"].runs
    client.call("GET", "/v1/admin/jobs")  # what was kept is read once
    runs.append(Run(1_700_000_000_000, 250, "ok", {"expired_topics": 3, "rows": 1_200}))
    runs.append(Run(1_700_000_060_000, 1_500, "failed", {}, f"OSError: {HOSTILE}", 4))
    page = browser.page(f"{LIST}/retention")
    assert "expired topics 3, rows 1,200" in page.text
    assert "failed, 4 times in a row" in page.text
    assert "OSError: <img src=x onerror=alert(1)>\\u202e" in page.text
    assert [(each["max"], each["value"]) for each in page.all("meter")] == [("1500", "1500"), ("1500", "250")]
    assert "The longest took 1 s." in page.text
    assert f"basalt job history retention --limit {RUNS_SHOWN}" in page.text
    assert RUNS_SHOWN == RUNS_MAX


def test_a_job_without_runs_and_a_window_are_told(client, browser):
    page = browser.page(f"{LIST}/prune")
    assert "No run is kept" in page.text
    assert "Window any time of day" in page.text
    scheduled = client.services.scheduler._jobs["prune"]
    scheduled.settings = replace(scheduled.settings, enabled=False)
    assert "disabled by the settings" in browser.page(f"{LIST}/prune").text


@pytest.mark.parametrize("name", ["gone", "%3Cscript%3E"])
def test_a_job_that_is_not_there_has_a_page_that_says_so(browser, name):
    page = browser.page(f"{LIST}/{name}")
    assert (page.status, "there is no job" in page.text) == (404, True)
    for act in ACTS:
        assert browser.plan(f"{LIST}/{name}/{act}").status == 404


def test_a_job_is_run_by_hand_and_the_result_tells_what_it_did(browser, api):
    plan = browser.plan(f"{LIST}/retention/run")
    assert "basalt job run retention --dry-run" in plan.text
    assert api("GET", "/v1/admin/jobs/retention/history") == []
    done = Page(browser.post(f"{LIST}/retention/run", {**plan.fields, "reason": "the disk is full"}))
    assert (done.status, "Outcome ok in" in done.text, "nothing was to be done" in done.text) == (200, True, True)
    assert "run job job retention ok the disk is full" in done.text
    assert len(api("GET", "/v1/admin/jobs/retention/history")) == 1


def test_a_job_is_paused_and_resumed_and_the_page_offers_what_is_left(browser, api):
    page = f"{LIST}/retention"

    def offered() -> list[str]:
        return [each["action"].split("/")[-1] for each in browser.page(page).all("form", method="post")]

    assert offered() == ["run?step=plan", "pause?step=plan"]
    plan = browser.plan(f"{page}/pause")
    assert browser.act(f"{page}/pause", reason="a restore").status == 200
    assert (api("GET", "/v1/admin/jobs/retention")["paused"], offered()) == (
        True,
        ["run?step=plan", "resume?step=plan"],
    )
    late = Page(browser.post(f"{page}/pause", {**plan.fields, "reason": "twice"}))
    assert (late.status, "nothing changes: it is paused already" in late.text) == (409, True)
    assert browser.act(f"{page}/resume", reason="done").status == 200
    assert api("GET", "/v1/admin/jobs/retention")["paused"] is False


def test_a_run_that_fails_is_told_as_such(client, browser, monkeypatch):
    async def broken() -> None:
        raise OSError(HOSTILE)

    scheduled = client.services.scheduler._jobs["stats"]
    monkeypatch.setattr(scheduled, "job", replace(scheduled.job, run=broken))
    done = browser.act(f"{LIST}/stats/run", reason="a try")
    assert (done.status, "Outcome failed in" in done.text) == (200, True)
    assert "<img src=x onerror=alert(1)>" in done.text


def test_a_plan_stays_what_it_was_while_the_job_goes_on_by_itself(client, browser):
    plan = browser.plan(f"{LIST}/expiry/pause")
    client.run(client.services.scheduler.fire("expiry"))
    client.clock.advance(5_000)
    assert Page(browser.post(f"{LIST}/expiry/pause", {**plan.fields, "reason": "a look"})).status == 200


def test_who_may_only_look_sees_acts_disabled(signed_in):
    page = signed_in("ada", ("observe", "cluster")).page(f"{LIST}/stats")
    assert len([each for each in page.all("button") if "aria-describedby" in each]) == 2
    assert "basalt grant add token:ada operate cluster" in page.text
