"""One topic's page, and its acts: edit with the difference first, truncate, delete."""

from __future__ import annotations

import pytest

from basalt.cluster.owners import Granted
from basalt.console.pages.messaging.topic import GROUP_ROWS
from basalt_engine.stores.shards import SHARDS
from tests.control.console.conftest import Page
from tests.shared_members import URL, SharedMembers

ORDERS = "/console/ns/shop/topics/orders"
API = "/v1/namespaces/shop/topics/orders"
MANAGES = (("manage", "topic:shop:orders"), ("inspect", "cluster"))


@pytest.fixture
def orders(api):
    api("PUT", API, {"ttl": 60, "label.team": "<b>a</b>", "label.old": "1"})
    api("POST", f"{API}/publish", {"messages": ["abc", "d"]})


def audit(api) -> list[tuple[str, str]]:
    return [(line["act"], line["reason"]) for line in api("GET", "/v1/admin/audit")]


def test_a_topic_tells_what_its_properties_do_its_figures_and_its_groups(browser, api, orders):
    api("PUT", f"{API}/groups/billing")
    page = browser.page(ORDERS)
    assert "ttl 1m 7d how long messages are kept" in page.text
    assert "label.team <b>a</b> \u2013 a property of your own" in page.text
    assert "Messages 2 Payloads 4 B" in page.text
    assert "billing shared 0 2 0 ms goes on" in page.text
    assert "No task has given a marker." in page.text
    assert {f"{ORDERS}/groups/billing", f"{ORDERS}/messages", f"{ORDERS}/publish"} <= set(page.links)
    for line in ("topic show orders", "explain poll orders", "group list orders", "topic markers orders"):
        assert f"basalt {line} --namespace shop" in page.text


def test_a_topic_names_its_owner(client, browser, api, orders):
    assert "The store is embedded: this server owns all shards." in browser.page(f"{ORDERS}?panel=owner").text
    shared = SharedMembers(client.services)
    shared.deal()
    page = browser.page(f"{ORDERS}?panel=owner")
    assert f"belongs to leader:1 at {URL} live under epoch 1, because the leader has given it the shard" in page.text
    assert "basalt cluster owner orders --namespace shop" in page.text
    client.services.granted = Granted(shared.deal(), client.clock.now_ms())
    assert "because it leads" in browser.page(f"{ORDERS}?panel=owner").text
    shared.deal(gone=list(range(SHARDS)))
    assert "belongs to gone dead under epoch 2" in browser.page(f"{ORDERS}?panel=owner").text


def test_a_topic_tells_who_holds_its_readers_back_and_since_when(client, browser, api, orders):
    begun = api("POST", "/v1/transactions", {"snapshot": False, "owner": "import <x>"})
    api("POST", f"{API}/publish", {"messages": ["d"], "transactionWritePointer": begun["writePointer"]})
    client.clock.advance(5_000)
    page = browser.page(ORDERS)
    assert "readers of committed messages wait for" in page.text
    assert "of import <x>" in page.text
    assert "5 s ago" in page.text
    assert f"/console/transactions/{begun['id']}" in page.links


def test_the_rates_of_a_topic_are_drawn_and_one_that_nobody_follows_says_what_is_not_kept(client, browser, api, orders):
    assert "No history of this topic is kept" in browser.page(f"{ORDERS}?panel=history").text
    for _ in range(3):
        api("POST", f"{API}/publish", {"messages": ["a", "b"]})
        client.clock.advance(1_000)
        client.app.sampler.sample(client.clock.now_ms(), client.clock.monotonic_ms())
    page = browser.page(f"{ORDERS}?panel=history")
    assert "Messages a second" in page.text
    assert "No history" not in page.text
    assert "?range=1h" in page.links


def test_markers_are_told_by_task(browser, api, orders):
    api("POST", f"{API}/markers", {"task": "map-<0>", "kind": "watermark", "eventTimeMs": 1_000, "taskCount": 2})
    page = browser.page(ORDERS)
    assert "1 of 2 tasks" in page.text
    assert "map-<0> 1970-01-01 00:00:01 UTC goes on" in page.text


def test_groups_beyond_a_page_are_said(browser, api, orders):
    for number in range(GROUP_ROWS + 1):
        api("PUT", f"{API}/groups/g{number:03}")
    assert "There are more, from g050 on." in browser.page(ORDERS).text


def test_an_edit_shows_the_difference_first_and_then_does_that(browser, api, orders):
    plan = Page(browser.post(f"{ORDERS}/edit?step=plan", {"ttl": "2m", "onInvalid": "drop", "labels": "team=b"}))
    assert "label.old 1 \u2013 taken away" in plan.text
    assert "label.team <b>a</b> b changed" in plan.text
    assert "ttl 60 120 changed" in plan.text
    assert "spread 1 1 no" in plan.text
    assert api("GET", API)["properties"]["ttl"] == "60"
    done = Page(browser.post(f"{ORDERS}/edit", {**plan.fields, "reason": "longer"}))
    assert (done.status, "done Topic orders" in done.text) == (200, True)
    properties = api("GET", API)["properties"]
    assert (properties["ttl"], properties["label.team"], "label.old" in properties) == ("120", "b", False)
    assert audit(api) == [("change topic", "longer")]
    again = Page(browser.post(f"{ORDERS}/edit", {**plan.fields, "reason": "longer"}))
    assert (again.status, "nothing changes" in again.text) == (409, True)


