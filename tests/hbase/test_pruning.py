"""Pruning over a real HBase's regions, with reports written by hand: what hbase:meta lists, and a compaction that is asked for.

That the coprocessor's own reports are right is shown on the mini-cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from basalt.pruning.rule import Cause
from basalt.settings import HBaseSettings, Settings, TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.errors import StoreError
from basalt_engine.stores.hbase.regions import (
    EMPTY_MEMSTORE,
    REPORT_KIND,
    UNKNOWN_ORIGIN,
    Region,
    RegionReport,
    StoreFile,
)
from basalt_engine.stores.hbase.store import HBaseCluster
from deploy.hbase.standalone import Gateways
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, failed_writer
from tests.hbase.tables import BUCKETS, Tables
from tests.region_reports import encode_report
from tests.wiring import A, Wired

pytestmark = [pytest.mark.anyio, pytest.mark.hbase]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def shop(hbase_gateways: Gateways, hbase_tables: Tables) -> AsyncIterator[Wired]:
    """Services over HBase, which list its regions."""
    settings = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS))
    hbase = HBaseSettings(
        thrift=hbase_gateways.thrift, thrift2=hbase_gateways.thrift2, prefix=hbase_tables.prefix, prune_compactions=1
    )
    settings = replace(settings, store=replace(settings.store, kind="hbase", hbase=hbase))
    wired = await Wired.start(hbase_tables.emptied(), ManualClock(), settings=settings)
    await wired.topics.create(A, {})
    yield wired
    await wired.services.close()


async def report_all(wired: Wired, *files: StoreFile) -> list[str]:
    """Every region reports now; the first one of messages has these files. The regions' ids."""
    cluster = wired.services.pruner._cluster
    assert cluster is not None
    regions = await asyncio.to_thread(cluster.regions)
    now_ms = wired.clock.now_ms()
    for number, region in enumerate(regions):
        report = RegionReport(
            f"basalt.{region.table}", region.name, region.server, now_ms, EMPTY_MEMSTORE, 0, 1, now_ms,
            region.start, region.stop, files if number == 0 else (),
        )  # fmt: skip
        await asyncio.to_thread(wired.services.system.write, REPORT_KIND, region.id, encode_report(report))
    return [region.id for region in regions]


async def test_meta_lists_each_salts_region_with_its_server(shop: Wired):
    survey = await shop.services.pruner.survey()
    assert survey.regions is not None
    assert survey.certificate.fault is None
    regions = survey.regions.regions
    assert [region.table for region in regions] == [
        table for table in ("message", "payload", "cell") for _ in range(BUCKETS)
    ]
    for region in regions:
        assert len(region.server.split(",")) == 3
        assert region.id.encode() in region.name


async def test_a_writer_is_forgotten_by_what_the_regions_report(shop: Wired):
    await shop.services.pruner.publisher.publish()  # type: ignore[union-attr]
    writer = await failed_writer(shop)
    shop.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
    pruner = shop.services.pruner
    survey = await pruner.survey()
    assert survey.certificate.cause(writer) is Cause.REPORT
    held = StoreFile("f1", UNKNOWN_ORIGIN, writer, 1, 1)
    regions = await report_all(shop, held)
    assert [hold.file for hold in (await pruner.survey()).certificate.holds(writer)] == [held]
    asked = await pruner.run()
    assert (asked.pruned, asked.compactions) == ((), (regions[0],)), "the gateway took the wish for a compaction"
    await report_all(shop)
    assert (await pruner.run()).pruned == (writer,)
    published = await pruner.publisher.publish()  # type: ignore[union-attr]
    assert published is not None
    assert published.invalid == ()


async def test_the_published_snapshot_is_one_row_that_only_a_newer_one_replaces(shop: Wired):
    publisher = shop.services.pruner.publisher
    assert publisher is not None
    orders = [(await publisher.publish()).order for _ in range(3)]  # type: ignore[union-attr]
    assert orders == sorted(set(orders))


def test_a_region_that_is_not_there_is_not_compacted(hbase_gateways: Gateways):
    name = b"no.such.table,,1.0123456789abcdef0123456789abcdef."
    region = Region("message", "0123456789abcdef0123456789abcdef", name, b"", b"", "")
    with pytest.raises(StoreError):
        HBaseCluster(hbase_gateways.thrift2, "basalt", hbase_gateways.thrift).major_compact(region)
    with pytest.raises(StoreError, match="does not answer"):
        HBaseCluster(hbase_gateways.thrift2, "basalt", "127.0.0.1:1").major_compact(region)
    with pytest.raises(StoreError, match=r"store\.hbase\.thrift is not set"):
        HBaseCluster(hbase_gateways.thrift2, "basalt").major_compact(region)
