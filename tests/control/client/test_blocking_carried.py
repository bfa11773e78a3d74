"""What messages carry beside their payloads, written and read by the ordinary calls of both clients."""

from __future__ import annotations

from typing import Any

from basalt.client import RecordIn

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
