"""A topic that is larger than it may be loses its oldest blocks, and nothing else does."""

from __future__ import annotations

import random

import pytest

from basalt.api.bodies.messages import RecordIn
from basalt.api.markers import Marker
from basalt.catalog.topics import topic_name
from basalt.errors import ConflictError
from basalt.messaging import index
from basalt.messaging.index import BUCKET_MS, RECOUNT_BYTES_MAX, SAVED
from basalt.messaging.log.stored_log import entry_name
from basalt.retention import oversized
from basalt.retention.oversized import LOADS_MAX
from basalt.transactions.rules.transaction import Kind, Transaction
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.rocks.store import RocksStore
from tests.control.retention.readers import HOUR_MS, LIFETIME_MS, messages_of, rows, run
from tests.wiring import A, B, Wired

DAY_MS = 24 * HOUR_MS

pytestmark = pytest.mark.anyio


async def published_each_hour(shop: Wired, *messages: str, **how: object) -> list[int]:
    """Publish each message in a block of its own; when each was published."""
    times = []
    for message in messages:
        times.append(shop.clock.now_ms())
        await shop.publish(A, message, **how)  # type: ignore[arg-type]
        shop.clock.advance(BUCKET_MS)
    return times


async def begun(shop: Wired) -> Transaction:
    return await shop.transactions.begin(Kind.LONG, timeout_ms=LIFETIME_MS)


async def counted(shop: Wired) -> tuple[int, int]:
    stats = await shop.services.topic_stats.stats(A)
    assert stats.exact
    return stats.messages, stats.payload_bytes


async def truncated_ms(shop: Wired) -> int:
    return (await shop.topics.get(A)).metadata.truncated_before_ms


async def test_whole_blocks_go_from_the_oldest_on_and_what_is_left_is_not_less_than_the_limit(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "10B"})
    times = await published_each_hour(shop, "aaaa", "bbbb", "cccc", "dddd")
    before = await shop.messaging.fetch(A, None, True)
    assert (await run(shop)).report["oversized_topics"] == 1
    assert await shop.read(A) == ["bbbb", "cccc", "dddd"]  # two of them would be 8 bytes
    assert await counted(shop) == (3, 12)
    assert await truncated_ms(shop) == times[1]
    assert messages_of(await shop.messaging.fetch(A, None, True)) == messages_of(before)[1:]
    assert "oversized_topics" not in (await run(shop)).report
    if not shop.store.applies_retention:
        assert len(rows(shop, "message", A)) == 3  # the space came back with the same run
    assert await (await shop.restarted()).read(A) == ["bbbb", "cccc", "dddd"]


async def test_a_topic_without_a_limit_or_below_it_keeps_everything(shop: Wired):
    await published_each_hour(shop, "aaaa", "bbbb")
    assert "oversized_topics" not in (await run(shop)).report
    for limit in ("8", "9", "1TiB"):
        await shop.topics.merge(A, {"retainBytes": limit})
        assert "oversized_topics" not in (await run(shop)).report
    assert await shop.read(A) == ["aaaa", "bbbb"]


async def test_the_newest_block_stays_however_large_it_is(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "1"})
    await shop.publish(A, "a" * 1_000)
    await shop.publish(A, "b" * 1_000)
    await run(shop)
    assert len(await shop.read(A)) == 2
    shop.clock.advance(BUCKET_MS)
    await shop.publish(A, "c")
    await run(shop)
    assert await shop.read(A) == ["c"]


async def test_a_block_in_which_an_open_transaction_has_published_stays_until_that_has_ended(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "1"})
    await published_each_hour(shop, "a")
    await shop.publish(A, "b")
    shop.clock.advance(BUCKET_MS - 1)
    tx = await begun(shop)
    await shop.publish(A, "open", tx=tx)
    shop.clock.advance(1)
    await shop.publish(A, "c")  # in the next block
    assert (await run(shop)).report == {"expired_topics": 1, "oversized_topics_held": 1}
    for wired in (shop, await shop.restarted()):
        assert await wired.read(A) == ["b", "open", "c"]
    await shop.transactions.commit(tx.id)
    assert await shop.read(A, committed=True) == ["b", "open", "c"]
    assert (await run(shop)).report["oversized_topics"] == 1
    assert await shop.read(A, committed=True) == ["c"]


