"""The pages of consumer groups, and what is done to one from there."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from basalt.console.pages.messaging.groups import MESSAGES, PAGE_ROWS
from basalt.operations.groups.inspection import ENTRIES_MAX
from tests.control.console.conftest import Api, Browser, Page
from tests.control.http.conftest import Client

ORDERS = "/v1/namespaces/shop/topics/orders"
GROUP = f"{ORDERS}/groups/billing"
LIST = "/console/groups"
OF_TOPIC = "/console/ns/shop/topics/orders/groups"
ONE = f"{OF_TOPIC}/billing"
HOSTILE = "<script>alert(1)</script>"


def make(client: Client, api: Api, messages: int = 3, name: str = "billing", **options: object) -> Any:
    client.topic()
    if messages:
        api("POST", f"{ORDERS}/publish", {"messages": [f"m{number}" for number in range(messages)]})
    return api("PUT", f"{ORDERS}/groups/{name}", options)


def fetch(client: Client, query: str = "") -> int:
    reply = client.call("POST", f"{GROUP}/fetch{query}")
    assert reply.status == 200, reply.body
    return int(reply.header("basalt-claim") or 0)


def release(api: Api, claim: int) -> None:
    api("POST", f"{GROUP}/release", {"claims": [claim]})


def test_all_groups_are_listed_with_how_far_each_is_behind(client, browser, api):
    assert "There is no group here" in browser.page(LIST).text
    make(client, api)
    client.topic("invoices")
    api("PUT", "/v1/namespaces/shop/topics/invoices/groups/mail", {"mode": "keyed"})
    client.clock.advance(90_000)
    page = browser.page(LIST)
    assert {ONE, "/console/ns/shop/topics/invoices/groups/mail"} <= set(page.links)
    assert "shop:orders / billing shared ▲ nobody works 0 0 3 1 min 30 s".replace("▲ ", "") in page.text
    assert "shop:invoices / mail keyed idle 0 0 0 0 s" in page.text
    assert "basalt group list --all-namespaces --limit 100" in page.text


def test_the_list_is_sorted_filtered_and_goes_on(client, browser, api):
    make(client, api)
    for number in range(PAGE_ROWS + 1):
        api("PUT", f"{ORDERS}/groups/g{number:03}", {"mode": "keyed" if number else "stream", "start": "end"})
    page = browser.page(LIST)
    assert page.all("th", **{"aria-sort": "ascending"})
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"])
    shown = [link for each in (page, rest) for link in each.links if link.startswith(f"{OF_TOPIC}/")]
    assert (len(shown), len(set(shown))) == (PAGE_ROWS + 2, PAGE_ROWS + 2)
    assert rest.all("a", rel="first") == [{"href": f"{LIST}?", "rel": "first"}]
    worst = browser.page(f"{LIST}?sort=lag")
    assert next(link for link in worst.links if link.startswith(f"{OF_TOPIC}/")) == ONE
    assert worst.all("th", **{"aria-sort": "descending"})
    (following,) = worst.all("a", rel="next")
    assert ONE not in browser.page(following["href"]).links
    assert len([link for link in browser.page(f"{LIST}?mode=stream").links if link.startswith(f"{OF_TOPIC}/")]) == 1
    assert ONE in browser.page(f"{LIST}?contains=BILL&namespace=shop&paused=false").links
    assert "There is no group here" in browser.page(f"{LIST}?paused=true").text


@pytest.mark.parametrize(
    "query", ["sort=size", "mode=none", "after=x", "paused=maybe", "sort=lag&after=a:b/c", "sort=age&after=x"]
)
def test_a_filter_that_makes_no_sense_is_told_in_its_panel(client, browser, api, query):
    page = browser.page(f"{LIST}?{query}")
    assert (page.status, len(page.all("div", **{"class": "problem"}))) == (200, 1)


def test_the_groups_of_a_topic_have_a_page(client, browser, api):
    make(client, api)
    client.topic("invoices")
    api("PUT", "/v1/namespaces/shop/topics/invoices/groups/mail", {})
    page = browser.page(OF_TOPIC)
    assert ONE in page.links
    assert "mail" not in page.text
    assert "basalt group list orders --namespace shop --limit 100" in page.text


def test_a_group_is_shown_with_its_lag_in_messages_and_in_time_and_why_the_oldest_waits(client, browser, api):
    make(client, api)
    client.clock.advance(61_000)
    page = browser.page(ONE)
    for told in (
        "Mode shared", "Behind (lag) 3 messages, 1 min 1 s", "Not dealt yet 3", "0 claimed, 0 pending in transactions",
        "Redeliveries none", "Only a keyed group has slots", "It has no member.", "Nothing is claimed.",
        "basalt group show orders billing --namespace shop", "basalt group members orders billing --namespace shop",
    ):  # fmt: skip
        assert told in page.text
    (why,) = {link for link in page.links if link.startswith("?message=") and link.endswith("panel-group_message")}
    explained = browser.page(f"{ONE}{why.partition('#')[0]}")
    assert "One message" in explained.text
    assert "Why " in explained.text
    assert "basalt explain group orders billing" in explained.text


def test_what_is_claimed_pending_and_parked_is_shown_with_who_and_its_transaction(client, browser, api):
    make(client, api, 4, attemptsMax=1)
    begun = api("POST", "/v1/transactions", {"owner": "etl", "snapshot": False})
    pending = fetch(client, f"?limit=1&member=w1&transaction={begun['id']}")
    api("POST", f"{GROUP}/acknowledge", {"claims": [pending], "transaction": begun["id"]})
    release(api, fetch(client, "?limit=1&member=w1"))
    fetch(client, f"?limit=1&member=w2&transaction={begun['id']}")
    page = browser.page(ONE)
    for told in ("1 claimed, 1 pending in transactions", "1 parked", "Redeliveries 1 released", "w2", "of etl"):
        assert told in page.text
    assert page.links.count(f"/console/transactions/{begun['id']}") >= 2
    parked = browser.page(f"{ONE}?state=parked&panel=group_messages")
    assert "released" in parked.text
    assert "etl" not in parked.text
    assert MESSAGES <= ENTRIES_MAX
    assert "basalt group messages orders billing --namespace shop --state parked --limit 50" in parked.text


def test_a_keyed_group_shows_its_slots_and_how_far_each_is_behind(client, browser, api):
    make(client, api, 9, mode="keyed")
    assert "its members have not asked for any" in browser.page(ONE).text
    client.clock.advance(5_000)
    fetch(client, "?limit=1&member=w1")
    page = browser.page(f"{ONE}?panel=slots")
    assert "w1" in page.text
    assert " 5 s " in page.text
    assert "Which slots messages behind that belong to is not known yet." in page.text


def test_a_seek_is_planned_with_what_it_skips_and_goes_where_the_plan_said(client, browser, api):
    make(client, api, 5)
    end = api("POST", f"{GROUP}/seek?dryRun=true", {"to": "end"})["floor"]
    plan = Page(browser.post(f"{ONE}/seek?step=plan", {"to": "end"}))
    assert f"Would go on behind {end}" in plan.text
    assert plan.status == 200
    assert "Would be skipped 5 messages" in plan.text
    api("POST", f"{ORDERS}/publish", {"messages": ["later"]})
    done = Page(browser.post(f"{ONE}/seek", {**plan.fields, "reason": "poison"}))
    assert (done.status, "Skipped 5 messages" in done.text) == (200, True), done.text
    assert api("GET", GROUP)["figures"]["lagMessages"] == 1, "end is what it was when the plan was shown"
    assert f"Would go on behind {api('GET', GROUP)['floor']}" in plan.text
    line = api("GET", "/v1/admin/audit")[0]
    assert (line["act"], line["reason"]) == ("seek", "poison")
    back = Page(browser.post(f"{ONE}/seek?step=plan", {"to": "start"}))
    assert "Would come once more 5 messages" in back.text
    assert browser.post(f"{ONE}/seek", {**back.fields, "reason": "again"}).status == 200
    assert api("GET", GROUP)["figures"]["lagMessages"] == 6


def test_a_seek_to_nowhere_says_what_is_wrong(client, browser, api):
    make(client, api)
    refused = Page(browser.post(f"{ONE}/seek?step=plan", {"to": "yesterday"}))
    assert refused.status == 400
    assert "Nothing was done" in refused.text
    assert "is not a position" in refused.text


def test_a_seek_over_a_pending_acknowledgement_is_refused_and_names_its_transaction(client, browser, api):
    make(client, api)
    begun = api("POST", "/v1/transactions", {"snapshot": False})
    claim = fetch(client, f"?limit=1&transaction={begun['id']}")
    api("POST", f"{GROUP}/acknowledge", {"claims": [claim], "transaction": begun["id"]})
    refused = Page(browser.post(f"{ONE}/seek?step=plan", {"to": "end"}))
    assert (refused.status, "has acknowledged messages" in refused.text) == (409, True), refused.text
    assert Page(browser.post(f"{ONE}/delete?step=plan")).status == 409


def test_a_group_is_paused_and_resumed(client, browser, api):
    make(client, api)
    assert "Would be paused" in browser.plan(f"{ONE}/pause").text
    assert api("GET", GROUP)["paused"] is False
    assert "Is paused" in browser.act(f"{ONE}/pause", reason="upgrade").text
    page = browser.page(ONE)
    assert "nothing is dealt until it is resumed" in page.text
    assert f"{ONE}/resume?step=plan" in [each.get("action") for each in page.all("form")]
    assert browser.act(f"{ONE}/resume", reason="done").status == 200
    assert api("GET", GROUP)["paused"] is False
    assert [line["act"] for line in api("GET", "/v1/admin/audit")] == ["resume group", "pause group"]


def test_options_are_changed_after_their_difference_was_shown(client, browser, api):
    make(client, api)
    page = browser.page(ONE)
    given = {name: page.fields[name] for name in page.fields if name in api("GET", GROUP)["options"]}
    plan = Page(browser.post(f"{ONE}/change?step=plan", {**given, "mode": "stream", "unackedMax": "7"}))
    assert "unackedMax 10000 7" in plan.text
    assert "mode &quot;" not in plan.text
    done = Page(browser.post(f"{ONE}/change", {**plan.fields, "reason": "slower"}))
    assert done.status == 200, done.text
    options = api("GET", GROUP)["options"]
    assert (options["unackedMax"], options["mode"], options["claimMs"]) == (7, "stream", 300_000)
    line = api("GET", "/v1/admin/audit")[0]
    assert (line["act"], "unackedMax 10000 -> 7" in line["outcome"]) == ("change group", True)
    wrong = Page(browser.post(f"{ONE}/change?step=plan", {**given, "mode": "shared", "unackedMax": "many"}))
    assert (wrong.status, "Nothing was done" in wrong.text) == (400, True)


def test_what_is_parked_is_dealt_again(client, browser, api):
    make(client, api, attemptsMax=1)
    assert f"{ONE}/unpark?step=plan" not in [each.get("action") for each in browser.page(ONE).all("form")]
    release(api, fetch(client))
    assert "Messages that would be dealt again 3" in browser.plan(f"{ONE}/unpark").text
    assert api("GET", GROUP)["figures"]["parked"] == 3
    assert browser.act(f"{ONE}/unpark", reason="fixed").status == 200
    assert api("GET", GROUP)["figures"]["parked"] == 0


def test_a_group_is_deleted_by_who_types_its_name_and_not_where_it_is_another_by_then(client, browser, api):
    make(client, api)
    plan = browser.plan(f"{ONE}/delete")
    assert "The topic and its messages stay." in plan.text
    assert browser.act(f"{ONE}/delete", reason="unused", typed="billin").status == 400
    assert api("GET", GROUP)["name"] == "billing"
    done = Page(browser.post(f"{ONE}/delete", {**plan.fields, "reason": "unused", "typed": "billing"}))
    assert (done.status, "delete group" in done.text) == (200, True)
    page = browser.page(ONE)
    assert (page.status, "has no group" in page.text) == (404, True)
    assert browser.plan(f"{ONE}/delete").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/console/ns/shop/topics/none/groups",
        f"{OF_TOPIC}/none",
        "/console/ns/shop/topics/none/groups/x",
        "/console/ns/a/topics/%3Cb%3E/groups/c",
    ],
)
def test_one_that_is_not_there_is_a_page_that_says_so(client, browser, path):
    client.topic()
    page = browser.page(path)
    assert page.status in (400, 404)
    assert page.all("nav")


def test_hostile_members_keys_and_filters_are_shown_as_text(client, browser, api):
    make(client, api, mode="keyed", key=f"header:{HOSTILE}")
    fetch(client, f"?limit=1&member={quote(HOSTILE.replace('/', '|'))}")
    assert HOSTILE in browser.page(ONE).text
    assert HOSTILE.replace("/", "|") in browser.page(f"{ONE}?panel=members").text
    page = browser.page(f"{LIST}?contains={quote(HOSTILE)}&namespace={quote(HOSTILE)}")
    assert (page.fields["contains"], page.fields["namespace"]) == (HOSTILE, HOSTILE)
    assert browser.page(f"{ONE}?message={quote(HOSTILE)}&state={quote(HOSTILE)}").status == 200
    refused = Page(browser.post(f"{ONE}/seek?step=plan", {"to": HOSTILE}))
    assert refused.status == 400


def test_who_may_look_and_not_manage_sees_the_missing_right_and_nothing_of_others(asked, signed_in, root):
    asked_api = root
    reply = asked.call("PUT", ORDERS, {}, Authorization="Bearer " + "b" * 40)
    assert reply.status == 200, reply.body
    asked_api("PUT", GROUP, {})
    asked_api("PUT", f"{ORDERS}/groups/secret", {})
    ada = signed_in("ada", ("observe", "group:shop:orders:billing"))
    page = ada.page(ONE)
    assert "basalt grant add token:ada manage group:shop:orders:billing" in page.text
    assert "may not inspect group:shop:orders:billing" in page.text
    assert "secret" not in ada.page(LIST).text
    assert ada.page(f"{OF_TOPIC}/secret").status == ada.page(f"{OF_TOPIC}/secres").status == 403
    assert Page(ada.post(f"{ONE}/pause?step=plan")).status == 403
    assert Browser(asked).get(ONE).status == 303


def test_the_history_of_a_groups_lag_is_drawn_over_a_day_unless_another_time_is_asked_for(client, browser, api):
    make(client, api)
    sampler = client.app.sampler
    for _ in range(400):
        client.clock.advance(1_000)
        client.run(sampler.look_at_groups(client.clock.now_ms()))
        sampler.sample(client.clock.now_ms(), client.clock.monotonic_ms())
    page = browser.page(f"{ONE}?panel=history")
    assert "Messages 3" in page.text
    assert "Age of the oldest message to go" in page.text
    assert page.all("a", **{"aria-current": "true"})[0]["href"] == "?range=24h"
    assert (
        browser.page(f"{ONE}?panel=history&range=10m").all("a", **{"aria-current": "true"})[0]["href"] == "?range=10m"
    )
