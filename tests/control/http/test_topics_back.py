"""Beginning so many messages before a place: the newest ones, and those around a time or an id."""

from __future__ import annotations

import pytest

from basalt.messaging.read.back_reader import BACK_MAX
from tests.control.http.conftest import Client

TOPIC = "/v1/namespaces/shop/topics/orders"


def publish(client, *batches: int):
    """Publish batches of so many messages; each message is its number."""
    number = 0
    for count in batches:
        client.call("POST", f"{TOPIC}/publish", {"messages": [str(number + index) for index in range(count)]})
        number += count
        client.clock.advance(10)


def read(client: Client, query: str, what: str = "records") -> list[str]:
    reply = client.call("GET", f"{TOPIC}/{what}?{query}")
    assert reply.status == 200, reply.body
    found = reply.json()
    return [each["payload"] for each in (found["records"] if what == "records" else found)]


@pytest.fixture(autouse=True)
def orders(client):
    client.topic()


@pytest.mark.parametrize("what", ["records", "messages"])
@pytest.mark.parametrize("batches", [(7,), (1, 1, 1, 1, 1, 1, 1), (3, 1, 3), (2, 5)])
def test_the_newest_messages_are_read_from_the_end_whatever_rows_they_lie_in(client, what, batches):
    publish(client, *batches)
    for count in range(1, 8):
        assert read(client, f"from=end&back={count}", what) == [str(number) for number in range(7 - count, 7)]
    assert read(client, "from=end&back=100", what) == [str(number) for number in range(7)]


@pytest.mark.parametrize("batches", [(7,), (1, 1, 1, 1, 1, 1, 1), (3, 1, 3), (2, 5)])
def test_messages_around_an_id_begin_before_it_also_within_its_batch(client, batches):
    publish(client, *batches)
    ids = [each["id"] for each in client.call("GET", f"{TOPIC}/records").json()["records"]]
    for at, back in ((3, 2), (6, 6), (1, 1), (4, 9)):
        first = max(0, at - back)
        assert (
            read(client, f"from={ids[at]}&back={back}&limit=3")
            == [str(number) for number in range(7)][first : first + 3]
        )
    assert read(client, f"from={ids[0]}&back=5&limit=1") == ["0"]


def test_messages_around_a_time_begin_before_it(client):
    publish(client, 2, 2, 2)
    third_ms = client.clock.now_ms() - 10
    assert read(client, f"from=@{third_ms}&back=3&limit=4") == ["1", "2", "3", "4"]


def test_messages_that_a_commit_published_are_counted_one_by_one(client):
    publish(client, 1)
    begun = client.call("POST", "/v1/transactions", {"snapshot": False}).json()
    for payloads in (["1", "2"], ["3", "4"]):
        client.call("POST", f"{TOPIC}/store", {"messages": payloads, "transactionWritePointer": begun["writePointer"]})
    client.call("POST", f"/v1/transactions/{begun['id']}/commit")
    assert read(client, "from=end&back=3") == ["2", "3", "4"]
    ids = [each["id"] for each in client.call("GET", f"{TOPIC}/records").json()["records"]]
    assert read(client, f"from={ids[4]}&back=3&limit=2") == ["1", "2"]


def test_messages_that_expired_or_were_truncated_do_not_count(client):
    publish(client, 2, 2)
    client.call("POST", f"{TOPIC}/truncate", {"beforeMs": client.clock.now_ms() - 10})
    assert read(client, "from=end&back=4") == ["2", "3"]
    client.call("POST", f"{TOPIC}/records", {"records": [{"payload": "short", "ttlMs": 1_000}]})
    client.clock.advance(5_000)
    assert read(client, "from=end&back=1") == ["3"]


def test_before_an_empty_topic_there_is_nothing(client):
    assert read(client, "from=end&back=4") == []
    assert read(client, "from=start&back=4") == []


def test_more_than_a_page_is_not_gone_back(client):
    assert client.call("GET", f"{TOPIC}/records?back={BACK_MAX + 1}").code == "invalid_input"
    assert client.call("GET", f"{TOPIC}/messages?back=0").code == "invalid_input"
