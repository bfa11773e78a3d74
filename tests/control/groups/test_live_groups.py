"""The live groups of a process: dropped, closed, and what was dealt to transactions."""

from __future__ import annotations

import asyncio

import pytest

from basalt.transactions.rules.groups import GroupState
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.control.groups.conftest import WAIT_S_MAX, Billing
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def test_what_was_dealt_to_a_transaction_that_went_without_a_word_is_free_after_the_upkeep(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    tx, kept = await shop.transactions.begin(), await shop.transactions.begin()
    assert await billing.read(transaction_id=tx.id) == ["a"]
    assert await billing.read(transaction_id=kept.id) == []
    with monkeypatch.context() as patched:
        patched.setattr(billing.groups, "transaction_ended", lambda *_, **__: [])
        await shop.transactions.abort(tx.id)
    await billing.groups.upkeep.run()
    assert set(billing.groups.live._dealt_to) == {kept.id}
    assert await billing.read() == ["a"]
    await shop.transactions.commit(kept.id)
    assert not billing.groups.live._dealt_to, "what has ended is not remembered"


async def test_shutdown_answers_who_waits(shop: Wired) -> None:
    billing = await Billing.made(shop)
    waits = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    await billing.waiting()
    shop.services.stop_waiting()
    assert (await asyncio.wait_for(waits, WAIT_S_MAX)).waiting_for == "stopping"
    assert (await asyncio.wait_for(billing.fetch(wait_ms=60_000), WAIT_S_MAX)).waiting_for == "stopping"


async def test_a_closed_group_answers_who_waits_and_leaves_nothing_on_the_loop(shop: Wired) -> None:
    before = asyncio.all_tasks()
    billing = await Billing.made(shop)
    waits = [asyncio.create_task(billing.fetch(wait_ms=60_000)) for _ in range(2)]
    await billing.waiting(2)
    live = billing.live
    live.wake()  # there is a task that deals
    await billing.groups.live.close()
    assert [each.waiting_for for each in await asyncio.wait_for(asyncio.gather(*waits), WAIT_S_MAX)] == ["stopping"] * 2
    assert (await asyncio.wait_for(billing.fetch("mary", wait_ms=60_000), WAIT_S_MAX)).waiting_for == "stopping"
    assert live._timer is None, "none is set that nobody would cancel"
    assert live._arrival is None or live._arrival.done()
    assert asyncio.all_tasks() <= before


async def test_a_group_whose_topic_is_served_elsewhere_is_forgotten_and_who_waits_is_answered(shop: Wired) -> None:
    billing = await Billing.made(shop)
    kept = billing.live
    waits = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    await billing.waiting()
    shard = shard_of(topic_prefix(*A))
    billing.groups.live.leave({shard + 1})
    assert billing.groups.live.all() == [kept]
    billing.groups.live.leave({shard})
    assert (await asyncio.wait_for(waits, WAIT_S_MAX)).claim is None
    assert billing.groups.live.all() == []
    assert billing.live is not kept


async def test_live_groups_that_the_log_does_not_know_are_dropped_when_it_was_read_again(shop: Wired) -> None:
    billing = await Billing.made(shop)
    live, state = billing.groups.live, billing.live.state
    other = live.of(GroupState(99, state.prefix, state.generation, "never logged", state.options, 1, 1, 1), A)
    shop.transactions.manager.lost()
    await billing.groups.find(A, "billing")
    assert other not in live.all()
    assert [each.number for each in live.all()] == [state.number]
