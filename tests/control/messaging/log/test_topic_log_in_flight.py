"""While a slow store writes on a thread, nobody reads what may still be taken back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from basalt_engine.stores.memory import MemoryStore, MemoryTable
from basalt_engine.table import DeleteRange, TableWrite
from tests.wiring import A, Wired

pytestmark = pytest.mark.anyio


class SlowlySynced(MemoryStore):
    """Shows rows at once and calls them durable only when told to."""

    remote = True

    def __init__(self) -> None:
        super().__init__()
        self.synced = threading.Event()
        self.synced.set()

    def write(self, writes: Sequence[TableWrite]) -> None:
        super().write(writes)
        self.synced.wait(60)


async def test_a_row_is_not_read_before_it_is_durable():
    store = SlowlySynced()
    shop = await Wired.start(store, cached=False)
    await shop.topics.create(A, {})
    await shop.publish(A, "durable")
    store.synced.clear()
    publishing = asyncio.ensure_future(shop.publish(A, "in flight"))
    while len(list(store.table("message").scan(b"", None))) < 2:
        await asyncio.sleep(0)
    assert await shop.read(A) == ["durable"]
    store.synced.set()
    await publishing
    assert await shop.read(A) == ["durable", "in flight"]
    await shop.services.close()


class SlowlyRead(SlowlySynced):
    """A read that begins only when told to, on whatever thread it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = threading.Event()
        self.reading.set()
        self.asked = threading.Event()

    def table(self, name: str):
        table = super().table(name)
        return SlowlyReadTable(table, self) if name == "message" else table


class SlowlyReadTable:
    def __init__(self, inner: MemoryTable, store: SlowlyRead) -> None:
        self._inner = inner
        self._store = store

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def scan(self, *args: Any, **kwargs: Any):
        self._store.asked.set()
        self._store.reading.wait(60)
        return self._inner.scan(*args, **kwargs)


@pytest.mark.parametrize("ask", ["fetch", "stats"])
async def test_a_read_that_began_before_a_write_does_not_see_half_of_it(ask: str):
    store = SlowlyRead()
    shop = await Wired.start(store, cached=False)
    await shop.topics.create(A, {})
    await shop.publish(A, "durable")
    (await shop.topics.open(A)).index = None
    store.asked.clear()
    store.reading.clear()
    reading = asyncio.ensure_future(shop.read(A) if ask == "fetch" else shop.services.topic_stats.stats(A))
    await asyncio.to_thread(store.asked.wait, 10)  # the thread is about to look
    store.synced.clear()
    publishing = asyncio.ensure_future(shop.publish(A, "in flight"))
    while len(list(MemoryStore.table(store, "message").scan(b"", None))) < 2:
        await asyncio.sleep(0)
    store.reading.set()
    if ask == "fetch":
        assert await reading == ["durable"]
        store.synced.set()
    else:
        await asyncio.sleep(0.05)
        store.synced.set()
        await reading
    await publishing
    assert await shop.read(A) == ["durable", "in flight"]
    assert (await shop.services.topic_stats.stats(A)).messages == 2  # neither is counted twice
    await shop.services.close()


async def test_only_the_event_loop_looks_into_the_tail(monkeypatch: pytest.MonkeyPatch):
    store = SlowlySynced()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.publish(A, "one")
    threads = set()
    rows = shop.topics.tails.rows

    def noted(*args: Any) -> Any:
        threads.add(threading.current_thread())
        return rows(*args)

    monkeypatch.setattr(shop.topics.tails, "rows", noted)
    assert await shop.read(A) == ["one"]
    assert threads == {threading.current_thread()}
    await shop.services.close()


class DroppingStore(MemoryStore):
    """One that drops what was rolled back by itself, and tells nobody."""

    applies_retention = True

    def __init__(self) -> None:
        super().__init__(atomic=False)

    def drop_message_rows(self) -> None:
        self.table("message").write([DeleteRange(b"\0", b"\xff" * 40)])


@pytest.mark.parametrize("restarts_before", [False, True])
async def test_what_was_rolled_back_and_dropped_is_not_published_again(restarts_before: bool):
    store = DroppingStore()
    shop = await Wired.start(store, cached=False)
    await shop.topics.create(A, {})
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "one", tx=tx)
    published = await shop.messaging.publish(A, [], tx.write_pointer)
    if restarts_before:
        shop = await shop.restarted()
    await shop.messaging.roll_back(A, published)
    store.drop_message_rows()
    shop = await shop.restarted()
    await shop.store_aside(A, "two", tx=tx)
    await shop.messaging.publish(A, [], tx.write_pointer)
    assert await shop.read(A) == ["two"]
    await shop.services.close()
