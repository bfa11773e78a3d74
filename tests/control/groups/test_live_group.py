"""Fetches that wait, members that go, claims that run out: what memory alone knows of a group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from basalt.api.bodies.groups import GroupOptions
from basalt.errors import (
    AcknowledgeOrderError,
    BusyError,
    ClaimLostError,
    GroupNotFoundError,
    MemberFencedError,
    UnavailableError,
)
from basalt.groups import live_group
from basalt.groups.fetches import Dealt
from tests.control.groups.conftest import WAIT_S_MAX, Billing, ids_of
from tests.wiring import A, Wired, texts

pytestmark = pytest.mark.anyio


async def test_a_claim_runs_out_and_its_messages_go_to_another(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions(claim_ms=5_000, member_ms=60_000, retry_delay_ms=0))
    page = await billing.fetch("mary")
    shop.clock.advance(5_000)
    again = await billing.fetch("john")
    assert (texts(again.fetch), again.attempt) == (["a"], 2)
    for lost in (billing.acknowledge(page.claim, member="mary"), billing.acknowledge(ids=ids_of(page), member="mary")):
        with pytest.raises(ClaimLostError):
            await lost
    await billing.acknowledge(again.claim, member="john")


async def test_a_silent_member_loses_its_claims_and_a_newer_process_of_its_name_fences_it(shop: Wired) -> None:
    await shop.publish(A, "a")
    await shop.publish(A, "b")
    billing = await Billing.made(shop, GroupOptions(member_ms=5_000, retry_delay_ms=0))
    older = await billing.fetch("mary", 1)
    newer = await billing.fetch("mary", 1)
    assert newer.member_epoch > older.member_epoch
    with pytest.raises(MemberFencedError):
        await billing.acknowledge(older.claim, member="mary", epoch=older.member_epoch)
    assert texts((await billing.fetch("john", 1)).fetch) in (["a"], ["b"])
    shop.clock.advance(5_000)
    assert {(await billing.fetch("anna", 1)).attempt, (await billing.fetch("beth", 1)).attempt} == {2, 3}


async def test_a_long_poll_is_answered_by_what_arrives_and_the_longest_is_served_first(shop: Wired) -> None:
    billing = await Billing.made(shop)
    first = asyncio.create_task(billing.fetch("mary", 1, wait_ms=60_000))
    await billing.waiting()
    second = asyncio.create_task(billing.fetch("john", 1, wait_ms=60_000))
    await billing.waiting(2)
    await shop.publish(A, "a")
    assert texts((await asyncio.wait_for(first, WAIT_S_MAX)).fetch) == ["a"]
    assert not second.done()
    await shop.publish(A, "b")
    assert texts((await asyncio.wait_for(second, WAIT_S_MAX)).fetch) == ["b"]


async def test_a_long_poll_is_answered_when_claims_come_back_and_groups_go_on(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    waits = asyncio.create_task(billing.fetch("john", wait_ms=60_000))
    await billing.waiting()
    await billing.groups.pause(A, "billing")
    await billing.release(page.claim, member="mary", counts=False)
    await asyncio.sleep(0.02)
    assert not waits.done()
    assert (await billing.fetch("anna")).waiting_for == "paused"
    await billing.groups.resume(A, "billing")
    assert texts((await asyncio.wait_for(waits, WAIT_S_MAX)).fetch) == ["a"]


async def test_a_client_that_goes_away_while_it_waits_leaves_no_claim(shop: Wired) -> None:
    billing = await Billing.made(shop)
    gone = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    await billing.waiting()
    publishing = asyncio.create_task(shop.publish(A, "a"))
    for _ in range(3):
        await asyncio.sleep(0)
    gone.cancel()
    await publishing
    with pytest.raises(asyncio.CancelledError):
        await gone
    page = await asyncio.wait_for(billing.fetch("john", wait_ms=60_000), WAIT_S_MAX)
    assert (texts(page.fetch), page.attempt) == (["a"], 1)


async def test_a_group_that_is_deleted_answers_who_waits(shop: Wired) -> None:
    billing = await Billing.made(shop)
    waits = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    await billing.waiting()
    await billing.groups.delete(A, "billing")
    with pytest.raises(GroupNotFoundError):
        await asyncio.wait_for(waits, WAIT_S_MAX)
    with pytest.raises(GroupNotFoundError):
        await billing.fetch()


async def test_a_stream_has_one_active_member_and_keeps_its_order(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    billing = await Billing.made(shop, GroupOptions(mode="stream", retry_delay_ms=1_000))
    first = await billing.fetch("mary", 1)
    assert (await billing.fetch("john", 1)).waiting_for == "standby"
    second = await billing.fetch("mary", 1, epoch=first.member_epoch)
    with pytest.raises(AcknowledgeOrderError):
        await billing.acknowledge(second.claim, member="mary")
    await billing.release(first.claim, member="mary")
    assert (await billing.fetch("mary", epoch=first.member_epoch)).waiting_for == "delayed 1000"
    shop.clock.advance(1_000)
    again = await billing.fetch("mary", epoch=first.member_epoch)
    assert texts(again.fetch) == ["a"]
    await billing.acknowledge(again.claim, second.claim, member="mary")
    assert await billing.handled("mary") == ["c"]


async def test_so_many_fetches_wait_in_one_group(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_group, "WAITING_MAX", 1)
    billing = await Billing.made(shop)
    waits = asyncio.create_task(billing.fetch(wait_ms=60_000))
    await billing.waiting()
    with pytest.raises(BusyError):
        await billing.fetch(wait_ms=60_000)
    await shop.publish(A, "a")
    assert texts((await asyncio.wait_for(waits, WAIT_S_MAX)).fetch) == ["a"]


async def test_a_client_that_goes_away_as_it_is_answered_leaves_no_claim(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing = await Billing.made(shop)
    gone = asyncio.create_task(billing.fetch("mary", wait_ms=60_000))
    await billing.waiting()
    dispatcher = billing.live.dispatcher
    deal = dispatcher.deal

    async def last(*args: object, **named: object) -> Dealt:
        dealt = await deal(*args, **named)  # type: ignore[arg-type]
        if dealt.claim is not None:
            asyncio.get_running_loop().call_soon(gone.cancel)  # before it hears of its claim
        return dealt

    monkeypatch.setattr(dispatcher, "deal", last)
    await shop.publish(A, "a")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(gone, WAIT_S_MAX)
    monkeypatch.undo()
    page = await billing.fetch("john")
    assert (texts(page.fetch), page.attempt) == (["a"], 1)


async def test_what_was_dealt_while_a_write_failed_is_given_back(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    deal = billing.live.dispatcher.deal

    async def deal_and_lose(*arguments: Any, **named: Any) -> Dealt:
        dealt = await deal(*arguments, **named)
        shop.transactions.manager.lost()  # as when the log is to be read again
        return dealt

    with monkeypatch.context() as patched:
        patched.setattr(billing.live.dispatcher, "deal", deal_and_lose)
        with pytest.raises(UnavailableError):
            await billing.fetch("mary")
    again = await billing.fetch("john")
    assert (texts(again.fetch), again.attempt) == (["a"], 1)
