"""Whatever happened to a transactional table, and wherever a crash cuts the sweep short: no reader can tell that there was one.

What each reader must get is said by a dictionary of all versions ever written, which nothing is ever removed from.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import table_name
from basalt.errors import TransactionEndedError
from basalt.retention import cells as sweeping
from basalt.settings import Settings, TransactionSettings
from basalt.tables import garbage_cells
from basalt.tables.tables import CellWrites
from basalt.transactions.rules.transaction import Kind
from basalt_engine.cells.keys import CellKey
from basalt_engine.cells.table import CellTable
from basalt_engine.clock import ManualClock
from basalt_engine.snapshot import TransactionSnapshot
from tests.control.retention.crashing_store import CrashingStore
from tests.control.retention.readers import LIFETIME_MS
from tests.wiring import Wired

STOCK = table_name("shop", "stock")
Cell = tuple[bytes, bytes]
Seen = dict[Cell, bytes]

CELLS = st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([b"c", b"c\0"]))
NUMBERS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("begin"), st.sampled_from([Kind.SHORT, Kind.SHORT, Kind.LONG])),
    st.tuples(st.just("write"), NUMBERS, CELLS, st.none() | st.sampled_from([b"", b"1", b"2"])),
    st.tuples(st.just("write"), NUMBERS, CELLS, st.none() | st.sampled_from([b"", b"1", b"2"])),
    st.tuples(st.just("commit"), NUMBERS),
    st.tuples(st.just("one write"), CELLS, st.none() | st.sampled_from([b"3", b"4"])),
    st.tuples(st.just("abort"), NUMBERS),
    st.tuples(st.just("invalidate"), NUMBERS),
    st.tuples(st.just("checkpoint"), NUMBERS),
    st.tuples(st.just("hold")),
    st.tuples(st.just("release")),
    st.tuples(st.just("wait")),
    st.tuples(st.just("prune")),
    st.tuples(st.just("recreate")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("sweep"), st.integers(1, 4), st.integers(1, 12)),
    st.tuples(st.just("crash"), st.integers(1, 4), st.integers(0, 8)),
)


class Stock:
    """One table, the transactions that are open, the snapshots that somebody reads under, and all that was ever written."""

    def __init__(self, wired: Wired, store: CrashingStore, given: Settings) -> None:
        self.wired = wired
        self.store = store
        self.given = given
        self.versions: dict[Cell, dict[int, bytes | None]] = {}
        self.failed: set[int] = set()
        self.open: list[int] = []
        self.held: list[TransactionSnapshot] = []
        self.holding = ExitStack()

    @classmethod
    async def made(cls, atomic: bool) -> Stock:
        given = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS))
        store = CrashingStore(atomic)
        stock = cls(await Wired.start(store, settings=given), store, given)
        await stock.wired.services.tables.catalog.create(STOCK)
        return stock

    async def do(self, what: str, *details: Any) -> None:
        number = details[0] if details else None
        if what == "begin":
            assert isinstance(number, Kind)
            self.open.append((await self.wired.transactions.begin(number)).id)
        elif what == "one write":
            self.open.append((await self.wired.transactions.begin()).id)
            await self.write(self.open[-1], *details)
            await self.wired.transactions.commit(self.open.pop())
        elif what in ("write", "commit", "abort", "invalidate", "checkpoint"):
            if isinstance(number, int) and number < len(self.open):
                await self.move(what, self.open[number], *details[1:])
        elif what == "hold":
            snapshot = self.wired.transactions.manager.current()
            self.holding.enter_context(self.wired.transactions.manager.reading(snapshot))
            self.held.append(snapshot)
        elif what == "release":
            self.release()
        elif what == "sweep":
            await self.sweep(*details)
        elif what == "crash":
            await self.crash(*details)
        else:
            await getattr(self, what)()

    async def move(self, what: str, transaction: int, *details: Any) -> None:
        try:
            if what == "write":
                await self.write(transaction, *details)
                return
            await getattr(self.wired.transactions, what)(transaction)
        except TransactionEndedError:
            self.open.remove(transaction)
            return
        if what != "checkpoint":
            self.open.remove(transaction)

    async def write(self, transaction: int, cell: Cell, value: bytes | None) -> None:
        row, column = cell
        put = CellWrites(deletes=[cell]) if value is None else CellWrites(puts=[CellPut(row, column, value)])
        pointer = self.wired.transactions.state.get(transaction).write_pointer
        await self.wired.services.tables.write(STOCK, transaction, put)
        self.versions.setdefault(cell, {})[pointer] = value

    def release(self) -> None:
        self.holding.close()
        self.held = []

    async def wait(self) -> None:
        assert isinstance(self.wired.clock, ManualClock)
        self.wired.clock.advance(31_000)
        await self.wired.transactions.expire()
        self.open = [pointer for pointer in self.open if self.wired.transactions.state.find(pointer)]

    async def prune(self) -> None:
        assert isinstance(self.wired.clock, ManualClock)
        self.wired.clock.advance(3 * LIFETIME_MS)
        await self.wait()
        await self.wired.services.pruner.run()

    async def recreate(self) -> None:
        await self.wired.services.tables.catalog.delete(STOCK)
        await self.wired.services.tables.catalog.create(STOCK)
        self.versions = {}

    async def restart(self) -> None:
        self.release()
        self.store.mutations_left = None
        self.wired = await Wired.start(self.store, self.wired.clock, settings=self.given)

    async def sweep(self, page: object, rows: object) -> None:
        with patch.object(sweeping, "PAGE_ROWS", page), patch.object(sweeping, "ROWS_MAX", rows):
            run = await self.wired.services.scheduler.run_now("retention")
        assert run.outcome == "ok", run

    async def crash(self, page: object, mutations: object) -> None:
        assert isinstance(mutations, int)
        self.store.mutations_left = mutations
        with patch.object(sweeping, "PAGE_ROWS", page):
            await self.wired.services.scheduler.run_now("retention")
        await self.restart()

    def expected(self, snapshot: TransactionSnapshot) -> Seen:
        found = {}
        for cell, versions in self.versions.items():
            # One that was pruned is on no list any more, and yet nobody may see what it wrote.
            seen = [pointer for pointer in versions if snapshot.is_visible(pointer) and pointer not in self.failed]
            value = versions[max(seen)] if seen else None
            if value is not None:
                found[cell] = value
        return found

    async def check(self) -> None:
        """Every reader that there is gets what it must."""
        self.failed.update(self.wired.transactions.state.invalid.pointers)
        transactions, tables = self.wired.transactions, self.wired.services.tables
        found = (await tables.scan(STOCK)).cells
        assert {version[:2]: version.value for version in found} == self.expected(transactions.manager.current())
        for pointer in self.open:
            found = (await tables.scan(STOCK, transaction_id=pointer)).cells
            expected = self.expected(transactions.state.get(pointer).snapshot())
            assert {version[:2]: version.value for version in found} == expected
        keys = (await tables.catalog.get(STOCK)).keys
        for snapshot in self.held:
            found = CellTable(self.store.table("cell")).scan(keys, snapshot).cells
            assert {version[:2]: version.value for version in found} == self.expected(snapshot)

    async def settle(self) -> None:
        """End everything; then nothing is left but what somebody may get."""
        self.release()
        for pointer in self.open:
            await self.wired.transactions.abort(pointer)
        self.open = []
        for _ in range(2):
            await self.sweep(1_000, 1_000_000)
        await self.check()
        keys = [CellKey.decode(row.key) for row in self.store.table("cell").scan(b"", None)]
        assert [(key.row, key.column) for key in keys] == sorted(
            self.expected(self.wired.transactions.manager.current())
        )
        assert list(garbage_cells.notes(self.wired.services.system)) == []
        await self.prune()
        assert len(self.wired.transactions.state.invalid) == 0
        await self.check()


@pytest.mark.parametrize("atomic", [True, False])
def test_no_reader_can_tell_that_the_sweep_has_run(atomic: bool) -> None:
    @settings(deadline=None, max_examples=75)
    @given(st.lists(STEPS, max_size=30))
    def check(steps: list[tuple[object, ...]]) -> None:
        async def story() -> None:
            stock = await Stock.made(atomic)
            for what, *details in steps:
                assert isinstance(what, str)
                await stock.do(what, *details)
                await stock.check()
            await stock.settle()

        asyncio.run(story())

    check()
