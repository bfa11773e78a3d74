"""Groups: made, changed, sought, deleted and forgotten."""

from __future__ import annotations

import asyncio

import pytest

from basalt.api.bodies.groups import GroupOptions, PositionRequest, SeekRequest
from basalt.api.bodies.json import HexMessageId
from basalt.errors import (
    ClaimLostError,
    ConflictError,
    GroupExistsError,
    GroupNotFoundError,
    TransactionConflictError,
)
from basalt.operations import jobs
from tests.control.groups.conftest import WAIT_S_MAX, Billing, ids_of
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


async def test_a_topic_that_is_created_again_has_no_group(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    waits = asyncio.create_task(billing.fetch("john", wait_ms=60_000))
    await billing.waiting()
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    with pytest.raises(GroupNotFoundError):
        await asyncio.wait_for(waits, WAIT_S_MAX)
    with pytest.raises(GroupNotFoundError):
        await billing.acknowledge(page.claim, member="mary")
    assert await jobs.tidy_groups(billing.groups, shop.services.audit) == {"groups_gone": 1}
    line = (await shop.services.audit.newest(10))[0]
    assert (line.act, line.what, line.reason) == ("forget groups", f"topic {A}", "it was deleted: groups billing")
    assert not len(shop.transactions.state.groups)


async def test_a_seek_revokes_claims_and_voids_what_was_dealt(shop: Wired) -> None:
    await shop.publish(A, "a", "b", "c")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    await billing.acknowledge(ids=ids_of(page)[:1], member="mary")
    sought = await billing.groups.seek(A, "billing", SeekRequest("start"))
    assert (sought.claims_revoked, sought.repeated, sought.round != page.round) == (1, 1, True)
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(page.claim, member="mary")
    with pytest.raises(ClaimLostError):
        await billing.acknowledge(ids=ids_of(page), member="mary", round=page.round)
    assert await billing.handled() == ["a", "b", "c"]
    await shop.publish(A, "d")
    assert (await billing.groups.seek(A, "billing", SeekRequest("end"))).skipped == 1
    assert await billing.handled() == []


async def test_a_seek_waits_for_transactions_or_dooms_them(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop)
    page = await billing.fetch()
    tx = await shop.transactions.begin()
    await billing.acknowledge(page.claim, tx=tx.id)
    with pytest.raises(ConflictError):
        await billing.groups.seek(A, "billing", SeekRequest("start"))
    await billing.groups.seek(A, "billing", SeekRequest("start"), force=True)
    with pytest.raises(TransactionConflictError):
        await shop.commit(tx)
    assert await billing.handled() == ["a"]


async def test_making_a_group_again_changes_nothing_and_other_options_are_refused(shop: Wired) -> None:
    billing = await Billing.made(shop)
    again = await billing.groups.make(A, "billing", GroupOptions())
    assert again is billing.live
    with pytest.raises(GroupExistsError):
        await billing.groups.make(A, "billing", GroupOptions(claim_ms=7_000))
    await billing.groups.change(A, "billing", GroupOptions(claim_ms=7_000))
    assert (await billing.groups.make(A, "billing", GroupOptions(claim_ms=7_000))).options.claim_ms == 7_000
    assert [state.name for state in await billing.groups.list(A)] == ["billing"]


async def test_a_group_that_starts_at_the_end_gets_what_comes(shop: Wired) -> None:
    await shop.publish(A, "a")
    billing = await Billing.made(shop, GroupOptions(start="end"))
    await shop.publish(A, "b")
    assert await billing.handled() == ["b"]


async def test_somebody_else_keeps_the_position_of_a_tracked_group(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    spark = await Billing.made(shop, GroupOptions(mode="tracked"), "spark")
    with pytest.raises(ConflictError):
        await spark.fetch()
    known = (await shop.messaging.fetch(A, None, True, committed=True)).slices[0].ids()
    await spark.groups.position(A, "spark", PositionRequest(HexMessageId(known[0]), "query 1"))
    assert spark.floor() == known[0]


async def test_a_failed_write_forgets_nothing_that_is_durable(shop: Wired) -> None:
    await shop.publish(A, "a", "b")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary", 1)
    await billing.acknowledge(page.claim, member="mary")
    other = await billing.fetch("mary", 1, epoch=page.member_epoch)
    shop.transactions.manager.lost()  # as after a write that failed
    assert (await billing.acknowledge(other.claim, member="mary")).acknowledged == 1
    assert await billing.handled() == []
