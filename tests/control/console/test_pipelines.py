"""The page of pipelines."""

from __future__ import annotations

from basalt.console.pages.messaging.pipelines import PAGE_TOPICS, TASKS
from basalt.http.routes.server import PIPELINE_TOPICS_MAX

LIST = "/console/pipelines"
ORDERS = "/v1/namespaces/shop/topics/orders"
HOSTILE = "<script>alert(1)<!--"


def mark(api, topic: str, task: str, event_time_ms: int, count: int = 1) -> None:
    body = {"task": task, "kind": "watermark", "taskCount": count, "eventTimeMs": event_time_ms}
    api("POST", f"/v1/namespaces/shop/topics/{topic}/markers", body)


def test_where_nothing_is_known_the_page_says_so(browser):
    page = browser.page(LIST)
    for told in (
        "Nothing that writes was committed since",
        "There is no session with a version.",
        "No topic here has markers.",
    ):
        assert told in page.text
    assert f"basalt pipelines --limit {PAGE_TOPICS}" in page.text
    assert PAGE_TOPICS <= PIPELINE_TOPICS_MAX


def test_event_time_jobs_and_steps_are_shown(client, browser, api):
    client.topic()
    now_ms = client.clock.now_ms()
    mark(api, "orders", "t1", now_ms - 61_000, 2)
    begun = api("POST", "/v1/transactions", {"session": "sink", "run": "q/1", "version": 7, "counterOwner": "query q"})
    api("POST", f"{ORDERS}/publish", {"messages": ["x"], "transactionWritePointer": begun["writePointer"]})
    api("POST", f"/v1/transactions/{begun['id']}/commit")
    page = browser.page(LIST)
    for told in ("t1", "1 min 1 s", "1 never spoke", "query q", "7", "q/1", "session sink anonymous", "shop:orders"):
        assert told in page.text
    assert {"/console/sessions/sink", f"/console/transactions/{begun['id']}", "/console/ns/shop/topics/orders"} <= set(
        page.links
    )


def test_topics_go_on_to_the_next_page_and_tasks_are_cut(client, browser, api):
    for number in range(PAGE_TOPICS + 1):
        client.topic(f"t{number:03}")
        mark(api, f"t{number:03}", "t", 1, 1 if number else TASKS + 3)
    for number in range(TASKS + 1):
        mark(api, "t000", f"task{number:03}", 1, TASKS + 3)
    page = browser.page(LIST)
    assert "2 more tasks" in page.text
    assert "1 never spoke" in page.text
    (following,) = page.all("a", rel="next")
    rest = browser.page(following["href"])
    assert f"/console/ns/shop/topics/t{PAGE_TOPICS:03}" in rest.links
    assert rest.all("a", rel="first")


def test_hostile_names_are_shown_as_text(client, browser, api):
    client.topic()
    mark(api, "orders", HOSTILE, 1)
    begun = api("POST", "/v1/transactions", {"session": HOSTILE, "run": HOSTILE, "version": 1, "counterOwner": HOSTILE})
    api("POST", f"{ORDERS}/publish", {"messages": ["x"], "transactionWritePointer": begun["writePointer"]})
    api("POST", f"/v1/transactions/{begun['id']}/commit")
    owned = api("POST", "/v1/transactions", {"owner": HOSTILE})
    api("POST", f"{ORDERS}/publish", {"messages": ["x"], "transactionWritePointer": owned["writePointer"]})
    api("POST", f"/v1/transactions/{owned['id']}/commit")
    text = browser.page(LIST).text
    assert text.count(HOSTILE) >= 5


def test_who_may_see_one_topic_sees_nothing_of_others(signed_in, root, asked):
    for name in ("orders", "secret"):
        reply = asked.call("PUT", f"/v1/namespaces/shop/topics/{name}", {}, Authorization="Bearer " + "b" * 40)
        assert reply.status == 200
        mark(root, name, "t", 1)
    for wanted in ({"session": "hidden", "run": "r", "version": 1}, {"owner": "payroll"}):
        begun = root("POST", "/v1/transactions", wanted)
        root("POST", f"{ORDERS}/publish", {"messages": ["x"], "transactionWritePointer": begun["writePointer"]})
        root("POST", f"/v1/transactions/{begun['id']}/commit")
    page = signed_in("ada", ("observe", "topic:shop:orders")).page(LIST)
    assert "shop:orders" in page.text
    assert "secret" not in page.text
    assert "hidden" not in page.text
    assert "payroll" not in page.text
    seeing = signed_in("eve", ("observe", "topic:shop:orders"), ("observe", "transactions:token:bootstrap")).page(LIST)
    assert "owner payroll token:bootstrap" in seeing.text
