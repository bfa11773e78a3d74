"""One-shot transactions and commits with topics in several write lanes, of which some hang or fail."""

from __future__ import annotations

import asyncio

import pytest

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.topics import topic_name
from basalt.errors import TopicNotFoundError
from basalt.settings import MessagingSettings, Settings
from basalt.transactions.rules.loans import USED_MS
from basalt_engine.errors import BasaltError, UnknownOutcomeError
from basalt_engine.keys import topic_prefix
from tests.control.commits.test_carrier import LOG, ByRow, Threads, lanes, threads, until
from tests.wiring import A, B, Wired, shop_work

__all__ = ["threads"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> ByRow:
    return ByRow()


@pytest.fixture
async def shop(store: ByRow, threads: Threads) -> Wired:
    shop = await Wired.start(store, settings=Settings(messaging=MessagingSettings(topic_lanes=8)))
    for title in (A, B):
        await shop.topics.create(title, {})
    assert lane(shop, A) is not lane(shop, B)
    for work in ({"orders": ["first"]}, {"invoices": ["first"]}, {"orders": ["both"], "invoices": ["both"]}):
        await shop.transactions.one_shot(shop_work(**work))  # from here on each has a loan
    store.written.clear()
    return shop


def lane(shop: Wired, title: tuple[str, str]):
    return lanes(shop).topics.lane_of(topic_prefix(*title))


async def settled(call: asyncio.Future[object]) -> bool:
    """Whether a call ends while nothing is let go."""
    for _ in range(2_000):
        await asyncio.sleep(0)
    return call.done()


async def test_one_of_one_lane_is_decided_while_another_lane_hangs(shop: Wired, threads: Threads):
    threads.hold(lane(shop, A))
    held = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["held"])))
    await threads.held(lane(shop, A))
    await shop.transactions.one_shot(shop_work(invoices=["goes on"]))
    await shop.publish(B, "plain")
    assert await shop.read(B, committed=True) == ["first", "both", "goes on", "plain"]
    assert not held.done()
    threads.let_go(lane(shop, A))
    await held
    assert await shop.read(A, committed=True) == ["first", "both", "held"]


async def test_one_of_several_lanes_shows_nothing_before_all_parts_are_there(shop: Wired, threads: Threads):
    threads.hold(lane(shop, A))
    spread = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["o"], invoices=["i"])))
    await threads.held(lane(shop, A))
    assert not await settled(spread)
    assert await shop.read(B, committed=True) == ["first", "both"]
    threads.let_go(lane(shop, A))
    await spread
    assert await shop.read(A, committed=True) == ["first", "both", "o"]
    assert await shop.read(B, committed=True) == ["first", "both", "i"]


async def test_each_lane_has_one_write_and_the_log_one(shop: Wired, store: ByRow):
    await shop.transactions.one_shot(shop_work(orders=["o"], invoices=["i"]))
    assert store.written == [("message",), ("message",), (LOG,)]


@pytest.mark.parametrize("stuck", [A, B])
async def test_those_behind_one_that_hangs_are_decided_in_the_order_of_their_pointers(
    shop: Wired, threads: Threads, stuck: tuple[str, str]
):
    threads.hold(lane(shop, stuck))
    calls = [
        asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=[text], invoices=[text]), request_id=text))
        for text in ("1", "2", "3")
    ]
    await threads.held(lane(shop, stuck))
    threads.let_go(lane(shop, stuck))
    outcomes = await asyncio.gather(*calls)
    assert [each.id for each in outcomes] == sorted(each.id for each in outcomes)
    for title in (A, B):
        assert await shop.read(title, committed=True) == ["first", "both", "1", "2", "3"]


async def test_one_that_is_there_waits_for_the_parts_of_those_before_it(shop: Wired, threads: Threads):
    c = next(
        title
        for title in (topic_name("shop", f"c{number}") for number in range(100))
        if lane(shop, title) not in (lane(shop, A), lane(shop, B))
    )
    await shop.topics.create(c, {})
    threads.hold(lane(shop, c))
    work = Work([*shop_work(orders=["held"]).publish, WorkPublish(*c, [b"held"])])
    held = asyncio.ensure_future(shop.transactions.one_shot(work))
    await threads.held(lane(shop, c))
    there = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["there"], invoices=["there"])))
    assert not await settled(there)
    assert not held.done(), "it was decided before its rows were there"
    threads.let_go(lane(shop, c))
    assert (await held).id < (await there).id
    assert await shop.read(A, committed=True) == ["first", "both", "held", "there"]


@pytest.mark.parametrize("fails", [A, B])
async def test_when_one_part_fails_nothing_of_it_shows_and_those_behind_go_on(
    shop: Wired, store: ByRow, threads: Threads, fails: tuple[str, str]
):
    threads.hold(lane(shop, fails))
    failing = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["f"], invoices=["f"]), request_id="r"))
    await threads.held(lane(shop, fails))
    await until(lambda: not lane(shop, A if fails == B else B)._busy)
    store.away.add("message")
    threads.let_go(lane(shop, fails))
    with pytest.raises(BasaltError):
        await failing
    store.away.clear()
    await shop.transactions.one_shot(shop_work(orders=["next"], invoices=["next"]))
    await shop.transactions.one_shot(shop_work(orders=["again"], invoices=["again"]), request_id="r")
    for title in (A, B):
        assert await shop.read(title, committed=True) == ["first", "both", "next", "again"]


