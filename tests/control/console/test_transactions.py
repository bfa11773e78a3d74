"""The page of transactions, that of one, and its end by hand."""

from __future__ import annotations

import pytest

from basalt.console.app import PATH_NAMES_MAX
from basalt.console.assets import ASSETS
from basalt.console.pages.transactions import HANGING_ROWS, INVALID_ROWS, PAGE_ROWS
from tests.control.console.conftest import Api, Browser, Page
from tests.control.http.conftest import Client

LIST = "/console/transactions"
ORDERS = "/v1/namespaces/shop/topics/orders"
HOSTILE = "<script>alert(1)</script>\"'&"


def begin(api: Api, **wanted: object) -> dict:
    return api("POST", "/v1/transactions", {"snapshot": False, **wanted})


def publish(api: Api, begun: dict | None, *messages: str) -> None:
    body = {"messages": list(messages), "transactionWritePointer": begun and begun["writePointer"]}
    api("POST", f"{ORDERS}/publish", body)


@pytest.fixture
def blocking(client: Client, api: Api) -> dict:
    """A transaction that holds the readers of a topic back."""
    client.topic()
    begun = begin(api, owner="etl")
    publish(api, begun, "early")
    publish(api, None, "b1", "b2")
    return begun


def test_what_holds_readers_back_is_on_the_overview_and_on_the_list_with_a_next_step(browser, blocking):
    for path in ("/console", LIST):
        page = browser.page(path)
        assert f"/console/transactions/{blocking['id']}" in page.links
        assert "holds readers back" in page.text
        assert "shop:orders: 2 messages behind it" in page.text
        assert f"basalt tx abort {blocking['id']}" in page.text
        assert f"Readers wait since {blocking['id']}" in page.text


def test_where_nothing_hangs_the_pages_say_so(browser):
    for path in ("/console", LIST):
        assert "No transaction holds readers back or takes long." in browser.page(path).text
    assert "No transaction is open." in browser.page(LIST).text


def test_a_transaction_is_shown_with_its_state_deadline_and_what_it_holds_back(client, browser, blocking):
    client.clock.advance(10_000)
    page = browser.page(f"{LIST}/{blocking['id']}")
    assert page.status == 200
    for told in (
        "OPEN (now)",
        "in 20 s: it is aborted, and its rows in topics are rolled back",
        "its client, which has to commit or abort it",
        "shop:orders: 2 messages behind it",
        "pruning forgets nobody who began after it",
        "ask its owner etl to end it",
        f"basalt tx describe {blocking['id']}",
        f"basalt tx timeline {blocking['id']}",
    ):
        assert told in page.text
    assert "/console/ns/shop/topics/orders" in page.links


def test_the_write_pointer_finds_it_too(browser, blocking):
    assert "OPEN (now)" in browser.page(f"{LIST}/{blocking['writePointer']}").text


def test_a_conflict_is_told_with_its_winner(browser, api):
    winner, loser = begin(api, owner="first"), begin(api, owner="second")
    for each in (winner, loser):
        api("POST", f"/v1/transactions/{each['id']}/changes", {"changes": ["a2V5"], "externalWrites": False})
    api("POST", f"/v1/transactions/{winner['id']}/commit")
    api("POST", f"/v1/transactions/{loser['id']}/changes", {"changes": ["a2V5"], "externalWrites": False}, 409)
    page = browser.page(f"{LIST}/{loser['id']}")
    assert f"lost to {winner['id']} of first, which changed" in page.text
    assert "lost a conflict" in browser.page(LIST).text
    assert "COMMITTED (now)" in browser.page(f"{LIST}/{winner['id']}").text


def test_one_that_has_ended_is_shown_with_its_meaning_and_nothing_to_do(browser, api):
    begun = begin(api)
    api("POST", f"/v1/transactions/{begun['id']}/commit")
    page = browser.page(f"{LIST}/{begun['id']}")
    assert "it is committed: every later reader sees all of it" in page.text
    assert "There is nothing left to do to it." in page.text
    assert page.all("button", **{"class": "destroys"}) == []


def test_an_abort_by_hand_is_in_timeline_audit_and_metrics(client, browser, api, blocking):
    path = f"{LIST}/{blocking['id']}"
    plan = browser.plan(f"{path}/abort")
    assert "Would be ABORTED" in plan.text
    assert "Owner etl" in plan.text
    assert f"basalt tx abort {blocking['id']} --dry-run" in plan.text
    assert api("GET", f"/v1/transactions/{blocking['id']}")["state"] == "OPEN"
    done = browser.act(f"{path}/abort", reason="client is gone")
    assert done.status == 200
    assert "Is ABORTED" in done.text
    assert f"basalt tx abort {blocking['id']} --reason 'client is gone'" in done.text
    (line,) = api("GET", "/v1/admin/audit")
    assert (line["act"], line["what"], line["outcome"], line["reason"]) == (
        "forced abort", f"transaction {blocking['id']}", "ABORTED", "client is gone",
    )  # fmt: skip
    assert "forced abort" in done.text, "the line of the audit is on the page"
    timeline = browser.page(path).text
    assert "forced abort" in timeline
    assert "reason client is gone" in timeline
    assert 'basalt_transactions_total{event="forced"} 1.0' in client.call("GET", "/metrics").body.decode()


