"""Reads while something is under way: on a store that is called on threads, nothing stands still meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from basalt.api.bodies.tables import CellPut
from basalt.tables.tables import CellWrites
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Table, TableWrite
from tests.control.tables.conftest import STOCK
from tests.wiring import Wired


class HeldTable:
    """The cells of a `HeldStore`: a scan tells that it began, and waits to be let go."""

    def __init__(self, inner: Table, store: HeldStore) -> None:
        self._inner = inner
        self._store = store
        self.name = inner.name

    def scan(self, *args, **how):
        self._store.hold("scan")
        return self._inner.scan(*args, **how)

    def __getattr__(self, name: str):
        return getattr(self._inner, name)


class HeldStore(MemoryStore):
    """A remote store of which the next write that holds a row of some table, or the next scan of cells, is held up."""

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.remote = True
        self.held: str | None = None
        self.began, self.go_on = threading.Event(), threading.Event()

    def hold(self, what: str) -> None:
        if what == self.held:
            self.held = None
            self.began.set()
            assert self.go_on.wait(60)

    def write(self, writes: Sequence[TableWrite]) -> None:
        for write in writes:
            self.hold(write.table)
        super().write(writes)

    def table(self, name: str):
        table = super().table(name)
        return HeldTable(table, self) if name == "cell" else table


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


async def shop() -> tuple[HeldStore, Wired]:
    store = HeldStore()
    wired = await Wired.start(store)
    await wired.services.tables.catalog.create(STOCK)
    return store, wired


async def put(wired: Wired, value: bytes):
    tx = await wired.transactions.begin()
    await wired.services.tables.write(STOCK, tx.id, CellWrites([CellPut(b"chair", b"count", value)]))
    return tx


async def count(wired: Wired) -> list[bytes | None]:
    return [cell.value for cell in await wired.services.tables.read(STOCK, [b"chair"])]


async def test_cells_are_seen_once_their_commit_is_durable_and_not_before():
    store, wired = await shop()
    await wired.transactions.commit((await put(wired, b"1")).id)
    tx = await put(wired, b"2")
    store.held = "transaction_log"
    commit = asyncio.ensure_future(wired.transactions.commit(tx.id))
    await asyncio.to_thread(store.began.wait, 10)
    assert await count(wired) == [b"1"]
    store.go_on.set()
    await commit
    assert await count(wired) == [b"2"]


async def test_a_read_under_way_counts_as_a_reader_until_its_last_row():
    store, wired = await shop()
    await wired.transactions.commit((await put(wired, b"1")).id)
    before = (await wired.transactions.manager_snapshot()).visibility_upper_bound
    store.held = "scan"
    reads = [asyncio.ensure_future(wired.services.tables.scan(STOCK))]
    await asyncio.to_thread(store.began.wait, 10)
    later = await put(wired, b"2")
    await wired.transactions.commit(later.id)
    assert (await wired.transactions.manager_snapshot()).visibility_upper_bound <= before < later.id
    store.go_on.set()
    (page,) = await asyncio.gather(*reads)
    assert [cell.value for cell in page.cells] == [b"1"]
    assert (await wired.transactions.manager_snapshot()).visibility_upper_bound >= later.id


async def test_so_does_one_whose_transaction_ends_meanwhile():
    store, wired = await shop()
    await wired.transactions.commit((await put(wired, b"1")).id)
    reader = await wired.transactions.begin()
    store.held = "scan"
    read = asyncio.ensure_future(wired.services.tables.read(STOCK, [b"chair"], None, reader.id))
    await asyncio.to_thread(store.began.wait, 10)
    await wired.transactions.abort(reader.id)
    later = await put(wired, b"2")
    await wired.transactions.commit(later.id)
    assert (await wired.transactions.manager_snapshot()).visibility_upper_bound < reader.id
    store.go_on.set()
    assert [cell.value for cell in await read] == [b"1"]


async def test_a_table_that_is_deleted_while_it_is_read_does_not_come_back():
    store, wired = await shop()
    await wired.transactions.commit((await put(wired, b"1")).id)
    store.held = "scan"
    read = asyncio.ensure_future(wired.services.tables.scan(STOCK))
    await asyncio.to_thread(store.began.wait, 10)
    await wired.services.tables.catalog.delete(STOCK)
    store.go_on.set()
    await read
    await wired.services.tables.catalog.create(STOCK)
    assert await count(wired) == []
