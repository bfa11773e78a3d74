"""Several servers that serve the topics of one store beside each other: what a client gets from any of them, and what becomes of it when one of them goes."""

from __future__ import annotations

import pytest
import uvloop

from basalt.catalog.topics import topic_name
from basalt.errors import ShardMovingError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.control.server.sharing_servers import Sharers, Story, sharers


def run(story: Story, count: int = 2) -> None:
    async def all_of_it() -> None:
        async with sharers(count) as world:
            await story(world)

    uvloop.run(all_of_it())


def test_a_server_that_does_not_lead_opens_services_of_its_own():
    async def story(world: Sharers) -> None:
        (member,) = world.members
        assert not member.services.transactions.manager.is_known
        assert member.services.scheduler.figures().keys() == {"retention", "stats"}

    run(story)


def test_a_shard_that_moves_is_served_by_the_member_and_no_more_by_the_leader():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        await leader.services.topics.create(topic_name("shop", "orders"), {})
        shard = shard_of(topic_prefix("shop", "orders"))
        await world.until(lambda: member.member.links.to_leader is not None, "it is linked")
        await world.until(lambda: member.instance in leader.services.shard_moves._targets(), "it can be given shards")
        await leader.services.shard_moves.move(frozenset([shard]), member.instance)
        assert member.held == {shard}
        await member.services.messaging.publish(topic_name("shop", "orders"), [b"a"], None)
        with pytest.raises(ShardMovingError):
            await leader.services.messaging.publish(topic_name("shop", "orders"), [b"b"], None)
        assert world.all_is_dealt()

    run(story)
