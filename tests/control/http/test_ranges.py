"""The calls on ranges: what they answer, and what they refuse."""

from __future__ import annotations

import pytest

TOPIC = "/v1/namespaces/shop/topics/orders"
ID = "00" * 20


@pytest.fixture(autouse=True)
def orders(client):
    assert client.call("PUT", TOPIC).status == 200


def publish(client, *payloads: str) -> None:
    reply = client.call("POST", f"{TOPIC}/records", {"records": [{"payload": payload} for payload in payloads]})
    assert reply.status == 200, reply.body


def test_an_empty_topic_has_no_stable_end(client):
    assert client.call("GET", f"{TOPIC}/stable-end").json() == {"id": None, "generation": 1}
    assert client.call("GET", f"{TOPIC}/advance").json() == {
        "through": None, "messages": 0, "bytes": 0, "atEnd": True, "generation": 1, "expired": False,
        "taskCount": None, "tasksProperty": None, "tasks": [],
    }  # fmt: skip


def test_a_reader_advances_to_the_stable_end_and_splits_what_it_passed(client):
    client.call("PUT", f"{TOPIC}/properties", {"tasks": 2})
    publish(client, "a", "bb", "ccc")
    client.call("POST", f"{TOPIC}/markers", {"task": "t", "taskCount": 2, "kind": "watermark", "eventTimeMs": 7})
    end = client.call("GET", f"{TOPIC}/stable-end").json()
    assert len(end["id"]) == 40
    first = client.call("GET", f"{TOPIC}/advance?messagesMax=2").json()
    assert (first["messages"], first["bytes"], first["atEnd"], first["tasks"]) == (2, 3, False, [])
    rest = client.call("GET", f"{TOPIC}/advance?after={first['through']}&bytesMax=1").json()
    assert (rest["messages"], rest["bytes"], rest["atEnd"], rest["through"]) == (1, 3, True, end["id"])
    assert (rest["taskCount"], rest["tasksProperty"]) == (2, 2)
    assert [(said["task"], said["watermarkMs"], said["ended"]) for said in rest["tasks"]] == [("t", 7, False)]
    bounded = client.call("GET", f"{TOPIC}/advance?through={first['through']}").json()
    assert (bounded["messages"], bounded["atEnd"], bounded["through"]) == (2, True, first["through"])
    splits = client.call("GET", f"{TOPIC}/splits?through={end['id']}&n=2").json()
    assert [(part["messages"], part["bytes"]) for part in splits["splits"]] == [(1, 1), (2, 5)]
    assert splits["splits"][0]["after"] is None
    assert splits["splits"][0]["through"] == splits["splits"][1]["after"]
    assert (splits["splits"][1]["through"], splits["generation"]) == (end["id"], 1)


def test_the_isolation_says_what_counts(client):
    tx = client.call("POST", "/v1/transactions", {}).json()
    early = {"records": [{"payload": "early"}], "transactionWritePointer": tx["writePointer"]}
    reply = client.call("POST", f"{TOPIC}/records", early)
    assert reply.status == 200, reply.body
    assert client.call("GET", f"{TOPIC}/advance?isolation=committed").json()["messages"] == 0
    found = client.call("GET", f"{TOPIC}/advance?isolation=uncommitted").json()
    assert (found["messages"], found["atEnd"]) == (1, True)
    assert client.call("GET", f"{TOPIC}/stable-end?isolation=uncommitted").json()["id"] == found["through"]
    refused = client.call("GET", f"{TOPIC}/splits?through={found['through']}&n=1")
    assert (refused.status, refused.code, refused.json()["field"]) == (409, "conflict", "through")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("stable-end?isolation=serializable", "isolation"),
        ("stable-end?after=" + ID, "after"),
        ("advance?after=00", "after"),
        ("advance?after=" + "0g" * 20, "after"),
        ("advance?after=" + "00" * 21, "after"),
        ("advance?through=x", "through"),
        (f"advance?after={'01' * 20}&through={ID}", "through"),
        ("advance?messagesMax=0", "messagesMax"),
        ("advance?messagesMax=-1", "messagesMax"),
        ("advance?messagesMax=1.5", "messagesMax"),
        ("advance?bytesMax=0", "bytesMax"),
        ("advance?messagesMax=9223372036854775808", "messagesMax"),
        ("splits?n=2", "through"),
        (f"splits?through={ID}", "n"),
        (f"splits?through={ID}&n=0", "n"),
        (f"splits?through={ID}&n=1001", "n"),
        (f"splits?after={'01' * 20}&through={ID}&n=1", "through"),
    ],
)
def test_what_is_no_range_is_refused_by_field(client, call, field):
    reply = client.call("GET", f"{TOPIC}/{call}")
    assert (reply.status, reply.json()["field"]) == (400, field), reply.body


@pytest.mark.parametrize("call", ["stable-end", "advance", f"splits?through={ID}&n=1"])
def test_a_topic_that_is_not_there_has_no_ranges(client, call):
    assert client.call("GET", f"{TOPIC}-2/{call}").code == "topic_not_found"
