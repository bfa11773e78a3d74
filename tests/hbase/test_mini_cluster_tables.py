"""Transactional tables on a cluster, with nothing written by hand: open readers keep what they see through compactions,
and failed writers are pruned once no version of theirs is left, whatever becomes of the regions meanwhile.

Basalt's clock begins two hours ago, so that the failed writer's life and the hour for clocks are over within the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from py4j.protocol import Py4JJavaError

from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import TableName
from basalt.settings import HBaseSettings, Settings, TransactionSettings
from basalt.tables.tables import CellWrites
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.cells.keys import CellKey, TableKeys
from basalt_engine.clock import ManualClock
from basalt_engine.keys import table_prefix
from basalt_engine.stores.hbase.regions import RegionSnapshot
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.table import TABLE_NAMES
from tests.hbase.bare_installation import HOUR_MS, SECOND_MS, BareInstallation, now_ms
from tests.hbase.mini_cluster import MiniCluster, wait_until
from tests.hbase.test_mini_cluster_pruning import TABLES, pruned
from tests.wiring import Wired

pytestmark = [pytest.mark.anyio, pytest.mark.hbase, pytest.mark.slow]

PREFIX = "tables"
LIFETIME_MS = 60 * SECOND_MS
STOCK = TableName("shop", "stock")
KEYS = TableKeys(table_prefix("shop", "stock"), 1, HBaseSettings().buckets)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Shop:
    """A server over the cluster, and the table `stock`."""

    def __init__(self, installation: BareInstallation, wired: Wired) -> None:
        self.installation = installation
        self.wired = wired
        self.transactions = wired.transactions
        self._tables = wired.services.tables

    async def write(self, tx: Transaction, delete: tuple[str, ...] = (), **cells: str) -> None:
        puts = [CellPut(row.encode(), b"n", value.encode()) for row, value in cells.items()]
        await self._tables.write(STOCK, tx.id, CellWrites(puts, [(row.encode(), b"n") for row in delete]))

    async def committed(self, delete: tuple[str, ...] = (), **cells: str) -> None:
        """In a transaction of its own."""
        tx = await self.transactions.begin()
        await self.write(tx, delete, **cells)
        await self.transactions.commit(tx.id)

    async def read(self, tx: Transaction | None = None) -> dict[str, str]:
        """All cells, as the transaction sees them, or as they are."""
        page = await self._tables.scan(STOCK, transaction_id=None if tx is None else tx.id)
        return {cell.row.decode(): (cell.value or b"").decode() for cell in page.cells}

    async def publish(self) -> RegionSnapshot:
        """Tell the region servers where transactions stand, and wait until they know."""
        publisher = self.wired.services.pruner.publisher
        assert publisher is not None
        snapshot = await publisher.publish()
        assert snapshot is not None
        await asyncio.to_thread(self.installation.wait_until_known, snapshot, TABLES)
        return snapshot

    async def flush(self) -> None:
        await asyncio.to_thread(self.installation.flush, "cell")

    async def compact(self, *, major: bool) -> None:
        await asyncio.to_thread(self.installation.compact, "cell", major=major)

    def versions(self) -> list[str]:
        """The versions that lie in files: row and value, the newest first; None for a tombstone."""
        found = sorted(self.installation.stored("cell").items())
        return [f"{CellKey.decode(key).row.decode()}={columns[b'c'][1:].decode()}" for key, columns in found]


@pytest.fixture
async def shop(mini_cluster: MiniCluster) -> AsyncIterator[Shop]:
    short = TransactionSettings(
        timeout_ms_default=10 * SECOND_MS, timeout_ms_max=20 * SECOND_MS, long_timeout_ms=30 * SECOND_MS,
        lifetime_ms_max=LIFETIME_MS,
    )  # fmt: skip
    with BareInstallation(mini_cluster, PREFIX, tables=TABLE_NAMES) as installation:
        store = await asyncio.to_thread(HBaseStore.open, mini_cluster.thrift2, PREFIX)
        clock = ManualClock(now_ms() - 2 * HOUR_MS)
        wired = await Wired.start(store, clock, settings=Settings(transactions=short))
        await wired.services.tables.catalog.create(STOCK)
        yield Shop(installation, wired)
        await wired.services.close()
    assert mini_cluster.aborted() == []


async def test_an_open_reader_goes_on_seeing_what_it_saw_through_a_major_compaction(shop: Shop) -> None:
    await shop.committed(bolts="7", nuts="5")
    reader = await shop.transactions.begin()
    seen = {"bolts": "7", "nuts": "5"}
    assert await shop.read(reader) == seen
    await shop.committed(bolts="8")
    await shop.committed(delete=("nuts",), bolts="9")
    await shop.flush()
    snapshot = await shop.publish()
    assert snapshot.visibility_upper_bound < reader.write_pointer
    await shop.compact(major=True)
    assert await shop.read(reader) == seen
    assert await shop.read() == {"bolts": "9"}
    assert shop.versions() == ["bolts=9", "bolts=8", "bolts=7", "nuts=", "nuts=5"]

    await shop.transactions.commit(reader.id)
    await shop.publish()
    await shop.compact(major=True)
    assert shop.versions() == ["bolts=9", "nuts="], "nobody needs more, and the tombstone is young"
    assert await shop.read() == {"bolts": "9"}


async def test_a_failed_writer_of_cells_is_forgotten_once_no_version_of_it_is_left(shop: Shop) -> None:
    await shop.committed(bolts="7", nuts="5")
    failed = await shop.transactions.begin()
    await shop.write(failed, delete=("nuts",), bolts="0", screws="1")
    await shop.flush()
    await shop.transactions.abort(failed.id)
    assert len(shop.transactions.state.invalid) == 1, "cells are never undone one by one"
    assert await shop.read() == {"bolts": "7", "nuts": "5"}
    await shop.publish()
    assert await pruned(shop.installation, shop.wired) == ()  # it might still write

    shop.wired.clock.step(now_ms())
    await shop.publish()
    assert await pruned(shop.installation, shop.wired) == ()  # a file has its versions
    assert len(shop.versions()) == 5

    cluster, table = shop.installation.cluster, shop.installation.table("cell")
    key = KEYS.row_start(b"nuts")
    region = next(each for each in cluster.regions(table) if each.start <= key < (each.stop or b"\xff"))
    cluster.split(table, region, key)
    await asyncio.to_thread(wait_until, lambda: len(cluster.regions(table)) == 3, "the region is split")
    cluster.move(cluster.regions(table)[-1])
    assert await pruned(shop.installation, shop.wired) == ()  # the daughters' references have them still
    assert await shop.read() == {"bolts": "7", "nuts": "5"}

    await shop.committed(bolts="8")
    await shop.flush()
    await shop.publish()
    await shop.compact(major=True)
    assert shop.versions() == ["bolts=8", "nuts=5"]
    assert await pruned(shop.installation, shop.wired) == (failed.id,)
    assert len(shop.transactions.state.invalid) == 0
    assert await shop.read() == {"bolts": "8", "nuts": "5"}

    late = KEYS.cell_key(b"bolts", b"n", failed.id)
    with pytest.raises(Py4JJavaError, match="basalt refused"):
        shop.installation.write({late: {b"c": b"\1" + b"0"}}, "cell")


async def test_versions_of_a_failed_writer_are_left_out_when_they_are_flushed(shop: Shop) -> None:
    failed = await shop.transactions.begin()
    await shop.write(failed, bolts="0")
    await shop.transactions.invalidate(failed.id)
    await shop.committed(bolts="7")
    await shop.publish()
    await shop.flush()
    assert shop.versions() == ["bolts=7"]
    shop.wired.clock.step(now_ms())
    await shop.publish()
    assert await pruned(shop.installation, shop.wired) == (failed.id,)
