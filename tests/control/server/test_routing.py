"""Which server answers a call: every route of the API and every page has its place, and the rule follows the newest map."""

from __future__ import annotations

import pytest

from basalt.cluster.owners import OwnersMap, granted
from basalt.console.app import PAGES
from basalt.http.app import OPERATIONS
from basalt.http.asgi.requests import Head
from basalt.server.routing import (
    AT_OTHERS,
    AT_TABLES,
    AT_TOPICS,
    AT_TOPICS_OF_OPERATORS,
    AT_TOPICS_OF_PAGES,
    By,
    Place,
    is_here,
    newest,
    other_owner,
    place_of,
    place_of_call,
)
from basalt_engine.keys import table_prefix, topic_prefix
from basalt_engine.stores.shards import shard_of

ORDERS = shard_of(topic_prefix("shop", "orders"))
OF_TOPICS = "/v1/namespaces/{namespace}/topics/{topic}"
STOCK = shard_of(table_prefix("shop", "stock"))
OF_TABLES = "/v1/namespaces/{namespace}/tables/{table}"
OF_OPERATORS = "/v1/admin/namespaces/{namespace}/topics/{topic}"
OF_PAGES = ("/console/ns/{namespace}/topics/{topic}", "/console/live/ns/{namespace}/topics/{topic}")
ROUTES = sorted({operation.path for operation in (*OPERATIONS, *PAGES)})

HERE, THERE = "first-1", "second-1"
DEALT = granted(granted(None, HERE, (), 1), THERE, [ORDERS], 1)
AT_OWNER, AT_LEADER, ANYWHERE = Place(By.OWNER, ORDERS), Place(By.LEADER, ORDERS), Place(By.ANYBODY, None)


def path_of(route: str) -> str:
    return (
        route.replace("{namespace}", "shop")
        .replace("{topic}", "orders")
        .replace("{table}", "stock")
        .replace("{", "")
        .replace("}", "")
    )


def table_of(route: str) -> tuple[dict[str, By], str] | None:
    """The table that has a route about a topic, and the part by which it is there."""
    for beginning, table in (
        (OF_TOPICS, AT_TOPICS),
        (OF_TABLES, AT_TABLES),
        (OF_OPERATORS, AT_TOPICS_OF_OPERATORS),
        *((each, AT_TOPICS_OF_PAGES) for each in OF_PAGES),
    ):
        if route == beginning or route.startswith(f"{beginning}/"):
            return table, route.removeprefix(beginning).removeprefix("/").partition("/")[0]
    return None


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_has_its_place(route: str):
    place = place_of_call("GET", path_of(route))
    found = table_of(route)
    if found is not None:
        table, part = found
        assert part in table, f"{route}: say in routing.py whether the owner of the topic answers it, or the leader"
        assert place == Place(table[part], STOCK if table is AT_TABLES else ORDERS)
        return
    first, _, rest = route.removeprefix("/").partition("/")
    first = f"v1/{rest.partition('/')[0]}" if first == "v1" and rest else first
    assert first in AT_OTHERS, f"{route}: say in routing.py who answers it"
    assert place.by is (By.BODY if route == "/v1/transactions/{transaction}" else AT_OTHERS[first])


def test_no_part_of_a_table_is_without_a_route():
    found = [table_of(route) for route in ROUTES]
    for table in (AT_TOPICS, AT_TABLES, AT_TOPICS_OF_OPERATORS, AT_TOPICS_OF_PAGES):
        assert set(table) == {part for each in found if each is not None and each[0] is table for part in [each[1]]}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/v1/namespaces/shop/topics/orders/publish", AT_OWNER),
        ("/v1/namespaces/shop/topics/orders/groups/billing/fetch", AT_OWNER),
        ("/v1/namespaces/shop/topics/orders/nothing", AT_LEADER),
        ("/v1/namespaces/shop/topics/orders/publishing", AT_LEADER),
        (
            "/v1/namespaces/shop/tables/orders/read",
            Place(By.OWNER, shard_of(table_prefix("shop", "orders"))),
        ),
        ("/v1/namespaces/shop/topics", Place(By.LEADER, None)),
        ("/v1/transactions", Place(By.LEADER, None)),
        ("/v1", ANYWHERE),
        ("/v1/", Place(By.ANYBODY, None)),
        ("/v1/nothing", Place(By.LEADER, None)),
        ("/console", Place(By.LEADER, None)),
        ("/", Place(By.LEADER, None)),
        ("", Place(By.LEADER, None)),
        ("*", Place(By.LEADER, None)),
        ("/v1/namespaces/shop/topics/a~b/publish", Place(By.LEADER, None)),
        ("/v1/namespaces/shop/topics/orders\n/publish", Place(By.LEADER, None)),
    ],
)
def test_a_path_says_where_its_call_is_answered(path: str, place: Place):
    assert place_of_call("GET", path) == place


