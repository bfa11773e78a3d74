"""What region servers and a leading server would write into a pretended cluster."""

from __future__ import annotations

import itertools
from typing import Any

from basalt.cluster.lease import LEASE, LeaseRecord
from basalt_engine.clock import SystemClock
from basalt_engine.stores.hbase.regions import RegionReport, RegionSnapshot
from basalt_engine.system import entry_key, seal
from tests.control.hbase_admin.fake_gateway import FakeHBase
from tests.region_reports import encode_report

COUNTERS = {"jar.crc32c": 0xDEADBEEF, "jar.version": 1_002_003, "hbase.version": 2_006_001}
SNAPSHOT_AGE_MS = 2_000
_later = itertools.count()  # no two reports are of the same millisecond


def now_ms() -> int:
    return SystemClock().now_ms()


def write(cluster: FakeHBase, kind: str, name: str, body: bytes) -> None:
    cluster.put("shop.system", entry_key(kind, name), b"m:v", seal(body))


def report(cluster: FakeHBase, table: str, start: bytes, *, age_ms: int = 1_000, **changed: Any) -> None:
    """One region's report; `counters` are added to the usual ones, a counter of None is left out."""
    made_ms = now_ms() - age_ms + next(_later)
    name = cluster.region_name(table, start)
    counters = {**COUNTERS, "metadata.time_ms": made_ms - 500, **changed.pop("counters", {})}
    fields = {
        "server": cluster.tables[table].regions[start][1],
        "snapshot_epoch": 3,
        "snapshot_sequence": 7,
        "snapshot_time_ms": made_ms - SNAPSHOT_AGE_MS,
        **changed,
    }
    made = RegionReport(
        table=table, region_name=table.encode() + b"," + start, report_ms=made_ms, oldest_edit_ms=-1, start_key=start,
        stop_key=b"", counters={key: value for key, value in counters.items() if value is not None}, **fields,
    )  # fmt: skip
    write(cluster, "region", name, encode_report(made))


def report_all(cluster: FakeHBase, **changed: Any) -> None:
    """Every region of the tables whose rows the coprocessor may drop reports."""
    for table in ("shop.message", "shop.payload", "shop.cell"):
        for start in cluster.tables[table].regions:
            report(cluster, table, start, **dict(changed))


def snapshot(cluster: FakeHBase, *, age_ms: int = SNAPSHOT_AGE_MS) -> None:
    time_ms = now_ms() - age_ms
    body = RegionSnapshot(3, 7, time_ms, 90, 100, 100, 100, 90_000_000, (), (5, 9)).encode()
    write(cluster, "snapshot", "latest", body)


def lease(cluster: FakeHBase, *, expires_in_ms: int = 5_000, holder: str = "alpha") -> None:
    record = LeaseRecord(holder, "http://alpha:4780", 3, now_ms() + expires_in_ms, "i", 6_000)
    write(cluster, "lease", "leader", LEASE.encode(record))
