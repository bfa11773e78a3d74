"""The calls that each kind of work makes to HBase's gateway: docs/formats/hbase-store.md has them in a table.

One more is a round trip more for whoever waits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.gateway import ConnectionPool, Gateway
from basalt_engine.stores.hbase.store import HBaseStore
from tests.engine.stores.hbase.fake_gateway import FakeGateway, Handler
from tests.ports import reserved_port
from tests.wiring import A, B, Wired, shop_work

pytestmark = pytest.mark.anyio

LOG, ROWS, STAGED = "transaction_log", "message", "payload"
CALLS = ("get", "put", "putMultiple", "deleteSingle", "deleteMultiple", "checkAndPut", "getScannerResults")


class CountingHandler(Handler):
    """Notes each call that comes over a connection, with its table."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        for name in CALLS:
            setattr(self, name, self._noted(name))

    def _noted(self, name):
        def call(table, *arguments):
            self.calls.append((name, table.decode().removeprefix("t.")))
            return getattr(Handler, name)(Inner(self), table, *arguments)

        return call

    def since(self) -> list[tuple[str, str]]:
        """The calls since the last look."""
        calls, self.calls = self.calls, []
        return calls


class Inner(Handler):
    """The same rows; what one call makes of another is no call of the gateway's client."""

    def __init__(self, handler: Handler) -> None:
        self.__dict__.update({name: value for name, value in handler.__dict__.items() if name not in CALLS})


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with reserved_port() as port:
        fake = FakeGateway(port)
        fake.handler = CountingHandler()
        yield fake
        fake.stop()


@pytest.fixture
async def shop(gateway: FakeGateway):
    """Services over it, without a cache, that have done one of everything: what is read once is in memory."""
    clock = ManualClock()
    pool = ConnectionPool(gateway.address, connections_max=8)
    calls = Gateway(pool, f"127.0.0.1:{gateway.address[1]}")
    store = HBaseStore(calls, calls, "t", clock=clock)
    shop = await Wired.start(store, clock, cached=False)
    for topic in (A, B):
        await shop.topics.create(topic, {})
        await shop.publish(topic, "first")
    await shop.transactions.one_shot(shop_work(orders=["first"], invoices=["first"]))
    yield shop
    await shop.services.close()
    store.close()


@pytest.fixture
def calls(shop: Wired, gateway: FakeGateway):
    """The calls since the last look; begins with none."""
    handler = gateway.handler
    assert isinstance(handler, CountingHandler)
    handler.since()
    return handler.since


async def test_a_publish_is_one_call(shop: Wired, calls) -> None:
    await shop.publish(A, "a", "b")
    assert calls() == [("put", ROWS)]


async def test_a_one_shot_transaction_is_two_calls_however_many_topics_it_has(shop: Wired, calls) -> None:
    await shop.transactions.one_shot(shop_work(orders=["a"]))
    assert calls() == [("put", ROWS), ("checkAndPut", LOG)]
    await shop.transactions.one_shot(shop_work(orders=["a"], invoices=["b"]))
    assert calls() == [("putMultiple", ROWS), ("checkAndPut", LOG)]


async def test_a_transaction_is_a_call_to_begin_two_for_its_first_payloads_one_for_more_and_three_to_commit(
    shop: Wired, calls
) -> None:
    tx = await shop.transactions.begin()
    assert calls() == [("checkAndPut", LOG)]
    await shop.store_aside(A, "a", tx=tx)
    assert calls() == [("checkAndPut", LOG), ("put", STAGED)]
    await shop.store_aside(A, "b", tx=tx)
    assert calls() == [("put", STAGED)]
    await shop.commit(tx)
    assert calls() == [("checkAndPut", LOG), ("put", ROWS), ("checkAndPut", LOG)]


async def test_a_commit_that_brings_its_messages_is_three_calls(shop: Wired, calls) -> None:
    tx = await shop.transactions.begin()
    calls()
    await shop.commit(tx, orders=["a"], invoices=["b"])
    assert calls() == [("checkAndPut", LOG), ("putMultiple", ROWS), ("checkAndPut", LOG)]


async def test_a_page_is_one_call_for_each_bucket(shop: Wired, calls) -> None:
    assert await shop.read(A) == ["first", "first"]
    assert calls() == [("getScannerResults", ROWS)]
    await shop.topics.update(A, {"spread": "3"})
    calls()
    assert await shop.read(A) == ["first", "first"]
    assert calls() == [("getScannerResults", ROWS)] * 3
