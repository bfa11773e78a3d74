"""The list of topics: its filters, orders and pages, and the figures of each."""

from __future__ import annotations

import pytest

from basalt.http.routes.server import TOPICS_MAX
from basalt.operations.topic_inspection import FIGURES_MS
from tests.control.http.conftest import Client

LIST = "/v1/admin/topics"


def topic(client, name: str, *payloads: str, namespace: str = "shop", **properties):
    path = client.topic(name, namespace=namespace, **properties)
    for payload in payloads:
        client.call("POST", f"{path}/publish", {"messages": [payload]})
    client.clock.advance(1_000)
    return path


def names(client: Client, query: str = "") -> list[str]:
    return [each["name"] for each in client.call("GET", LIST + query).json()["topics"]]


def test_a_search_is_in_namespace_and_name_in_any_case(client):
    for name in ("orders", "ORDERS-old", "stock"):
        topic(client, name)
    topic(client, "x", namespace="orderly")
    assert names(client, "?contains=Order") == ["x", "ORDERS-old", "orders"]
    assert names(client, "?contains=op%3Aor") == ["ORDERS-old", "orders"]
    assert names(client, "?contains=order&namespace=orderly") == ["x"]
    assert names(client, "?contains=nothing") == []


def test_deleted_topics_are_there_on_request(client):
    client.call("DELETE", topic(client, "old"))
    topic(client, "new")
    assert names(client) == ["new"]
    assert names(client, "?deleted=true&figures=true") == ["new", "old"]


@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        ("name", ["a", "b", "c"]),
        ("created", ["b", "c", "a"]),
        ("updated", ["c", "a", "b"]),
        ("ttl", ["c", "a", "b"]),
        ("generation", ["a", "b", "c"]),
        ("messages", ["c", "b", "a"]),
        ("bytes", ["b", "a", "c"]),
        ("rate", ["c", "b", "a"]),
        ("newest", ["b", "c", "a"]),
        ("oldest", ["b", "c", "a"]),
    ],
)
def test_topics_are_sorted_page_by_page_in_both_directions(client, sort, wanted):
    for name in "bcc":
        client.call("DELETE", topic(client, name))
    b = topic(client, "b", "1", "2", ttl=300)
    topic(client, "c", "a" * 10, ttl=100)
    topic(client, "a", "1", "1", "1", ttl=200)
    client.call("PATCH", f"{b}/properties", {"label.x": "y"})
    assert names(client, f"?sort={sort}") == wanted
    assert names(client, f"?sort={sort}&descending=true") == wanted[::-1]
    for direction, found in (("false", wanted), ("true", wanted[::-1])):
        paged, after = [], ""
        while True:
            page = client.call("GET", f"{LIST}?sort={sort}&descending={direction}&limit=1{after}").json()
            paged += [each["name"] for each in page["topics"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert paged == found


def test_a_page_goes_on_behind_a_topic_that_was_deleted_meanwhile(client):
    for name in "abc":
        topic(client, name)
    following = client.call("GET", f"{LIST}?sort=created&limit=2").json()["next"]
    client.call("DELETE", "/v1/namespaces/shop/topics/b")
    assert following == "shop:b"
    assert names(client, f"?sort=created&after={following}") == ["c"]
    assert names(client, f"?after={following}") == ["c"]
    assert client.call("GET", f"{LIST}?sort=created&after=shop:never").code == "topic_not_found"
    assert client.call("GET", f"{LIST}?after=nonsense").code == "invalid_input"


def test_figures_tell_who_holds_readers_back_and_since_when(client):
    path = topic(client, "orders", "abc")
    topic(client, "quiet")
    begun = client.call("POST", "/v1/transactions", {"snapshot": False}).json()
    since_ms = client.clock.now_ms()
    held = {"messages": ["d"], "transactionWritePointer": begun["writePointer"]}
    assert client.call("POST", f"{path}/publish", held).status == 200
    orders, quiet = client.call("GET", f"{LIST}?figures=true").json()["topics"]
    figures = orders["figures"]
    assert (figures["messages"], figures["bytes"], figures["exact"]) == (2, 4, True)
    assert (figures["oldestMs"], figures["newestMs"]) == (since_ms - 2_000, since_ms)
    assert (figures["heldBy"], figures["heldSinceMs"]) == (begun["id"], since_ms)
    assert figures["publishedPerSecond"] > 0
    assert quiet["figures"] == {
        "messages": 0, "bytes": 0, "exact": True, "oldestMs": None, "newestMs": None, "publishedPerSecond": 0.0,
        "heldBy": None, "heldSinceMs": None,
    }  # fmt: skip
    assert client.call("GET", LIST).json()["topics"][0]["figures"] is None


def test_topics_whose_figures_are_not_read_in_time_come_last_and_are_counted(client, monkeypatch):
    for name in "abc":
        topic(client, name, *name * (ord(name) - 96))
    take_time_to_count(client, monkeypatch)
    page = client.call("GET", f"{LIST}?sort=messages&descending=true").json()
    assert ([each["name"] for each in page["topics"]], page["uncounted"]) == (["b", "a", "c"], 1)
    assert names(client, "?sort=messages&descending=true") == ["c", "b", "a"]  # what was read stays in memory


def test_reading_figures_is_given_up_after_a_time(client, monkeypatch):
    for name in "abc":
        topic(client, name, "1")
    take_time_to_count(client, monkeypatch)
    shown = client.call("GET", f"{LIST}?figures=true").json()["topics"]
    assert [each["figures"] is None for each in shown] == [False, False, True]
    shown = client.call("GET", f"{LIST}?figures=true").json()["topics"]
    assert [each["figures"] is None for each in shown] == [False, False, False]


def take_time_to_count(client, monkeypatch):
    """Let the clock go on while a topic's figures are read."""
    read = client.services.topic_stats.sums

    async def slow(title):
        client.clock.advance(FIGURES_MS // 2)
        return await read(title)

    monkeypatch.setattr(type(client.services.topic_stats), "sums", lambda _self, title: slow(title))


def test_no_page_has_more_topics_than_the_limit(client):
    assert client.call("GET", f"{LIST}?limit={TOPICS_MAX + 1}").code == "invalid_input"
    assert client.call("GET", f"{LIST}?sort=colour").code == "invalid_input"
