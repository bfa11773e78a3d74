"""Going back in a topic: bounded, whatever lies between. The call that uses it: tests/control/http/test_topics_back.py."""

from __future__ import annotations

import pytest

from basalt.errors import TopicNotFoundError
from basalt.messaging.read import back_reader
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


async def payloads_from(wired: Wired, start: bytes | None) -> list[str]:
    page = await wired.services.peek.peek(A, start, True)
    return [bytes(message.payload).decode() for message in page.messages]


async def test_what_was_rolled_back_or_is_open_counts_too(shop: Wired):
    await shop.publish(A, "first")
    gone, still_open = await shop.transactions.begin(), await shop.transactions.begin()
    await shop.publish(A, "gone", tx=gone)
    await shop.publish(A, "open", tx=still_open)
    await shop.transactions.abort(gone.id)
    start = await shop.services.back_reader.back(A, None, 2)
    assert await payloads_from(shop, start) == ["gone", "open"]


async def test_a_way_over_many_rows_is_looked_at_in_turns_and_given_up_in_the_end(shop: Wired, monkeypatch):
    for number in range(10):
        await shop.publish(A, str(number))
        shop.clock.advance(1)
    monkeypatch.setattr(back_reader, "ROWS", 2)
    assert await payloads_from(shop, await shop.services.back_reader.back(A, None, 7)) == [str(n) for n in range(3, 10)]
    monkeypatch.setattr(back_reader, "LOOKS_MAX", 2)
    assert await payloads_from(shop, await shop.services.back_reader.back(A, None, 7)) == ["6", "7", "8", "9"]


async def test_no_further_row_is_read_behind_so_many_bytes(shop: Wired, monkeypatch):
    for number in range(5):
        await shop.publish(A, str(number) * 1_000)
        shop.clock.advance(1)
    monkeypatch.setattr(back_reader, "BYTES_MAX", 2_500)
    found = await payloads_from(shop, await shop.services.back_reader.back(A, None, 5))
    assert [each[0] for each in found] == ["2", "3", "4"]


async def test_a_topic_that_does_not_exist_is_told(shop: Wired):
    await shop.topics.delete(B)
    with pytest.raises(TopicNotFoundError):
        await shop.services.back_reader.back(B, None, 1)
