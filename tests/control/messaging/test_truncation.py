"""Truncation: what was published before a time is out of every reader's reach, for ever; and nothing else is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn
from basalt.api.markers import Marker
from basalt.errors import ConflictError, GenerationError, InputError, MessageNotFoundError
from basalt.messaging.index import SAVED, Expiry, RowCount, TopicIndex
from basalt.messaging.log.stored_log import entry_name
from basalt.messaging.read.log_reader import end_of
from basalt_engine.keys import position
from basalt_engine.messages import MessageTable
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks.store import RocksStore
from basalt_engine.table import Delete
from tests.wiring import A, Wired, ids, texts

SECOND_MS = 1_000

pytestmark = pytest.mark.anyio


async def published(shop: Wired, *messages: str) -> list[int]:
    """Publish each in a second of its own; when each was published."""
    times = []
    for message in messages:
        times.append(shop.clock.now_ms())
        await shop.publish(A, message)
        shop.clock.advance(SECOND_MS)
    return times


async def truncate(shop: Wired, before_ms: int, **wanted: Any) -> bool:
    return (await shop.services.truncation.truncate(A, before_ms, **wanted)).changed


async def counted(shop: Wired) -> tuple[int, int]:
    stats = await shop.services.topic_stats.stats(A)
    assert stats.exact
    return stats.messages, stats.payload_bytes


async def test_every_way_of_reading_begins_at_the_time_of_the_truncation(shop: Wired):
    times = await published(shop, "a", "bb", "ccc", "dddd")
    before = await shop.messaging.fetch(A, None, True)
    gone, kept = ids(before)[:2], ids(before)[2:]
    ranges, end = shop.services.ranges, (await shop.services.ranges.stable_end(A)).id
    assert end is not None
    await ranges.advance(A, None)  # the index knows all of it
    assert await truncate(shop, times[2])
    for committed in (False, True):
        assert await shop.read(A, committed=committed) == ["ccc", "dddd"]
        assert await shop.page_through(A, 1, committed=committed) == ["ccc", "dddd"]
        assert texts(await shop.messaging.fetch(A, gone[0], True, committed=committed)) == ["ccc", "dddd"]
        assert texts(await shop.messaging.fetch(A, times[0], True, committed=committed)) == ["ccc", "dddd"]
        found = await ranges.read(await shop.topics.open(A), gone[0], end, 1 << 20, committed=committed)
        assert [message_id for part in found.slices for message_id in part.ids()] == kept
        advance = await ranges.advance(A, gone[0], committed=committed)
        assert (advance.messages, advance.payload_bytes, advance.at_end, advance.expired) == (2, 7, True, True)
        assert not (await ranges.advance(A, kept[0], committed=committed)).expired
        splits = (await ranges.splits(A, None, end, 2, committed=committed)).splits
        assert [(part.messages, part.bytes) for part in splits] == [(1, 3), (1, 4)]
    page = await shop.services.peek.peek(A, None, True)
    assert [message.id for message in page.messages] == kept
    assert (await shop.services.peek.message(A, kept[0])).id == kept[0]
    for message_id in gone:
        with pytest.raises(MessageNotFoundError):
            await shop.services.peek.message(A, message_id)
    stats = await shop.services.topic_stats.stats(A)
    assert (stats.messages, stats.payload_bytes, stats.oldest_id, stats.newest_id) == (2, 7, kept[0], kept[1])
    assert (await ranges.stable_end(A)).id == end


async def test_a_reader_that_waits_gets_only_what_comes_after_it(shop: Wired):
    (first,) = await published(shop, "old")
    waiting = asyncio.create_task(shop.messaging.fetch(A, first + 1, True, wait_ms=60_000))
    await asyncio.sleep(0)
    await truncate(shop, shop.clock.now_ms())
    await shop.publish(A, "new")
    assert texts(await waiting) == ["new"]


async def test_a_truncated_topic_may_be_empty_and_goes_on(shop: Wired):
    await published(shop, "a", "b")
    await truncate(shop, shop.clock.now_ms())
    assert await shop.read(A) == []
    assert await counted(shop) == (0, 0)
    stats = await shop.services.topic_stats.stats(A)
    assert (stats.oldest_id, stats.newest_id) == (None, None)
    await shop.publish(A, "c")
    assert await shop.read(A, committed=True) == ["c"]
    assert await counted(shop) == (1, 1)


async def test_the_time_only_rises_and_again_changes_nothing(shop: Wired):
    times = await published(shop, "a", "b", "c")
    assert await truncate(shop, times[2])
    for earlier in (times[2], times[1], 0):
        found = await shop.services.truncation.truncate(A, earlier)
        assert (found.before_ms, found.changed) == (times[2], False)
    assert await shop.read(A) == ["c"]


async def test_of_two_calls_at_once_the_later_time_holds_whichever_comes_first(shop: Wired):
    await published(shop, "a", "b")
    now_ms = shop.clock.now_ms()
    for before_ms in (now_ms, now_ms - 1):  # both were checked before either changed anything
        assert (await shop.topics.truncate(A, before_ms)).metadata.truncated_before_ms == now_ms


def test_a_row_from_before_the_truncation_is_neither_counted_nor_taken_off():
    index = TopicIndex(1_000, 10)
    old, new = (RowCount(ms, 0, 0, (Expiry(1_000, 1, 5),)) for ms in (9, 10))
    index.add(position(9, 0), old)
    index.add(position(10, 0), new)
    assert index.own.entries() == (Expiry(1_000, 1, 5),)
    index.remove(position(9, 0), old)
    assert index.own.entries() == (Expiry(1_000, 1, 5),)


class DroppingStore(MemoryStore):
    """As one whose region servers drop truncated rows the moment that a topic says so."""

    applies_retention = True


async def test_the_end_of_a_log_is_noted_before_a_store_may_drop_the_row_that_told_it():
    shop = await Wired.start(DroppingStore())
    await shop.topics.create(A, {})
    await published(shop, "a", "b")
    end = (await shop.services.ranges.stable_end(A)).id
    await truncate(shop, shop.clock.now_ms())
    rows = shop.store.table(MessageTable.name)
    rows.write([Delete(row.key) for row in rows.scan(b"", None)])
    again = await shop.restarted()
    assert end is not None
    assert (await again.services.ranges.stable_end(A)).id == end
    again.clock.step(1)
    await again.publish(A, "c")
    assert ids(await again.messaging.fetch(A, None, True))[0] > end
    await again.services.close()


async def test_a_time_that_has_not_come_is_refused(shop: Wired):
    with pytest.raises(InputError, match="1 ms ahead"):
        await truncate(shop, shop.clock.now_ms() + 1)
    assert (await shop.topics.get(A)).metadata.truncated_before_ms == 0


async def test_it_outlives_a_restart_new_properties_and_a_longer_ttl(shop: Wired):
    times = await published(shop, "a", "b", "c")
    await truncate(shop, times[1])
    await shop.topics.update(A, {"ttl": "999999999", "label.owner": "x"})
    assert "~truncatedBefore" not in (await shop.topics.get(A)).properties
    assert await shop.read(A) == ["b", "c"]
    again = await shop.restarted()
    assert await again.read(A) == ["b", "c"]
    assert await counted(again) == (2, 2)
    assert (await again.topics.get(A)).metadata.truncated_before_ms == times[1]
    assert not await truncate(again, times[0])


async def test_a_topic_that_is_created_again_begins_without_it(shop: Wired):
    await published(shop, "a")
    await truncate(shop, shop.clock.now_ms())
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    assert (await shop.topics.get(A)).metadata.truncated_before_ms == 0
    with pytest.raises(GenerationError):
        await truncate(shop, shop.clock.now_ms(), generation=1)
    await shop.publish(A, "b")
    assert await shop.read(A) == ["b"]


async def test_messages_of_an_open_transaction_are_not_taken_from_under_it(shop: Wired):
    tx = await shop.transactions.begin()
    (before,) = await published(shop, "plain")
    await shop.publish(A, "early", tx=tx)
    shop.clock.advance(1)
    with pytest.raises(ConflictError, match=shop.services.ids.text(tx.id)):
        await truncate(shop, shop.clock.now_ms())
    assert await truncate(shop, before + 1)  # it is not behind the transaction's
    await shop.commit(tx)
    assert await shop.read(A, committed=True) == ["early"]
    assert await truncate(shop, shop.clock.now_ms())
    assert await shop.read(A, committed=True) == []


async def test_what_a_transaction_stored_before_and_publishes_after_is_there(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    shop.clock.advance(SECOND_MS)
    assert await truncate(shop, shop.clock.now_ms())
    await shop.commit(tx)
    assert await shop.read(A, committed=True) == ["stored"]


async def test_a_clock_that_is_set_back_hides_nothing_that_is_published_then(shop: Wired):
    await published(shop, "a")
    shop.clock.advance(50 * SECOND_MS)
    await truncate(shop, shop.clock.now_ms())
    shop.clock.step(shop.clock.now_ms() - 20 * SECOND_MS)
    await shop.publish(A, "b")
    assert await shop.read(A) == ["b"]
    again = await shop.restarted()
    await again.publish(A, "c")
    assert await again.read(A) == ["b", "c"]


async def test_messages_with_a_ttl_of_their_own_do_not_count_any_more(shop: Wired):
    for name in ("a", "b"):
        await shop.messaging.publish_records(A, [RecordIn(name.encode(), ttl_ms=600_000), RecordIn(b"xx")])
        shop.clock.advance(SECOND_MS)
    await shop.services.topic_stats.save(everything=True)
    assert await counted(shop) == (4, 6)
    await truncate(shop, shop.clock.now_ms() - SECOND_MS)
    assert await counted(shop) == (2, 3)
    assert await counted(await shop.restarted()) == (2, 3)  # of what was saved before nothing holds
    await shop.services.topic_stats.save(everything=True)
    await shop.publish(A, "c")
    await shop.services.topic_stats.save(everything=True)
    assert shop.services.system.get(SAVED.kind, entry_name(b"shop:orders:")) is not None
    assert await counted(await shop.restarted()) == (3, 4)


async def test_what_markers_said_stays_when_their_rows_go(shop: Wired):
    await shop.services.markers.publish(A, Marker("map", 1, 77))
    shop.clock.advance(SECOND_MS)
    await truncate(shop, shop.clock.now_ms())
    await shop.services.scheduler.run_now("retention")
    for each in (shop, await shop.restarted()):
        assert (await each.services.markers.facts(A)).watermark_ms == 77


async def test_the_rows_go_with_the_next_run_of_retention_where_the_store_keeps_them(shop: Wired):
    times = await published(shop, "a", "b", "c")
    first = ids(await shop.messaging.fetch(A, None, True))[0]
    await truncate(shop, times[2])
    await shop.services.scheduler.run_now("retention")
    left = len(list(MessageTable(shop.store.table("message")).scan((await shop.topics.get(A)).read_keys)))
    assert left == (3 if shop.store.applies_retention else 1)
    for each in (shop, await shop.restarted()):
        assert await each.read(A) == ["c"]
        assert await counted(each) == (1, 1)
        assert (await each.services.ranges.advance(A, first)).expired
    await shop.publish(A, "d")
    assert await shop.read(A) == ["c", "d"]


async def test_a_dry_look_tells_what_would_go(shop: Wired):
    times = await published(shop, "a", "bb", "ccc")
    lost = await shop.services.truncation.lost(A, times[2], committed=True)
    assert lost == (2, 3, True)
    assert await shop.services.truncation.lost(A, 0, committed=True) == (0, 0, True)
    assert await shop.read(A) == ["a", "bb", "ccc"]


async def test_it_holds_on_a_data_directory(tmp_path: Any):
    shop = await Wired.start(RocksStore.open(tmp_path))
    await shop.topics.create(A, {})
    times = await published(shop, "a", "b", "c")
    await truncate(shop, times[1])
    await shop.services.close()
    again = await Wired.start(RocksStore.open(tmp_path), shop.clock)
    assert await again.read(A) == ["b", "c"]
    await again.services.scheduler.run_now("retention")
    assert await again.read(A) == ["b", "c"]
    await again.services.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("publish with ttl"), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 12)),
        st.tuples(st.just("wait"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["save", "restart", "retention", "properties", "read"]), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_readers_and_counts_agree_with_a_model_whatever_comes_in_whichever_order(steps: list[tuple[str, int]]):
    asyncio.run(_follow(steps))


async def _follow(steps: list[tuple[str, int]]) -> None:
    shop = await Wired.start(MemoryStore())
    await shop.topics.create(A, {})
    model: list[tuple[int, str]] = []
    floor = 0
    for number, (step, count) in enumerate(steps):
        now_ms = shop.clock.now_ms()
        if step == "publish":
            names = [f"{number}.{index}" for index in range(count)]
            await shop.publish(A, *names)
            model += [(now_ms, name) for name in names]
        elif step == "publish with ttl":
            names = [f"{number}.{index}" for index in range(count)]
            records = [RecordIn(name.encode(), ttl_ms=3_600_000) for name in names]
            await shop.messaging.publish_records(A, records)
            model += [(now_ms, name) for name in names]
        elif step == "truncate":
            floor = max(floor, now_ms - count)
            await truncate(shop, now_ms - count)
        elif step == "wait":
            shop.clock.advance(count)
        elif step == "save":
            await shop.services.topic_stats.save(everything=True)
        elif step == "restart":
            shop = await shop.restarted()
        elif step == "retention":
            await shop.services.scheduler.run_now("retention")
        elif step == "properties":
            await shop.topics.update(A, {"label.owner": str(number)})
        seen = [name for publish_ms, name in model if publish_ms >= floor]
        assert await shop.read(A, committed=True) == seen, (number, step)
        if step in ("read", "truncate", "restart"):
            assert await counted(shop) == (len(seen), sum(map(len, seen))), (number, step)
            through = (await shop.services.ranges.stable_end(A)).id or end_of(position(0, 0))
            advance = await shop.services.ranges.advance(A, None, through=through)
            assert (advance.messages, advance.payload_bytes) == (len(seen), sum(map(len, seen))), (number, step)
    await shop.services.close()
