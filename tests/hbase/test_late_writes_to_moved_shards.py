"""A write of a shard's former owner that the network holds up until the shard has moved: a plain publish, and a change of a topic.

The regions refuse it, for it carries the shard and the epoch under which it was sent. Without that attribute it lands, which shows that
the tests can fail.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from basalt.catalog.topics import TopicName
from basalt.cluster.led_store import LedStore, Term
from basalt.cluster.owners import grant, read_map, take_all
from basalt.errors import BasaltError
from basalt.settings import Settings
from basalt.settings.tree import HBaseSettings, StoreSettings
from basalt_engine.clock import SystemClock
from basalt_engine.errors import FencedError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.shards import shard_of
from basalt_engine.system import SystemTable
from basalt_engine.table import prefix_stop
from tests.hbase.holding_proxy import HoldingProxy
from tests.hbase.server_pair import BUCKETS, Installation
from tests.hbase.tables import Tables
from tests.wiring import Wired

pytestmark = pytest.mark.hbase

HANG_S = 180.0
FORMER, NEXT = "former-1", "next-1"
TTL_S = 4_242


class Moved:
    """A leader behind a network that holds writes up, and the server to which one of its shards moves meanwhile."""

    def __init__(self, installation: Installation, title: TopicName) -> None:
        self.title = title
        self.prefix = topic_prefix(*title)
        self.shard = shard_of(self.prefix)
        self._proxy = HoldingProxy(installation.thrift2)
        self.former = Tables(self._proxy.address, installation.prefix).open()
        self.next = Tables(installation.thrift2, installation.prefix).open()

    async def start(self) -> None:
        """Lead, and make the topic, with one message."""
        before = await asyncio.to_thread(read_map, SystemTable(self.next.table("system")))
        self.epoch = 1 if before is None else before.leader_epoch + 1
        self.term = Term(SystemClock(), self.epoch, math.inf)
        store = LedStore(self.former, self.term)
        await asyncio.to_thread(store.lead, self.epoch)
        await asyncio.to_thread(take_all, store, FORMER, self.epoch)
        place = HBaseSettings(thrift2=self.former.address, prefix=self.former.prefix, buckets=BUCKETS)
        self.server = await Wired.start(store, settings=Settings(store=StoreSettings(kind="hbase", hbase=place)))
        await self.server.topics.create(self.title, {})
        await self.publish("in time")

    async def publish(self, text: str) -> None:
        await self.server.publish(self.title, text)

    async def change(self) -> None:
        await self.server.topics.update(self.title, {"ttl": TTL_S})

    async def late(self, call: Callable[[], Awaitable[None]], table: str, verb: str) -> BaseException | None:
        """The shard moves while what this call writes is under way, which then arrives. How the call ended."""
        words = (f"{self.former.prefix}.{table}".encode(), verb.encode())
        self._proxy.hold(lambda piece: all(each in piece for each in words))
        calling = asyncio.ensure_future(call())
        while not self._proxy.held_bytes:
            assert not calling.done(), calling
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._move)
        assert not calling.done()
        self._proxy.let_go()
        (outcome,) = await asyncio.gather(calling, return_exceptions=True)
        while self._proxy.unanswered:
            await asyncio.sleep(0.01)
        return outcome

    def _move(self) -> None:
        """The map, and then the fences, as a move makes them."""
        owners = grant(self.next, NEXT, [self.shard], self.epoch)
        self.next.take({self.shard: owners.epochs[self.shard]})

    def messages(self) -> int:
        """The number of rows of messages that the topic has."""
        table, spans = self.next.table("message"), [bytes([bucket]) + self.prefix for bucket in range(BUCKETS)]
        return sum(1 for span in spans for _ in table.scan(span, prefix_stop(span)))

    def metadata(self) -> list[object]:
        return [dict(row.columns) for row in self.next.table("metadata").scan(self.prefix, prefix_stop(self.prefix))]

    async def close(self) -> None:
        self._proxy.let_go()
        await self.server.services.close()
        self._proxy.close()
        self.next.close()


@asynccontextmanager
async def moved(installation: Installation, topic: str) -> AsyncIterator[Moved]:
    made = Moved(installation, TopicName("late", topic))
    async with asyncio.timeout(HANG_S):
        await made.start()
        try:
            yield made
        finally:
            await made.close()


def unstamped(store: HBaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes carries neither shard nor epoch from now on."""
    stamped = store._stamps.of
    monkeypatch.setattr(
        store._stamps, "of", lambda table, keys: [each._replace(attributes={}) for each in stamped(table, keys)]
    )


def assert_fenced(outcome: object, server: Moved) -> None:
    """The call was refused as the write of a former owner, and the term in which it was made is over."""
    assert isinstance(outcome, BasaltError), outcome
    assert isinstance(outcome, FencedError) or isinstance(outcome.__cause__, FencedError), repr(outcome)
    assert f"of shard {server.shard}" in str(server.term.over)


def test_a_message_that_arrives_after_its_shard_has_moved_is_refused(guarded: Installation):
    async def story() -> None:
        async with moved(guarded, "message-refused") as server:
            outcome = await server.late(lambda: server.publish("late"), "message", "put")
            assert_fenced(outcome, server)
            assert await asyncio.to_thread(server.messages) == 1

    asyncio.run(story())


def test_without_the_attribute_of_its_shard_such_a_message_lands(
    guarded: Installation, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with moved(guarded, "message-lands") as server:
            unstamped(server.former, monkeypatch)
            assert await server.late(lambda: server.publish("late"), "message", "put") is None
            assert await asyncio.to_thread(server.messages) == 2

    asyncio.run(story())


def test_a_change_of_a_topic_that_arrives_after_its_shard_has_moved_is_refused(guarded: Installation):
    async def story() -> None:
        async with moved(guarded, "change-refused") as server:
            before = await asyncio.to_thread(server.metadata)
            assert_fenced(await server.late(server.change, "metadata", "checkAndPut"), server)
            assert await asyncio.to_thread(server.metadata) == before

    asyncio.run(story())


def test_without_the_attribute_of_its_shard_such_a_change_lands(guarded: Installation, monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        async with moved(guarded, "change-lands") as server:
            before = await asyncio.to_thread(server.metadata)
            unstamped(server.former, monkeypatch)
            assert await server.late(server.change, "metadata", "checkAndPut") is None
            assert await asyncio.to_thread(server.metadata) != before

    asyncio.run(story())
