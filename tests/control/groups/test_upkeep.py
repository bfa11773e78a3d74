"""The upkeep of groups: what it closes, and which groups are forgotten."""

from __future__ import annotations

import pytest

from basalt.api.bodies.groups import GroupOptions, SeekRequest
from basalt.groups import upkeep
from basalt.operations import jobs
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.spans.spans import ZERO_ID
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


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
    found = await billing.groups.upkeep.run()
    assert [state.name for state in found.unused] == ["billing"]
    await billing.groups.pause(A, "billing")
    assert await billing.groups.upkeep.forget(found.unused, unused=True) == 0
    assert [state.name for state in await billing.groups.list(A)] == ["billing"]


async def test_the_upkeep_looks_at_so_many_groups_and_gaps_in_a_run(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LOOKED_AT_MAX", 1)
    monkeypatch.setattr(upkeep, "GAPS_MAX", 1)
    await shop.topics.update(A, {"ttl": "10"})
    await shop.publish(A, *"abcdef")
    both = [await Billing.made(shop, name=name) for name in ("one", "two")]
    known = ids_of(await both[0].fetch())
    for billing in both:
        await billing.groups.seek(A, billing.name, SeekRequest("start"))
        await billing.acknowledge(ids=[known[1], known[3], known[5]])
    shop.clock.advance(11_000)
    assert [(await both[0].groups.upkeep.run()).closed for _ in range(6)] == [1] * 6
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
    await billing.groups.upkeep.run()
    await shop.transactions.commit(tx.id)
    await billing.acknowledge(ids=ids_of(later)[1:], member="john")
    await billing.groups.upkeep.run()
    assert list(billing.live.state.acknowledged) == [(ZERO_ID, later.through)]
