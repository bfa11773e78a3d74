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
from basalt.groups import groups
from basalt.operations import jobs
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.spans.spans import ZERO_ID
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
    await billing.groups.keep_up()
    assert set(billing.groups._dealt_to) == {kept.id}
    assert await billing.read() == ["a"]
    await shop.transactions.commit(kept.id)
    assert not billing.groups._dealt_to, "what has ended is not remembered"


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


async def test_a_group_that_nobody_uses_is_forgotten_when_it_is_to_be(shop: Wired) -> None:
    await Billing.made(shop, GroupOptions(expire_ms=60_000), "idle")
    billing = await Billing.made(shop)
    shop.clock.advance(59_000)
    assert await jobs.tidy_groups(billing.groups, shop.services.audit) == {}
    shop.clock.advance(1_000)
    assert await jobs.tidy_groups(billing.groups, shop.services.audit) == {"groups_expired": f"{A}/idle"}
    [line] = await shop.services.audit.newest(10)
    assert (line.act, line.what, line.agent, line.outcome) == (
        "expire group", f"group {A}/idle", "job stats", "1 forgotten",
    )  # fmt: skip
    assert [state.name for state in await billing.groups.list(A)] == ["billing"]


async def test_a_group_of_which_only_memory_knows_that_it_is_used_is_kept(shop: Wired) -> None:
    """Who fetches and finds nothing, and has no name, or leaves each time, is a user, too."""
    billing = await Billing.made(shop, GroupOptions(expire_ms=60_000))
    for _ in range(3):
        shop.clock.advance(50_000)
        await billing.fetch()
        for _ in range(2):
            assert await jobs.tidy_groups(billing.groups, shop.services.audit) == {}
            shop.clock.advance(1_000)
    shop.clock.advance(60_000)
    assert await jobs.tidy_groups(billing.groups, shop.services.audit) == {"groups_expired": f"{A}/billing"}


async def test_a_group_that_is_used_while_its_line_is_written_is_kept(shop: Wired) -> None:
    billing = await Billing.made(shop, GroupOptions(expire_ms=60_000))
    shop.clock.advance(60_000)
    found = await billing.groups.keep_up()
    assert [state.name for state in found.unused] == ["billing"]
    await billing.groups.pause(A, "billing")
    assert await billing.groups.forget(found.unused, unused=True) == 0
    assert [state.name for state in await billing.groups.list(A)] == ["billing"]


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


async def test_the_upkeep_looks_at_so_many_groups_and_gaps_in_a_run(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "LOOKED_AT_MAX", 1)
    monkeypatch.setattr(groups, "GAPS_MAX", 1)
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, *"abcdef")
    both = [await Billing.made(shop, name=name) for name in ("one", "two")]
    known = ids_of(await both[0].fetch())
    for billing in both:
        await billing.groups.seek(A, billing.name, SeekRequest("start"))
        await billing.acknowledge(ids=[known[1], known[3], known[5]])
    shop.clock.advance(11_000)
    assert [(await both[0].groups.keep_up()).closed for _ in range(6)] == [1] * 6
    assert [list(billing.live.state.acknowledged) for billing in both] == [[(ZERO_ID, known[5])]] * 2


async def test_the_job_names_so_many_groups_that_were_forgotten(shop: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "NAMED_MAX", 1)
    for name in ("one", "two"):
        await Billing.made(shop, GroupOptions(expire_ms=1_000), name)
    shop.clock.advance(1_000)
    services = shop.services
    report = await jobs.save_stats(
        services.topic_stats, services.markers, services.producers, services.groups, services.audit, services.series_days,
        StoreCalls(services.store), shop.clock,
    )  # fmt: skip
    assert report["groups_expired"] == f"{A}/one"


async def test_a_gap_that_a_transaction_acknowledges_with_the_message_behind_it_holds_no_upkeep_up(
    shop: Wired,
) -> None:
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, *"abc")
    billing = await Billing.made(shop)
    page = await billing.fetch("mary")
    shop.clock.advance(5_000)
    await shop.publish(A, "d", "e")
    later = await billing.fetch("john")
    shop.clock.advance(6_000)
    await billing.release(page.claim, counts=False, member="mary")
    assert (await billing.fetch("mary")).claim is None  # nothing lives there any more, as is known from now on
    await shop.services.scheduler.run_now("retention")
    tx = await shop.transactions.begin()
    await billing.acknowledge(ids=ids_of(later)[:1], tx=tx.id, member="john")
    await billing.groups.keep_up()
    await shop.transactions.commit(tx.id)
    await billing.acknowledge(ids=ids_of(later)[1:], member="john")
    await billing.groups.keep_up()
    assert list(billing.live.state.acknowledged) == [(ZERO_ID, later.through)]
