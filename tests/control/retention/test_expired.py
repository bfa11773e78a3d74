"""Expired messages and payloads go, and nothing else does."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.catalog.topics import TopicName, topic_name
from basalt.messaging.log.topic_log import TopicLog
from basalt.retention import expired
from basalt.settings import Settings, TransactionSettings
from basalt_engine.keys import MessageId, PayloadKey, TopicKeys
from basalt_engine.retention import ALL_ONES_MS, CLOCK_SET_BACK_MS, EXPIRED, NO_SNAPSHOT, TopicRule, judge_payload
from basalt_engine.snapshot import POINTERS_PER_MS
from basalt_engine.stores.memory import MemoryStore
from tests.control.retention.readers import HOUR_MS, LIFETIME_MS, entries, rows, run, seen
from tests.wiring import A, B, Wired

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000


async def published_each_minute(shop: Wired, minutes: int) -> None:
    for minute in range(minutes):
        await shop.publish(A, f"a{minute}")
        await shop.publish(B, f"b{minute}")
        shop.clock.advance(60_000)


@pytest.mark.parametrize("title", [A, B])
async def test_expired_rows_go_and_readers_see_the_same(shop: Wired, title: object):
    for name in (A, B):
        await shop.topics.update(name, {"ttl": "600"} | ({"spread": "3"} if name == B else {}))
    await published_each_minute(shop, 30)
    before = await seen(shop, B if title == B else A)
    assert await run(shop) == await run_of(shop, expired_topics=2)
    assert await seen(shop, B if title == B else A) == before
    assert len(rows(shop, "message", A)) == len(rows(shop, "message", B)) == 9  # the tenth expires now
    assert await seen(await shop.restarted(), B if title == B else A) == before


async def run_of(shop: Wired, **report: int) -> object:
    """The newest entry of the job's history, which must report this."""
    (newest, *_) = await shop.services.scheduler.history("retention")
    assert newest.report == report
    return newest


async def test_nothing_goes_before_the_oldest_row_has_expired_for_a_while(shop: Wired):
    await shop.topics.update(A, {"ttl": "800"})
    await shop.publish(A, "first")
    shop.clock.advance(899_999)
    assert (await run(shop)).report == {}
    assert len(rows(shop, "message", A)) == 1
    shop.clock.advance(1)
    assert (await run(shop)).report == {"expired_topics": 1}
    assert rows(shop, "message", A) == []


async def test_a_shorter_ttl_acts_at_once_on_old_messages(shop: Wired):
    await published_each_minute(shop, 10)
    assert (await run(shop)).report == {}
    await shop.topics.update(A, {"ttl": "60"})
    await run(shop)
    assert rows(shop, "message", A) == []
    assert len(rows(shop, "message", B)) == 10


