"""Looking at messages whatever became of them, and finding at which one readers stop."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.api.bodies.messages import RecordIn
from basalt.catalog.topics import topic_name
from basalt.errors import InputError, MessageNotFoundError, TopicNotFoundError
from basalt.messaging.peek import Peek
from basalt.messaging.read.first_unstable import FirstUnstable, KnownTransactions
from basalt.messaging.read.log_reader import LogReader
from basalt.messaging.read.views import Views
from basalt.transactions.manager import ExternalTransactions
from tests.control.retention.readers import lose_log
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def peeked(wired: Wired) -> list[tuple[str, str]]:
    """Payload and state of each message of A."""
    page = await wired.services.peek.peek(A, None, True)
    return [(bytes(message.payload).decode(), message.state) for message in page.messages]


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


async def test_a_message_that_is_rolled_back_while_it_is_looked_at_does_not_pass_for_committed(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    tx = await shop.transactions.begin()
    await shop.publish(A, "undone", tx=tx)
    read = LogReader.read

    async def slow(*given: Any, **more: Any) -> Any:
        found = await read(*given, **more)
        await shop.transactions.abort(tx.id)
        return found

    monkeypatch.setattr(LogReader, "read", slow)
    assert await peeked(shop) == [("undone", "open")]
    monkeypatch.undo()
    assert await peeked(shop) == [("undone", "rolled back")]


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
    nobody = KnownTransactions(ExternalTransactions())
    reader = shop.services.peek._reader
    views = Views(ExternalTransactions())
    elsewhere = Peek(shop.topics, reader, nobody, views)
    states = [message.state for message in (await elsewhere.peek(A, None, True)).messages]
    assert states == ["plain", "unknown", "rolled back", "unknown", "unknown"]
    holds = FirstUnstable(shop.store, shop.clock, shop.topics, reader, nobody, views)
    assert await holds.of_topic(await shop.topics.open(A)) == (None, None, None)


async def test_states_are_unknown_while_the_manager_reads_its_log(shop: Wired):
    await of_every_state(shop)
    lose_log(shop)
    assert [state for _, state in await peeked(shop)] == ["plain", "unknown", "rolled back", "unknown", "unknown"]