def test_an_abort_that_would_promise_too_much_is_refused_with_the_reason(browser, api):
    begun = begin(api, owner="etl", externalWrites=True)
    refused = browser.plan(f"{LIST}/{begun['id']}/abort")
    assert refused.status == 409
    assert "Nothing was done" in refused.text
    assert "which only its client can undo" in refused.text
    assert f"basalt tx invalidate {begun['id']}" in refused.text
    assert api("GET", "/v1/admin/audit") == []


def test_who_invalidates_types_the_id(browser, api):
    begun = begin(api, externalWrites=True)
    path = f"{LIST}/{begun['id']}/invalidate"
    for typed in ("", "another", begun["id"][:-1]):
        page = browser.act(path, reason="gone", typed=typed)
        assert (page.status, "Nothing was done." in page.text) == (400, True)
    assert api("GET", f"/v1/transactions/{begun['id']}")["state"] == "OPEN"
    assert browser.act(path, reason="gone", typed=begun["id"]).status == 200
    assert api("GET", f"/v1/transactions/{begun['id']}")["state"] == "INVALID"
    page = browser.page(f"{LIST}/{begun['id']}")
    assert "On the invalid list 1 write pointers" in page.text
    assert "1 write pointers, hidden until they are pruned" in browser.page("/console").text


def test_the_list_has_filters_and_a_next_page(browser, api):
    for number in range(PAGE_ROWS + 1):
        begin(api, owner="etl" if number else "web")
    page = browser.page(f"{LIST}?panel=transactions")
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"] + "&panel=transactions")
    shown = [link for each in (page, rest) for link in each.links if link.startswith(f"{LIST}/")]
    assert (len(shown), len(set(shown))) == (PAGE_ROWS + 1, PAGE_ROWS + 1)
    assert rest.all("a", rel="first")[0]["href"].startswith(LIST)
    assert not rest.all("a", rel="next")
    web = browser.page(f"{LIST}?owner=web&state=open&topic=&olderThanMs=&panel=transactions")
    assert len([link for link in web.links if link.startswith(f"{LIST}/")]) == 1
    assert "basalt tx list --state open --owner web --limit 100" in web.text
    filtered = browser.page(f"{LIST}?owner=etl").all("a", rel="next")
    assert filtered == [], "all hundred of them are on one page"


def test_a_filter_goes_on_to_the_next_page(browser, api):
    for _ in range(PAGE_ROWS + 1):
        begin(api, owner="a&b")
    (following,) = browser.page(f"{LIST}?owner=a%26b").all("a", rel="next")
    page = browser.page(following["href"])
    assert len([link for link in page.links if link.startswith(f"{LIST}/")]) >= 1
    assert page.fields["owner"] == "a&b"
    assert "1 of 101 shown" in page.text


def test_transactions_are_found_by_who_began_them(signed_in, root):
    mine = root("POST", "/v1/transactions", {"snapshot": False})["id"]
    browser = signed_in("eve", ("observe", "cluster"), ("observe", "transactions:token:bootstrap"))
    assert f"{LIST}/{mine}" in browser.page(f"{LIST}?principal=token%3Abootstrap&panel=transactions").links
    assert f"{LIST}/{mine}" not in browser.page(f"{LIST}?principal=token%3Aada&panel=transactions").links
    blind = signed_in("bob", ("observe", "cluster")).page(f"{LIST}?principal=token%3Abootstrap&panel=transactions")
    assert f"{LIST}/{mine}" not in blind.links, "by what one may not see nothing is found"
    page = browser.page(f"{LIST}?principal=token%3Abootstrap")
    assert page.fields["principal"] == "token:bootstrap"
    assert "basalt tx list --principal token:bootstrap --limit 100" in page.text


