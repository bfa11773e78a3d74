"""The gate: who waits for a shard that moves, who is refused, and for whom a move waits."""

from __future__ import annotations

import asyncio

import pytest

from basalt.cluster import shard_gate
from basalt.cluster.owners import granted
from basalt.cluster.shard_gate import ShardGate
from basalt.errors import ShardElsewhereError, ShardMovingError
from basalt.runtime.group_commit import NotLoadedError
from basalt_engine.clock import SystemClock
from basalt_engine.stores.shards import shard_of

ORDERS = b"shop:orders:"
SHARD = shard_of(ORDERS)
OTHER = (SHARD + 1) % 1_024


def held() -> ShardGate:
    gate = ShardGate(SystemClock())
    gate.hold({SHARD: 7, OTHER: 7})
    return gate


def test_a_call_waits_until_the_shard_is_taken_and_comes_in_under_its_new_epoch():
    async def story() -> None:
        gate = held()
        gate.close([SHARD])
        waiting = asyncio.create_task(gate.enter(SHARD))
        assert (await gate.enter(OTHER)).epoch == 7
        gate.lose([SHARD])
        gate.begin({SHARD: 8})
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.take([SHARD])
        assert (await waiting).epoch == 8
        assert (gate.waited_total, gate.refused_total) == (1, 0)

    asyncio.run(story())


def test_a_call_that_has_waited_for_long_is_told_that_nothing_was_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_gate, "MOVING_WAIT_MS_MAX", 1)

    async def story() -> None:
        gate = held()
        gate.close([SHARD])
        with pytest.raises(ShardMovingError, match="nothing was done") as refused:
            await gate.enter(SHARD)
        assert refused.value.retry_after_ms > 0
        assert gate.refused_total == 1

    asyncio.run(story())


def test_a_move_waits_for_visits_of_its_own_shards_alone():
    async def story() -> None:
        gate = held()
        async with gate.visit(ORDERS):
            gate.close([SHARD, OTHER])
            await gate.left([OTHER])
            leaving = asyncio.create_task(gate.left([SHARD]))
            await asyncio.sleep(0)
            assert not leaving.done()
        await leaving

    asyncio.run(story())


def test_a_stage_that_writes_by_a_prefix_is_run_again_once_the_shard_is_held():
    async def story() -> None:
        gate = held()
        gate.require([ORDERS])
        gate.close([SHARD])
        with pytest.raises(NotLoadedError) as again:
            gate.require([ORDERS])
        loading = asyncio.ensure_future(again.value.load())
        await asyncio.sleep(0)
        gate.call_off([SHARD])
        (await loading)()
        gate.require([ORDERS])

    asyncio.run(story())


def test_a_move_waits_for_what_is_kept_at_all_of_its_shards_and_nothing_more_stays():
    async def story() -> None:
        gate = held()
        assert gate.stay([SHARD, OTHER])
        gate.close([SHARD])
        leaving = asyncio.create_task(gate.left([SHARD]))
        await asyncio.sleep(0)
        assert not gate.stay([OTHER, SHARD]), "it moves"
        assert not leaving.done()
        gate.leave([SHARD, OTHER])
        await leaving
        assert gate.stay([OTHER])

    asyncio.run(story())


def test_a_call_that_waits_hears_at_once_that_another_server_has_the_shard():
    async def story() -> None:
        gate = held()
        gate.member = "here"
        gate.close([SHARD])
        waiting = asyncio.create_task(gate.enter(SHARD))
        await asyncio.sleep(0)
        gate.lose([SHARD])
        await asyncio.sleep(0)
        assert not waiting.done(), "the map that says so is on its way"
        gate.learn(granted(granted(None, "here", (), 1), "there", [SHARD], 1))
        with pytest.raises(ShardElsewhereError, match="another server has shard"):
            await waiting

    asyncio.run(story())
