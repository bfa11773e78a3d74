"""Counting what waits behind an open transaction."""

from __future__ import annotations

import pytest

from basalt.messaging.log import stored_log
from basalt.messaging.read.blocked_readers import Blocking, RowsLeft
from tests.counted_reads import CountedReads
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def test_what_a_large_reference_publishes_is_counted_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch):
    store = CountedReads()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    early, large = await shop.transactions.begin(), await shop.transactions.begin()
    await shop.publish(A, "early", tx=early)
    for _ in range(40):
        await shop.messaging.store(A, [b"x" * 1_000], large.write_pointer)
    await shop.commit(large, orders=["with it"])
    monkeypatch.setattr(stored_log, "PAGE_BYTES", 5_000)
    reads = shop.services.topic_stats._reads
    async with store.watched():
        (blocked,) = await Blocking(store, shop.clock, shop.topics, reads).of(
            shop.transactions.state.get(early.id), RowsLeft(1_000)
        )
    assert (blocked.messages, blocked.exact) == (41, True)
    assert store.read_bytes > 40_000
    assert store.most_bytes < 5_000 + 2 * 1_100
    await shop.services.close()
