"""Dry runs of a topic's creation, change and deletion: they answer what would be, refuse what would be refused, and do nothing."""

from __future__ import annotations

import pytest

from basalt.settings import Settings
from basalt.settings.tree import HttpSettings
from tests.control.http.conftest import Client

TOPIC = "/v1/namespaces/shop/topics/orders"
DEFAULTS = {"generation": "1", "onInvalid": "drop", "spread": "1", "ttl": "604800"}


def audit(client: Client) -> list[tuple[str, str, str, str]]:
    lines = client.call("GET", "/v1/admin/audit").json()
    return [(line["act"], line["what"], line["reason"], line["outcome"]) for line in lines]


def test_a_dry_creation_tells_the_topic_that_would_be_and_makes_none(client):
    reply = client.call("PUT", f"{TOPIC}?dryRun=true", {"ttl": 60, "label.team": "a"})
    assert reply.json() == {
        "namespace": "shop", "name": "orders", "generation": 1, "before": None, "dryRun": True,
        "properties": {**DEFAULTS, "ttl": "60", "label.team": "a"},
    }  # fmt: skip
    assert client.call("GET", TOPIC).status == 404
    assert audit(client) == []


def test_a_dry_creation_of_a_deleted_topic_tells_its_next_generation(client):
    client.topic()
    client.call("DELETE", TOPIC)
    assert client.call("PUT", f"{TOPIC}?dryRun=true").json()["generation"] == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", TOPIC, {"ttl": "no"}, 400),
        ("PUT", TOPIC, {"colour": "red"}, 400),
        ("PUT", f"{TOPIC}-2/properties", {}, 404),
        ("PATCH", f"{TOPIC}-2/properties", {}, 404),
        ("DELETE", f"{TOPIC}-2", b"", 404),
        ("PATCH", f"{TOPIC}-3/properties", {"spread": 10_000}, 400),
        ("PUT", f"{TOPIC}-3", {}, 409),
    ],
)
def test_a_dry_run_refuses_what_would_be_refused(client, method, path, body, status):
    client.topic("orders-3")
    dry = client.call(method, f"{path}?dryRun=true", body)
    real = client.call(method, path, body)
    assert (dry.status, real.status, dry.code) == (status, status, real.code)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_dry_change_tells_the_properties_before_and_after_and_changes_nothing(client, method):
    client.topic(ttl=60)
    plan = client.call(method, f"{TOPIC}/properties?dryRun=true", {"onInvalid": "retain"}).json()
    assert plan["before"] == {**DEFAULTS, "ttl": "60"}
    assert plan["properties"] == {**DEFAULTS, "ttl": "60" if method == "PATCH" else "604800", "onInvalid": "retain"}
    assert client.call("GET", TOPIC).json()["properties"] == {**DEFAULTS, "ttl": "60"}
    assert audit(client) == []


def test_a_dry_change_minds_the_version_that_is_expected(client):
    client.topic()
    reply = client.call("PATCH", f"{TOPIC}/properties?dryRun=true", {"ttl": 5}, If_Match='"0000000000000000"')
    assert (reply.status, reply.code) == (412, "topic_changed")


def test_a_plan_looks_the_same_with_flat_topics(connect):
    client = connect(Settings(http=HttpSettings(flat_topics=True)))
    assert client.call("PUT", f"{TOPIC}?dryRun=true").json()["properties"] == DEFAULTS


def test_a_dry_deletion_counts_what_readers_would_lose_and_deletes_nothing(client):
    client.topic()
    client.call("POST", f"{TOPIC}/publish", {"messages": ["a", "bc"]})
    client.call("PUT", f"{TOPIC}/groups/billing")
    assert client.call("DELETE", f"{TOPIC}?dryRun=true").json() == {
        "namespace": "shop", "name": "orders", "generation": 1, "dryRun": True, "messages": 2, "bytes": 3, "exact": True, "groups": 1,
    }  # fmt: skip
    assert client.call("GET", TOPIC).status == 200
    assert audit(client) == []


def test_changes_and_deletions_have_a_line_in_the_audit_and_creations_with_a_reason(client):
    client.topic("quiet")
    client.call("PUT", f"{TOPIC}?reason=new+shop&as=ada", {"ttl": 60})
    client.call("PATCH", f"{TOPIC}/properties?reason=longer", {"ttl": 90, "label.a": None})
    client.call("PUT", f"{TOPIC}/properties", {})
    deleted = client.call("DELETE", f"{TOPIC}?reason=gone").json()
    assert (deleted["generation"], deleted["dryRun"], deleted["messages"]) == (1, False, None)
    assert audit(client) == [
        ("delete topic", "topic shop:orders", "gone", "deleted, generation 1"),
        ("change topic", "topic shop:orders", "", "defaults"),
        ("change topic", "topic shop:orders", "longer", "ttl=90, label.a=default"),
        ("create topic", "topic shop:orders", "new shop", "created, generation 1"),
    ]
