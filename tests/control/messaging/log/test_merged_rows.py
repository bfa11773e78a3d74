"""Small rows become one: nobody who reads can tell, but for the work that it saves. Two shops live alike; one of them merges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.messages import RecordIn
from basalt.errors import MessageNotFoundError
from basalt.messaging.log import merged_rows, tails
from basalt.messaging.log.merged_rows import MERGED_ROWS_MIN, RUNS_WAITING_MAX, SMALL_ROW_BYTES_MAX
from basalt.messaging.log.tails import MERGED_BYTES_MAX, MERGED_MESSAGES_MAX
from basalt.messaging.read.log_reader import end_of
from basalt_engine.errors import StoreError
from basalt_engine.keys import position
from basalt_engine.messages import MERGED_SPAN_MS_MAX, MessageRow, MessageTable
from basalt_engine.records import decode, is_merged
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put
from tests.wiring import A, Wired, ids, texts

pytestmark = pytest.mark.anyio

HANG_S = 60


@pytest.fixture
def small() -> Iterator[None]:
    with patch.object(tails, "MERGED_MESSAGES_MAX", 4), patch.object(merged_rows, "MERGED_ROWS_MIN", 2):
        yield


async def opened(*, merging: bool = True, store: MemoryStore | None = None) -> Wired:
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    if not merging:
        shop.topics.memory.appended = None
    return shop


async def stored(shop: Wired) -> list[MessageRow]:
    return list(MessageTable(shop.store.table("message")).stored((await shop.topics.get(A)).read_keys))


async def singles(shop: Wired, *messages: str, later_ms: int = 1) -> None:
    """Publish each alone, each so much later than the one before."""
    for message in messages:
        await shop.publish(A, message)
        shop.clock.advance(later_ms)


async def settled(shop: Wired) -> None:
    """Let what is to be merged be written."""
    await shop.services.writer.each[0].run(lambda group: None)
    await shop.services.writer.each[0].run(lambda group: None)


# What becomes of rows.


async def test_neighbouring_single_messages_become_one_row_under_the_same_ids(small: None) -> None:
    shop, plain = await opened(), await opened(merging=False)
    for each in (shop, plain):
        await singles(each, *"abcdefghij")
        await settled(each)
    assert [decode(row.batch or b"").count for row in await stored(shop)] == [4, 4, 1, 1]
    assert len(await stored(plain)) == 10
    found, expected = await shop.messaging.fetch(A, None, True), await plain.messaging.fetch(A, None, True)
    assert (ids(found), texts(found)) == (ids(expected), texts(expected))
    assert len(found.slices) == 4
    assert (shop.topics.memory.merged_rows_total, shop.topics.memory.merged_bytes_total > 0) == (8, True)
    cold = await shop.restarted(cached=False)
    assert ids(await cold.messaging.fetch(A, None, True)) == ids(expected)


@pytest.mark.parametrize("what", ["transaction", "ttl", "large", "keys"])
async def test_a_row_of_another_kind_ends_the_run_and_stays_as_it_is(small: None, what: str) -> None:
    shop = await opened()
    await singles(shop, *"abc")
    if what == "transaction":
        tx = await shop.transactions.begin()
        await shop.publish(A, "x", tx=tx)
        await shop.commit(tx)
    elif what == "large":
        await shop.publish(A, "x" * SMALL_ROW_BYTES_MAX)
    else:
        record = RecordIn(b"x", key=b"key" if what == "keys" else None, ttl_ms=60_000 if what == "ttl" else None)
        await shop.messaging.publish_records(A, [record], None)
    await singles(shop, *"def")
    await singles(shop, "x" * SMALL_ROW_BYTES_MAX)
    await settled(shop)
    counts = [(decode(row.batch or b"").count, row.is_merged) for row in await stored(shop)]
    assert counts == [(3, True), (1, False), (3, True), (1, False)]
    assert await shop.page_through(A, 2) == await shop.read(A)


async def test_what_is_far_apart_or_few_stays_as_it_is() -> None:
    shop = await opened()
    await singles(shop, *map(str, range(MERGED_ROWS_MIN - 1)))
    shop.clock.advance(MERGED_SPAN_MS_MAX)
    await singles(shop, *map(str, range(MERGED_ROWS_MIN)))
    shop.clock.advance(MERGED_SPAN_MS_MAX - MERGED_ROWS_MIN)  # the first of them is now so long ago, and not longer
    await singles(shop, "late", later_ms=1)
    await singles(shop, "later")
    await settled(shop)
    counts = [decode(row.batch or b"").count for row in await stored(shop)]
    assert counts == [*[1] * (MERGED_ROWS_MIN - 1), MERGED_ROWS_MIN + 1, 1]


@pytest.mark.parametrize(("size_bytes", "messages"), [(1, MERGED_MESSAGES_MAX), (8_000, MERGED_BYTES_MAX // 8_016)])
async def test_a_merged_row_has_no_more_messages_and_bytes_than_its_limits(size_bytes: int, messages: int) -> None:
    shop = await opened()
    await singles(shop, *["x" * size_bytes] * (messages + 1))
    await settled(shop)
    assert [decode(row.batch or b"").count for row in await stored(shop)] == [messages, 1]


async def test_a_topic_over_several_buckets_is_left_alone(small: None) -> None:
    shop = await Wired.start()
    await shop.topics.create(A, {"spread": "3"})
    await singles(shop, *"abcdefgh")
    await settled(shop)
    assert len(await stored(shop)) == 8 or not any(row.is_merged for row in await stored(shop))


async def test_a_store_that_writes_row_by_row_is_left_alone() -> None:
    assert (await Wired.start(MemoryStore(atomic=False))).topics.memory.appended is None


async def test_no_more_runs_wait_than_the_limit(small: None) -> None:
    shop = await opened()
    merger: Any = shop.topics.memory.appended
    with patch.object(merger.__self__, "_waiting", RUNS_WAITING_MAX):
        await singles(shop, *"abcdefgh")
        await settled(shop)
    assert len(await stored(shop)) == 8


# While it is done.


async def test_a_reader_that_pages_through_while_rows_are_merged_gets_each_message_once(small: None) -> None:
    shop = await opened()
    expected, found, start = [], [], None
    for number in range(40):
        expected.append(str(number))
        await singles(shop, str(number), later_ms=number % 2)
        if number % 3 == 0:
            page = await shop.messaging.fetch(A, start, start is None, messages_max=2)
            found += texts(page)
            start = page.slices[-1].last_id() if page.slices else start
    while texts(page := await shop.messaging.fetch(A, start, False, messages_max=3)):
        found += texts(page)
        start = page.slices[-1].last_id()
    assert found == expected


async def test_a_topic_that_was_deleted_meanwhile_gets_nothing_back(small: None) -> None:
    shop = await opened()
    await singles(shop, *"abcd")
    log = await shop.topics.open(A)
    publishing = asyncio.ensure_future(shop.publish(A, "e"))  # hands the run in
    await publishing
    await shop.topics.delete(A)
    await settled(shop)
    await shop.topics.create(A, {})
    await singles(shop, *"xyz")
    assert log.ended
    assert await shop.read(A) == ["x", "y", "z"]


async def test_a_job_that_may_remove_rows_keeps_the_merger_out(small: None) -> None:
    shop = await opened()
    log = await shop.topics.open(A)
    async with log.locks.rows:
        await singles(shop, *"abcdefgh")
        await settled(shop)
    assert len(await stored(shop)) == 8


async def test_a_write_that_fails_leaves_what_the_store_says(small: None) -> None:
    shop = await opened()
    await singles(shop, *"abcd")
    write, failed = shop.store.write, []

    def failing(writes: Any) -> None:
        puts = [mutation for each in writes for mutation in each.mutations if isinstance(mutation, Put)]
        if any(is_merged(put.columns.get(b"p", b"")) for put in puts):
            failed.append(writes)
            raise StoreError("the disk is gone for a moment")
        write(writes)

    with patch.object(shop.store, "write", failing):
        await shop.publish(A, "e")
        async with asyncio.timeout(HANG_S):
            while not failed:
                await asyncio.sleep(0.001)
    assert await shop.read(A) == list("abcde")
    await singles(shop, *"fghijklmno")
    await settled(shop)
    assert await shop.read(A) == list("abcdefghijklmno")
    assert await (await shop.restarted()).read(A) == list("abcdefghijklmno")


# Twins.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3), st.sampled_from([0, 0, 1, 2, 30_000])),
        st.tuples(st.just("keyed"), st.integers(1, 2), st.sampled_from([0, 1])),
        st.tuples(st.just("commit"), st.integers(1, 2), st.sampled_from([0, 1])),
        st.tuples(st.just("abort"), st.integers(1, 2), st.sampled_from([0, 1])),
        st.tuples(st.just("back"), st.just(0), st.sampled_from([5, 2_000])),
        st.tuples(st.just("truncate"), st.just(0), st.integers(0, 60_000)),
        st.tuples(st.just("ttl"), st.just(0), st.sampled_from([1, 60, 86_400])),
        st.tuples(st.just("retention"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


async def lived(steps: list[tuple[str, int, int]], *, merging: bool) -> tuple[Wired, list[str]]:
    """A shop in which this happened, and what readers saw after each step."""
    shop, seen = await opened(merging=merging), []
    for number, (what, count, ms) in enumerate(steps):
        messages = [f"{number}.{index}" for index in range(count)]
        if what == "publish":
            for message in messages:
                await singles(shop, message, later_ms=0)
        elif what == "keyed":
            await shop.messaging.publish_records(
                A, [RecordIn(each.encode(), b"k", (("h", b"v"),)) for each in messages], None
            )
        elif what in ("commit", "abort"):
            tx = await shop.transactions.begin()
            await shop.publish(A, *messages, tx=tx)
            await (shop.commit(tx) if what == "commit" else shop.transactions.abort(tx.id))
        elif what == "truncate":
            await shop.services.truncation.truncate(A, shop.clock.now_ms() - ms)
        elif what == "ttl":
            await shop.topics.update(A, {"ttl": str(count or ms)})
        elif what == "retention":
            await shop.services.scheduler.run_now("retention")
        elif what == "restart":
            shop = await shop.restarted()
            if not merging:
                shop.topics.memory.appended = None
        if what == "back":
            shop.clock.step(shop.clock.now_ms() - ms)
        elif what not in ("truncate", "ttl"):
            shop.clock.advance(ms)
        seen += ["--", *await shop.read(A, committed=True)]
        await settled(shop)
    return shop, seen


async def everything(shop: Wired) -> dict[str, object]:
    """All that readers of several kinds find in the topic."""
    whole = await shop.messaging.fetch(A, None, True)
    ranges, now_ms = shop.services.ranges, shop.clock.now_ms()
    stats = await shop.services.topic_stats.stats(A)
    end = (await ranges.stable_end(A)).id
    found: dict[str, object] = {
        "whole": list(zip(ids(whole), texts(whole), strict=True)),
        "extras": [extra for part in whole.slices for extra in part.extras()],
        "pages": await shop.page_through(A, 3),
        "committed": await shop.page_through(A, 2, committed=True),
        "stats": stats._replace(stored_bytes=0, published_per_second=0.0),
        "end": end,
        "advance": (await ranges.advance(A, None, messages_max=4))._replace(marker_state=None),  # type: ignore[arg-type]
    }
    if end is not None:
        found["splits"] = (await ranges.splits(A, None, end, 3)).splits
    for ms in range(now_ms - 6, now_ms + 1):
        found[f"from {ms}"] = texts(await shop.messaging.fetch(A, ms, True))
        found[f"lost {ms}"] = await shop.services.truncation.lost(A, ms, committed=False)
        page = await shop.services.ranges.advance(A, None, through=end_of(position(ms, 0)))
        found[f"through {ms}"] = page.messages
    for message_id in ids(whole):
        found[f"peek {message_id.hex()}"] = await shop.services.peek.message(A, message_id)
        found[f"after {message_id.hex()}"] = texts(await shop.messaging.fetch(A, message_id, False, messages_max=2))
    return found


def _same(found: dict[str, object], expected: dict[str, object]) -> None:
    assert {name: (seen, expected.get(name)) for name, seen in found.items() if seen != expected.get(name)} == {}
    assert found.keys() == expected.keys()


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_a_shop_that_merges_is_read_like_one_that_does_not(steps: list[tuple[str, int, int]]) -> None:
    async def compare() -> None:
        (merging, seen), (plain, expected) = await lived(steps, merging=True), await lived(steps, merging=False)
        assert seen == expected
        _same(await everything(merging), await everything(plain))
        cold, cold_plain = await merging.restarted(cached=False), await plain.restarted(cached=False)
        _same(await everything(cold), await everything(cold_plain))

    with patch.object(tails, "MERGED_MESSAGES_MAX", 4), patch.object(merged_rows, "MERGED_ROWS_MIN", 2):
        asyncio.run(compare())


async def test_a_message_within_a_merged_row_is_found_by_its_id_until_it_expires(small: None) -> None:
    shop = await opened()
    await shop.topics.update(A, {"ttl": "1"})
    await singles(shop, *"abcd", later_ms=100)
    await singles(shop, "e", later_ms=0)
    await settled(shop)
    (merged, _) = await stored(shop)
    first, *_, last = ids(await shop.messaging.fetch(A, None, True))[:4]
    assert merged.position == last[:10]
    shop.clock.advance(1_000 - 400)  # just the first has expired
    with pytest.raises(MessageNotFoundError):
        await shop.services.peek.message(A, first)
    assert (await shop.services.peek.message(A, last)).payload == b"d"
    assert await shop.read(A) == list("bcde")
    assert (await shop.services.topic_stats.stats(A)).messages == 4
    await shop.services.scheduler.run_now("retention")
    assert len(await stored(shop)) == 2
    assert await shop.read(A) == list("bcde")
