"""Where a read runs: what is over soon at once, on the event loop; all else on a thread, while the loop goes on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from basalt.api.bodies.tables import CellPut
from basalt.tables.tables import LONG_LOOKS_MAX, SHORT_ROWS_MAX, CellReads, CellWrites
from basalt_engine.cells.keys import TableKeys
from basalt_engine.keys import table_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Row, Table
from tests.control.tables.conftest import STOCK
from tests.wiring import Wired


class WatchedTable:
    """Notes on which threads it is scanned."""

    def __init__(self, inner: Table, threads: set[int]) -> None:
        self._inner = inner
        self._threads = threads

    def scan(self, *args, **how):
        for row in self._inner.scan(*args, **how):
            self._threads.add(threading.get_ident())
            yield row

    def __getattr__(self, name: str):
        return getattr(self._inner, name)


class WatchedStore(MemoryStore):
    """A local store that knows on which threads its cells were read."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def table(self, name: str):
        table = super().table(name)
        return WatchedTable(table, self.threads) if name == "cell" else table


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio

MANY = SHORT_ROWS_MAX + 1


async def shop() -> tuple[WatchedStore, Wired]:
    store = WatchedStore()
    wired = await Wired.start(store)
    await wired.services.tables.catalog.create(STOCK)
    tx = await wired.transactions.begin()
    cells = [CellPut(b"chair", b"count", b"5"), *(CellPut(b"desk", b"%04d" % n, b"x") for n in range(MANY))]
    await wired.services.tables.write(STOCK, tx.id, CellWrites(cells))
    await wired.transactions.commit(tx.id)
    return store, wired


READS = {
    "a cell": (lambda tables: tables.read(STOCK, [b"chair"], [b"count"]), 1, True),
    "a few cells of a large row": (lambda tables: tables.read(STOCK, [b"desk"], [b"0001", b"0500"]), 2, True),
    "a small row": (lambda tables: tables.read(STOCK, [b"chair"]), 1, True),
    "a large row": (lambda tables: tables.read(STOCK, [b"desk"]), MANY, False),
    "many cells": (lambda tables: tables.read(STOCK, [b"desk"], [b"%04d" % n for n in range(100)]), 100, False),
}


@pytest.mark.parametrize("name", READS)
async def test_a_read_runs_on_the_loop_if_it_is_over_soon(name: str):
    store, wired = await shop()
    read, cells, at_once = READS[name]
    store.threads.clear()
    assert len(await read(wired.services.tables)) == cells
    assert (store.threads == {threading.get_ident()}) is at_once


async def test_a_read_of_large_values_goes_on_on_a_thread_and_is_whole(monkeypatch: pytest.MonkeyPatch):
    store, wired = await shop()
    monkeypatch.setattr("basalt.tables.tables.SHORT_BYTES_MAX", 2)
    store.threads.clear()
    found = await wired.services.tables.read(STOCK, [b"desk"], [b"0001", b"0002", b"0003", b"none"])
    assert [(cell.column, cell.value) for cell in found] == [(b"%04d" % n, b"x") for n in (1, 2, 3)]
    assert store.threads - {threading.get_ident()}, "the loop had not the time"


async def test_a_scan_runs_on_a_thread():
    store, wired = await shop()
    store.threads.clear()
    assert len((await wired.services.tables.scan(STOCK)).cells) == MANY + 1
    assert threading.get_ident() not in store.threads


async def test_a_large_row_is_looked_through_on_a_thread_before_it_is_deleted():
    store, wired = await shop()
    tx = await wired.transactions.begin()
    await wired.services.tables.write(STOCK, tx.id, CellWrites(delete_rows=[b"desk"]))
    assert len(store.threads) == 2
    assert await wired.services.tables.read(STOCK, [b"desk"], transaction_id=tx.id) == []


async def test_long_looks_leave_threads_to_others_and_the_loop_goes_on():
    looks = CellReads(MemoryStore())
    keys = TableKeys(table_prefix(*STOCK), 1, 16)
    under_way, most = 0, 0
    lock, go_on = threading.Lock(), threading.Event()

    def cell_read(_: object) -> list[Row]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        assert go_on.wait(60)
        with lock:
            under_way -= 1
        return []

    waiting = [asyncio.ensure_future(looks(keys, cell_read, short=False)) for _ in range(3 * LONG_LOOKS_MAX)]
    while under_way < LONG_LOOKS_MAX:
        await asyncio.sleep(0.001)
    go_on.set()
    await asyncio.gather(*waiting)
    assert most == LONG_LOOKS_MAX