def test_the_fields_of_the_page_are_those_of_the_topic_so_that_sending_them_changes_nothing(browser, api, orders):
    fields = browser.page(ORDERS).fields
    assert fields["ttl"] == "60"
    plan = Page(browser.post(f"{ORDERS}/edit?step=plan", {**fields, "labels": "team=<b>a</b>\nold=1"}))
    assert "nothing changes" in plan.text


def test_an_edit_that_the_topic_would_not_take_is_refused_in_words(browser, orders):
    page = Page(browser.post(f"{ORDERS}/edit?step=plan", {"ttl": "soon"}))
    assert (page.status, "property ttl is 'soon'" in page.text) == (400, True)


def test_a_truncation_tells_what_readers_lose_and_takes_the_name(client, browser, api, orders):
    client.clock.advance(1_000)
    at_ms = client.clock.now_ms()
    api("POST", f"{API}/publish", {"messages": ["new"]})
    plan = Page(browser.post(f"{ORDERS}/truncate?step=plan", {"before": f"@{at_ms}", "generation": "1"}))
    assert "Readers lose 2 messages, 4 B" in plan.text
    form = {**plan.fields, "reason": "old"}
    assert Page(browser.post(f"{ORDERS}/truncate", form)).status == 400
    done = Page(browser.post(f"{ORDERS}/truncate", {**form, "typed": "orders"}))
    assert "out of reach for ever" in done.text
    assert api("GET", f"{API}/stats")["messages"] == 1
    assert audit(api) == [("truncate", "old")]


def test_a_time_from_now_is_a_fixed_one_from_the_plan_on(client, browser, orders):
    plan = Page(browser.post(f"{ORDERS}/truncate?step=plan", {"before": "now", "generation": "1"}))
    assert plan.fields["before"] == f"@{client.clock.now_ms()}"
    client.clock.advance(5_000)
    done = Page(browser.post(f"{ORDERS}/truncate", {**plan.fields, "reason": "old", "typed": "orders"}))
    assert done.status == 200


@pytest.mark.parametrize("before", ["", "yesterday", "end", "<script>"])
def test_a_truncation_before_what_is_no_time_is_refused_in_words(browser, orders, before):
    page = Page(browser.post(f"{ORDERS}/truncate?step=plan", {"before": before}))
    assert (page.status, "Nothing was done" in page.text) == (400, True)


def test_a_deletion_tells_what_is_lost_also_while_others_publish(browser, api, orders):
    plan = browser.plan(f"{ORDERS}/delete")
    assert "Readers lose 2 messages, 4 B" in plan.text
    api("POST", f"{API}/publish", {"messages": ["one more"]})
    done = Page(browser.post(f"{ORDERS}/delete", {**plan.fields, "reason": "gone", "typed": "orders"}))
    assert done.status == 200
    api("GET", API, status=404)
    assert audit(api) == [("delete topic", "gone")]


def test_a_topic_that_was_made_anew_since_the_plan_is_not_deleted_with_it(browser, api, orders):
    plan = browser.plan(f"{ORDERS}/delete")
    api("DELETE", API)
    api("PUT", API)
    page = Page(browser.post(f"{ORDERS}/delete", {**plan.fields, "reason": "gone", "typed": "orders"}))
    assert page.status == 409
    assert api("GET", API)["properties"]["generation"] == "2"


def test_a_deleted_topic_says_so_and_offers_nothing(browser, api, orders):
    api("DELETE", API)
    page = browser.page(ORDERS)
    assert (page.status, "deleted" in page.text) == (200, True)
    assert [each for each in page.all("form") if "step=plan" in each.get("action", "")] == []


@pytest.mark.parametrize("path", ["/console/ns/shop/topics/none", "/console/ns/shop/topics/%3Cscript%3E"])
def test_a_topic_that_does_not_exist_is_a_page_that_says_so(browser, path):
    page = browser.page(path)
    assert page.status in (400, 404)
    assert "<script>" not in browser.get(path).body.decode()


def test_who_may_only_look_sees_the_acts_disabled_with_the_right_that_is_missing(signed_in, root):
    root("PUT", API)
    page = signed_in("ada", ("observe", "topic:shop:orders")).page(ORDERS)
    assert len([each for each in page.all("fieldset") if "disabled" in each]) == 2
    assert len([each for each in page.all("button") if "disabled" in each]) == 1
    assert "basalt grant add token:ada manage topic:shop:orders" in page.text
    allowed = signed_in("bob", *MANAGES).page(ORDERS)
    assert [each for each in allowed.all("fieldset") if "disabled" in each] == []


def test_a_form_that_is_sent_without_the_right_is_refused_by_the_call(signed_in, root):
    root("PUT", API)
    ada = signed_in("ada", ("observe", "topic:shop:orders"))
    for act, fields in (("edit", {"ttl": "5"}), ("truncate", {"before": "now"}), ("delete", {})):
        page = Page(ada.post(f"{ORDERS}/{act}?step=plan", fields))
        assert (page.status, "token:ada may not manage topic:shop:orders" in page.text) == (403, True)
