"""The list of all groups: in three orders, a page at a time, with counts that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from basalt.http.routes.groups import ALL_PAGE_MAX, COUNT_MS, COUNT_MS_MAX
from basalt.operations.groups.listing import FRESH_MS, ROUND_MAX, GroupListing
from basalt.server.wiring import open_services
from basalt.settings import Settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from tests.control.http.group_client import GroupClient

LIST = "/v1/admin/groups"


@pytest.fixture
def many() -> Iterator[GroupClient]:
    """Three topics of 1, 2 and 3 messages, the first the youngest, with a group each."""
    with asyncio.Runner() as runner:
        services = runner.run(open_services(Settings(), None, store=MemoryStore(), clock=ManualClock()))
        shop = GroupClient(services, runner)
        fill(shop)
        yield shop
        runner.run(services.close())


def fill(shop: GroupClient) -> None:
    for number in (3, 2, 1):
        topic = f"/v1/namespaces/shop/topics/t{number}"
        shop.topic(f"t{number}")
        shop.publish(topic, *map(str, range(number)))
        assert shop.call("PUT", f"{topic}/groups/g{number}", {}).status == 200
        shop.pass_ms(10_000)


def listed(client: GroupClient, query: str = "") -> Any:
    reply = client.call("GET", f"{LIST}{query}")
    assert reply.status == 200, reply.body
    return reply.json()


def names(client: GroupClient, query: str = "") -> list[str]:
    return [each["name"] for each in listed(client, query)["groups"]]


def pages(client: GroupClient, query: str) -> Iterator[str]:
    after = ""
    while True:
        page = listed(client, query + after)
        yield from (each["name"] for each in page["groups"])
        if page["next"] is None:
            return
        after = f"&after={page['next']}"


def test_each_order_has_the_worst_first_and_pages_miss_and_repeat_none(many: GroupClient) -> None:
    for sort, expected in (("name", ["g1", "g2", "g3"]), ("lag", ["g3", "g2", "g1"]), ("age", ["g3", "g2", "g1"])):
        assert names(many, f"?sort={sort}") == expected
        assert list(pages(many, f"?sort={sort}&limit=1")) == expected
    row = listed(many, "?sort=age")["groups"][0]
    assert (row["lagMessages"], row["lagSeconds"], row["exact"]) == (3, 30.0, True)


def test_what_nobody_had_the_time_to_count_comes_last_and_is_told(many: GroupClient) -> None:
    fresh = listed(many, "?sort=lag&countMs=0")
    assert (fresh["uncounted"], {each["lagMessages"] for each in fresh["groups"]}) == (3, {None})
    many.call("GET", "/v1/namespaces/shop/topics/t1/groups/g1")
    found = listed(many, "?sort=lag&countMs=0")
    assert (found["groups"][0]["name"], found["uncounted"]) == ("g1", 2)
    assert listed(many, "?sort=age&countMs=0")["groups"][0]["name"] == "g1"
    assert COUNT_MS <= COUNT_MS_MAX
    assert ROUND_MAX >= COUNT_MS
    assert many.call("GET", f"{LIST}?countMs={COUNT_MS_MAX + 1}").status == 400
    assert many.call("GET", f"{LIST}?limit={ALL_PAGE_MAX + 1}").status == 400


def test_a_count_is_kept_for_a_while_and_then_made_anew(many: GroupClient) -> None:
    before = listed(many)["groups"][0]
    many.publish("/v1/namespaces/shop/topics/t1", "more")
    assert listed(many)["groups"][0]["lagMessages"] == before["lagMessages"] == 1
    many.pass_ms(FRESH_MS)
    after = listed(many)["groups"][0]
    assert (after["lagMessages"], after["countedMs"] - before["countedMs"]) == (2, FRESH_MS)


def test_counting_stops_when_its_time_is_up_and_goes_round_all(
    many: GroupClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each count takes 10 ms: of 20 ms there is one for the top, and one for the one that was counted longest ago."""
    counted: list[str] = []
    there = GroupListing._is_there

    async def slow(self: GroupListing, row: Any) -> bool:
        many.pass_ms(10)
        counted.append(row.state.name)
        return await there(self, row)

    monkeypatch.setattr(GroupListing, "_is_there", slow)
    listed(many, "?sort=lag&countMs=20&limit=1")
    assert len(counted) == 2
    for _ in range(5):
        many.pass_ms(FRESH_MS)
        listed(many, "?sort=lag&countMs=20&limit=1")
    assert set(counted) == {"g1", "g2", "g3"}
    assert listed(many, "?sort=lag&countMs=0")["groups"][0]["name"] == "g3"


def test_filters_are_by_names_mode_and_pause(many: GroupClient) -> None:
    many.topic("t9", "market")
    many.call("PUT", "/v1/namespaces/market/topics/t9/groups/Eve", {"mode": "keyed"})
    many.call("POST", "/v1/namespaces/market/topics/t9/groups/Eve/pause")
    for query in (
        "?namespace=market",
        "?topic=market:t9",
        "?mode=keyed",
        "?contains=eVE",
        "?paused=true",
        "?contains=t9/",
    ):
        assert names(many, query) == ["Eve"]
    assert names(many, "?paused=false") == ["g1", "g2", "g3"]
    assert listed(many, "?contains=nothing") == {"groups": [], "found": 0, "uncounted": 0, "next": None}


def test_a_group_whose_topic_is_gone_is_not_listed(many: GroupClient) -> None:
    assert many.call("DELETE", "/v1/namespaces/shop/topics/t2").status == 200
    assert names(many) == ["g1", "g3"]
    assert many.call("GET", f"{LIST}?topic=shop:t2").code == "topic_not_found"


def test_a_place_that_was_never_told_is_refused(many: GroupClient) -> None:
    for query in ("after=g1", "after=5~shop:t1/g1", "sort=lag&after=shop:t1/g1", "sort=lag&after=x~shop:t1/g1"):
        refused = many.call("GET", f"{LIST}?{query}")
        assert (refused.status, refused.json()["field"]) == (400, "after")
