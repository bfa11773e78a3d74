"""What a reader may rely on, at the level of the service; docs/reference/http-api.md has the list."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from basalt.api.bodies.messages import PublishResponse, RecordIn
from basalt.errors import TopicNotFoundError
from basalt.messaging.log import packing
from basalt.messaging.read import log_reader
from basalt_engine.keys import MessageId
from basalt_engine.records import Extras
from tests.counted_reads import CountedReads
from tests.wiring import A, B, Wired, encoded, ids, texts

pytestmark = pytest.mark.anyio


async def test_messages_come_back_in_the_order_of_their_publishes(shop: Wired) -> None:
    for title in (A, B):
        for number in range(5):
            await shop.publish(title, f"{number}a", f"{number}b")
            shop.clock.advance(number % 2)
        expected = [f"{number}{letter}" for number in range(5) for letter in "ab"]
        assert await shop.read(title) == expected
        assert await shop.page_through(title, 1) == expected
        assert await shop.page_through(title, 3) == expected


async def test_concurrent_publishes_share_a_row_and_keep_their_own_answers(shop: Wired) -> None:
    answers = await asyncio.gather(*(shop.messaging.publish(A, encoded([f"{n}x", f"{n}y"])) for n in range(20)))
    page = await shop.messaging.fetch(A, None, True)
    place = {MessageId.decode(found)[:2]: text for found, text in zip(ids(page), texts(page), strict=True)}
    for number, answer in enumerate(answers):
        assert place[answer.start_ms, answer.start_sequence] == f"{number}x"
        assert place[answer.end_ms, answer.end_sequence] == f"{number}y"
    rows = len(list(shop.services.peek._reader.messages.scan((await shop.topics.get(A)).read_keys)))
    # A write over the network begins before all of them are there; those that came meanwhile share the next one.
    assert rows < 20 if shop.store.remote else rows == 1


async def test_a_reader_that_asks_for_few_bytes_at_once_sees_everything_once(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "REMOTE_BYTES_MAX", 2)
    monkeypatch.setattr(packing, "ROW_BYTES_MAX", 2)
    await shop.topics.update(A, {"spread": "3"})
    tx = await shop.transactions.begin()
    for number in range(6):
        await shop.publish(A, f"{number}a", f"{number}b")
        await shop.store_aside(A, f"{number}s", tx=tx)
        shop.clock.advance(1)
    await shop.commit(tx)
    expected = [f"{number}{letter}" for number in range(6) for letter in "ab"] + [f"{number}s" for number in range(6)]
    again = await shop.restarted(cached=False)
    for count in (1, 3, 100):
        assert await again.page_through(A, count) == expected
        assert await again.page_through(A, count, committed=True) == expected


async def test_a_start_id_counts_or_not_as_asked(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    second = ids(await shop.messaging.fetch(A, None, True))[1]
    assert texts(await shop.messaging.fetch(A, second, True)) == ["b", "c"]
    assert texts(await shop.messaging.fetch(A, second, False)) == ["c"]


async def test_a_start_time_counts_or_not_as_asked(shop: Wired) -> None:
    await shop.publish(A, "early")
    shop.clock.advance(5)
    now_ms = shop.clock.now_ms()
    await shop.publish(A, "now")
    shop.clock.advance(5)
    await shop.publish(A, "late")
    assert texts(await shop.messaging.fetch(A, now_ms, True)) == ["now", "late"]
    assert texts(await shop.messaging.fetch(A, now_ms, False)) == ["late"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
async def test_paging_with_any_limit_loses_nothing_around_references(shop: Wired, limit: int) -> None:
    await shop.publish(A, "before")
    for attempt in range(3):
        tx = await shop.transactions.begin()
        await shop.store_aside(A, f"s{attempt}1", f"s{attempt}2", tx=tx)
        await shop.store_aside(A, f"s{attempt}3", tx=tx)
        await shop.commit(tx)
        await shop.publish(A, f"plain{attempt}")
    rolled_back = await shop.transactions.begin()
    await shop.store_aside(A, "never", tx=rolled_back)
    await shop.messaging.publish(A, [], rolled_back.write_pointer)
    await shop.transactions.abort(rolled_back.id)
    await shop.publish(A, "after")
    expected = ["before"]
    for attempt in range(3):
        expected += [f"s{attempt}1", f"s{attempt}2", f"s{attempt}3", f"plain{attempt}"]
    assert await shop.page_through(A, limit, committed=True) == [*expected, "after"]


async def test_an_exclusive_start_just_before_a_reference_loses_nothing(shop: Wired) -> None:
    await shop.publish(A, "plain")
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "s1", "s2", tx=tx)
    await shop.commit(tx)
    first = ids(await shop.messaging.fetch(A, None, True))[0]
    assert texts(await shop.messaging.fetch(A, first, False)) == ["s1", "s2"]


async def test_a_start_inside_a_hidden_reference_resumes_after_it(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "s1", "s2", tx=tx)
    await shop.messaging.publish(A, [], tx.write_pointer)
    inside = ids(await shop.messaging.fetch(A, None, True))[0]
    await shop.publish(A, "after")
    await shop.transactions.abort(tx.id)
    assert texts(await shop.messaging.fetch(A, inside, False, committed=True)) == ["after"]


async def test_a_second_reference_publishes_only_what_was_stored_since(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "first", tx=tx)
    await shop.messaging.publish(A, [], tx.write_pointer)
    again = await shop.restarted()
    assert texts(await again.messaging.fetch(A, None, True)) == ["first"]
    await again.messaging.publish(A, [], tx.write_pointer)  # nothing newly stored: publishes nothing
    await again.store_aside(A, "second", tx=tx)
    assert texts(await again.messaging.fetch(A, None, True)) == ["first"]
    await again.messaging.publish(A, [], tx.write_pointer)
    await again.transactions.commit(tx.id)
    assert await again.read(A, committed=True) == ["first", "second"]


async def test_stored_payloads_are_invisible_before_their_publish(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    assert await shop.read(A) == []
    assert await shop.read(A, tx=tx) == []


async def test_roll_back_touches_only_its_own_writer_and_range(shop: Wired) -> None:
    mine, other = await shop.transactions.begin(), await shop.transactions.begin()
    await shop.publish(A, "mine-kept", tx=mine)
    answer = await shop.messaging.publish(A, encoded(["mine-undone"]), mine.write_pointer)
    await shop.publish(A, "plain")
    await shop.publish(A, "other", tx=other)
    everything = PublishResponse(mine.write_pointer, answer.start_ms, answer.start_sequence, answer.end_ms + 1_000, 0)
    await shop.messaging.roll_back(A, everything)
    await shop.messaging.roll_back(A, everything)
    await shop.commit(mine)
    await shop.commit(other)
    assert await shop.read(A, committed=True) == ["mine-kept", "plain", "other"]
    assert await shop.read(A) == ["mine-kept", "mine-undone", "plain", "other"]


async def test_a_clock_that_goes_back_changes_no_order(shop: Wired) -> None:
    await shop.publish(A, "1")
    shop.clock.step(shop.clock.now_ms() - 3_600_000)
    await shop.publish(A, "2")
    again = await shop.restarted()
    await again.publish(A, "3")
    again.clock.step(again.clock.now_ms() + 7_200_000)
    await again.publish(A, "4")
    assert await again.read(A) == ["1", "2", "3", "4"]
    found = ids(await again.messaging.fetch(A, None, True))
    assert found == sorted(found)


async def test_a_restart_within_a_millisecond_goes_on_after_the_last_message(shop: Wired) -> None:
    await shop.publish(A, "1", "2")
    again = await shop.restarted()
    await again.publish(A, "3")
    assert await again.read(A) == ["1", "2", "3"]


@pytest.mark.parametrize("count", [255, 600, 32_768, 65_536])
async def test_sequences_stay_in_order_past_every_byte_boundary(shop: Wired, count: int) -> None:
    messages = [b"%d" % number for number in range(count)]
    await shop.messaging.publish(A, [b"first"])
    await shop.messaging.publish(A, messages)
    await shop.messaging.publish(A, [b"last"])
    found, start = list[bytes](), None
    while True:
        page = await shop.messaging.fetch(A, start, False) if start else await shop.messaging.fetch(A, None, True)
        if not page.messages:
            break
        found += [bytes(payload) for piece in page.slices for payload in piece.payloads()]
        start = page.next_id
    assert found == [b"first", *messages, b"last"]


async def test_expired_messages_are_never_returned_and_ttl_changes_act_at_once(shop: Wired) -> None:
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, "old")
    shop.clock.advance(9_999)
    await shop.publish(A, "new")
    assert await shop.read(A) == ["old", "new"]
    shop.clock.advance(1)
    assert await shop.read(A) == ["new"]
    await shop.topics.update(A, {"ttl": "3600"})
    assert await shop.read(A) == ["old", "new"]


async def test_a_message_with_a_ttl_of_its_own_expires_alone(shop: Wired) -> None:
    records = [
        RecordIn(b"a"),
        RecordIn(b"b", ttl_ms=5),
        RecordIn(b"c"),
        RecordIn(b"d", ttl_ms=5),
        RecordIn(b"e", ttl_ms=50),
    ]
    await shop.messaging.publish_records(A, records)
    assert await shop.read(A) == ["a", "b", "c", "d", "e"]
    shop.clock.advance(5)
    assert await shop.read(A) == ["a", "c", "e"]
    assert await shop.page_through(A, 1) == ["a", "c", "e"]


async def test_a_new_generation_shows_nothing_of_the_old_one(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.publish(A, "old")
    await shop.store_aside(A, "old stored", tx=tx)
    old_id = ids(await shop.messaging.fetch(A, None, True))[0]
    await shop.topics.delete(A)
    with pytest.raises(TopicNotFoundError):
        await shop.read(A)
    topic = await shop.topics.create(A, {"ttl": "60"})
    assert (topic.generation, topic.properties["ttl"]) == (2, "60")
    await shop.commit(tx)
    await shop.publish(A, "new")
    assert await shop.read(A, committed=True) == ["new"]
    assert texts(await shop.messaging.fetch(A, old_id, True)) == ["new"]
    again = await shop.restarted()
    assert await again.read(A) == ["new"]


async def test_two_topics_written_at_the_same_time_never_mix(shop: Wired) -> None:
    await asyncio.gather(*(shop.publish(title, f"{title.name}{n}") for n in range(50) for title in (A, B)))
    assert sorted(await shop.read(A)) == sorted(f"orders{n}" for n in range(50))
    assert sorted(await shop.read(B)) == sorted(f"invoices{n}" for n in range(50))


async def test_a_fetch_that_waits_is_answered_by_the_next_publish(shop: Wired) -> None:
    waiting = asyncio.ensure_future(shop.messaging.fetch(A, None, True, wait_ms=30_000))
    while not shop.topics.memory.waiting:
        await asyncio.sleep(0)
    await shop.publish(A, "news")
    assert texts(await asyncio.wait_for(waiting, 60)) == ["news"]
    assert shop.topics.memory.waiting == 0


async def test_a_fetch_that_waits_for_a_transaction_is_answered_by_its_commit(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.publish(A, "held", tx=tx)
    waiting = asyncio.ensure_future(shop.messaging.fetch(A, None, True, committed=True, wait_ms=30_000))
    while not shop.topics.memory.waiting:
        await asyncio.sleep(0)
    await shop.commit(tx)
    assert texts(await asyncio.wait_for(waiting, 60)) == ["held"]


async def test_a_long_stretch_of_hidden_rows_is_passed_in_one_fetch(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("basalt.messaging.read.log_reader.ROWS_MAX", 3)
    for number in range(10):
        tx = await shop.transactions.begin()
        await shop.publish(A, f"gone{number}", tx=tx)
        await shop.transactions.abort(tx.id)
    await shop.publish(A, "here")
    assert texts(await shop.messaging.fetch(A, None, True, committed=True)) == ["here"]


async def hide_rolled_back(wired: Wired) -> None:
    for _ in range(40):
        tx = await wired.transactions.begin()
        await wired.publish(A, "x" * 1_000, tx=tx)
        await wired.transactions.abort(tx.id)


async def hide_expired(wired: Wired) -> None:
    for _ in range(40):
        await wired.messaging.publish_records(A, [RecordIn(b"x" * 1_000, ttl_ms=5)])
        wired.clock.advance(5)


async def hide_expired_behind_one_reference(wired: Wired) -> None:
    tx = await wired.transactions.begin()
    for _ in range(40):
        await wired.messaging.store(A, [b"x" * 1_000], tx.write_pointer, [Extras(ttl_ms=5)])
    await wired.commit(tx)
    wired.clock.advance(5)


@pytest.mark.parametrize("hide", [hide_rolled_back, hide_expired, hide_expired_behind_one_reference])
async def test_others_get_their_turn_while_a_fetch_passes_bytes_that_it_may_not_show(
    monkeypatch: pytest.MonkeyPatch, hide: Callable[[Wired], Awaitable[None]]
) -> None:
    store = CountedReads()
    shop = await Wired.start(store, cached=False)
    await shop.topics.create(A, {})
    await shop.publish(A, "before")
    await hide(shop)
    await shop.publish(A, "after")
    whole = await shop.messaging.fetch(A, None, True, committed=True)
    monkeypatch.setattr("basalt.messaging.read.log_reader.LOOK_BYTES_MAX", 5_000)
    async with store.watched():
        page = await shop.messaging.fetch(A, None, True, committed=True)
    assert texts(page) == texts(whole) == ["before", "after"]
    assert page._replace(slices=[]) == whole._replace(slices=[])
    assert store.read_bytes > 40_000
    assert store.most_bytes < 5_000 + 3 * 1_100  # the last row passed, and in a reference where the next look begins
    await shop.services.close()


async def test_widening_and_narrowing_the_spread_loses_nothing(shop: Wired) -> None:
    for spread in (1, 4, 2, 7, 1):
        await shop.topics.update(A, {"spread": str(spread)})
        for number in range(8):
            await shop.publish(A, f"{spread}-{number}")
            shop.clock.advance(1)
    expected = [f"{spread}-{number}" for spread in (1, 4, 2, 7, 1) for number in range(8)]
    assert await shop.page_through(A, 5) == expected
    again = await shop.restarted(cached=False)
    assert await again.page_through(A, 5) == expected
