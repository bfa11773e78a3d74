"""Pages: lists of calls, made as whoever looks, with a policy that nothing foreign passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from basalt.console.page import PANEL_NAMES_CHARS_MAX, POLICY, inside_console
from tests.control.console.conftest import ASKED, BOOTSTRAP, FORM, Api, Browser, Page


def test_every_page_has_a_policy_under_which_nothing_inline_runs_and_no_other_page_frames_it(browser):
    headers = dict(browser.get("/console").headers)
    assert headers[b"content-security-policy"] == POLICY.encode()
    assert "unsafe" not in POLICY
    assert "frame-ancestors 'none'" in POLICY
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_a_panel_is_made_of_one_call_and_can_be_had_alone(browser):
    alone = browser.page("/console?panel=jobs")
    assert [each["id"] for each in alone.all("section")] == ["panel-jobs"]
    assert alone.all("html") == []
    assert browser.page("/console?panel=none").all("section") == []
    both = browser.page("/console?panel=audit,jobs").all("section")
    assert [each["id"] for each in both] == ["panel-jobs", "panel-audit"], "in the page's order"
    assert browser.get(f"/console?panel={'x' * (PANEL_NAMES_CHARS_MAX + 1)}").status == 400


def test_the_calls_of_a_page_are_what_a_client_gets(browser, api):
    found = browser.get("/console?json=true").json()
    assert found["audit"] == {
        "call": "GET /v1/admin/audit?limit=10",
        "curl": "curl -sS 'http://localhost/v1/admin/audit?limit=10'",
        "cli": "basalt audit list --limit 10",
        "status": 200,
        "answer": api("GET", "/v1/admin/audit"),
    }
    assert found["manager"]["answer"] == api("GET", "/v1/admin/snapshot")
    assert "readiness" not in browser.get("/console?json=true&panel=jobs").json()


def test_a_panel_that_its_visitor_may_not_see_says_so_and_the_others_are_there(signed_in):
    page = signed_in("ada", ("observe", "cluster")).page("/console")
    assert page.status == 200
    assert "token:ada may not inspect cluster" in page.text
    assert "The last run of each job went well." in page.text


def test_who_has_signed_in_is_named_and_can_sign_out(signed_in):
    page = signed_in("ada").page("/console")
    assert "token:ada" in page.text
    assert page.all("form", action="/console/logout")


def test_where_rights_are_not_enforced_acts_are_offered_to_who_lacks_them(connect):
    client = connect(replace(ASKED, auth=replace(ASKED.auth, enforce=False)))
    root = Api(client, BOOTSTRAP)
    begun = root("POST", "/v1/transactions", {})["id"]
    page = Browser(client).page(f"/console/transactions/{begun}")
    assert [each for each in page.all("button") if "disabled" in each] == []
    done = Browser(client).act(f"/console/transactions/{begun}/abort", reason="gone")
    assert done.status == 200


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/console", "/console"),
        ("/console?x=1", "/console?x=1"),
        ("/console/topics", "/console/topics"),
        ("/consoles", "/console"),
        ("//evil.example", "/console"),
        ("/console//evil.example", "/console"),
        ("/console/\\evil.example", "/console"),
        ("https://evil.example/console", "/console"),
        ("/console/login", "/console"),
        ("/console/a\r\nset-cookie: x", "/console"),
        ("/console/é", "/console"),
        ("", "/console"),
    ],
)
def test_nobody_is_sent_elsewhere(path, inside):
    assert inside_console(path) == inside


@pytest.mark.parametrize(("scheme", "cookie"), [("http", "basalt"), ("https", "__Host-basalt")])
def test_a_login_that_is_over_is_forgotten_and_its_visitor_comes_back_behind_a_new_one(asked, scheme, cookie):
    asked.app = over(asked.app, scheme)
    reply = asked.call("GET", "/console/transactions?owner=a%26b", Cookie=f"{cookie}=basalt_gone")
    assert reply.status == 303
    location = reply.header("location")
    assert location == "/console/login?next=%2Fconsole%2Ftransactions%3Fowner%3Da%2526b"
    assert reply.header("set-cookie").startswith(f"{cookie}=; Path=/; Max-Age=0;")
    assert ("Secure" in reply.header("set-cookie")) == (scheme == "https")
    assert Page(asked.call("GET", location)).fields["next"] == "/console/transactions?owner=a%26b"
    posted = asked.call("POST", "/console/transactions/17/abort", b"", FORM, Cookie=f"{cookie}=basalt_gone")
    assert (posted.status, posted.header("location")) == (303, "/console/login")


def over(app, scheme: str):
    """The application, as it is asked over this scheme."""

    async def asked(scope, receive, send) -> None:
        await app({**scope, "scheme": scheme}, receive, send)

    return asked


HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.mark.parametrize(
    ("target", "status", "told"),
    [
        ("/console?colour=red", 400, "query parameter &#x27;colour&#x27; is not one of this call"),
        ("/console/jobs?panel=<script>&panel=2", 400, "query parameter panel is given twice"),
        ("/console?x%E2%80%AE=1", 400, "query parameter &#x27;x\\u202e&#x27; is not one of this call"),
        ("/console/regions/compact", 405, "GET is not a method of /console/regions/compact"),
        ("/console/assets/0/none", 404, "the console has no such file"),
    ],
)
def test_a_browser_is_told_on_a_page_what_is_wrong_with_its_request_and_a_program_in_json(client, target, status, told):
    reply = client.call("GET", target, **HTML)
    page = Page(reply)
    assert (page.status, told.encode() in reply.body) == (status, True), reply.body
    assert [each for each in page.links if not each.startswith("/console")] == []
    assert len(page.all("p", **{"data-told": ""})) == 1, "an open page shows it"
    assert [len(page.all(tag)) for tag in ("main", "h1", "title", "script")] == [1, 1, 1, 0]
    assert client.call("GET", target).code


def test_another_name_than_the_servers_is_refused_on_a_page(client):
    reply = client.call("GET", "/console", Host="evil.example", **HTML)
    assert (reply.status, "wrong host" in Page(reply).text.lower()) == (421, True)


def test_what_the_server_does_wrong_is_told_on_a_page_without_its_details(client, monkeypatch):
    def broken(*given: object) -> None:
        raise OSError("secret")

    monkeypatch.setattr("basalt.console.pages.jobs.Visit", broken)
    reply = client.call("GET", "/console/jobs", **HTML)
    assert (reply.status, b"secret" in reply.body, Page(reply).status) == (500, False, 500)


def test_pages_of_a_server_that_is_about_to_stop_are_pages_and_say_so(client):
    browser = Browser(client)
    plan = browser.plan("/console/jobs/stats/run")
    client.services.stop_waiting()
    client.run(client.services.scheduler.stop())
    client.run(client.services.writer.stop())
    page = browser.page("/console")
    assert (page.status, "stopping" in page.text) == (200, True)
    assert browser.page("/console/jobs").status == 200
    refused = Page(browser.post("/console/jobs/stats/run", {**plan.fields, "reason": "late"}))
    assert (refused.status, "the server is shutting down: no job is started" in refused.text) == (503, True)