def test_only_with_the_body_a_server_tells_whether_it_answers_calls_about_transactions():
    body, leader = Place(By.BODY, None), Place(By.LEADER, None)
    for method, path, place in (
        ("POST", "/v1/transactions", body),
        ("POST", "/v1/transactions/17/commit", body),
        ("GET", "/v1/transactions", leader),
        ("GET", "/v1/transactions/17/commit", leader),
        ("POST", "/v1/transactions/17/abort", body),
        ("GET", "/v1/transactions/17", body),
        ("DELETE", "/v1/transactions/17", leader),
        ("GET", "/v1/transactions/sessions", leader),
        ("POST", "/v1/transactions/sessions/commit", leader),
        ("POST", "/v1/transactions/17/invalidate", leader),
        ("POST", "/v1/transactions/17/commit/", leader),
        ("POST", "/v1/transactions/commit", leader),
    ):
        assert place_of_call(method, path) == place, path
    assert is_here(body, None, "first", leads=True)
    assert not is_here(body, None, "second", leads=False)


def test_all_about_a_group_is_asked_of_the_owner_of_its_topic():
    for method, rest, place in (
        ("PUT", "groups/billing", AT_OWNER),
        ("PUT", "groups/billing/options", AT_OWNER),
        ("PUT", "properties", AT_OWNER),
        ("GET", "groups", AT_OWNER),
        ("DELETE", "groups/billing", AT_OWNER),
        ("POST", "groups/billing/fetch", AT_OWNER),
    ):
        assert place_of_call(method, f"/v1/namespaces/shop/topics/orders/{rest}") == place


def test_a_head_remembers_its_place():
    head = Head("GET", "/v1/namespaces/shop/topics/orders", b"", b"", {})
    assert place_of(head) is place_of(head) is head.place
    assert head.place == AT_OWNER


@pytest.mark.parametrize(
    ("place", "owners", "own", "leads", "answers"),
    [
        (AT_OWNER, DEALT, THERE, False, True),
        (AT_OWNER, DEALT, THERE, True, True),
        (AT_OWNER, DEALT, HERE, True, False),
        (AT_OWNER, DEALT, HERE, False, False),
        (AT_OWNER, None, HERE, True, True),
        (AT_OWNER, None, HERE, False, False),
        (AT_LEADER, DEALT, HERE, True, True),
        (AT_LEADER, DEALT, THERE, False, False),
        (AT_LEADER, DEALT, THERE, True, True),
        (ANYWHERE, DEALT, THERE, False, True),
    ],
)
def test_a_server_answers_what_it_owns_and_what_is_everybodys(
    place: Place, owners: OwnersMap | None, own: str, leads: bool, answers: bool
):
    assert is_here(place, owners, own, leads=leads) is answers


@pytest.mark.parametrize(
    ("place", "owners", "own", "leader", "other"),
    [
        (AT_OWNER, DEALT, "third-1", HERE, THERE),
        (AT_OWNER, DEALT, HERE, None, THERE),
        (AT_OWNER, DEALT, "third-1", THERE, None),  # it leads: by its lease more is known of it
        (AT_OWNER, DEALT, THERE, HERE, None),
        (AT_OWNER, None, THERE, HERE, None),
        (AT_LEADER, DEALT, "third-1", HERE, None),
        (ANYWHERE, DEALT, "third-1", HERE, None),
    ],
)
def test_what_an_owner_beside_the_leader_has_goes_to_it(
    place: Place, owners: OwnersMap | None, own: str, leader: str | None, other: str | None
):
    assert other_owner(place, owners, own, leader) == other


def test_of_two_maps_the_newer_counts():
    older = granted(None, HERE, (), 1)
    for one, other in ((older, DEALT), (DEALT, older), (None, DEALT), (DEALT, None)):
        assert newest(one, other) is DEALT
    assert newest(None, None) is None
