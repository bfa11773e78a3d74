"""The call that truncates a topic: what it answers and refuses, and the line in the audit."""

from __future__ import annotations

import pytest

TOPIC = "/v1/namespaces/shop/topics/orders"


@pytest.fixture(autouse=True)
def orders(client):
    assert client.call("PUT", TOPIC).status == 200


def published(client, *payloads: str) -> list[int]:
    """Publish each in a second of its own; when each was."""
    times = []
    for payload in payloads:
        reply = client.call("POST", f"{TOPIC}/records", {"records": [{"payload": payload}]})
        assert reply.status == 200, reply.body
        times.append(client.call("GET", f"{TOPIC}/stats").json()["newestMs"])
        client.services.clock.advance(1_000)
    return times


def truncate(client, query: str = "", **body):
    return client.call("POST", f"{TOPIC}/truncate{query}", body)


def payloads(client) -> list[str]:
    return [record["payload"] for record in client.call("GET", f"{TOPIC}/records").json()["records"]]


def test_messages_before_the_time_are_gone_and_the_audit_knows(client):
    times = published(client, "a", "bb", "ccc")
    assert client.call("GET", f"{TOPIC}/stats").json()["truncatedBeforeMs"] is None
    dry = truncate(client, "?dryRun=true", beforeMs=times[2]).json()
    told = {"messages": 2, "bytes": 3, "exact": True}
    assert dry == {"truncatedBeforeMs": times[2], "changed": True, "dryRun": True, **told}
    assert payloads(client) == ["a", "bb", "ccc"]
    answer = truncate(client, "?as=ada&reason=archived", beforeMs=times[2], generation=1)
    told = {"messages": None, "bytes": None, "exact": None}
    assert answer.status == 200
    assert answer.json() == {"truncatedBeforeMs": times[2], "changed": True, "dryRun": False, **told}
    assert payloads(client) == ["ccc"]
    stats = client.call("GET", f"{TOPIC}/stats").json()
    assert (stats["messages"], stats["bytes"], stats["truncatedBeforeMs"]) == (1, 3, times[2])
    again = truncate(client, beforeMs=times[0]).json()
    assert (again["truncatedBeforeMs"], again["changed"]) == (times[2], False)
    lines = client.call("GET", "/v1/admin/audit").json()
    found = [(line["act"], line["what"], line["name"], line["reason"], line["outcome"]) for line in lines]
    assert found == [
        ("truncate", "topic shop:orders", "", "", f"was truncated before {times[2]} ms"),
        ("truncate", "topic shop:orders", "ada", "archived", f"truncated before {times[2]} ms"),
    ]


def test_it_is_no_property(client):
    (time_ms,) = published(client, "a")
    truncate(client, beforeMs=time_ms + 1)
    shown = client.call("GET", TOPIC).json()
    assert shown["properties"] == {"ttl": "604800", "spread": "1", "onInvalid": "drop", "generation": "1"}
    assert client.call("PUT", f"{TOPIC}/properties", shown["properties"]).status == 200
    assert payloads(client) == []
    refused = client.call("PUT", f"{TOPIC}/properties", {"~truncatedBefore": "1"})
    assert (refused.status, refused.code) == (400, "invalid_property")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"beforeMs": 1 << 62}, 400, "invalid_input"),
        ({"beforeMs": -1}, 400, "invalid_input"),
        ({"beforeMs": 1, "generation": 2}, 409, "topic_generation"),
        ({"beforeMs": "yesterday"}, 400, "malformed_body"),
        ({}, 400, "malformed_body"),
        ({"beforeMs": 1, "after": 1}, 400, "malformed_body"),
    ],
)
@pytest.mark.parametrize("query", ["", "?dryRun=true"])
def test_what_cannot_be_truncated_is_refused(client, body, status, code, query):
    refused = client.call("POST", f"{TOPIC}/truncate{query}", body)
    assert (refused.status, refused.code) == (status, code), refused.body


def test_an_open_transaction_is_named_and_a_topic_that_is_not_there_too(client):
    tx = client.call("POST", "/v1/transactions", {}).json()
    early = {"records": [{"payload": "early"}], "transactionWritePointer": tx["writePointer"]}
    assert client.call("POST", f"{TOPIC}/records", early).status == 200
    client.services.clock.advance(1_000)
    refused = truncate(client, beforeMs=client.services.clock.now_ms())
    assert (refused.status, refused.code) == (409, "conflict")
    assert tx["id"] in refused.json()["detail"]
    missing = client.call("POST", "/v1/namespaces/shop/topics/none/truncate", {"beforeMs": 1})
    assert (missing.status, missing.code) == (404, "topic_not_found")
