"""Looking at a topic: figures, messages whatever became of them, holders."""

from __future__ import annotations

import pytest


def test_figures_of_a_topic(client):
    path = client.topic()
    first_ms = client.clock.now_ms()
    client.publish(path, "aaa", "bb")
    client.clock.advance(5)
    begun = client.begin()
    client.publish(path, "c", pointer=begun["writePointer"])
    stats = client.call("GET", f"{path}/stats").json()
    assert {name: stats[name] for name in ("messages", "bytes", "oldestMs", "newestMs", "oldestOpenWritePointer")} == {
        "messages": 3,
        "bytes": 6,
        "oldestMs": first_ms,
        "newestMs": first_ms + 5,
        "oldestOpenWritePointer": begun["writePointer"],
    }


def test_figures_of_an_empty_topic(client):
    stats = client.call("GET", f"{client.topic()}/stats").json()
    assert (stats["messages"], stats["bytes"], stats["oldestMs"], stats["newestMs"]) == (0, 0, None, None)


def test_a_peek_shows_every_message_with_its_state(client):
    path = client.topic()
    writers = {name: client.begin() for name in ("committed", "rolled back", "invalid", "open")}
    client.publish(path, "plain")
    for name, begun in writers.items():
        client.publish(path, name, pointer=begun["writePointer"])
    for name, how in (("committed", "commit"), ("rolled back", "abort"), ("invalid", "invalidate")):
        client.call("POST", f"/v1/transactions/{writers[name]['id']}/{how}")
    shown = client.call("GET", f"{path}/messages").json()
    assert [(message["payload"], message["state"]) for message in shown] == [
        (name, name) for name in ("plain", "committed", "rolled back", "invalid", "open")
    ]
    assert shown[4]["writePointer"] == writers["open"]["writePointer"]
    for message in shown:
        assert client.call("GET", f"{path}/messages/{message['id']}").json() == message
        assert client.call("GET", f"{path}/messages/{message['id'].upper()}").json() == message


def test_a_peek_pages(client):
    path = client.topic()
    client.publish(path, "a", "b", "c")
    first = client.call("GET", f"{path}/messages?limit=2").json()
    rest = client.call("GET", f"{path}/messages?from={first[-1]['id']}&inclusive=false").json()
    assert [message["payload"] for message in [*first, *rest]] == ["a", "b", "c"]


def test_a_payload_that_is_no_text_is_shown_in_base64(client):
    path = client.topic()
    client.publish(path, "\u00ff\u0000")
    (shown,) = client.call("GET", f"{path}/messages").json()
    assert (shown["payloadBase64"], "payload" in shown) == ("/wA=", False)


def test_a_message_that_is_not_there_is_not_found(client):
    reply = client.call("GET", f"{client.topic()}/messages/{'0' * 40}")
    assert (reply.status, reply.code) == (404, "message_not_found")


@pytest.mark.parametrize(
    "message", ["0", "0" * 39, "0" * 41, "g" * 40, "0x" + "0" * 38, "%D9%A0" * 40, "0" * 20 + "%20" + "0" * 20]
)
def test_what_is_no_message_id_is_refused(client, message):
    reply = client.call("GET", f"{client.topic()}/messages/{message}")
    assert (reply.status, reply.code) == (400, "invalid_input")


def test_nothing_holds_readers_of_a_topic_without_open_writers(client):
    path = client.topic()
    client.publish(path, "a")
    assert client.call("GET", f"{path}/holder").json() == {
        "heldBy": None,
        "at": None,
        "owner": None,
        "expiresMs": None,
        "searchedTo": None,
    }


def test_the_holder_is_told_with_its_owner_and_deadline(client):
    path = client.topic()
    client.publish(path, "a")
    begun = client.begin(owner="billing", timeoutMs=5_000)
    client.publish(path, "open", pointer=begun["writePointer"])
    told = client.call("GET", f"{path}/holder").json()
    assert (told["heldBy"], told["owner"], told["expiresMs"]) == (begun["id"], "billing", begun["expiresMs"])
    assert client.call("GET", f"{path}/messages/{told['at']}").json()["payload"] == "open"
    assert client.call("GET", f"{path}/holder?from=start").json() == told
    assert client.call("GET", f"{path}/holder?from={told['at']}").json() == told


@pytest.mark.parametrize("call", ["stats", "messages", "holder", f"messages/{'0' * 40}"])
def test_nothing_is_shown_of_a_topic_that_is_not_there(client, call):
    reply = client.call("GET", f"/v1/namespaces/shop/topics/none/{call}")
    assert (reply.status, reply.code) == (404, "topic_not_found")
