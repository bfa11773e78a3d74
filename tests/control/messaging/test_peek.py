"""Looking at messages whatever became of them, and finding at which one readers stop."""

from __future__ import annotations

import pytest

from basalt.api.bodies.work import RecordIn
from basalt.catalog.topics import TopicName, topic_name
from basalt.errors import InputError, MessageNotFoundError, TopicNotFoundError
from basalt.messaging.peek import Peek
from basalt.messaging.read import first_unstable
from basalt.messaging.read.first_unstable import Decisions, FirstUnstable, Hold
from basalt.settings import Settings, TransactionSettings
from basalt.transactions.manager import ExternalTransactions
from tests.control.retention.readers import lose_log
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio


async def peeked(wired: Wired) -> list[tuple[str, str]]:
    """Payload and state of each message of A."""
    page = await wired.services.peek.peek(A, None, True)
    return [(bytes(message.payload).decode(), message.state) for message in page.messages]


async def first_hold(wired: Wired, title: TopicName, start: bytes = b"") -> Hold:
    """Where a reader of committed messages stops, from a position on."""
    return await wired.services.first_unstable.of_topic(await wired.topics.open(title), start)


async def of_every_state(wired: Wired) -> list[tuple[str, str]]:
    """Fill A with a message of each state; the payloads and states."""
    await wired.publish(A, "plain")
    names = ("committed", "rolled back", "invalid", "open")
    made = {name: await wired.transactions.begin() for name in names}
    for name, tx in made.items():
        await wired.publish(A, name, tx=tx)
    await wired.commit(made["committed"])
    await wired.transactions.abort(made["rolled back"].id)
    await wired.transactions.invalidate(made["invalid"].id)
    return [("plain", "plain"), *((name, name) for name in names)]


async def test_each_message_is_shown_with_what_became_of_it(shop: Wired):
    states = await of_every_state(shop)
    assert await peeked(shop) == states


async def test_a_restart_changes_no_state(shop: Wired):
    states = await of_every_state(shop)
    assert await peeked(await shop.restarted()) == states


async def test_each_message_is_found_by_its_id(shop: Wired):
    await of_every_state(shop)
    page = await shop.services.peek.peek(A, None, True)
    for message in page.messages:
        assert await shop.services.peek.message(A, message.id) == message


async def test_messages_behind_a_reference_are_found_by_their_ids(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "one", "two", tx=tx)
    await shop.commit(tx)
    page = await shop.services.peek.peek(A, None, True)
    assert [bytes(message.payload) for message in page.messages] == [b"one", b"two"]
    for message in page.messages:
        assert (await shop.services.peek.message(A, message.id)).payload == message.payload
        assert message.write_pointer == tx.write_pointer


async def test_an_id_between_two_messages_is_not_found(shop: Wired):
    await shop.publish(A, "one", "two")
    first = (await shop.services.peek.peek(A, None, True)).messages[0].id
    with pytest.raises(MessageNotFoundError, match=f"{first[:-1].hex()}07"):
        await shop.services.peek.message(A, first[:-1] + b"\7")


async def test_an_expired_message_is_not_found(shop: Wired):
    brief = RecordIn(b"brief", None, (), None, 5_000)
    await shop.messaging.publish_records(A, [brief, RecordIn(b"lasting", b"key", (("h", b"v"),), 7, None)])
    short, lasting = (await shop.services.peek.peek(A, None, True)).messages
    assert (lasting.extras.key, lasting.extras.headers, lasting.extras.event_time_ms) == (b"key", (("h", b"v"),), 7)
    shop.clock.advance(5_000)
    with pytest.raises(MessageNotFoundError):
        await shop.services.peek.message(A, short.id)
    shop.clock.advance(604_800_000)
    with pytest.raises(MessageNotFoundError):
        await shop.services.peek.message(A, lasting.id)


async def test_peeking_pages_through_the_topic(shop: Wired):
    await of_every_state(shop)
    found, page = [], await shop.services.peek.peek(A, None, True, 2)
    while page.messages:
        found += [message.state for message in page.messages]
        assert page.next_id is not None
        page = await shop.services.peek.peek(A, page.next_id, False, 2)
    assert found == ["plain", "committed", "rolled back", "invalid", "open"]


async def test_what_cannot_be_looked_at_is_refused(shop: Wired):
    with pytest.raises(InputError, match="20 bytes"):
        await shop.services.peek.message(A, b"short")
    with pytest.raises(InputError, match="limit 0"):
        await shop.services.peek.peek(A, None, True, 0)
    with pytest.raises(TopicNotFoundError):
        await shop.services.peek.peek(topic_name("shop", "nothing"), None, True)


async def test_states_are_unknown_where_transactions_are_managed_elsewhere(shop: Wired):
    await of_every_state(shop)
    nobody = Decisions(ExternalTransactions())
    reader = shop.services.peek._reader
    elsewhere = Peek(shop.topics, reader, nobody)
    states = [message.state for message in (await elsewhere.peek(A, None, True)).messages]
    assert states == ["plain", "unknown", "rolled back", "unknown", "unknown"]
    holds = FirstUnstable(shop.store, shop.clock, shop.topics, reader, nobody)
    assert await holds.of_topic(await shop.topics.open(A)) == (None, None, None)


async def test_states_are_unknown_while_the_manager_reads_its_log(shop: Wired):
    await of_every_state(shop)
    lose_log(shop)
    assert [state for _, state in await peeked(shop)] == ["plain", "unknown", "rolled back", "unknown", "unknown"]


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
