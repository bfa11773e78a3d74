"""A consumer through a change of leader: its calls go to the server that leads, and each message is handled once."""

from __future__ import annotations

import asyncio

import pytest

from basalt.client import Batch, Output
from basalt.client.asynchronous.client import AsyncClient, client_of
from basalt.client.asynchronous.transport import AsyncRedirectingTransport
from basalt.client.attempts import RetryPolicy, Send
from basalt.client.consumer import processing
from basalt.client.plans import Reply
from basalt.client.servers import Servers, ServerUrl, parse_urls, shown
from basalt.embedded import exchange
from basalt_engine.clock import SystemClock
from tests.control.server.test_failover import Server, pair


class ToMember:
    """The way to one of the two servers, by the name in its URL."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def send(self, request: Send) -> Reply:
        return await exchange(self._server.member, request, {"Host": "localhost"})

    async def close(self) -> None: ...


def client_of_both(first: Server, second: Server) -> AsyncClient:
    urls, clock = parse_urls(f"{first.url},{second.url}"), SystemClock()

    def open_one(url: ServerUrl) -> ToMember:
        return ToMember(first if url.host == "first" else second)

    transport = AsyncRedirectingTransport(Servers(urls, open_one, clock.monotonic_ms))
    retries = RetryPolicy(backoff_ms_base=1, backoff_ms_max=20)
    return client_of(transport, shown(urls), "shop", retries, clock)


def test_process_goes_on_with_the_next_leader_and_handles_each_message_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processing, "ROUND_WAIT_MS", 100)

    async def story() -> None:
        async with pair() as (leader, standby):
            client = client_of_both(leader, standby)
            for topic in ("orders", "copies"):
                await client.topics.create(topic)
            await client.topic("orders").publish([b"%d" % number for number in range(20)])
            handled: list[bytes] = []
            changed = asyncio.Event()

            async def handle(batch: Batch, out: Output) -> None:
                handled.extend(message.payload for message in batch)
                out.publish("copies", [message.payload for message in batch])
                if len(handled) == 10 and not changed.is_set():
                    changed.set()
                    with leader.gave_up():
                        await standby.until_it_serves()

            async with client.consumer("orders", group="copying", member="ann") as orders:
                await orders.process(handle, until=lambda: orders.waiting_for == "no_messages", limit=5)
            copies = [message.payload async for message in client.topic("copies").read()]
            assert changed.is_set()
            assert standby.served_epoch is not None
            assert copies == [b"%d" % number for number in range(20)]

    asyncio.run(asyncio.wait_for(story(), 120))
