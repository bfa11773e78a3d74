"""Everything that a check looks at, read once: gateways, tables, regions, reports, snapshot, leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from basalt.cluster.lease import KIND as LEASE
from basalt.cluster.lease import NAME as LEADER
from basalt.cluster.lease import LeaseRecord
from basalt.cluster.lease import decode as decode_lease
from basalt.errors import BasaltError, CorruptionError
from basalt.hbase_admin.installer import Installer
from basalt.hbase_admin.plan import FoundTable
from basalt.hbase_admin.reports import Reports, read_reports
from basalt.hbase_admin.system_rows import SystemRows
from basalt.runtime.installation import KIND as INSTALL
from basalt.runtime.installation import NAME as FACTS
from basalt.runtime.installation import Facts, decode_facts
from basalt_engine.clock import Clock
from basalt_engine.regions.snapshot import KIND as SNAPSHOT
from basalt_engine.regions.snapshot import NAME as LATEST
from basalt_engine.regions.snapshot import RegionSnapshot
from basalt_engine.stores.hbase.thrift2 import Region, Thrift2

ANSWER_TIMEOUT_MS = 10_000  # a gateway whose cluster is well answers in milliseconds

_NO_REPORTS = Reports({}, ())
T = TypeVar("T")


class Gateway(NamedTuple):
    """What a Thrift gateway answered; `fault` when it did not."""

    setting: str
    address: str | None
    wanted_type: int
    server_type: int = 0
    cluster: str = ""
    latency_ms: float = 0.0
    fault: str = ""

    @property
    def usable(self) -> bool:
        """Whether it answered, and is what it should be."""
        return not self.fault and self.server_type == self.wanted_type


@dataclass(frozen=True, slots=True)
class View:
    """An installation as it was found at `now_ms`."""

    prefix: str
    buckets: int  # as the settings have it
    now_ms: int
    gateways: tuple[Gateway, ...]
    tables: Mapping[str, FoundTable] = field(default_factory=dict)
    regions: Mapping[str, list[Region]] = field(default_factory=dict)
    reports: Reports = _NO_REPORTS
    facts: Facts | None = None
    snapshot: RegionSnapshot | None = None
    lease: LeaseRecord | None = None
    faults: Mapping[str, str] = field(default_factory=dict)  # system entries that could not be read, by kind


def look_at_gateway(setting: str, address: str | None, wanted_type: int, clock: Clock) -> Gateway:
    """Ask a gateway what it is, and how long its second answer takes: the first one opens connections of its own."""
    bare = Gateway(setting, address, wanted_type)
    if address is None:
        return bare._replace(fault="is not set")
    try:
        with Thrift2(address, timeout_ms=ANSWER_TIMEOUT_MS) as gateway:
            server_type, cluster = gateway.server_type(), gateway.cluster_id()
            started_ms = clock.monotonic_ms()
            gateway.cluster_id()
            latency_ms = clock.monotonic_ms() - started_ms
    except BasaltError as error:
        return bare._replace(fault=error.message)
    return bare._replace(server_type=server_type, cluster=cluster, latency_ms=latency_ms)


def look(gateway: Thrift2, prefix: str, buckets: int, gateways: tuple[Gateway, ...], clock: Clock) -> View:
    """Read the installation of this prefix through a Thrift 2 gateway."""
    tables = Installer(gateway, prefix, clock).found()
    regions = {name: gateway.regions(name) for name in tables}
    rows = SystemRows(gateway, prefix)
    if rows.table not in tables or not tables[rows.table].enabled:
        return View(prefix, buckets, clock.now_ms(), gateways, tables, regions)
    faults: dict[str, str] = {}

    def entry(kind: str, name: str, decode: Callable[[bytes], T]) -> T | None:
        try:
            body = rows.get(kind, name)
            return None if body is None else decode(body)
        except CorruptionError as error:
            faults[kind] = error.message
            return None

    return View(
        prefix, buckets, clock.now_ms(), gateways, tables, regions,
        reports=read_reports(rows),
        facts=entry(INSTALL, FACTS, decode_facts),
        snapshot=entry(SNAPSHOT, LATEST, RegionSnapshot.decode),
        lease=entry(LEASE, LEADER, decode_lease),
        faults=faults,
    )  # fmt: skip
