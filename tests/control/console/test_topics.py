"""The list of topics: search, order and pages are in the URL; and how a topic is created from a form."""

from __future__ import annotations

import pytest

from basalt.console.pages.messaging.topics import PAGE_ROWS, labels_of, properties_of
from basalt.http.routes.server import TOPICS_MAX
from basalt.settings import Settings
from basalt.settings.tree import ConsoleSettings
from tests.control.console.conftest import Browser, Page

LIST = "/console/topics"
ORDERS = "/console/ns/shop/topics/orders"
API = "/v1/namespaces/shop/topics/orders"


def topics_of(page: Page) -> list[str]:
    return [link.rpartition("/")[2] for link in page.links if "/topics/" in link]


def test_topics_are_listed_with_their_figures_and_who_holds_readers_back(browser, api):
    api("PUT", API, {"ttl": 60})
    api("POST", f"{API}/publish", {"messages": ["abc"]})
    begun = api("POST", "/v1/transactions", {"snapshot": False})
    api("POST", f"{API}/publish", {"messages": ["d"], "transactionWritePointer": begun["writePointer"]})
    page = browser.page(LIST)
    assert "shop orders" in page.text
    assert " 2 4 B 0 ms ago 0 ms ago 1 min 1 " in page.text
    assert {ORDERS, f"/console/transactions/{begun['id']}"} <= set(page.links)
    assert "basalt topic list --all-namespaces --figures --limit 100" in page.text


def test_a_search_and_deleted_ones_are_in_the_url_and_in_the_command(browser, api):
    for name in ("orders", "stock"):
        api("PUT", f"/v1/namespaces/shop/topics/{name}")
    api("DELETE", API)
    assert topics_of(browser.page(LIST)) == ["stock"]
    page = browser.page(f"{LIST}?contains=ORD&deleted=true&namespace=shop")
    assert topics_of(page) == ["orders"]
    assert "deleted" in page.text
    assert "basalt topic list --namespace shop --contains ORD --deleted --figures --limit 100" in page.text
    (search,) = page.all("input", name="contains")
    assert search["value"] == "ORD"
    assert "There is no such topic." in browser.page(f"{LIST}?contains=nothing").text


def test_each_column_leads_to_the_list_sorted_by_it_and_back(browser, api):
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        api("PUT", f"/v1/namespaces/shop/topics/{name}")
        api("POST", f"/v1/namespaces/shop/topics/{name}/publish", {"messages": ["x"] * count})
    page = browser.page(f"{LIST}?contains=shop")
    (by_messages,) = [link for link in page.links if "sort=messages" in link]
    sorted_page = browser.page(by_messages)
    assert topics_of(sorted_page) == ["b", "c", "a"]
    assert [each["aria-sort"] for each in sorted_page.all("th") if each.get("aria-sort", "none") != "none"] == [
        "descending"
    ]
    (again,) = [link for link in sorted_page.links if "sort=messages" in link]
    turned = browser.page(again)
    assert topics_of(turned) == ["a", "c", "b"]
    assert [each["aria-sort"] for each in turned.all("th") if each.get("aria-sort", "none") != "none"] == ["ascending"]
    assert all("contains=shop" in link for link in (by_messages, again))


def test_a_list_goes_on_to_the_next_page_in_its_order(browser, api):
    assert PAGE_ROWS < TOPICS_MAX
    for number in range(PAGE_ROWS + 1):
        api("PUT", f"/v1/namespaces/shop/topics/t{number:03}")
    for query, last in (("", "t100"), ("?sort=name&descending=true", "t000")):
        page = browser.page(LIST + query)
        (following,) = page.all("a", rel="next")
        after = browser.page(following["href"])
        assert topics_of(after) == [last]
        assert after.all("a", rel="first")


def test_a_topic_is_created_from_a_form_as_the_plan_shows(browser, api):
    form = {"namespace": "shop", "topic": "orders", "ttl": "1d", "labels": "team=a b\r\n\r\nx=y=z"}
    plan = Page(browser.post(f"{LIST}/create?step=plan", form))
    assert "Topic shop:orders would be made, generation 1." in plan.text
    assert "label.team \u2013 a b" in plan.text
    assert plan.status == 200
    api("GET", API, status=404)
    done = Page(browser.post(f"{LIST}/create", {**plan.fields, "reason": "new shop"}))
    assert "done Topic orders, generation 1" in done.text
    assert "create topic" in done.text
    made = api("GET", API)["properties"]
    assert (made["ttl"], made["label.team"], made["label.x"]) == ("86400", "a b", "y=z")


def test_what_cannot_be_created_is_refused_in_words(browser, api):
    api("PUT", API)
    for form, said in (
        ({"namespace": "shop", "topic": "orders"}, "exists already"),
        ({"namespace": "shop", "topic": "<b>"}, "is not a name"),
        ({"namespace": "shop", "topic": "new", "ttl": "-1"}, "property ttl"),
    ):
        page = Page(browser.post(f"{LIST}/create?step=plan", form))
        assert (page.status >= 400, "Nothing was done" in page.text, said in page.text) == (True, True, True)


def test_who_may_not_create_it_is_told_the_right_that_is_missing(signed_in):
    ada = signed_in("ada", ("observe", "topic:shop:*"))
    page = Page(ada.post(f"{LIST}/create?step=plan", {"namespace": "shop", "topic": "new"}))
    assert page.status == 403
    assert "basalt grant add token:ada manage topic:shop:new" in page.text


def test_a_console_that_only_shows_creates_nothing(connect):
    browser = Browser(connect(Settings(console=ConsoleSettings(read_only=True))))
    assert [each for each in browser.page(LIST).all("fieldset") if "disabled" in each]
    page = Page(browser.post(f"{LIST}/create?step=plan", {"namespace": "shop", "topic": "new"}))
    assert page.status == 403


def test_one_sees_the_topics_that_one_may_observe(signed_in, root):
    for name in ("orders", "secret"):
        root("PUT", f"/v1/namespaces/shop/topics/{name}")
    assert topics_of(signed_in("ada", ("observe", "topic:shop:orders")).page(LIST)) == ["orders"]


def test_a_form_has_properties_as_topics_do():
    assert properties_of({"ttl": " 5 ", "tasks": "", "labels": "a=b\n =\n", "other": "x"}) == {
        "ttl": "5",
        "label.a": "b",
    }
    assert labels_of({"ttl": "5", "label.b": "2", "label.a": "1"}) == "a=1\nb=2"


@pytest.mark.parametrize("query", ["?sort=colour", "?namespace=%3Cscript%3E", "?after=x"])
def test_a_query_that_means_nothing_is_told_on_the_page(browser, query):
    page = browser.page(LIST + query)
    assert page.status == 200
    assert "invalid_input" in page.text
