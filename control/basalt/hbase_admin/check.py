"""What a check says of an installation: pure rules over a `View`. Those about the coprocessor are in `region_rules`."""

from __future__ import annotations

from collections.abc import Iterator

from basalt.hbase_admin.finding import Finding, count, error, ok, seconds, some, warning
from basalt.hbase_admin.plan import FoundTable, buckets_conflict
from basalt.hbase_admin.region_rules import region_findings
from basalt.hbase_admin.view import Gateway, View
from basalt_engine.stores.hbase.tables import (
    FLUSH_INTERVAL,
    TableLayout,
    differences,
    layouts,
    missing_splits,
)
from basalt_engine.table import ADDED_LATER

LATENCY_MS_MAX = 100  # a publish waits for a few calls; a gateway on the same network answers in 1 to 5 ms
_MISSING = "`basalt hbase install` makes it"
_MISSING_NEW = "it is new with this version: `basalt hbase upgrade --jar PATH` makes it"
_START = {1: "`hbase thrift start`", 2: "`hbase thrift2 start`"}
_KIND = {1: "a first Thrift gateway", 2: "a second Thrift gateway"}


def findings(view: View) -> Iterator[Finding]:
    """Every line of the check, in the order in which an operator would ask."""
    yield from gateway_findings(view.gateways)
    if not all(gateway.usable for gateway in view.gateways if gateway.wanted_type == 2):
        return  # nothing else could be looked at
    for layout in layouts(view.prefix, view.buckets):
        yield _table(layout, view.tables.get(layout.name), view)
    if not view.tables:
        return
    yield _facts(view)
    yield _leader(view)
    yield from region_findings(view)


def gateway_findings(gateways: tuple[Gateway, ...]) -> Iterator[Finding]:
    """Whether each gateway answers, is the right kind, and whether both are of one cluster."""
    for gateway in gateways:
        yield _gateway(gateway)
    clusters = {gateway.cluster for gateway in gateways if not gateway.fault}
    if len(clusters) > 1:
        yield error(
            "cluster",
            f"the gateways belong to different clusters: {some(clusters)}",
            "point store.hbase.thrift and store.hbase.thrift2 at one cluster",
        )
    elif clusters:
        yield ok("cluster", clusters.pop())


def _gateway(gateway: Gateway) -> Finding:
    start = _START[gateway.wanted_type]
    if gateway.fault and gateway.wanted_type == 1:
        # All else goes through the second gateway.
        return warning(gateway.setting, gateway.fault, f"pruning asks it for major compactions: {start}")
    if gateway.fault:
        return error(gateway.setting, gateway.fault, f"start it with {start}, or set {gateway.setting}")
    if gateway.server_type != gateway.wanted_type:
        told = f"{gateway.address} is {_KIND.get(gateway.server_type, 'another server')}"
        return error(gateway.setting, told, f"name one that was started with {start}")
    told = f"{gateway.address} answers in {gateway.latency_ms:.3g} ms"
    if gateway.latency_ms > LATENCY_MS_MAX:
        return warning(
            gateway.setting, told, "put gateways near Basalt, and see whether HBase's master and meta are well"
        )
    return ok(gateway.setting, told)


def _table(layout: TableLayout, present: FoundTable | None, view: View) -> Finding:
    name = f"table {layout.name}"
    if present is None:
        return error(name, "is missing", _MISSING_NEW if layout.table in ADDED_LATER and view.facts else _MISSING)
    told = differences(layout, present.descriptor)
    if told:
        return error(name, "; ".join(told), "another program's table? choose another store.hbase.prefix")
    if not present.enabled:
        return error(name, "is disabled", "`basalt hbase install` enables it; find out who disabled it")
    regions = view.regions.get(layout.name, [])
    closed = [f"{region.name} is {region.state or 'unassigned'}" for region in regions if region.state != "OPEN"]
    if closed:
        return error(
            name, some(closed), "see HBase's master: are region servers down, or is it splitting or moving them?"
        )
    interval = present.descriptor.attributes.get(FLUSH_INTERVAL, "")
    if not interval.isdecimal():
        hint = "`basalt hbase install` sets it; without it HBase flushes once an hour, and pruning waits for that"
        return warning(name, f"has no flush interval of its own ({FLUSH_INTERVAL})", hint)
    merged = missing_splits(layout, present.starts)
    if merged:
        hint = "regions were merged over salt buckets: split them there, or let the load stay on fewer servers"
        return warning(name, f"no region begins at salt {some(split.hex() for split in merged)}", hint)
    servers = len({region.server for region in regions})
    return ok(
        name, f"{count(len(regions), 'region')} on {count(servers, 'server')}, flushed every {seconds(int(interval))}"
    )


def _facts(view: View) -> Finding:
    if "install" in view.faults:
        return error(
            "installation", view.faults["install"], "restore the row install:facts; no server starts without it"
        )
    if view.facts is None:
        return warning("installation", "is not written down yet", "`basalt hbase install` or the first start does it")
    if view.facts.buckets != view.buckets:
        told = buckets_conflict(view.buckets, view.facts.buckets)
        return error("installation", told, f"set store.hbase.buckets to {view.facts.buckets}")
    return ok("installation", f"instance {view.facts.instance}, {view.facts.buckets} salt buckets")


def _leader(view: View) -> Finding:
    if "lease" in view.faults:
        return error("leader", view.faults["lease"], "no server can lead until the row lease:leader is restored")
    lease = view.lease
    if lease is None:
        return warning("leader", "no server has led yet", "start one: `basalt serve --set store.kind=hbase`")
    if lease.is_released:
        return warning("leader", f"none; the last one, of epoch {lease.epoch}, gave the lease up", "start a server")
    age_ms = view.now_ms - lease.expire_ms
    told = f"{lease.holder} at {lease.url}, epoch {lease.epoch}"
    if age_ms > lease.lease_ms:
        return warning(
            "leader", f"none since {seconds(age_ms)} ago: {told}", "start a server; see why that one is gone"
        )
    return ok("leader", told)
