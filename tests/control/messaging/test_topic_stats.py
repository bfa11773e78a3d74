"""A topic's figures, against reading it from end to end; over restarts, removals and everything in between."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn
from basalt.catalog.topics import topic_name
from basalt.messaging import index, topic_stats
from basalt.messaging.index import SAVED
from basalt.messaging.log import staged_writers, stored_log
from basalt.messaging.log.append import RowBuilder
from basalt.messaging.log.stored_log import entry_name
from basalt.messaging.log.topic_log import LogLimits
from basalt.settings import Settings, TransactionSettings
from basalt_engine.keys import position
from basalt_engine.messages import MessageRow, MessageTable
from basalt_engine.records import Extras, encode
from basalt_engine.stores.memory import MemoryStore
from tests.counted_reads import CountedReads
from tests.wiring import A, B, Wired

HOUR_MS = 3_600_000

pytestmark = pytest.mark.anyio


async def everything(wired: Wired) -> list[bytes]:
    """What a reader without a snapshot gets of A."""
    found: list[bytes] = []
    start: bytes | None = None
    while True:
        page = await wired.messaging.fetch(A, start, start is None, messages_max=7)
        if not page.messages:
            return found
        found += [bytes(payload) for piece in page.slices for payload in piece.payloads()]
        start = page.next_id


async def figures(wired: Wired) -> tuple[int, int]:
    """Messages and bytes of A, as counted."""
    stats = await wired.services.topic_stats.stats(A)
    assert stats.exact
    return stats.messages, stats.payload_bytes


async def assert_exact(wired: Wired) -> None:
    read = await everything(wired)
    assert await figures(wired) == (len(read), sum(map(len, read)))


async def saved(wired: Wired) -> bytes | None:
    return wired.services.system.get(SAVED.kind, entry_name(b"shop:orders:"))


async def test_an_empty_topic_has_nothing(shop: Wired):
    stats = await shop.services.topic_stats.stats(A)
    assert (stats.messages, stats.payload_bytes, stats.published_per_second) == (0, 0, 0)
    assert (stats.oldest_id, stats.oldest_ms, stats.newest_id, stats.newest_ms) == (None, None, None, None)


async def test_figures_tell_the_first_and_the_last_message_and_the_rate(shop: Wired):
    began_ms = shop.clock.now_ms()
    await shop.publish(A, *(["old"] * 60))
    shop.clock.advance(2 * HOUR_MS)
    await shop.publish(A, *(["new"] * 30), "last")
    page = await shop.messaging.fetch(A, None, True)
    stats = await shop.services.topic_stats.stats(A)
    assert (stats.messages, stats.payload_bytes) == (91, 90 * 3 + 4)
    assert (stats.oldest_id, stats.newest_id) == (page.slices[0].ids()[0], page.slices[-1].last_id())
    assert (stats.oldest_ms, stats.newest_ms) == (began_ms, began_ms + 2 * HOUR_MS)
    assert stats.published_per_second == 31 / 60
    assert stats.stored_bytes > stats.payload_bytes


async def test_stored_payloads_count_once_they_are_published(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "one", "three", tx=tx)
    assert await figures(shop) == (0, 0)
    await shop.commit(tx, orders=["x"])
    assert await figures(shop) == (3, 9)
    await assert_exact(await shop.restarted())


async def test_expired_messages_do_not_count_to_the_millisecond(shop: Wired):
    await shop.topics.update(A, {"ttl": "60"})
    for number in range(20):
        await shop.publish(A, "x" * number)
        shop.clock.advance(7_000)
        await assert_exact(shop)
    shop.clock.advance(60_000)
    assert await figures(shop) == (0, 0)
    assert (await shop.services.topic_stats.stats(A)).newest_id is None


async def test_a_longer_ttl_brings_back_what_was_left_out(shop: Wired):
    await shop.topics.update(A, {"ttl": "60"})
    await shop.publish(A, "early")
    shop.clock.advance(40_000)
    await shop.publish(A, "late")
    shop.clock.advance(30_000)
    assert await figures(shop) == (1, 4)
    await shop.services.topic_stats.save(everything=True)
    await shop.topics.update(A, {"ttl": "3600"})
    assert await figures(shop) == (2, 9)
    await assert_exact(await shop.restarted())


async def test_what_retention_removed_stays_left_out_of_a_longer_ttl(shop: Wired):
    await shop.topics.update(A, {"ttl": "60"})
    await shop.publish(A, "early")
    shop.clock.advance(100_000)
    await shop.publish(A, "late")
    await shop.services.topic_stats.save(everything=True)
    await shop.services.scheduler.run_now("retention")
    await shop.topics.update(A, {"ttl": "3600"})
    assert await figures(shop) == (1, 4)
    await assert_exact(await shop.restarted())


async def test_messages_with_a_ttl_of_their_own_stop_counting_soon_after_it(shop: Wired):
    lasting = RecordIn(b"lasting", None, (), None, None)
    await shop.messaging.publish_records(A, [lasting, RecordIn(b"brief", None, (), None, 10_000)])
    assert await figures(shop) == (2, 12)
    await shop.services.topic_stats.save(everything=True)
    for wired in (shop, await shop.restarted()):
        wired.clock.advance(11_000)
        assert await figures(wired) == (1, 7)


@pytest.mark.parametrize("ttls_max", [1, index.OWN_TTLS_MAX])
@pytest.mark.parametrize("ahead", [False, True])
async def test_a_stored_message_with_a_ttl_of_its_own_stops_counting_soon_after_it(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, ttls_max: int, ahead: bool
):
    monkeypatch.setattr(staged_writers, "OWN_TTLS_MAX", ttls_max)
    tx = await shop.transactions.begin()
    for payload, ttl_ms in ((b"lasting", None), (b"brief", 10_000), (b"briefer", 5_000)):
        await shop.messaging.store(A, [payload, b"too"], tx.write_pointer, [Extras(ttl_ms=ttl_ms), Extras()])
    if ahead:
        await shop.messaging.publish(A, [], tx.write_pointer)
    await shop.commit(tx)
    await shop.publish(A, "after")
    assert await figures(shop) == (7, 33)
    shop.clock.advance(6_000)
    assert await figures(shop) == (6, 26)
    await shop.services.topic_stats.save(everything=True)
    for wired in (shop, await shop.restarted()):
        wired.clock.advance(6_000)
        assert await figures(wired) == (5, 21)


async def test_a_rolled_back_message_counts_until_retention_removes_it(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.publish(A, "gone", tx=tx)
    await shop.publish(A, "kept")
    await shop.transactions.abort(tx.id)
    assert await figures(shop) == (2, 8)
    await shop.services.topic_stats.save(everything=True)
    await shop.services.scheduler.run_now("retention")
    assert await figures(shop) == (1, 4)
    await assert_exact(await shop.restarted())  # what was saved before the removal would count it


async def test_a_new_generation_starts_from_nothing(shop: Wired):
    await shop.publish(A, "old")
    await shop.services.topic_stats.save(everything=True)
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    assert await figures(shop) == (0, 0)
    await shop.publish(A, "newer")
    assert await figures(shop) == (1, 5)
    await assert_exact(await shop.restarted())


async def test_counts_are_saved_after_minutes_or_megabytes(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    await shop.publish(A, "x")
    shop.clock.advance(topic_stats.SAVE_AGE_MS)
    assert await shop.services.topic_stats.save() == 1
    assert await shop.services.topic_stats.save() == 0  # nothing changed since
    await shop.publish(A, "y")
    assert await shop.services.topic_stats.save() == 0
    monkeypatch.setattr(topic_stats, "SAVE_BYTES", 10)
    await shop.publish(A, "z" * 10)
    assert await shop.services.topic_stats.save() == 1


async def test_runs_of_a_bounded_number_of_topics_save_all_in_turn(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_stats, "SAVE_TOPICS_MAX", 2)
    monkeypatch.setattr(topic_stats, "SAVE_GROUP_TOPICS", 1)
    titles = [topic_name("shop", f"many{number}") for number in range(5)]
    for title in titles:
        await shop.topics.create(title, {})
        await shop.publish(title, "x")
    shop.clock.advance(topic_stats.SAVE_AGE_MS)
    # Those that were saved change again at once, and yet the others have their turn first.
    for saved_now in (2, 2, 2, 2, 2):
        assert await shop.services.topic_stats.save() == saved_now
        for title in titles[:2]:
            await shop.publish(title, "y")
        shop.clock.advance(topic_stats.SAVE_AGE_MS)
    for number in range(5):
        assert shop.services.system.get(SAVED.kind, entry_name(b"shop:many%d:" % number)) is not None, number
    assert await shop.services.topic_stats.save(everything=True) > 0
    assert await shop.services.topic_stats.save(everything=True) == 0


@pytest.mark.parametrize(("expired_rows", "is_found"), [(1, True), (2, False), (3, False)])
async def test_the_newest_message_is_looked_for_behind_a_bounded_number_of_rows(
    shop: Wired, monkeypatch: pytest.MonkeyPatch, expired_rows: int, is_found: bool
):
    monkeypatch.setattr(topic_stats, "LAST_ROWS_MAX", 2)
    await shop.publish(A, "kept")
    newest = (await shop.services.topic_stats.stats(A)).newest_id
    assert newest is not None
    for _ in range(expired_rows):
        await shop.messaging.publish(A, [b"x"], extras=[Extras(ttl_ms=5_000)])
        shop.clock.advance(10)
    shop.clock.advance(10_000)
    assert (await shop.services.topic_stats.stats(A)).newest_id == (newest if is_found else None)


async def test_a_restart_reads_only_what_no_saved_count_covers(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    for number in range(10):
        await shop.publish(A, str(number))
        shop.clock.advance(10)
    await shop.services.topic_stats.save(everything=True)
    await shop.publish(A, "after")
    again = await shop.restarted()
    read: list[bytes] = []
    count = stored_log._count
    monkeypatch.setattr(stored_log, "_count", lambda row, *given: read.append(row.position) or count(row, *given))
    assert await figures(again) == (11, 15)
    assert len(read) == 1


@pytest.mark.parametrize("ttl_ms", [None, 5_000])
async def test_a_large_transaction_is_counted_after_a_crash_in_small_parts(
    monkeypatch: pytest.MonkeyPatch, ttl_ms: int | None
):
    store = CountedReads()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.publish(A, "before")
    tx = await shop.transactions.begin()
    for _ in range(40):
        await shop.messaging.store(A, [b"x" * 1_000], tx.write_pointer, [Extras(ttl_ms=ttl_ms)])
    await shop.commit(tx, orders=["with it"])
    await shop.publish(A, "after")
    tx = await shop.transactions.begin()
    for _ in range(40):
        await shop.messaging.store(A, [b"y" * 1_000], tx.write_pointer)
    await shop.commit(tx)
    again = await shop.restarted()
    monkeypatch.setattr(stored_log, "PAGE_BYTES", 5_000)
    async with store.watched():
        assert await figures(again) == (83, 80 * 1_000 + 6 + 7 + 5)
    assert store.read_bytes > 80_000
    assert store.most_bytes < 5_000 + 4 * 1_100  # a page, its last row, and the oldest and the newest message
    assert store.most_held_bytes < 5 * 1_100
    await again.services.close()


async def test_the_newest_message_is_looked_for_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch):
    store = CountedReads()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.publish(A, "before")
    newest = (await shop.services.topic_stats.stats(A)).newest_id
    tx = await shop.transactions.begin()
    for _ in range(40):
        await shop.messaging.store(A, [b"x" * 1_000], tx.write_pointer, [Extras(ttl_ms=5_000)])
    await shop.commit(tx)
    shop.clock.advance(10_000)
    monkeypatch.setattr(topic_stats, "PAGE_BYTES", 5_000)
    async with store.watched():
        stats = await shop.services.topic_stats.stats(A)
    assert stats.newest_id == newest
    assert store.read_bytes > 40_000
    assert store.most_bytes < 5_000 + 4 * 1_100
    await shop.services.close()


async def test_topics_beyond_the_limit_are_forgotten_and_counted_again(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shop.topics.memory, "limits", LogLimits(detailed=1))
    for number in range(5):
        await shop.publish(A, "a" * number)
        await shop.publish(B, "b")
    assert (await shop.services.topic_stats.stats(B)).messages == 5
    await assert_exact(shop)


async def test_publishing_goes_on_while_a_topic_is_counted_for_the_first_time(shop: Wired):
    for _ in range(600):
        await shop.publish(A, "before")
        shop.clock.advance(1)
    again = await shop.restarted()

    async def publish() -> None:
        for _ in range(300):
            await again.publish(A, "meanwhile")
            await asyncio.sleep(0)

    await asyncio.gather(publish(), *(again.services.topic_stats.stats(A) for _ in range(3)))
    await assert_exact(again)
    assert await figures(again) == (900, 600 * 6 + 300 * 9)


@pytest.mark.parametrize("counted_before", [True, False])
async def test_a_row_that_was_read_before_it_was_told_of_counts_once(shop: Wired, counted_before: bool):
    await shop.topics.update(A, {"ttl": "60"})
    for _ in range(2):
        await shop.publish(A, "x")
        shop.clock.advance(40_000)
    log = await shop.topics.open(A)
    topic = log.topic
    if not counted_before:
        log.index = None
    row = MessageRow(position(shop.clock.now_ms(), 0), None, encode([b"yy"]))
    shop.store.table("message").write([MessageTable.put(topic.keys, row)])  # as another thread does
    await shop.services.topic_stats.stats(A)
    builder = RowBuilder(topic, None, b"", 0)
    builder.messages, builder.payload_bytes = 1, 2
    log.count(builder, row, shop.clock.now_ms())
    assert await figures(shop) == (2, 3)


async def test_rows_whose_write_failed_half_way_are_counted_from_the_store(shop: Wired):
    await shop.publish(A, "x")
    await figures(shop)
    (await shop.topics.open(A)).forget_sums()  # as after a write of which nobody can tell
    await assert_exact(shop)


async def test_the_first_transaction_that_readers_wait_for_is_told(shop: Wired):
    quiet, early = await shop.transactions.begin(), await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=quiet)
    assert (await shop.services.topic_stats.stats(A)).oldest_open_write_pointer is None
    await shop.publish(A, "early", tx=early)
    assert (await shop.services.topic_stats.stats(A)).oldest_open_write_pointer == early.write_pointer
    await shop.commit(early)
    assert (await shop.services.topic_stats.stats(A)).oldest_open_write_pointer is None


async def test_an_oldest_part_that_is_too_large_to_read_is_estimated(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_stats, "PART_BYTES_MAX", 100)
    await shop.topics.update(A, {"ttl": "100"})
    for _ in range(100):
        await shop.publish(A, "x" * 10)
        shop.clock.advance(1_000)
    shop.clock.advance(49_000)
    stats = await shop.services.topic_stats.stats(A)
    assert not stats.exact
    assert stats.messages == pytest.approx(50, abs=3)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 20)),
        st.tuples(st.just("commit"), st.integers(1, 5)),
        st.tuples(st.just("abort"), st.integers(1, 5)),
        st.tuples(st.just("invalidate"), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 5_000, 60_000, HOUR_MS, 3 * HOUR_MS])),
        st.tuples(st.just("ttl"), st.sampled_from([10, 3_600, 4 * 3_600])),
        st.tuples(st.just("retention"), st.just(0)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("stats"), st.just(0)),
    ),
    max_size=25,
)


class RemoteStore(MemoryStore):
    """A store whose calls are made on threads."""

    remote = True


async def story(steps: list[tuple[str, int]], store: MemoryStore) -> None:
    """Each step, then the figures against everything that can be read."""
    lifetime = Settings(transactions=TransactionSettings(lifetime_ms_max=HOUR_MS))
    wired = await Wired.start(store, settings=lifetime)
    await wired.topics.create(A, {"ttl": "3600"})
    for what, size in steps:
        if what == "publish":
            await wired.publish(A, *("p" * number for number in range(size)))
        elif what in ("commit", "abort", "invalidate"):
            tx = await wired.transactions.begin()
            await wired.store_aside(A, *(["aside"] * size), tx=tx)
            await wired.publish(A, *(["early"] * size), tx=tx)
            await getattr(wired.transactions, what)(tx.id)
        elif what == "wait":
            wired.clock.advance(size)
        elif what == "ttl":
            await wired.topics.update(A, {"ttl": str(size)})
        elif what == "retention":
            assert (await wired.services.scheduler.run_now("retention")).outcome == "ok"
        elif what == "save":
            await wired.services.topic_stats.save(everything=True)
        elif what == "restart":
            wired = await wired.restarted()
        else:
            await assert_exact(wired)
    await assert_exact(wired)
    await assert_exact(await wired.restarted())
    await wired.services.close()


@settings(max_examples=80, deadline=None)
@given(steps)
def test_figures_are_what_a_reader_would_count(steps: list[tuple[str, int]]):
    asyncio.run(story(steps, MemoryStore()))


@settings(max_examples=10, deadline=None)
@given(steps)
def test_figures_of_a_remote_store_are_what_a_reader_would_count(steps: list[tuple[str, int]]):
    asyncio.run(story(steps, RemoteStore(atomic=False)))
