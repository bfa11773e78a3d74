"""Consumer groups whose topics several servers own: each is dealt by its owner, and what is acknowledged is decided once, wherever that was asked."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

import basalt
from basalt.api.bodies.groups import GroupOptions
from basalt.catalog.topics import topic_name
from basalt.client import Batch, Output
from basalt.errors import GroupNotFoundError, ShardMovingError
from tests.control.server.sharing_servers import Sharers, SharingServer, Story, sharers

ORDERS = topic_name("shop", "orders")


def run(story: Story, count: int = 2) -> None:
    async def all_of_it() -> None:
        async with sharers(count) as world:
            await story(world)

    uvloop.run(all_of_it())


async def shop(world: Sharers, client: basalt.AsyncClient, **owners: SharingServer) -> None:
    """Topics of these owners."""
    for topic, owner in owners.items():
        await world.give(topic, owner)
        await client.topics.create(topic)


async def read(client: basalt.AsyncClient, topic: str) -> list[str]:
    return [message.text async for message in client.topic(topic).read()]


async def drained(client: basalt.AsyncClient, topic: str, group: str = "billing", **options: object) -> list[str]:
    """All that is dealt to one member; what was handled is acknowledged with the next fetch."""
    found: list[str] = []

    async def handle(batch: Batch, out: Output) -> None:
        found.extend(message.text for message in batch)

    async with client.consumer(topic, group=group, **options) as consumer:  # type: ignore[arg-type]
        await consumer.process(handle, until=lambda: consumer.waiting_for == "no_messages", limit=2)
    return found


async def copied(client: basalt.AsyncClient, to: str, **options: object) -> None:
    """Copy what is dealt of orders, each batch acknowledged with its copies."""

    async def handle(batch: Batch, out: Output) -> None:
        out.publish(to, [message.payload for message in batch])

    async with client.consumer("orders", group="copying", **options) as consumer:  # type: ignore[arg-type]
        await consumer.process(handle, until=lambda: consumer.waiting_for == "no_messages", limit=3)


def test_a_group_is_made_dealt_and_acknowledged_at_the_owner_of_its_topic():
    async def story(world: Sharers) -> None:
        leader, (member,) = world.leader, world.members
        for server in world.servers:
            async with basalt.aio.connect(server.url, namespace="shop") as client:
                if server is leader:
                    await shop(world, client, orders=member)
                await client.topic("orders").publish([f"{server.name} {number}" for number in range(5)])
                assert await drained(client, "orders") == [f"{server.name} {number}" for number in range(5)]
                assert await drained(client, "orders") == []
        assert [live.title for live in member.services.groups.live()] == [ORDERS]
        assert leader.services.groups.live() == []
        (state,) = leader.services.transactions.state.groups.by_number.values()
        assert len(state.acknowledged) == 1
        assert member.services.transactions.manager.proposing.lost_total == 0
        assert member.services.transactions.manager.proposing.guess is None

    run(story)


@pytest.mark.parametrize("mode", ["shared", "keyed", "stream"])
def test_what_a_batch_makes_is_published_elsewhere_and_acknowledged_here_in_one_decision(mode: str):
    async def story(world: Sharers) -> None:
        leader, second, third = (world.leader, *world.members)
        async with basalt.aio.connect(third.url, namespace="shop") as client:
            await shop(world, client, orders=second, copies=third, others=leader)
            sent = [str(number) for number in range(10)]
            for text in sent:
                await client.topic("orders").publish([text], key=text[-1])
            for topic in ("copies", "others"):
                name = f"into-{topic}"
                async with client.consumer("orders", group=name, mode=mode, member="ann") as consumer:  # type: ignore[arg-type]

                    async def handle(batch: Batch, out: Output, topic: str = topic) -> None:
                        out.publish(topic, [message.payload for message in batch])

                    await consumer.process(handle, until=lambda: consumer.waiting_for == "no_messages", limit=3)  # noqa: B023
                assert sorted(await read(client, topic)) == sent
                assert await drained(client, "orders", name, mode=mode, member="bob") == []

    run(story, 3)


def test_a_transaction_acknowledges_with_its_commit_and_gives_back_with_its_abort():
    async def story(world: Sharers) -> None:
        leader, second, third = (world.leader, *world.members)
        async with basalt.aio.connect(leader.url, namespace="shop") as client:
            await shop(world, client, orders=second, copies=third)
            await client.topic("orders").publish([str(number) for number in range(6)])
            async with client.consumer("orders", group="billing", retry_delay_ms=1) as consumer:
                with pytest.raises(KeyError):
                    async with client.transaction() as tx:
                        batch = await anext(aiter(consumer.batches(limit=3)))
                        await tx.publish("copies", ["never"])
                        await tx.acknowledge(batch)
                        raise KeyError
                seen = list[str]()
                async for batch in consumer.batches(limit=4):
                    async with client.transaction() as tx:
                        await tx.publish("copies", [message.payload for message in batch])
                        await tx.acknowledge(batch)
                    seen += [message.text for message in batch]
                    if len(seen) >= 6:
                        break
            assert sorted(seen) == sorted(await read(client, "copies")) == [str(number) for number in range(6)]
            assert await drained(client, "orders") == []

    run(story, 3)
