"""The calls on topics."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from basalt.http.routes import topics as routes

NAMESPACE = "/v1/namespaces/shop/topics"
ORDERS = f"{NAMESPACE}/orders"


def test_a_topic_is_created_with_defaults(client):
    reply = client.call("PUT", ORDERS)
    assert (reply.status, reply.json()["name"]) == (200, "orders")
    assert reply.json()["properties"]["ttl"] == "604800"
    assert reply.json()["properties"]["generation"] == "1"


def test_properties_are_shown_as_text(client):
    client.call("PUT", ORDERS, {"ttl": 60, "label.owner": "billing", "label.urgent": True})
    shown = client.call("GET", ORDERS).json()["properties"]
    assert {name: shown[name] for name in ("ttl", "label.owner", "label.urgent")} == {
        "ttl": "60",
        "label.owner": "billing",
        "label.urgent": "true",
    }


def test_a_topic_is_a_flat_map_where_the_settings_say_so(connect, settings):
    client = connect(replace(settings, http=replace(settings.http, flat_topics=True)))
    client.call("PUT", ORDERS, {"ttl": 60})
    shown = client.call("GET", ORDERS).json()
    assert shown["ttl"] == "60"
    assert "properties" not in shown


def test_an_existing_topic_is_not_created_again(client):
    client.call("PUT", ORDERS, {"ttl": 60})
    reply = client.call("PUT", ORDERS, {"ttl": 70})
    assert (reply.status, reply.code) == (409, "topic_exists")
    assert client.call("GET", ORDERS).json()["properties"]["ttl"] == "60"


def test_of_twelve_racing_creates_one_succeeds(client):
    async def race():
        return await asyncio.gather(*(client.ask("PUT", ORDERS, {"ttl": ttl}) for ttl in range(1, 13)))

    replies = client.run(race())
    assert sorted(reply.status for reply in replies) == [200] + [409] * 11
    won = next(reply for reply in replies if reply.status == 200).json()
    assert client.call("GET", ORDERS).json() == won


def test_an_update_puts_back_to_default_what_it_leaves_out(client):
    client.call("PUT", ORDERS, {"ttl": 60, "label.owner": "billing"})
    reply = client.call("PUT", f"{ORDERS}/properties", {"onInvalid": "retain"})
    shown = reply.json()["properties"]
    assert (shown["ttl"], shown["onInvalid"], "label.owner" in shown) == ("604800", "retain", False)


def test_properties_may_be_given_back_as_they_were_shown(client):
    client.call("PUT", ORDERS, {"ttl": 60})
    shown = client.call("GET", ORDERS).json()["properties"]
    assert client.call("PUT", f"{ORDERS}/properties", shown).json()["properties"] == shown


def test_a_topic_is_created_again_with_the_properties_that_were_read_from_it(client):
    client.call("PUT", ORDERS, {"ttl": 60, "label.owner": "billing"})
    shown = client.call("GET", ORDERS).json()["properties"]
    client.call("DELETE", ORDERS)
    assert client.call("PUT", ORDERS, shown).json()["properties"] == {**shown, "generation": "2"}
    assert client.call("PUT", f"{NAMESPACE}/copy", shown).json()["properties"] == shown


def test_an_update_with_another_generation_is_refused_and_changes_nothing(client):
    client.topic(ttl=60)
    reply = client.call("PUT", f"{ORDERS}/properties", {"generation": 7})
    assert (reply.status, reply.code) == (400, "invalid_property")
    assert client.call("GET", ORDERS).json()["properties"]["ttl"] == "60"


@pytest.mark.parametrize("media_type", ["application/json", "application/merge-patch+json"])
def test_a_patch_changes_what_it_names_and_null_takes_away(client, media_type):
    client.call("PUT", ORDERS, {"ttl": 60, "spread": 2, "label.owner": "billing", "label.colour": "red"})
    body = json.dumps({"onInvalid": "retain", "label.owner": None, "spread": None}).encode()
    reply = client.call("PATCH", f"{ORDERS}/properties", body, media_type)
    shown = {"ttl": "60", "spread": "1", "onInvalid": "retain", "label.colour": "red", "generation": "1"}
    assert (reply.status, reply.json()) == (200, {"name": "orders", "properties": shown})
    assert client.call("GET", ORDERS).json()["properties"] == shown


def test_a_patch_of_no_topic_or_of_a_bad_property_is_refused(client):
    assert client.call("PATCH", f"{ORDERS}/properties", {"ttl": 60}).code == "topic_not_found"
    client.topic(ttl=60)
    for bad in ({"ttl": 0}, {"generation": 7}, {"generation": None}, {"label.owner": ["x"]}):
        assert client.call("PATCH", f"{ORDERS}/properties", bad).code == "invalid_property"
    assert client.call("PATCH", f"{ORDERS}/properties", b"null", "application/json").code == "malformed_body"
    assert client.call("GET", ORDERS).json()["properties"]["ttl"] == "60"


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_change_with_the_etag_of_what_was_read_is_refused_once_that_has_changed(client, method):
    created = client.call("PUT", ORDERS, {"ttl": 60}).header("etag")
    assert client.call("GET", ORDERS).header("etag") == created
    changed = client.call(method, f"{ORDERS}/properties", {"ttl": 61}, if_match=created)
    assert (changed.status, changed.header("etag") != created) == (200, True)
    refused = client.call(method, f"{ORDERS}/properties", {"ttl": 62}, if_match=created)
    assert (refused.status, refused.code, refused.json()["field"]) == (412, "topic_changed", "If-Match")
    assert client.call("GET", ORDERS).json() == changed.json()


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_if_match_takes_lists_and_a_star_and_no_weak_etag(client, method):
    path = f"{ORDERS}/properties"
    etag = client.call("PUT", ORDERS).header("etag")
    assert client.call(method, path, {}, if_match=f'"other", {etag}').status == 200
    assert client.call(method, path, {}, if_match="*").status == 200
    assert client.call(method, path, {}, if_match=f"W/{etag}").status == 412
    for bad in (etag.strip('"'), "", f"{etag} {etag}", f'{etag}"'):
        refused = client.call(method, path, {}, if_match=bad)
        assert (refused.status, refused.code, refused.json()["field"]) == (400, "invalid_input", "If-Match")


def test_topics_are_listed_by_namespace_in_order(client):
    for name in ("orders", "Invoices", "a", "Z"):
        client.topic(name)
    client.topic("elsewhere", namespace="other")
    assert client.call("GET", NAMESPACE).json() == ["Invoices", "Z", "a", "orders"]


def test_names_with_dots_are_published_to_read_and_listed(client):
    dotted = "/v1/namespaces/shop.eu/topics/orders.v1"
    assert client.call("PUT", dotted, {}).status == 200
    assert client.call("PUT", "/v1/namespaces/shop/topics/eu.orders.v1", {}).status == 200
    assert client.call("POST", f"{dotted}/records", {"records": [{"payload": "a chair"}]}).status == 200
    read = client.call("GET", f"{dotted}/records")
    assert [record["payload"] for record in read.json()["records"]] == ["a chair"]
    assert client.call("GET", "/v1/namespaces/shop.eu/topics").json() == ["orders.v1"]
    assert client.call("GET", "/v1/namespaces/shop/topics").json() == ["eu.orders.v1"]
    metrics = client.call("GET", "/metrics").body.decode()
    assert 'namespace="shop.eu",topic="orders.v1"' in metrics


@pytest.mark.parametrize("name", [".", "..", "%2E%2E", ".hidden"])
def test_a_name_that_begins_with_a_dot_is_refused(client, name):
    for path in (f"{NAMESPACE}/{name}", f"/v1/namespaces/{name}/topics/orders"):
        reply = client.call("PUT", path, {})
        assert (reply.status, reply.code) == (400, "invalid_name")
        assert "not first a dot" in reply.json()["hint"]


def test_a_namespace_without_topics_is_an_empty_list(client):
    assert client.call("GET", NAMESPACE).json() == []


def test_a_deleted_topic_is_gone_and_comes_back_empty_with_new_properties(client):
    client.topic(ttl=60)
    client.publish(ORDERS, "old")
    assert client.call("DELETE", ORDERS).status == 200
    assert client.call("GET", ORDERS).code == "topic_not_found"
    assert client.poll(ORDERS).code == "topic_not_found"
    assert client.call("DELETE", ORDERS).code == "topic_not_found"
    shown = client.call("PUT", ORDERS, {"ttl": 70}).json()["properties"]
    assert (shown["ttl"], shown["generation"]) == ("70", "2")
    assert client.payloads(ORDERS) == []


@pytest.mark.parametrize("target", [ORDERS, f"{ORDERS}/properties"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[]", "malformed_body"),
        (b"null", "malformed_body"),
        (b'"ttl"', "malformed_body"),
        (b"7", "malformed_body"),
        (b"{", "malformed_body"),
        (b"{} {}", "malformed_body"),
        (b"{'ttl': 1}", "malformed_body"),
        (b"\xef\xbb\xbf{}", "malformed_body"),
        (b'{"ttl": 1}\x00', "malformed_body"),
        (b'{"ttl": "\xff"}', "malformed_body"),
        (b'{"ttl": 1, "ttl": 2}', "malformed_body"),
        (b'{"ttl": NaN}', "malformed_body"),
        (b'{"a": ' + b"[" * 50_000, "malformed_body"),
        (b'{"ttl": ' + b"9" * 5_000 + b"}", "malformed_body"),
        (b'{"ttl": 0}', "invalid_property"),
        (b'{"ttl": -1}', "invalid_property"),
        (b'{"ttl": "soon"}', "invalid_property"),
        (b'{"ttl": ""}', "invalid_property"),
        (b'{"ttl": " 60"}', "invalid_property"),
        (b'{"ttl": "6_0"}', "invalid_property"),
        ('{"ttl": "٦٠"}'.encode(), "invalid_property"),
        (b'{"ttl": 1.5}', "invalid_property"),
        (b'{"ttl": 1e3}', "invalid_property"),
        (b'{"ttl": true}', "invalid_property"),
        (b'{"ttl": null}', "invalid_property"),
        (b'{"ttl": [60]}', "invalid_property"),
        (b'{"ttl": 99999999999999999999}', "invalid_property"),
        (b'{"ttl": 3155760001}', "invalid_property"),
        (b'{"spread": 0}', "invalid_property"),
        (b'{"spread": 1000}', "invalid_property"),
        (b'{"onInvalid": "DROP"}', "invalid_property"),
        (b'{"generation": null}', "invalid_property"),
        (b'{"label.owner": {"name": "x"}}', "invalid_property"),
        (b'{"label.owner": "a\\u0000b"}', "invalid_property"),
        (b'{"label.owner": "\\ud800"}', "invalid_property"),
        (b'{"": "x"}', "invalid_property"),
        (b'{"a b": "x"}', "invalid_property"),
        (b'{"\\u202e": "x"}', "invalid_property"),
    ],
)
def test_bad_properties_are_refused_and_change_nothing(client, target, body, code):
    if target != ORDERS:
        client.topic(ttl=60)
    before = client.call("GET", ORDERS).body if target != ORDERS else None
    reply = client.call("PUT", target, body, "application/json")
    assert (reply.status, reply.code) == (400, code), reply.body
    if before is None:
        assert client.call("GET", NAMESPACE).json() == []
    else:
        assert client.call("GET", ORDERS).body == before


def test_properties_without_end_are_too_large(client):
    body = json.dumps({f"p{index}": "x" * 4_000 for index in range(300)}).encode()
    assert client.call("PUT", ORDERS, body, "application/json").code == "too_large"


def test_properties_in_another_type_are_unsupported(client):
    assert client.call("PUT", ORDERS, b"ttl=60", "application/x-www-form-urlencoded").code == "unsupported_media_type"
    assert client.call("GET", NAMESPACE).json() == []


def test_a_delete_takes_no_body(client):
    path = client.topic()
    reply = client.call("DELETE", path, b'{"force": true}', content_length="15")
    assert (reply.status, reply.code) == (400, "malformed_body")
    assert client.call("GET", path).status == 200


def test_properties_of_the_limit_are_taken_and_one_byte_more_is_not(client, monkeypatch):
    monkeypatch.setattr(routes, "PROPERTY_BYTES_MAX", len(json.dumps({"label.a": "1"})))
    client.topic(**{"label.a": "1"})
    assert client.call("PUT", "/v1/namespaces/shop/topics/next", {"label.a": "12"}).code == "too_large"
