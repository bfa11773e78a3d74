"""A publish whose answer is lost with its leader: the next leader knows what is there, and it is there once."""

from __future__ import annotations

import asyncio

import pytest

from basalt.client import AsyncClient
from basalt.client.asynchronous import client as asynchronous
from basalt.client.attempts import RetryPolicy, Send
from basalt.client.plans import AnswerLost, NotSent, Reply
from basalt.embedded import exchange
from basalt_engine.clock import SystemClock
from tests.control.server.test_failover import Server, pair


class LineToAPair:
    """A transport to the leader of two servers. With the next publish the leader dies: before it came, or behind it."""

    def __init__(self, first: Server, second: Server) -> None:
        self.leader, self.other = first, second
        self.dies: str | None = None

    async def send(self, request: Send) -> Reply:
        dies = self.dies if request.target.endswith("/publish") else None
        if dies is None:
            return await exchange(self.leader.member, request, {"Host": "localhost"})
        self.dies = None
        if dies == "behind it":
            await exchange(self.leader.member, request, {"Host": "localhost"})
        await self.leader.die()
        self.leader, self.other = self.other, self.leader
        await self.leader.until_it_serves()
        return NotSent("gone") if dies == "before it is sent" else AnswerLost(f"cut {dies}")

    async def close(self) -> None:
        """Close nothing: the servers are the story's."""


def connect(line: LineToAPair) -> AsyncClient:
    retries = RetryPolicy(timeout_ms=60_000, backoff_ms_base=1, backoff_ms_max=2)
    return asynchronous.client_of(line, "http://pair", "shop", retries, SystemClock())


@pytest.mark.parametrize("dies", ["before it is sent", "before it came", "behind it"])
def test_a_publish_that_loses_its_leader_is_repeated_to_the_next_and_there_once(dies):
    async def story() -> None:
        async with pair() as (first, second):
            line = LineToAPair(first, second)
            client = connect(line)
            await client.topics.create("orders")
            await client.topic("orders").publish(["a", "b"])
            line.dies = dies
            await client.topic("orders").publish(["c", "d"])
            await client.topic("orders").publish(["e"])
            assert line.leader is second
            assert await second.read() == ["a", "b", "c", "d", "e"]

    asyncio.run(story())


def test_a_named_producer_goes_on_with_the_next_leader_behind_its_last_number():
    async def story() -> None:
        async with pair() as (first, second):
            line = LineToAPair(first, second)
            client = connect(line)
            await client.topics.create("orders")
            file_7 = await client.producer("orders", "file-7", run="today")
            await file_7.publish(["0", "1"])
            line.dies = "behind it"
            await file_7.publish(["2"])
            again = await client.producer("orders", "file-7", run="today")
            assert (again.last_sequence, again.epoch) == (2, file_7.epoch)
            await again.publish(["1", "2", "3"], sequence=1)
            assert await second.read() == ["0", "1", "2", "3"]

    asyncio.run(story())
