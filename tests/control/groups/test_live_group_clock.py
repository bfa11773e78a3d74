"""Clocks that step: claims and leases go by the monotonic clock, delays by the wall clock."""

from __future__ import annotations

import asyncio

import pytest

from basalt.api.bodies.groups import GroupMode, GroupOptions
from basalt.groups import attendance
from basalt.groups.fetches import Dealt, FetchAsk
from basalt.groups.live_group import LiveGroup
from basalt_engine.records import Extras
from tests.control.groups.conftest import WAIT_S_MAX, Billing
from tests.wiring import A, Wired, texts

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_no_claim_or_lease_runs_out_earlier_or_later_for_a_step_of_the_clock(
    shop: Wired, mode: GroupMode, step_ms: int
) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions(mode, claim_ms=5_000, member_ms=9_000, retry_delay_ms=0))
    page = await billing.fetch("mary")
    shop.clock.step(shop.clock.now_ms() + step_ms)
    assert (await billing.fetch("mary", epoch=page.member_epoch)).claim is None
    assert len(billing.live.members) == 1
    shop.clock.advance(4_999)
    assert (await billing.fetch("mary", epoch=page.member_epoch)).claim is None
    shop.clock.advance(1)
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert (texts(again.fetch), again.attempt, again.member_epoch) == (["a"], 2, page.member_epoch)
    shop.clock.advance(9_000)
    assert (await billing.fetch("john")).member_epoch > page.member_epoch
    assert [member.name for member in billing.live.members] == ["john"]


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
async def test_a_delay_is_over_when_the_clock_says_so(shop: Wired, mode: GroupMode) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions(mode, retry_delay_ms=60_000, member_ms=HOUR_MS))
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    assert (await billing.fetch("mary", epoch=page.member_epoch)).waiting_for == "delayed 60000"
    shop.clock.step(shop.clock.now_ms() - 30_000)
    assert (await billing.fetch("mary", epoch=page.member_epoch)).waiting_for == "delayed 90000"
    shop.clock.step(shop.clock.now_ms() + HOUR_MS)
    again = await billing.fetch("mary", epoch=page.member_epoch)
    assert (texts(again.fetch), again.attempt) == (["a"], 2)


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
@pytest.mark.parametrize("why", ["paused", "claimed"])
async def test_a_delay_that_is_over_wakes_nobody_over_and_over_who_waits_for_something_else(
    shop: Wired, mode: GroupMode, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.messaging.publish(A, [b"a", b"b"], extras=[Extras(b"key")] * 2)
    billing = await Billing.made(shop, GroupOptions(mode, retry_delay_ms=1_000))
    page = await billing.fetch("mary")
    await billing.release(page.claim, member="mary")
    assert (await billing.fetch("mary", epoch=page.member_epoch)).waiting_for.startswith("delayed")
    shop.clock.advance(2_000)
    if why == "paused":
        await billing.groups.pause(A, "billing")
    else:
        page = await billing.fetch("mary", epoch=page.member_epoch)
    looks, deal = [], LiveGroup._deal

    async def counted(live: LiveGroup, ask: FetchAsk, epoch: int) -> Dealt:
        looks.append(ask.member)
        return await deal(live, ask, epoch)

    monkeypatch.setattr(LiveGroup, "_deal", counted)
    waits = asyncio.create_task(billing.fetch("john", wait_ms=60_000))
    await asyncio.sleep(0.1)
    assert len(looks) < 4
    if why == "paused":
        await billing.groups.resume(A, "billing")
    else:
        await billing.release(page.claim, member="mary", counts=False)
    await attendance.leave(billing.live, "mary", 0)
    assert (await asyncio.wait_for(waits, WAIT_S_MAX)).claim is not None
