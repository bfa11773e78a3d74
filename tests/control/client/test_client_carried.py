"""What messages carry beside their payloads, written and read by the ordinary calls of both clients."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from basalt.client import RecordIn
from basalt.errors import MalformedBodyError
from tests.control.client.test_client_end_to_end import transaction

RICH = RecordIn(b"paid", key=b"k1", headers=(("trace", b"t1"), ("trace", b"t2")), event_time_ms=17, ttl_ms=600_000)


def carried(message: Any) -> tuple[Any, ...]:
    return message.payload, message.key, message.headers, message.event_time_ms, message.ttl_ms


def messages(side: Any, reader: Any) -> list[Any]:
    """The messages that a reader, or a follower, still has."""
    if side.name == "blocking":
        return list(reader)

    async def collect() -> list[Any]:
        return [message async for message in reader]

    return side.do(collect())


WHOLE = (b"paid", b"k1", (("trace", b"t1"), ("trace", b"t2")), 17, 600_000)
PLAIN = (b"plain", None, (), None, None)


def test_key_headers_and_times_are_read_back_by_every_ordinary_call(side, connected):
    orders = connected.topic("orders")
    side.do(orders.publish("plain"))
    side.do(orders.publish_records([RICH, RecordIn(b"plain")]))
    expected = [PLAIN, WHOLE, PLAIN]
    page = side.do(orders.poll())
    assert list(map(carried, page)) == expected
    assert [carried(page[index]) for index in range(3)] == list(map(carried, page[:])) == expected
    assert list(map(carried, messages(side, orders.read()))) == expected
    assert list(map(carried, messages(side, orders.read(limit=2)))) == expected[:2]
    assert list(map(carried, messages(side, orders.follow(wait=False)))) == expected
    side.do(orders.watermark("task", 5))
    assert list(map(carried, messages(side, orders.follow(wait=False)))) == expected


def test_publish_takes_what_each_message_is_to_carry(side, connected):
    orders = connected.topic("orders")
    side.do(orders.publish("plain"))
    headers = [("trace", b"t1"), ("trace", "t2")]
    side.do(orders.publish("paid", key="k1", headers=headers, event_time_ms=17, ttl_ms=600_000))
    side.do(orders.publish([b"a", "b"], headers={"trace": "ü"}))
    side.do(orders.publish(["plain", RICH, RecordIn("", key="")]))
    both = (None, (("trace", "ü".encode()),), None, None)
    assert list(map(carried, side.do(orders.poll()))) == [
        PLAIN, WHOLE, (b"a", *both), (b"b", *both), PLAIN, WHOLE, (b"", b"", (), None, None),
    ]  # fmt: skip


def test_a_long_publish_of_records_is_cut_into_as_few_requests_as_may_be(side, connected):
    orders = connected.topic("orders")
    value = b"v" * 100_000
    side.do(orders.publish(RecordIn(b"%d" % number, headers={"h": value}) for number in range(150)))
    read = messages(side, orders.read())
    assert [message.payload for message in read] == [b"%d" % number for number in range(150)]
    assert all(message.headers == (("h", value),) for message in read)
    assert len([target for target in connected.losing.sent if target.endswith("/records")]) == 2


@pytest.mark.parametrize("buffer_bytes_max", [1, 1 << 22])
def test_a_transaction_publishes_and_stores_what_messages_carry(side, connected, buffer_bytes_max):
    with transaction(side, connected) as tx:
        tx._scope.buffer_bytes_max = buffer_bytes_max
        side.do(tx.publish("orders", "plain"))
        side.do(tx.publish("orders", "paid", key="k1", headers=WHOLE[2], event_time_ms=17, ttl_ms=600_000))
        side.do(tx.publish("orders", [RICH, "plain"]))
        side.do(tx.publish("invoices", "plain"))
        side.do(tx.store("invoices", "paid", key="k1", headers=WHOLE[2], event_time_ms=17, ttl_ms=600_000))
        side.do(tx.store("invoices", [RICH]))
    orders, invoices = connected.topic("orders"), connected.topic("invoices")
    assert list(map(carried, side.do(orders.poll()))) == [PLAIN, WHOLE, WHOLE, PLAIN]
    assert list(map(carried, side.do(invoices.poll()))) == [PLAIN, WHOLE, WHOLE]
    with transaction(side, connected) as tx:
        assert list(map(carried, messages(side, tx.read("orders")))) == [PLAIN, WHOLE, WHOLE, PLAIN]
        assert list(map(carried, side.do(tx.poll("invoices")))) == [PLAIN, WHOLE, WHOLE]


def test_a_one_shot_carries_them_too(side, connected):
    side.do(connected.publish_atomically({"orders": ["plain", RICH], "invoices": "plain"}))
    assert list(map(carried, side.do(connected.topic("orders").poll()))) == [PLAIN, WHOLE]
    assert list(map(carried, side.do(connected.topic("invoices").poll()))) == [PLAIN]


def test_messages_stored_by_hand_carry_them_too(side, connected):
    orders = connected.topic("orders")
    begun = side.do(connected.transactions.begin())
    side.do(orders.store(["plain", RICH], begun))
    side.do(orders.store("paid", begun, key="k1", headers=WHOLE[2], event_time_ms=17, ttl_ms=600_000))
    assert not side.do(orders.poll())
    side.do(connected.transactions.commit(begun))
    assert list(map(carried, side.do(orders.poll()))) == [PLAIN, WHOLE, WHOLE]
    published = side.do(
        orders.publish("x", key="y", write_pointer=side.do(connected.transactions.begin()).write_pointer)
    )
    assert published is not None
    side.do(orders.roll_back(published))


def test_any_value_is_published_as_json(side, connected):
    orders = connected.topic("orders")
    side.do(orders.publish_json({"id": 1, "name": "café"}, key="1"))
    side.do(orders.publish_json([1, 2]))
    side.do(orders.publish_json(None))
    with transaction(side, connected) as tx:
        side.do(tx.publish_json("orders", {"id": 2}, headers={"trace": "t"}))
    read = messages(side, orders.read())
    assert [message.payload for message in read] == [
        '{"id":1,"name":"café"}'.encode(), b"[1,2]", b"null", b'{"id":2}',
    ]  # fmt: skip
    assert (read[0].key, read[3].headers) == (b"1", (("trace", b"t"),))
    for wrong, error in ((float("nan"), ValueError), ({1, 2}, TypeError)):
        with pytest.raises(error):
            side.do(orders.publish_json(wrong))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"id": 1}, r"a dict is no message.*publish_json\(obj\)"),
        (OrderedDict(id=1), r"an OrderedDict is no message.*publish_json"),
        ({b"a", b"b"}, r"a set has no order.*sorted"),
        (frozenset(["a"]), r"a frozenset has no order"),
        ({"a": 1}.keys(), r"a dict_keys has no order"),
        (None, r"None is no message.*b\"\""),
        ([None], r"None is no message"),
        (5, r"an int is no message.*str\(5\)"),
        ([1.5], r"a float is no message.*str\(1.5\)"),
        (True, r"True is no message.*publish_json\(True\)"),
        ([{"id": 1}], r"a message is bytes or text, not a dict: publish_json\(obj\).*json.dumps"),
        ([["a"]], r"not a list: publish_json"),
        (object(), r"not an object; encode it first"),
    ],
)
def test_what_is_no_message_is_refused_with_the_way_out(side, connected, wrong, words):
    orders = connected.topic("orders")
    for refused in (
        lambda: side.do(orders.publish(wrong)),
        lambda: side.do(orders.publish(wrong, key="k")),
        lambda: side.do(connected.publish_atomically({"orders": wrong})),
        lambda: _published_in_a_transaction(side, connected, wrong),
    ):
        with pytest.raises(TypeError, match=words):
            refused()
    assert not side.do(orders.poll())


def _published_in_a_transaction(side, connected, wrong):
    with transaction(side, connected) as tx:
        side.do(tx.publish("orders", wrong))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"key": 5}, "a key is bytes or text, not an int"),
        ({"headers": {"n": 5}}, "header n is bytes or text, not an int"),
        ({"headers": {5: "n"}}, "the name of a header is text, not an int"),
        ({"headers": "trace=1"}, "headers are a mapping"),
        ({"event_time_ms": 1.5}, "event_time_ms is a float; give whole milliseconds"),
        ({"ttl_ms": True}, "ttl_ms is a bool"),
    ],
)
def test_what_a_message_cannot_carry_is_refused_by_name(side, connected, wrong, words):
    orders = connected.topic("orders")
    with pytest.raises(TypeError, match=words):
        side.do(orders.publish("a", **wrong))
    with pytest.raises(TypeError, match=words):
        side.do(orders.publish(RecordIn("a", **wrong)))
    with pytest.raises(TypeError, match="says itself"):
        side.do(orders.publish([RecordIn("a")], key="k"))
    with pytest.raises(MalformedBodyError, match="ttlMs"):
        side.do(orders.publish("a", ttl_ms=0))
    assert not side.do(orders.poll())
