"""The whole of pruning, with nothing written by hand: a transaction fails, regions drop its rows, the job forgets it.

Basalt's clock begins two hours ago, so that the failed writer's life and the hour for clocks are over within the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from py4j.protocol import Py4JJavaError

from basalt.settings import HBaseSettings, Settings, TransactionSettings
from basalt.settings.tree import MessagingSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.regions import RegionSnapshot
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.table import TABLE_NAMES
from tests.hbase.bare_installation import BUCKETS, HOUR_MS, SECOND_MS, BareInstallation, now_ms
from tests.hbase.mini_cluster import MiniCluster
from tests.wiring import A, Wired

pytestmark = [pytest.mark.anyio, pytest.mark.hbase, pytest.mark.slow]

PREFIX = "pruned"
LIFETIME_MS = 60 * SECOND_MS
TABLES = ("message", "payload", "cell")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def shop(mini_cluster: MiniCluster) -> AsyncIterator[tuple[BareInstallation, Wired]]:
    short = TransactionSettings(
        timeout_ms_default=10 * SECOND_MS, timeout_ms_max=20 * SECOND_MS, long_timeout_ms=30 * SECOND_MS,
        lifetime_ms_max=LIFETIME_MS,
    )  # fmt: skip
    with BareInstallation(mini_cluster, PREFIX, tables=TABLE_NAMES) as installation:
        hbase = HBaseSettings(thrift=mini_cluster.thrift, thrift2=mini_cluster.thrift2, prefix=PREFIX, buckets=BUCKETS)
        settings = Settings(transactions=short, messaging=MessagingSettings(cache_bytes_max=0))
        settings = replace(settings, store=replace(settings.store, kind="hbase", hbase=hbase))
        store = await asyncio.to_thread(HBaseStore.open, mini_cluster.thrift2, PREFIX)
        wired = await Wired.start(store, ManualClock(now_ms() - 2 * HOUR_MS), settings=settings)
        await wired.topics.create(A, {})
        yield installation, wired
        await wired.services.close()
    assert mini_cluster.aborted() == []


async def publish(installation: BareInstallation, shop: Wired) -> RegionSnapshot:
    """Tell the region servers where transactions stand, and wait until they know."""
    publisher = shop.services.pruner.publisher
    assert publisher is not None
    snapshot = await publisher.publish()
    assert snapshot is not None
    await asyncio.to_thread(installation.wait_until_known, snapshot, TABLES)
    return snapshot


async def pruned(installation: BareInstallation, shop: Wired) -> tuple[int, ...]:
    """What the job forgets, going by reports of after this call."""
    await asyncio.to_thread(installation.wait_for_reports, TABLES)
    return (await shop.services.pruner.run()).pruned


async def test_a_failed_writer_is_forgotten_once_no_row_of_it_is_left_and_not_before(
    shop: tuple[BareInstallation, Wired],
) -> None:
    installation, basalt = shop
    tx = await basalt.transactions.begin()
    await basalt.publish(A, "kept")
    await basalt.publish(A, "gone", tx=tx)
    await asyncio.to_thread(installation.flush)
    (row,) = [key for key, columns in installation.stored().items() if b"t" in columns]
    assert await basalt.transactions.invalidate(tx.id)
    await publish(installation, basalt)
    assert await pruned(installation, basalt) == ()  # it might still write

    basalt.clock.step(now_ms())
    await publish(installation, basalt)
    assert await pruned(installation, basalt) == ()  # a file holds it
    assert row in installation.stored()

    await basalt.publish(A, "next")
    await asyncio.to_thread(installation.flush)
    await asyncio.to_thread(installation.compact, major=False)
    assert row not in installation.stored()
    assert await pruned(installation, basalt) == (tx.id,)
    assert len(basalt.transactions.state.invalid) == 0
    assert await basalt.read(A) == await basalt.read(A, committed=True) == ["kept", "next"]

    with pytest.raises(Py4JJavaError, match="basalt refused"):
        installation.write({row: {b"p": b"late", b"t": tx.id.to_bytes(8, "big")}})
