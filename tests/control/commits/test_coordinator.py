"""What the coordinator does for the scheduler, across the bounds of one call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from basalt.api.bodies.messages import Work, WorkMarker, WorkPublish
from basalt.transactions.rules import transaction_proposals
from basalt.transactions.rules.transaction import State
from tests.wiring import A, Wired, shop_work

pytestmark = pytest.mark.anyio


async def test_all_whose_time_is_up_end_however_many_one_call_of_the_rules_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transaction_proposals, "EXPIRED_MAX", 2)
    shop = await Wired.start()
    late = [await shop.transactions.begin(timeout_ms=1_000, external_writes=number % 2 == 0) for number in range(7)]
    later = await shop.transactions.begin()
    shop.clock.advance(1_000)
    assert await shop.transactions.expire() == len(late)
    ends = [(await shop.transactions.outcome(one.id)).state for one in late]
    assert ends == [State.INVALID if number % 2 == 0 else State.ABORTED for number in range(7)]
    assert await shop.transactions.list() == [later]
    assert await shop.transactions.expire() == 0


async def test_each_transaction_that_becomes_invalid_counts_though_one_edit_says_it_of_all():
    shop = await Wired.start()
    for _ in range(3):
        await shop.transactions.begin(timeout_ms=1_000, external_writes=True)
    shop.clock.advance(1_000)
    assert await shop.transactions.expire() == 3


async def told(shop: Wired, work: Work, request_id: str | None = None) -> Any:
    """The answer of a one-shot transaction whose waiter is told; None where the coroutine has to do it."""
    waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return await waiter if shop.transactions.submit_one_shot(waiter, work, "app", request_id) else None


async def test_a_one_shot_whose_waiter_is_told_is_the_one_that_a_coroutine_waits_for():
    shop = await Wired.start()
    await shop.topics.create(A, {})
    await shop.publish(A, "before")
    first = await told(shop, shop_work(orders=["told"]), "r")
    assert await shop.transactions.one_shot(shop_work(orders=["told"]), "app", "r") == first
    assert await told(shop, shop_work(orders=["told"]), "r") == first
    other = await shop.transactions.one_shot(shop_work(orders=["waited for"]), "app", "s")
    assert await told(shop, shop_work(orders=["waited for"]), "s") == other
    assert (first.state, first.owner, other.state, other.owner) == (State.COMMITTED, "app") * 2
    assert await shop.read(A, committed=True) == ["before", "told", "waited for"]
    assert sum(shop.transactions.totals.commits.counts) == 5  # each call


async def test_a_one_shot_that_has_to_read_or_is_refused_is_left_to_a_coroutine():
    shop = await Wired.start()
    assert await told(shop, shop_work(orders=["no topic"])) is None
    await shop.topics.create(A, {})
    assert await told(shop, shop_work(orders=["not open"])) is None
    await shop.publish(A, "before")
    assert await told(shop, Work(markers=[WorkMarker(*A, "task", 1, "watermark", 1)])) is None
    assert await told(shop, Work([WorkPublish("no name at all", "x", [b"m"])])) is None
    assert await told(shop, Work([WorkPublish(*A, [b"m"] * 100_000)])) is None
    assert await shop.read(A) == ["before"]
