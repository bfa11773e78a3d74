"""The pages of named sessions, and their deletion."""

from __future__ import annotations

from urllib.parse import quote

from basalt.console.pages.sessions import PAGE_ROWS
from basalt.http.routes.transactions import PAGE_MAX
from tests.control.console.conftest import Api, Page

LIST = "/console/sessions"
HOSTILE = "<script>\"'&?#é"


def opened(api: Api, name: str, run: str = "monday") -> dict:
    return api("POST", f"/v1/transactions/sessions/{quote(name, safe='')}", {"run": run})


def begun(api: Api, name: str, epoch: int) -> str:
    return api("POST", "/v1/transactions", {"session": name, "sessionEpoch": epoch, "version": 7})["id"]


def test_sessions_are_listed_with_their_runs_and_versions(browser, api):
    assert "There is no session." in browser.page(LIST).text
    opened(api, "import", "host-7")
    page = browser.page(LIST)
    assert f"{LIST}/import" in page.links
    assert "host-7" in page.text
    assert "basalt tx sessions list --limit 100" in page.text


def test_a_session_is_shown_with_what_it_committed_and_what_is_open_in_it(browser, api):
    first = opened(api, "import", "monday")
    done = begun(api, "import", first["epoch"])
    api("POST", f"/v1/transactions/{done}/commit")
    second = opened(api, "import", "tuesday")
    still = api("POST", "/v1/transactions", {"session": "import", "sessionEpoch": second["epoch"], "version": 8})["id"]
    page = browser.page(f"{LIST}/import")
    assert "Run that holds it tuesday" in page.text
    assert "Newest version 7" in page.text
    assert {f"/console/transactions/{done}", f"/console/transactions/{still}"} <= set(page.links)
    assert "Replaced runs monday" in page.text
    shown = browser.page(f"/console/transactions/{still}")
    assert f"{LIST}/import" in shown.links


def test_a_list_goes_on_to_the_next_page(browser, api):
    assert PAGE_ROWS < PAGE_MAX
    for number in range(PAGE_ROWS + 2):
        opened(api, f"s & {number:03}")
    page = browser.page(LIST)
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"])
    names = [link for each in (page, rest) for link in each.links if link.startswith(f"{LIST}/")]
    assert (len(names), len(set(names))) == (PAGE_ROWS + 2, PAGE_ROWS + 2)
    assert rest.all("a", rel="first") == [{"href": LIST, "rel": "first"}]


def test_a_session_is_deleted_by_who_types_its_name_and_what_is_open_in_it_ends(browser, api):
    opening = opened(api, "import")
    tx = begun(api, "import", opening["epoch"])
    path = f"{LIST}/import/delete"
    plan = browser.plan(path)
    assert f"Transactions that would be ended 1, {tx}" in plan.text
    assert "may be committed again" in plan.text
    assert browser.act(path, reason="it moved", typed="imports").status == 400
    assert api("GET", "/v1/transactions/sessions/import")["run"] == "monday"
    done = browser.act(path, reason="it moved", typed="import")
    assert (done.status, f"Transactions that were ended 1, {tx}" in done.text) == (200, True)
    assert "delete session" in done.text
    assert api("GET", f"/v1/transactions/{tx}")["state"] == "ABORTED"
    assert browser.page(f"{LIST}/import").status == 404
    assert browser.plan(path).status == 404


def test_a_plan_is_stale_when_another_run_has_taken_the_session_over(browser, api):
    opened(api, "import", "monday")
    path = f"{LIST}/import/delete"
    plan = browser.plan(path)
    opened(api, "import", "tuesday")
    late = Page(browser.post(path, {**plan.fields, "reason": "it moved", "typed": "import"}))
    assert (late.status, "Run that holds it tuesday" in late.text) == (409, True)
    assert api("GET", "/v1/transactions/sessions/import")["run"] == "tuesday"


def test_hostile_names_and_runs_are_shown_as_text_and_linked(browser, api):
    opened(api, HOSTILE, "<img src=x onerror=alert(1)>")
    page = browser.page(LIST)
    assert HOSTILE in page.text
    assert "<img src=x onerror=alert(1)>" in page.text
    (link,) = [each for each in page.links if each.startswith(f"{LIST}/")]
    assert browser.page(link).status == 200
    done = browser.act(f"{link}/delete", reason="gone", typed=HOSTILE)
    assert (done.status, HOSTILE in done.text) == (200, True)


def test_who_may_not_see_a_session_learns_nothing_of_it(signed_in, root):
    opened(root, "import")
    ada = signed_in("ada", ("observe", "session:billing"))
    assert "import" not in ada.page(f"{LIST}?panel=sessions").text
    there, absent = ada.page(f"{LIST}/import"), ada.page(f"{LIST}/imporx")
    assert there.status == absent.status == 403
    assert there.text.replace("import", "") == absent.text.replace("imporx", "")


def test_who_may_see_and_not_delete_sees_the_missing_right(signed_in, root):
    opened(root, "import")
    page = signed_in("ada", ("observe", "session:import")).page(f"{LIST}/import")
    assert "basalt grant add token:ada manage session:import" in page.text
