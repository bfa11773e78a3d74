"""Who holds readers up: the first row of a writer that has not ended, of a topic and of one transaction."""

from __future__ import annotations

import pytest

from basalt.catalog.topics import TopicName
from basalt.messaging.read import first_unstable
from basalt.messaging.read.first_unstable import FirstUnstableRow
from basalt.settings import Settings, TransactionSettings
from tests.control.messaging.test_peek import of_every_state
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


async def first_hold(wired: Wired, title: TopicName, start: bytes = b"") -> FirstUnstableRow:
    """Where a reader of committed messages stops, from a position on."""
    return await wired.services.first_unstable.of_topic(await wired.topics.open(title), start)


async def test_readers_stop_where_the_search_says(shop: Wired):
    assert await first_hold(shop, A) == (None, None, None)
    await of_every_state(shop)
    for wired in (shop, await shop.restarted()):
        stop = await first_hold(wired, A)
        page = await wired.messaging.fetch(A, None, True, committed=True)
        (held,) = [
            message for message in (await wired.services.peek.peek(A, None, True)).messages if message.state == "open"
        ]
        assert (stop.held_by, stop.held_at) == (page.held_by, held.id)
        assert stop.searched_to is None
        assert await first_hold(wired, B) == (None, None, None)


async def test_the_search_reads_only_where_open_transactions_published_early(shop: Wired):
    for _ in range(50):
        await shop.publish(A, "before")
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    await shop.commit(tx)
    late = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=late)
    reads: list[object] = []
    scan = shop.services.peek._reader.messages.scan
    shop.services.peek._reader.messages.scan = lambda *args, **named: reads.append(args) or scan(*args, **named)  # type: ignore[method-assign]
    assert (await first_hold(shop, A)).held_by is None
    assert reads == []


async def test_a_long_search_goes_on_from_where_it_ended(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    for _ in range(300):
        await shop.publish(A, "plain")
        shop.clock.advance(1)
    await shop.publish(A, "early", tx=tx)
    again = await shop.restarted()  # which does not know where the transaction published
    monkeypatch.setattr(first_unstable, "ROWS_MAX", 10)
    first = await first_hold(again, A)
    assert first.held_by is None
    assert first.searched_to is not None
    assert (await first_hold(again, A, first.searched_to)).held_by == tx.write_pointer


async def test_an_expired_message_holds_nobody_up():
    settings = Settings(transactions=TransactionSettings(timeout_ms_max=600_000))
    wired = await Wired.start(settings=settings)
    await wired.topics.create(A, {"ttl": "10"})
    tx = await wired.transactions.begin(timeout_ms=600_000)
    await wired.publish(A, "early", tx=tx)
    assert (await first_hold(wired, A)).held_by == tx.write_pointer
    wired.clock.advance(10_000)
    assert (await first_hold(wired, A)).held_by is None
    await wired.services.close()
