"""The prune audit on a real HBase, through Spark: after a real prune it passes; with a writer forgotten too early it ends with 1."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from basalt.pruning import state
from basalt.settings import Settings, TransactionSettings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, REPORT_KIND, RegionReport, RegionSnapshot
from basalt_engine.system import SystemTable
from basalt_engine.table import DeleteRange
from basalt_spark.jobs.audits import TABLES
from tests.control.cli.conftest import Run, run
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS
from tests.hbase.tables import BUCKETS, Tables
from tests.region_reports import encode_report
from tests.wiring import A, Wired

__all__ = ["run"]

pytestmark = [pytest.mark.hbase, pytest.mark.spark]


async def pruned(tables: Tables) -> tuple[int, int]:
    """Two writers fail. The rows of one are dropped, as compactions do it, and it is pruned; the other's stay."""
    settings = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS, long_timeout_ms=LIFETIME_MS))
    wired = await Wired.start(tables.emptied(), ManualClock(), settings=settings)
    try:
        await wired.topics.create(A, {})
        await wired.publish(A, "kept")
        publisher = wired.services.pruner.publisher
        assert publisher is not None
        await publisher.publish()
        gone = await failed(wired)
        await drop_rows(wired, gone)
        wired.clock.advance(LIFETIME_MS + SKEW_MS + 1_000)
        await report_all(wired)
        assert (await wired.services.pruner.run()).pruned == (gone,)
        left = await failed(wired)
        await publisher.publish()
        return gone, left
    finally:
        await wired.services.close()


async def failed(wired: Wired) -> int:
    tx = await wired.transactions.begin()
    await wired.publish(A, "lost", tx=tx)
    assert await wired.transactions.invalidate(tx.id)
    return int(tx.id)


async def drop_rows(wired: Wired, writer: int) -> None:
    def drop() -> None:
        table = wired.store.table("message")
        for row in list(table.scan(b"", None)):
            if row.columns.get(b"t") == writer.to_bytes(8, "big"):
                table.write([DeleteRange(row.key, row.key + b"\0")])

    await asyncio.to_thread(drop)


async def report_all(wired: Wired) -> None:
    """Every region says that no file of its holds anything undecided."""
    cluster = wired.services.pruner._cluster
    assert cluster is not None
    now_ms = wired.clock.now_ms()
    for region in await asyncio.to_thread(cluster.regions):
        report = RegionReport(
            f"basalt.{region.table}",
            region.name,
            region.server,
            now_ms,
            EMPTY_MEMSTORE,
            0,
            1,
            now_ms,
            region.start,
            region.stop,
        )
        await asyncio.to_thread(wired.services.system.write, REPORT_KIND, region.id, encode_report(report))


def audited(run: Run, tables: Tables) -> tuple[int, dict[str, Any], str]:
    ran = run("spark", "prune-audit", "--hbase", tables.address, "--prefix", tables.prefix, "-o", "json")
    return ran.code, json.loads(ran.out), ran.err


def test_the_audit_passes_after_a_prune_and_names_a_writer_that_was_forgotten_too_early(
    spark: Any, run: Run, hbase_tables: Tables
):
    gone, left = asyncio.run(pruned(hbase_tables))
    code, report, _ = audited(run, hbase_tables)
    assert (code, report["faults"]) == (0, [])
    assert (report["ranges"], report["forgotten"], report["invalid"]) == (len(TABLES) * BUCKETS, 1, 1)
    assert report["invalid_with_rows"] == 1

    checked = run(
        "spark", "invalid-check", "--hbase", hbase_tables.address, "--prefix", hbase_tables.prefix, "-o", "json"
    )
    (line,) = json.loads(checked.out)["writers_checked"]
    assert (line["writer"], line["message_rows"]) == (left, 1)

    store = hbase_tables.open()
    try:
        system = SystemTable(store.table(SystemTable.name))
        state.archive(system, 1, [left])
        code, report, _ = audited(run, hbase_tables)
        assert (code, report["faults"]) == (0, []), "it is forgotten and on the list again, as after a restore"
        body = system.get("snapshot", "latest")
        assert body is not None
        system.write("snapshot", "latest", RegionSnapshot.decode(body)._replace(invalid=()).encode())
        code, report, _ = audited(run, hbase_tables)
    finally:
        store.close()
    assert code == 1
    (writer,) = report["writers"]
    assert (writer["writer"], writer["table"], writer["rows"]) == (left, "message", 1)
    assert f"writer {left} was forgotten too early" in report["faults"][0]
    assert gone != left
