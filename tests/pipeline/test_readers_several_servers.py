"""Tasks of Spark at servers that share topics: each task picks its server by its number, so that all servers read as much, and nobody deals them out."""

from __future__ import annotations

import asyncio

import uvloop
from pyspark.sql.datasource import InputPartition

import basalt
from basalt_spark import connection
from basalt_spark.connection import client_of
from basalt_spark.option_table import FrameUse
from basalt_spark.options import ReadOptions, read_options
from basalt_spark.source.partitions import RangePartition, read_partition
from basalt_spark.source.readers import BasaltReader
from tests.control.client.test_servers_end_to_end import all_know
from tests.control.server.sharing_servers import Sharers, SharingServer, Story, sharers

TEXTS = [f"{number:02} " + "x" * 500_000 for number in range(18)]
TASKS = 6


def read(options: ReadOptions, partition: InputPartition) -> list[str]:
    """What a task reads, in a process of its own as far as the client goes."""
    connection._clients.clear()
    try:
        batches = list(read_partition(options, partition))
    finally:
        client_of(options.server).close()
    return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]


def counts(world: Sharers) -> dict[str, int]:
    """The ranges that each server has read by permits."""
    return {server.name: server.member._standby.reading.outcomes["read"] for server in world.servers}


def tell(story: Story) -> None:
    async def all_of_it() -> None:
        async with sharers(3) as world:
            await story(world)

    uvloop.run(all_of_it())


async def published(world: Sharers, owner: SharingServer, texts: list[str]) -> ReadOptions:
    """The messages in a topic of that owner, and the options of a reader to which all servers are named, the leader first."""
    await world.give("orders", owner)
    await all_know(world)
    async with basalt.aio.connect(owner.url, namespace="shop") as client:
        await client.topics.create("orders")
        for text in texts:
            await client.topic("orders").publish([text])
    given = {
        "server": ",".join(server.url for server in world.servers), "topic": "shop:orders", "minPartitions": str(TASKS), "columns": "value",
    }  # fmt: skip
    return read_options(given, FrameUse.BATCH)


def test_each_server_reads_as_many_tasks_and_all_messages_come_once_and_in_order():
    async def story(world: Sharers) -> None:
        owner = world.members[0]
        options = await published(world, owner, TEXTS)
        size = sum(map(len, TEXTS)) // TASKS
        partitions = await asyncio.to_thread(BasaltReader(options).partitions)
        told = [(each.turn, each.size_bytes) for each in partitions if isinstance(each, RangePartition)]
        assert told == [(turn, size) for turn in range(TASKS)]
        texts = [text for each in partitions for text in await asyncio.to_thread(read, options, each)]
        assert texts == TEXTS
        assert counts(world) == {each.name: 0 if each is owner else TASKS / 3 for each in world.servers}

    tell(story)


def test_small_tasks_are_the_owners_though_another_server_is_named_first():
    async def story(world: Sharers) -> None:
        small = [text[:20] for text in TEXTS]
        options = await published(world, world.members[0], small)
        partitions = await asyncio.to_thread(BasaltReader(options).partitions)
        assert len(partitions) == TASKS
        assert [text for each in partitions for text in await asyncio.to_thread(read, options, each)] == small
        assert set(counts(world).values()) == {0}, "another server has asked for a permit"

    tell(story)