async def test_what_a_transaction_has_stored_and_not_published_is_safe(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "1"})
    await published_each_hour(shop, "a")
    tx = await begun(shop)
    await shop.store_aside(A, "stored", tx=tx)
    shop.clock.advance(HOUR_MS - 1)
    await shop.publish(A, "b")
    await run(shop)
    assert await shop.read(A) == ["b"]
    await shop.transactions.commit(tx.id)
    await run(shop)
    assert await shop.read(A, committed=True) == ["b", "stored"]
    assert await counted(shop) == (2, 7)


async def test_stored_messages_count_where_they_were_published(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "7"})
    for message in ("first", "second", "third"):
        tx = await begun(shop)
        await shop.store_aside(A, message, tx=tx)
        await shop.transactions.commit(tx.id)
        shop.clock.advance(BUCKET_MS)
    await run(shop)
    assert await shop.read(A, committed=True) == ["second", "third"]


async def test_what_markers_have_said_outlives_them(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "1"})
    await shop.services.markers.publish(A, Marker("map-0", 1, 1_234))
    await published_each_hour(shop, "a", "b")
    await run(shop)
    assert await shop.read(A) == ["b"]
    assert (await shop.services.markers.facts(A)).watermark_ms == 1_234
    assert (await (await shop.restarted()).services.markers.facts(A)).watermark_ms == 1_234


async def test_a_reader_whose_place_was_dropped_goes_on_at_the_oldest_and_can_learn_that(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "2"})
    await published_each_hour(shop, "a", "b", "c", "d")
    found = messages_of(await shop.messaging.fetch(A, None, True))
    await run(shop)
    page = await shop.messaging.fetch(A, found[0][0], False, committed=True)
    assert messages_of(page) == found[2:]
    ranges = shop.services.ranges
    assert (await ranges.advance(A, found[0][0])).expired
    assert not (await ranges.advance(A, found[2][0])).expired


async def test_it_is_nobodys_act(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "1"})
    await published_each_hour(shop, "a", "b")
    before = list(shop.services.system.scan("audit"))
    await run(shop)
    assert await shop.read(A) == ["b"]
    assert list(shop.services.system.scan("audit")) == before


async def test_a_topic_that_is_created_again_begins_without_it(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "1"})
    await published_each_hour(shop, "a", "b")
    await run(shop)
    await shop.topics.delete(A)
    await run(shop)
    await shop.topics.create(A, {})
    await published_each_hour(shop, "c", "d")
    await run(shop)
    assert await shop.read(A) == ["c", "d"]


async def test_a_raised_limit_keeps_what_is_still_there(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "2"})
    await published_each_hour(shop, "a", "b", "c")
    await shop.topics.merge(A, {"retainBytes": None})
    await run(shop)
    assert await shop.read(A) == ["a", "b", "c"]


