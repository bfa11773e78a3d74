"""While a slow store writes on a thread, nobody reads what may still be taken back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite
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
        self.synced.wait(10)


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
