"""Servers of one store some of which share its topics while others do not: as while the setting is changed, one server after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import uvloop

from basalt_engine.stores.shards import SHARDS
from tests.control.server.sharing_servers import SHARING, Sharers, SharingServer, sharers, told_apart

NOT_SHARING = told_apart(SHARING, share=False)
TOPIC = "/v1/namespaces/shop/topics/orders"


def run(story: Callable[[Sharers, SharingServer], Awaitable[None]]) -> None:
    """A leader that shares, and one that does not and is linked to it."""

    async def all_of_it() -> None:
        async with sharers(1) as world:
            other = SharingServer(world.time, world.store, "other", NOT_SHARING)
            world.servers.append(other)
            await other.start()
            await world.until(
                lambda: other.member.links.to_leader is not None and other.uvicorn.started, "it is linked"
            )
            await story(world, other)

    uvloop.run(all_of_it())


def test_one_that_does_not_share_is_given_no_topics_and_passes_calls_on():
    async def story(world: Sharers, other: SharingServer) -> None:
        leader = world.leader

        async def moves_nothing() -> bool:
            told = await leader.ask("POST", "/v1/admin/cluster/balance", {})
            assert told.json().get("moves", []) == []
            return told.status == 200  # else it does not know yet who is drained

        await world.time.until(moves_nothing)
        assert len(leader.held) == SHARDS
        made = await other.ask("PUT", TOPIC)
        assert (made.status, made.headers["basalt-owner"]) == (200, leader.url)

    run(story)


def test_one_that_does_not_share_takes_all_topics_with_the_lead_and_one_that_shares_has_none_then():
    async def story(world: Sharers, other: SharingServer) -> None:
        assert (await other.ask("PUT", TOPIC)).status == 200
        sharing = await world.add("sharing")
        await world.give("orders", sharing)
        assert (await sharing.ask("POST", f"{TOPIC}/publish", {"messages": ["before"]})).status == 200
        with sharing.gave_up():  # so that the other one comes to lead
            await world.leader.die()
            await world.until(lambda: other.leads, "it leads")
        await world.until(lambda: not sharing.held, "the one that shares has let go")
        assert (await other.ask("POST", f"{TOPIC}/publish", {"messages": ["after"]})).status == 200
        read = await other.ask("POST", f"{TOPIC}/poll", {})
        assert [each["payload"] for each in read.json()] == ["before", "after"]

        async def is_passed_on() -> bool:
            told = await sharing.ask("GET", TOPIC)
            return (told.status, told.headers.get("basalt-owner")) == (200, other.url)

        await world.time.until(is_passed_on)

    run(story)
