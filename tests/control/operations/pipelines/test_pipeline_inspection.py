"""Pipelines as operators see them: event time, jobs that commit by name, and who reads and writes what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from basalt.http.routes.server import PIPELINE_TOPICS_MAX
from basalt.operations.pipelines import pipeline_inspection
from basalt.operations.pipelines.pipeline_inspection import SINKS_MAX, STEPS_MAX
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.control.http.group_client import INVOICES, ORDERS, GroupClient, claim_of, done


@pytest.fixture
def shop() -> Iterator[GroupClient]:
    with asyncio.Runner() as runner:
        services = runner.run(open_services(Settings(), None, store=MemoryStore(), clock=ManualClock()))
        client = GroupClient(services, runner)
        client.make(4)
        yield client
        runner.run(services.close())


def shown(client: GroupClient, query: str = "") -> Any:
    reply = client.call("GET", f"/v1/admin/pipelines{query}")
    assert reply.status == 200, reply.body
    return reply.json()


def mark(client: GroupClient, topic: str, task: str, event_time_ms: int | None, count: int = 2) -> None:
    body: dict[str, Any] = {"task": task, "kind": "watermark", "taskCount": count, "eventTimeMs": event_time_ms}
    if event_time_ms is None:
        body = {"task": task, "kind": "end_of_stream", "taskCount": count}
    assert client.call("POST", f"{topic}/markers", body).status == 200


def test_event_time_is_told_by_topic_and_task_with_how_far_it_lies_behind_now(shop: GroupClient) -> None:
    assert shown(shop)["topics"] == []
    now_ms = shop.clock.now_ms()
    mark(shop, ORDERS, "a", now_ms - 5_000)
    [topic] = shown(shop)["topics"]
    assert (topic["topic"], topic["watermarkMs"], topic["delayMs"], topic["taskCount"]) == ("orders", None, None, 2)
    assert [(each["task"], each["delayMs"]) for each in topic["tasks"]] == [("a", 5_000)]
    mark(shop, ORDERS, "b", now_ms - 9_000)
    shop.pass_ms(1_000)
    [topic] = shown(shop)["topics"]
    assert (topic["watermarkMs"], topic["delayMs"], topic["ended"]) == (now_ms - 9_000, 10_000, False)
    for task in "ab":
        mark(shop, ORDERS, task, None)
    assert shown(shop)["topics"][0]["ended"] is True


def test_topics_come_by_name_a_page_at_a_time_and_deleted_ones_not(shop: GroupClient) -> None:
    for name in ("c", "a", "b", "d"):
        topic = shop.topic(name)
        mark(shop, topic, "t", 1)
    first = shown(shop, "?limit=2")
    assert ([each["topic"] for each in first["topics"]], first["next"]) == (["a", "b"], "shop:b")
    assert shop.call("DELETE", "/v1/namespaces/shop/topics/c").status == 200
    rest = shown(shop, f"?limit=2&after={first['next']}")
    assert ([each["topic"] for each in rest["topics"]], rest["next"]) == (["d"], None)
    assert shop.call("GET", f"/v1/admin/pipelines?limit={PIPELINE_TOPICS_MAX + 1}").status == 400


def test_a_session_is_told_with_who_counts_it_and_its_last_version(shop: GroupClient) -> None:
    assert shown(shop)["sinks"] == []
    wanted = {"session": "sink", "run": "q/1", "version": 7, "counterOwner": "query q"}
    begun = shop.call("POST", "/v1/transactions", wanted).json()
    [sink] = shown(shop)["sinks"]
    assert (sink["counterOwner"], sink["version"], sink["committedMs"], sink["open"]) == (
        "query q",
        None,
        None,
        [begun["id"]],
    )
    shop.pass_ms(50)
    assert shop.call("POST", f"/v1/transactions/{begun['id']}/commit").status == 200
    [sink] = shown(shop)["sinks"]
    assert (sink["session"], sink["run"], sink["version"], sink["committedBy"]) == ("sink", "q/1", 7, begun["id"])
    assert (sink["committedMs"], sink["open"]) == (shop.clock.now_ms(), [])


def test_steps_are_lined_up_by_who_writes_what(shop: GroupClient) -> None:
    assert shown(shop)["steps"] == []
    reads = shop.begin(owner="bill")
    claim = claim_of(shop.fetch("?limit=1"))
    shop.post("acknowledge", {"claims": [claim], "transaction": reads["id"]})
    body = {"messages": ["x"], "transactionWritePointer": reads["writePointer"]}
    assert shop.call("POST", f"{INVOICES}/publish", body).status == 200
    assert shop.call("POST", f"/v1/transactions/{reads['id']}/commit").status == 200
    loads = shop.begin(owner="load")
    body = {"messages": ["x"], "transactionWritePointer": loads["writePointer"]}
    assert shop.call("POST", f"{ORDERS}/publish", body).status == 200
    assert shop.call("POST", f"/v1/transactions/{loads['id']}/commit").status == 200
    first, second = shown(shop)["steps"]
    assert (first["name"], first["level"], first["reads"], first["transactions"]) == ("load", 0, [], 1)
    assert [each["name"] for each in first["writes"]] == ["orders"]
    assert (second["kind"], second["name"], second["level"]) == ("owner", "bill", 1)
    assert second["reads"] == [{"namespace": "shop", "name": "orders", "group": "billing"}]
    assert [each["name"] for each in second["writes"]] == ["invoices"]
    assert shown(shop)["steps"] == [first, second], "what was taken from the log is not taken twice"


def test_a_round_of_a_consumer_is_a_step_of_its_group(shop: GroupClient) -> None:
    claim = claim_of(shop.fetch("?limit=1"))
    shop.fetch("?limit=1", done(claim, publish=("bill",)))
    [step] = shown(shop)["steps"]
    assert (step["kind"], step["name"], [each["group"] for each in step["reads"]]) == (
        "group",
        "billing",
        ["billing"],
    )


def test_it_is_known_again_after_a_restart(shop: GroupClient) -> None:
    test_a_round_of_a_consumer_is_a_step_of_its_group(shop)
    shop.restart()
    assert [each["name"] for each in shown(shop)["steps"]] == ["billing"]


def test_of_too_many_those_of_late_are_told_and_the_rest_is_counted(
    shop: GroupClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SINKS_MAX > 2
    assert STEPS_MAX > 2
    monkeypatch.setattr(pipeline_inspection, "SINKS_MAX", 1)
    for name in ("first", "second"):
        begun = shop.call("POST", "/v1/transactions", {"session": name, "run": "r", "version": 1}).json()
        assert shop.call("POST", f"/v1/transactions/{begun['id']}/commit").status == 200
        shop.pass_ms(5)
    found = shown(shop)
    assert ([each["session"] for each in found["sinks"]], found["sinksLeftOut"]) == (["second"], 1)