async def test_a_change_of_the_topic_at_the_same_moment_leaves_it_to_the_next_run(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    await shop.topics.update(A, {"retainBytes": "1"})
    await published_each_hour(shop, "a", "b")

    async def changed(*_: object) -> None:
        raise ConflictError("topic was changed by another call at the same time")

    with monkeypatch.context() as patched:
        patched.setattr(shop.topics.catalog, "truncate", changed)
        assert "oversized_topics" not in (await run(shop)).report
    assert (await run(shop)).report["oversized_topics"] == 1
    assert await shop.read(A) == ["b"]


async def test_messages_with_a_ttl_of_their_own_count_and_go_like_others(shop: Wired):
    await shop.topics.update(A, {"retainBytes": "8"})
    for payload in (b"aaaa", b"bbbb", b"cccc"):
        await shop.messaging.publish_records(A, [RecordIn(payload, ttl_ms=DAY_MS)])
        shop.clock.advance(BUCKET_MS)
    assert await counted(shop) == (3, 12)
    assert (await run(shop)).report["oversized_topics"] == 1
    assert await shop.read(A) == ["bbbb", "cccc"]
    assert await counted(shop) == (2, 8)
    again = await shop.restarted()
    assert await counted(again) == (2, 8)


async def test_where_much_is_left_messages_with_a_ttl_of_their_own_are_estimated_until_they_expire(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    assert RECOUNT_BYTES_MAX > 1 << 20
    monkeypatch.setattr(index, "RECOUNT_BYTES_MAX", 0)
    await shop.topics.update(A, {"retainBytes": "6"})
    for payload in (b"aaaa", b"bb", b"cccc"):
        await shop.messaging.publish_records(A, [RecordIn(payload, ttl_ms=DAY_MS)])
        shop.clock.advance(BUCKET_MS)
    assert await counted(shop) == (3, 10)
    await run(shop)
    for wired in (shop, await shop.restarted()):
        stats = await wired.services.topic_stats.stats(A)
        assert (stats.messages, stats.payload_bytes, stats.exact) == (1, 6, False)  # six of ten bytes are left
        await wired.services.topic_stats.save(everything=True)
    saved = SAVED.get(shop.services.system, entry_name((await shop.topics.get(A)).keys.prefix))
    assert saved is not None
    assert saved.estimated_until_ms > shop.clock.now_ms()
    shop.clock.advance(2 * DAY_MS)
    await shop.publish(A, "later")
    assert await counted(shop) == (1, 5)


async def test_one_run_loads_so_many_topics_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch):
    assert LOADS_MAX == 1_000
    monkeypatch.setattr(oversized, "LOADS_MAX", 2)
    shop = await Wired.start()
    titles = [topic_name("shop", f"t{number}") for number in range(5)]
    for title in titles:
        await shop.topics.create(title, {"retainBytes": "1"})
        await shop.publish(title, "a")
    shop.clock.advance(BUCKET_MS)
    for title in titles:
        await shop.publish(title, "b")
    again = await shop.restarted()  # nothing is in memory
    shrunk = [(await run(again)).report.get("oversized_topics", 0) for _ in range(3)]
    assert shrunk == [2, 2, 1]
    assert [await again.read(title) for title in titles] == [["b"]] * 5
    await again.services.close()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["memory", "rocks"])
async def test_random_publishing_with_restarts_between_any_two_steps(kind: str, seed: int, tmp_path: object):
    """The newest blocks of a model, whatever is committed, aborted, stored, run or restarted in between."""
    chances = random.Random(seed)
    store = MemoryStore(atomic=bool(seed % 2)) if kind == "memory" else RocksStore.open(tmp_path)  # type: ignore[arg-type]
    shop = await Wired.start(store)
    await shop.topics.create(A, {"retainBytes": "40"})
    await shop.topics.create(B, {})
    published: list[tuple[int, str]] = []
    appended: list[int] = []  # when; what was rolled back counts, too, as long as it is there
    for number in range(120):
        message = f"{number:04}"
        match chances.choice(("publish", "publish", "commit", "store", "abort", "hour", "run", "restart", "stats")):
            case "publish":
                await shop.publish(A, message)
                published.append((shop.clock.now_ms(), message))
                appended.append(shop.clock.now_ms())
            case "commit" | "store" as way:
                tx = await begun(shop)
                await (shop.publish if way == "commit" else shop.store_aside)(A, message, tx=tx)
                if chances.random() < 0.3:
                    await run(shop)
                await shop.commit(tx)
                published.append((shop.clock.now_ms(), message))
                appended.append(shop.clock.now_ms())
            case "abort":
                appended.append(shop.clock.now_ms())
                tx = await begun(shop)
                await shop.publish(A, message, tx=tx)
                await shop.transactions.abort(tx.id)
            case "hour":
                shop.clock.advance(chances.choice((1, 60_000, HOUR_MS)))
            case "run":
                await run(shop)
            case "restart":
                shop = await shop.restarted()
            case "stats":
                await run(shop, "stats")
        floor_ms = await truncated_ms(shop)
        left = [text for publish_ms, text in published if publish_ms >= floor_ms]
        assert await shop.read(A, committed=True) == left, number
        assert 4 * sum(publish_ms >= floor_ms for publish_ms in appended) >= min(40, 4 * len(appended)), number
    await run(shop)
    stats = await shop.services.topic_stats.stats(A)
    assert stats.messages == len(left)
    await shop.services.close()
