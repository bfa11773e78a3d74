"""Readers over a state that follows the coordinator's log over a real link."""

from __future__ import annotations

import asyncio

import pytest

from basalt.errors import CoordinatorUnavailableError
from tests.control.cluster.links.link_pair import until
from tests.control.messaging.behind import Behind
from tests.control.transactions.following import World, following
from tests.wiring import A, shop_work, texts

pytestmark = pytest.mark.anyio


async def early_and_committed(world: World, number: int) -> list[str]:
    """The texts of what one more transaction has published before its commit, and another without asking for anything."""
    shop = world.shop
    begun = await shop.transactions.begin()
    await shop.publish(A, f"early {number}", tx=begun)
    await shop.publish(A, f"plain {number}")
    await shop.transactions.one_shot(shop_work(orders=[f"one {number}"]))
    await shop.commit(begun, orders=[f"last {number}"])
    return [f"{what} {number}" for what in ("early", "plain", "one", "last")]


async def read(readers: Behind) -> list[str]:
    return texts(await readers.messaging.fetch(A, None, True, committed=True, messages_max=1_000))


async def test_what_was_committed_before_a_read_is_there():
    async with following() as world:
        member = await world.member()
        await member.until_as_the_leader()
        readers, there = Behind(world.shop, member.manager), list[str]()
        for number in range(20):
            there += await early_and_committed(world, number)
            assert await read(readers) == there
            assert (await readers.ranges.stable_end(A)).id == (await world.shop.services.ranges.stable_end(A)).id


async def test_a_read_without_a_link_is_told_how_old_its_view_is_and_one_with_a_new_link_gets_all():
    async with following() as world:
        member = await world.member()
        await member.until_as_the_leader()
        await member.manager.ask()
        readers = Behind(world.shop, member.manager)
        await member.cut()
        there = await early_and_committed(world, 1)
        world.clock.advance(3_000)
        page = await readers.messaging.fetch(A, None, True, committed=True)
        assert (texts(page), page.view_age_ms) == ([], 3_000)
        with pytest.raises(CoordinatorUnavailableError):
            await readers.ranges.stable_end(A)
        await member.link()
        assert await read(readers) == there
        assert readers.views.age_ms == 0


async def test_a_beat_that_was_answered_says_that_the_view_is_as_new():
    async with following() as world:
        member = await world.member()
        await member.until_as_the_leader()
        await until(lambda: member.manager._followed is member.links.to_leader)
        world.clock.advance(5_000)
        assert member.manager.view_age_ms >= 5_000
        member.links.answered = (member.links.to_leader, world.clock.monotonic_ms() - 200)
        assert member.manager.view_age_ms == 200
        await member.cut()
        world.clock.advance(800)
        assert member.manager.view_age_ms == 1_000


async def test_many_readers_share_what_is_asked():
    async with following() as world:
        member = await world.member()
        await member.until_as_the_leader()
        readers = Behind(world.shop, member.manager)
        asked, call = 0, member.manager._call_coordinator

        async def counted(*given: object) -> object:
            nonlocal asked
            asked += 1
            return await call(*given)  # type: ignore[arg-type]

        member.manager._call_coordinator = counted  # type: ignore[method-assign, assignment]
        begun = await world.shop.transactions.begin()
        await world.shop.publish(A, "held", tx=begun)
        pages = await asyncio.gather(*[readers.messaging.fetch(A, None, True, committed=True) for _ in range(100)])
        assert {page.held_by for page in pages} == {begun.write_pointer}
        assert readers.views.asked_total == 100
        assert asked <= 2


async def test_who_waits_for_an_end_hears_of_it_over_the_link():
    async with following() as world:
        member = await world.member()
        await member.until_as_the_leader()
        begun, ended = await world.shop.transactions.begin(), list[bool]()
        judge = lambda: ended.append(member.manager.current().is_visible(begun.write_pointer))  # noqa: E731
        await member.until_as_the_leader()
        member.manager.when_view_moves(judge)
        await world.shop.commit(begun, orders=["one"])
        await until(lambda: True in ended)