def test_the_invalid_list_goes_on_to_its_next_page_beside_the_others(browser, api):
    assert "The invalid list is empty." in browser.page(LIST).text
    for number in range(INVALID_ROWS + 1):
        begun = begin(api, owner=HOSTILE if number else "first", externalWrites=True)
        api("POST", f"/v1/transactions/{begun['id']}/invalidate")
    page = browser.page(f"{LIST}?owner=x")
    assert f"{INVALID_ROWS} of {INVALID_ROWS + 1} write pointers" in page.text
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"])
    assert "1 of 21 write pointers" in rest.text
    assert HOSTILE in rest.text
    assert rest.fields["owner"] == "x"
    assert "basalt tx list-invalid --after" in rest.text


def test_a_deadline_runs_down_in_the_browser(browser, blocking):
    page = browser.page(f"{LIST}/{blocking['id']}")
    (left,) = page.all("time", **{"class": "left"})
    assert left["datetime"].endswith("Z")
    assert 'contains("left")' in ASSETS["console.js"].content.decode()


@pytest.mark.parametrize("query", ["state=gone", "topic=orders", "olderThanMs=soon", "after=x"])
def test_a_filter_that_makes_no_sense_is_told_in_its_panel(browser, query):
    page = browser.page(f"{LIST}?{query}")
    assert page.status == 200
    assert page.all("div", **{"class": "problem"})
    assert "The manager" in page.text


def test_what_hangs_is_cut_and_the_rest_is_counted(client, browser, api):
    for _ in range(HANGING_ROWS + 3):
        begin(api)
    client.clock.advance(20_000)
    assert "3 more are not shown." in browser.page(LIST).text


@pytest.mark.parametrize("name", ["17", "0" * 31 + "7", "no-such", "%3Cscript%3E%E2%80%AE"])
def test_one_that_is_not_known_is_a_page_that_says_so(browser, name):
    page = browser.page(f"{LIST}/{name}")
    assert page.status in (400, 404)
    assert "\u202e" not in page.text
    assert "<script>" not in browser.get(f"{LIST}/{name}").body.decode()
    assert page.all("button", **{"class": "destroys"}) == []
    assert browser.plan(f"{LIST}/{name}/abort").status in (400, 404)


def test_hostile_owners_and_reasons_are_shown_as_text(browser, api):
    begun = begin(api, owner=HOSTILE)
    for path in (LIST, f"{LIST}/{begun['id']}"):
        assert HOSTILE in browser.page(path).text  # which fails on markup that is not ours
    done = browser.act(f"{LIST}/{begun['id']}/abort", reason=HOSTILE)
    assert done.status == 200
    assert HOSTILE in done.text
    assert HOSTILE in browser.page(f"{LIST}/{begun['id']}").text
    assert HOSTILE in browser.page("/console").text


def test_a_hostile_filter_is_shown_as_text(browser):
    page = browser.page(f"{LIST}?owner=%22%3E%3Cscript%3E&topic=%22%3E%3Cimg+src%3Dx%3E")
    assert page.fields["owner"] == '"><script>'
    assert page.all("img", src="x") == []


def test_one_panel_and_the_calls_are_to_be_had_alone(browser, blocking):
    alone = browser.page(f"{LIST}/{blocking['id']}?panel=timeline")
    assert [each["id"] for each in alone.all("section")] == ["panel-timeline"]
    found = browser.get(f"{LIST}/{blocking['id']}?json=true").json()
    assert found["transaction"]["call"] == f"GET /v1/admin/transactions/{blocking['id']}"
    assert found["transaction"]["answer"]["state"] == "OPEN"
    assert sorted(found) == ["timeline", "transaction"]


def test_pages_read_the_lists_they_show_and_not_all_there_is(browser, api, client):
    """Whatever is open, a page has a hundred of them, and what it says is small."""
    for _ in range(300):
        begin(api)
    assert len(browser.get(LIST).body) < 200_000
    assert "100 of 300 shown, oldest first." in browser.page(LIST).text


def test_a_visitor_without_a_login_is_sent_to_sign_in_and_comes_back(asked):
    nobody = Browser(asked)
    for path in ("/console", f"{LIST}?owner=a%26b", f"{LIST}/17", "/console/sessions", "/console/nowhere"):
        reply = nobody.get(path)
        assert reply.status == 303
        target = reply.header("location")
        assert target.startswith("/console/login?next=%2Fconsole")
        assert Page(asked.call("GET", target)).fields["next"] == path
    reply = nobody.post(f"{LIST}/17/abort?step=plan")
    assert (reply.status, reply.header("location")) == (303, "/console/login?next=%2Fconsole%2Ftransactions%2F17")


def test_a_page_that_does_not_exist_is_told_in_html(browser):
    for path in ("/console/nowhere", "/console" + "/a" * PATH_NAMES_MAX, "/console/%3Cscript%3E%E2%80%AE"):
        page = browser.page(path)
        assert page.status == 404
        assert "The console has no page at" in page.text
        assert page.all("nav")
