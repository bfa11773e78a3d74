"""A table over a memory store, and the shortest words for what the tests do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import TableCatalog, TableName, table_name
from basalt.tables.garbage_cells import CellActivity
from basalt.tables.tables import CellWrites, Tables
from basalt.transactions.open_pointers import OpenPointers
from basalt.transactions.protocol import Close, End, Told
from basalt.transactions.rules.transaction import Transaction, VisibilityLevel
from basalt_engine.stores.memory import MemoryStore
from tests.control.transactions.following import Member, World, following
from tests.wiring import Wired

STOCK = table_name("shop", "stock")


class Shop:
    """Services with one table, on a loop of its own; cells are written `{"chair/count": "5"}`."""

    def __init__(self, runner: asyncio.Runner, wired: Wired) -> None:
        self.runner = runner
        self.wired = wired
        self.tables = wired.services.tables
        self.catalog = wired.services.tables.catalog

    def run(self, work):
        async def main():
            return await work

        return self.runner.run(main())

    def begin(self, **how) -> Transaction:
        return self.run(self.wired.transactions.begin(**how))

    def commit(self, tx: Transaction):
        return self.run(self.wired.transactions.commit(tx.id))

    def put(self, tx: Transaction, cells: dict[str, str], title: TableName = STOCK, **how) -> None:
        self.run(
            self.tables.write(
                title, tx.id, CellWrites([CellPut(*place(at), v.encode()) for at, v in cells.items()]), **how
            )
        )

    def delete(self, tx: Transaction, *cells: str) -> None:
        self.run(self.tables.write(STOCK, tx.id, CellWrites(deletes=[place(at) for at in cells])))

    def delete_rows(self, tx: Transaction, *rows: str) -> None:
        self.run(self.tables.write(STOCK, tx.id, CellWrites(delete_rows=[row.encode() for row in rows])))

    def committed(self, cells: dict[str, str]) -> Transaction:
        """Written by a transaction of its own."""
        tx = self.begin()
        self.put(tx, cells)
        self.commit(tx)
        return tx

    def get(
        self, *rows: str, tx: Transaction | None = None, level=VisibilityLevel.SNAPSHOT, columns=None
    ) -> dict[str, str]:
        found = self.run(
            self.tables.read(STOCK, [row.encode() for row in rows], columns, None if tx is None else tx.id, level)
        )
        return shown(found)

    def scan(
        self, tx: Transaction | None = None, title: TableName = STOCK, limit: int = 10_000, **bounds
    ) -> dict[str, str]:
        found, start = [], bounds.pop("start", b"")
        while start is not None:
            page = self.run(
                self.tables.scan(title, start, cells=limit, transaction_id=None if tx is None else tx.id, **bounds)
            )
            found += page.cells
            start = page.next
        return shown(found)


def place(text: str) -> tuple[bytes, bytes]:
    row, _, column = text.partition("/")
    return row.encode(), column.encode()


def shown(cells) -> dict[str, str]:
    return {
        f"{cell.row.decode()}/{cell.column.decode()}": "deleted" if cell.value is None else cell.value.decode()
        for cell in cells
    }


class MemberShop(Shop):
    """The same, where the table is a member's, which follows the log of the server that leads over a link."""

    def __init__(self, runner: asyncio.Runner, world: World, member: Member) -> None:
        super().__init__(runner, world.shop)
        self.world: AbstractAsyncContextManager[World]
        pointers = OpenPointers(member.manager)

        def hear(told: Sequence[Told]) -> None:
            for each in told:
                if isinstance(each, Close):
                    pointers.close(each.transaction_id)
                elif isinstance(each, End):
                    pointers.end(each.transaction.id)

        member.manager.tells(hear)
        self.catalog = TableCatalog(member.store, world.clock, self.tables.catalog.buckets)
        self.tables = Tables(member.store, self.catalog, member.manager, pointers, CellActivity())


@pytest.fixture(params=["one batch", "row by row", "at a member"])
def store(request) -> MemoryStore | None:
    return None if request.param == "at a member" else MemoryStore(atomic=request.param == "one batch")


@pytest.fixture
def shop(store) -> Iterator[Shop]:
    with asyncio.Runner() as runner:
        shop = runner.run(_at_member(runner)) if store is None else Shop(runner, runner.run(Wired.start(store)))
        shop.run(shop.catalog.create(STOCK))
        yield shop
        if isinstance(shop, MemberShop):
            shop.run(shop.world.__aexit__(None, None, None))
        else:
            shop.run(shop.wired.services.close())


async def _at_member(runner: asyncio.Runner) -> MemberShop:
    made = following()
    world = await made.__aenter__()
    shop = MemberShop(runner, world, await world.member())
    shop.world = made
    return shop