async def test_a_part_whose_topic_goes_meanwhile_has_the_whole_given_up(shop: Wired, threads: Threads):
    threads.hold(lane(shop, B))
    before = asyncio.ensure_future(shop.publish(B, "before"))
    await threads.held(lane(shop, B))
    spread = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["o"], invoices=["i"])))
    await settled(spread)
    await shop.topics.delete(B)
    threads.let_go(lane(shop, B))
    await asyncio.wait([before])
    with pytest.raises(TopicNotFoundError):
        await spread
    assert await shop.read(A, committed=True) == ["first", "both"]
    await shop.transactions.one_shot(shop_work(orders=["next"]))
    assert await shop.read(A, committed=True) == ["first", "both", "next"]


async def test_a_part_that_comes_after_the_log_was_read_anew_is_not_written(
    shop: Wired, store: ByRow, threads: Threads
):
    threads.hold(lane(shop, B))
    before = asyncio.ensure_future(shop.publish(B, "before"))
    await threads.held(lane(shop, B))
    spread = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["o"], invoices=["i"])))
    assert not await settled(spread)
    store.away.add(LOG)
    with pytest.raises(BasaltError):
        await shop.transactions.begin()
    store.away.clear()
    threads.let_go(lane(shop, B))
    await before
    with pytest.raises(BasaltError):
        await spread
    await shop.transactions.one_shot(shop_work(orders=["next"], invoices=["next"]))
    assert await shop.read(A, committed=True) == ["first", "both", "next"]
    assert await shop.read(B) == ["first", "both", "before", "next"]


async def test_a_part_whose_loan_has_ended_meanwhile_is_not_written(
    shop: Wired, store: ByRow, threads: Threads, monkeypatch: pytest.MonkeyPatch
):
    threads.hold(lane(shop, B))
    before = asyncio.ensure_future(shop.publish(B, "before"))
    await threads.held(lane(shop, B))
    spread = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["o"], invoices=["i"])))
    assert not await settled(spread)
    monkeypatch.setattr(shop.transactions._one_shots.coordinator, "basis_in", lambda _: object(), raising=False)
    threads.let_go(lane(shop, B))
    await before
    with pytest.raises(BasaltError):
        await spread
    assert store.written.count(("message",)) == 2, "a row came under a pointer that nobody may hold any more"


async def test_loans_of_all_lanes_are_given_back_when_nobody_uses_them(shop: Wired):
    assert shop.transactions._one_shots.has_idle_loan() is False
    shop.clock.advance(USED_MS)
    assert shop.transactions._one_shots.has_idle_loan()
    await shop.transactions._one_shots.give_back()
    assert not list(shop.transactions.manager.state.loans)


async def test_a_commit_is_placed_in_each_lane_and_shows_when_all_have_it(shop: Wired, threads: Threads):
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    threads.hold(lane(shop, B))
    commit = asyncio.ensure_future(shop.commit(tx, orders=["o"], invoices=["i"]))
    await threads.held(lane(shop, B))
    assert not await settled(commit)
    await shop.publish(A, "plain")
    assert await shop.read(A, committed=True) == ["first", "both"], "a part of a commit is shown"
    threads.let_go(lane(shop, B))
    await commit
    assert await shop.read(A, committed=True) == ["first", "both", "stored", "o", "plain"]
    assert await shop.read(B, committed=True) == ["first", "both", "i"]


async def test_a_commit_that_one_lane_cannot_place_is_rolled_back_in_all(shop: Wired, store: ByRow, threads: Threads):
    tx = await shop.transactions.begin()
    threads.hold(lane(shop, B))
    commit = asyncio.ensure_future(shop.commit(tx, orders=["o"], invoices=["i"]))
    await threads.held(lane(shop, B))
    await until(lambda: not lane(shop, A)._busy)
    store.away.add("message")
    threads.let_go(lane(shop, B))
    await until(lambda: not lane(shop, B)._busy)
    store.away.clear()
    with pytest.raises((BasaltError, UnknownOutcomeError)):
        await commit
    for title in (A, B):
        assert await shop.read(title, committed=True) == ["first", "both"]


async def test_a_stop_in_the_midst_of_one_that_is_spread_has_it_decided(shop: Wired, threads: Threads):
    threads.hold(lane(shop, B))
    spread = asyncio.ensure_future(shop.transactions.one_shot(shop_work(orders=["o"], invoices=["i"])))
    await threads.held(lane(shop, B))
    stopping = asyncio.ensure_future(shop.services._stop_writing())
    assert not await settled(stopping)
    threads.let_go(lane(shop, B))
    await stopping
    await spread
