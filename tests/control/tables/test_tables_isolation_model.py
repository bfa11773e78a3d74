"""Random transactions on one table against a naive model of snapshot isolation, through restarts, time-outs and clean-up.

The model keeps every version there ever was. A reader sees, of each cell, the version of the highest write pointer among
its own and those that had committed when it began.
"""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basalt.api.bodies.tables import CellPut
from basalt.tables.tables import CellWrites
from basalt.transactions.rules.transaction import State, VisibilityLevel
from basalt_engine.stores.memory import MemoryStore
from tests.control.tables.conftest import STOCK
from tests.wiring import Wired

ROWS = [b"a", b"a\0", b"a\0\x01", b"b"]
COLUMNS = [b"1", b"\0", b"1\0"]
rows, columns = st.sampled_from(ROWS), st.sampled_from(COLUMNS)
values = st.sampled_from([b"", b"x", b"y"])
numbers = st.integers(0, 3)  # which of the open transactions

Cell = tuple[bytes, bytes]


class Open:
    """A transaction as the model knows it."""

    def __init__(self, tx, visible: frozenset[int]) -> None:
        self.tx = tx
        self.visible = visible

    def sees(self) -> frozenset[int]:
        return self.visible | set(self.tx.pointers)


class Isolation(RuleBasedStateMachine):
    @initialize(atomic=st.booleans())
    def start(self, atomic: bool):
        self.runner = asyncio.Runner()
        self.wired = self.run(Wired.start(MemoryStore(atomic=atomic)))
        self.run(self.tables.catalog.create(STOCK))
        self.versions: dict[Cell, dict[int, bytes | None]] = {}
        self.committed: frozenset[int] = frozenset()
        self.open: list[Open] = []

    def teardown(self):
        if hasattr(self, "runner"):
            self.runner.close()

    def run(self, work):
        async def main():
            return await work

        return self.runner.run(main())

    @property
    def tables(self):
        return self.wired.services.tables

    def one(self, number: int) -> Open:
        return self.open[number % len(self.open)]

    def write(self, one: Open, writes: CellWrites, cells: dict[Cell, bytes | None]):
        self.run(self.tables.write(STOCK, one.tx.id, writes))
        for cell, value in cells.items():
            self.versions.setdefault(cell, {})[one.tx.write_pointer] = value

    def model(self, pointers: frozenset[int]) -> dict[Cell, bytes]:
        found = {}
        for cell, versions in sorted(self.versions.items()):
            seen = [pointer for pointer in versions if pointer in pointers]
            value = versions[max(seen)] if seen else None
            if value is not None:
                found[cell] = value
        return found

    @precondition(lambda self: len(self.open) < 4)
    @rule(timeout=st.sampled_from([1_000, 60_000]))
    def begin(self, timeout: int):
        self.open.append(Open(self.run(self.wired.transactions.begin(timeout_ms=timeout)), self.committed))

    @precondition(lambda self: self.open)
    @rule(number=numbers, row=rows, column=columns, value=values)
    def put(self, number: int, row: bytes, column: bytes, value: bytes):
        self.write(self.one(number), CellWrites([CellPut(row, column, value)]), {(row, column): value})

    @precondition(lambda self: self.open)
    @rule(number=numbers, row=rows, column=columns)
    def delete(self, number: int, row: bytes, column: bytes):
        self.write(self.one(number), CellWrites(deletes=[(row, column)]), {(row, column): None})

    @precondition(lambda self: self.open)
    @rule(number=numbers, row=rows)
    def delete_row(self, number: int, row: bytes):
        one = self.one(number)
        gone = [cell for cell in self.model(one.sees()) if cell[0] == row]
        self.write(one, CellWrites(delete_rows=[row]), dict.fromkeys(gone))

    @precondition(lambda self: self.open)
    @rule(number=numbers)
    def checkpoint(self, number: int):
        one = self.one(number)
        one.tx = self.run(self.wired.transactions.checkpoint(one.tx.id))

    @precondition(lambda self: self.open)
    @rule(number=numbers)
    def commit(self, number: int):
        one = self.one(number)
        assert self.run(self.wired.transactions.commit(one.tx.id)).state is State.COMMITTED
        self.committed |= set(one.tx.pointers)
        self.open.remove(one)

    @precondition(lambda self: self.open)
    @rule(number=numbers)
    def abort(self, number: int):
        one = self.one(number)
        self.run(self.wired.transactions.abort(one.tx.id))
        self.open.remove(one)

    @rule()
    def time_passes(self):
        self.wired.clock.advance(1_000)
        self.run(self.wired.transactions.expire())
        now_ms = self.wired.clock.now_ms()
        self.open = [one for one in self.open if one.tx.deadline_ms > now_ms]

    @rule()
    def clean_up(self):
        self.run(self.wired.services.scheduler.run_now("retention"))

    @rule()
    def restart(self):
        self.wired = self.run(self.wired.restarted())

    @precondition(lambda self: self.open)
    @rule(number=numbers, row=rows)
    def a_transaction_sees_its_snapshot_and_its_own(self, number: int, row: bytes):
        one = self.one(number)
        expected = {cell: value for cell, value in self.model(one.sees()).items() if cell[0] == row}
        assert self.read(row, one) == expected
        expected = self.model(one.sees() - {one.tx.write_pointer})
        level = VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT
        assert self.read(row, one, level) == {cell: value for cell, value in expected.items() if cell[0] == row}

    def read(self, row: bytes, one: Open, level=VisibilityLevel.SNAPSHOT) -> dict[Cell, bytes]:
        found = self.run(self.tables.read(STOCK, [row], None, one.tx.id, level))
        return {(cell.row, cell.column): cell.value for cell in found}

    @invariant()
    def everybody_scans_what_the_model_says(self):
        if not hasattr(self, "open"):
            return
        assert self.scan(None) == list(self.model(self.committed).items())
        for one in self.open:
            assert self.scan(one.tx.id) == list(self.model(one.sees()).items())

    def scan(self, transaction_id: int | None) -> list[tuple[Cell, bytes]]:
        found, start = [], b""
        while start is not None:
            page = self.run(self.tables.scan(STOCK, start, cells=2, transaction_id=transaction_id))
            found += [((cell.row, cell.column), cell.value) for cell in page.cells]
            start = page.next
        return found


TestIsolation = Isolation.TestCase
TestIsolation.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