async def test_a_ttl_that_is_raised_in_the_last_moment_saves_the_messages(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    await shop.topics.update(A, {"ttl": "60"})
    await published_each_minute(shop, 10)
    opened = shop.topics.open

    async def raised(title: TopicName) -> TopicLog:
        log = await opened(title)
        await shop.topics.update(A, {"ttl": "3600"})
        return log

    monkeypatch.setattr(shop.topics, "open", raised)
    await run(shop)
    assert len((await seen(shop, A)).plain) == 10


async def test_a_topic_that_is_created_again_in_the_last_moment_keeps_its_messages(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
):
    await shop.topics.update(A, {"ttl": "60"})
    await published_each_minute(shop, 10)
    opened = shop.topics.open

    async def recreated(title: TopicName) -> TopicLog:
        monkeypatch.undo()
        log = await opened(title)
        await shop.topics.delete(A)
        await shop.topics.create(A, {"ttl": "60"})
        await shop.publish(A, "new")
        return log

    monkeypatch.setattr(shop.topics, "open", recreated)
    await run(shop)
    assert [payload for _, payload, _ in (await seen(shop, A)).plain] == [b"new"]


async def test_a_topic_that_is_deleted_in_the_last_moment_fails_no_run(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    await shop.topics.update(A, {"ttl": "60"})
    await published_each_minute(shop, 10)
    opened = shop.topics.open

    async def deleted(title: TopicName) -> TopicLog:
        monkeypatch.undo()
        log = await opened(title)
        await shop.topics.delete(A)
        return log

    monkeypatch.setattr(shop.topics, "open", deleted)
    await run(shop)


async def test_what_was_removed_is_not_served_from_memory_after_the_ttl_is_raised(shop: Wired):
    await shop.topics.update(A, {"ttl": "60"})
    await published_each_minute(shop, 10)
    await run(shop)
    await shop.topics.update(A, {"ttl": "3600"})
    from_memory = [payload for _, payload, _ in (await seen(shop, A)).plain]
    assert from_memory == [payload for _, payload, _ in (await seen(await shop.restarted(), A)).plain]


async def test_no_place_is_given_out_again_when_all_rows_are_gone_and_the_clock_went_back(shop: Wired):
    await shop.topics.update(A, {"ttl": "60"})
    await shop.publish(A, *("1234"))
    newest = (await seen(shop, A)).plain[-1][0]
    shop.clock.advance(HOUR_MS)
    await run(shop)
    assert rows(shop, "message", A) == []
    shop.clock.step(MessageId.decode(newest).publish_ms)
    again = await shop.restarted()
    await again.publish(A, "5")
    assert (await seen(again, A)).plain[0][0] > newest


async def test_rows_of_a_topic_that_somebody_is_changing_wait_until_he_is_done(shop: Wired):
    await shop.topics.update(A, {"ttl": "60"})
    await shop.publish(A, "x")
    shop.clock.advance(HOUR_MS)
    async with (await shop.topics.open(A)).locks.rows:
        task = asyncio.get_running_loop().create_task(run(shop))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(rows(shop, "message", A)) == 1
    await task
    assert rows(shop, "message", A) == []


async def test_payloads_outlive_every_message_that_may_refer_to_them(shop: Wired):
    await shop.topics.update(A, {"ttl": "86400"})
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    await shop.commit(tx)
    began_ms = shop.clock.now_ms()
    gone_after_ms = DAY_MS + 2 * LIFETIME_MS + CLOCK_SET_BACK_MS + expired.SLACK_MS_MAX
    for age_ms in (DAY_MS - 1, DAY_MS + expired.SLACK_MS_MAX, gone_after_ms - 1, gone_after_ms):
        shop.clock.advance(began_ms + age_ms - shop.clock.now_ms())
        before = await seen(shop, A)
        await run(shop)
        assert await seen(shop, A) == before
        assert bool(before.plain) == (age_ms < DAY_MS)
        assert bool(rows(shop, "payload", A)) == (age_ms < gone_after_ms)


@settings(deadline=None)
@given(
    st.integers(0, 10**10), st.integers(0, 10**10), st.integers(10**12, 10**13), st.integers(0, 10**10), st.data()
)  # fmt: skip
def test_no_payload_row_is_removed_that_the_rule_would_keep(
    ttl_ms: int, lifetime_ms: int, now_ms: int, earlier_ms: int, data: st.DataObject
):
    """The job removes all rows of a writer by its write pointer; the rule judges each by the time it was written."""
    pointer_ms = expired.payload_writers_expired_ms(now_ms - ttl_ms, lifetime_ms) - earlier_ms
    lasted_ms = data.draw(st.integers(0, lifetime_ms + CLOCK_SET_BACK_MS))
    write_ms = data.draw(st.sampled_from([pointer_ms + lasted_ms, ALL_ONES_MS]))  # a batch, or the bound row
    key = PayloadKey(1, b"shop:orders:", 1, pointer_ms * POINTERS_PER_MS, write_ms, 0)
    assert judge_payload(key, TopicRule(1, ttl_ms), None, lifetime_ms, now_ms) is EXPIRED


@given(st.integers(0, 10**10), st.integers(0, 10**10), st.integers(10**12, 10**13))
def test_the_range_of_payloads_ends_behind_the_last_writer_all_of_whose_rows_the_rule_drops(
    ttl_ms: int, lifetime_ms: int, now_ms: int
):
    last_ms = expired.payload_writers_expired_ms(now_ms - ttl_ms, lifetime_ms)
    verdicts = []
    for begin_ms in (last_ms, last_ms + 1):
        key = expired.last_payload_key(TopicKeys(b"shop:orders:", 1, 1), begin_ms * POINTERS_PER_MS, lifetime_ms)
        verdicts.append(judge_payload(key, TopicRule(1, ttl_ms), None, lifetime_ms, now_ms))
    assert verdicts == [EXPIRED, NO_SNAPSHOT]


async def test_payloads_that_nothing_ever_referred_to_go_in_the_end(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    await shop.store_aside(B, "aside", tx=tx)
    shop.clock.advance(8 * DAY_MS)
    await run(shop)
    assert rows(shop, "payload") == []


async def test_payloads_stay_with_their_messages_when_the_clock_was_set_back():
    """Messages then have a publish time ahead of the clock, up to what it was set back by."""
    short = Settings(transactions=TransactionSettings(lifetime_ms_max=10_000, timeout_ms_default=5_000))
    shop = await Wired.start(settings=short)
    await shop.topics.create(A, {"ttl": "3600"})
    await shop.publish(A, "newest")
    shop.clock.step(shop.clock.now_ms() - HOUR_MS)
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    await shop.commit(tx)
    while (before := await seen(shop, A)).plain:
        await run(shop)
        assert await seen(shop, A) == before
        shop.clock.advance(60_000)
    await shop.services.close()


async def test_a_run_that_finds_nothing_new_reads_no_rows(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    for number in range(40):
        await shop.topics.create(topic_name("shop", f"t{number}"), {})
        await shop.publish(topic_name("shop", f"t{number}"), "x")
    await shop.topics.delete(topic_name("shop", "t7"))
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "aside", tx=tx)
    await run(shop)
    await run(shop)
    scanned: list[str] = []
    for name in ("message", "payload"):
        table = shop.store.table(name)
        scan = table.scan
        monkeypatch.setattr(
            table, "scan", lambda *args, name=name, scan=scan, **named: scanned.append(name) or scan(*args, **named)
        )
    groups = shop.services.writer.groups
    shop.clock.advance(60_000)
    run_by_timer = shop.services.scheduler.fire("retention")
    await run_by_timer
    assert scanned == ["payload"]  # is there any at all?
    assert shop.services.writer.groups == groups


async def test_entries_about_removed_rows_go_with_their_topic(shop: Wired):
    await shop.topics.update(A, {"ttl": "60"})
    await shop.publish(A, "x")
    shop.clock.advance(HOUR_MS)
    await shop.services.topic_stats.save(everything=True)
    await run(shop)
    assert all(entries(shop, kind) == ["shop:orders:"] for kind in ("newest", "expired", "index"))
    await shop.topics.delete(A)
    await run(shop)
    assert [entries(shop, kind) for kind in ("newest", "expired", "index")] == [[], [], []]


async def test_a_store_that_drops_rows_itself_is_only_told_what_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MemoryStore, "applies_retention", True)
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {"ttl": "60"})
    await shop.publish(A, "one")
    await shop.topics.create(B, {})
    await shop.topics.delete(B)
    shop.clock.advance(HOUR_MS)
    rows = list(shop.store.table("message").scan(b"\0", None))
    run = await shop.services.scheduler.run_now("retention")
    assert run.outcome == "ok"
    assert run.report == {"expired_topics": 1, "old_generations": 1}
    assert list(shop.store.table("message").scan(b"\0", None)) == rows
    assert (await shop.services.topic_stats.stats(A)).messages == 0
    assert (await shop.services.scheduler.run_now("retention")).report == {}


async def test_payloads_that_only_truncated_messages_refer_to_go_though_the_ttl_is_long(shop: Wired):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    await shop.commit(tx)
    await shop.services.truncation.truncate(A, shop.clock.now_ms())
    shop.clock.advance(4 * HOUR_MS)
    await shop.services.truncation.truncate(A, shop.clock.now_ms() - HOUR_MS - 600_000)
    await run(shop)
    assert rows(shop, "payload", A), "its writer might have published later than that, by a clock set back"
    first = rows(shop, "payload", A)
    late = await shop.transactions.begin()
    await shop.store_aside(A, "late", tx=late)
    shop.clock.advance(2_000)
    await shop.services.truncation.truncate(A, shop.clock.now_ms())
    await run(shop)
    assert bool(set(first) & set(rows(shop, "payload", A))) == shop.store.applies_retention
    await shop.commit(late)
    assert await (await shop.restarted()).read(A, committed=True) == ["late"]
