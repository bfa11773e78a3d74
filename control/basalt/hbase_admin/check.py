"""The findings of `basalt hbase check`, and the view of an installation that they are made of.

`read_installation` reads an installation once, as an `InstallationView`: gateways, tables, regions, reports, snapshot, leader. `findings` are pure
rules over a view: each yields one line, with a level, what was found and what to do about it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

from basalt.cluster import owners
from basalt.cluster.lease import LEASE, LeaseRecord
from basalt.errors import BasaltError, CorruptionError
from basalt.hbase_admin.gateway import (
    Reports,
    SystemRows,
    read_reports,
)
from basalt.hbase_admin.install import Installation
from basalt.hbase_admin.plan import FoundTable, buckets_conflict, count
from basalt_engine.clock import Clock
from basalt_engine.stores.hbase.kerberos import KerberosLogin
from basalt_engine.stores.hbase.regions import (
    HBASE_VERSION,
    METADATA_TIME_MS,
    NO_SNAPSHOT,
    SNAPSHOT_KIND,
    SNAPSHOT_NAME,
    UNTOLD,
    Region,
    RegionReport,
    RegionSnapshot,
    version_text,
)
from basalt_engine.stores.hbase.tables import (
    FLUSH_INTERVAL,
    REPORT_INTERVAL,
    SALTED,
    Coprocessor,
    CoprocessorJar,
    TableLayout,
    differences,
    layouts,
    missing_splits,
    own_coprocessor,
    table_name,
)
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.system import FACTS, InstallationFacts

Level = Literal["ok", "warning", "error"]

NAMES_SHOWN_MAX = 3  # a cluster may have thousands of regions; the first few show where to look
ANSWER_TIMEOUT_MS = 10_000  # a gateway whose cluster is well answers in milliseconds
LATENCY_TRIES = 3  # answers that are timed
LATENCY_MS_MAX = 100  # a publish waits for a few calls; a gateway on the same network answers in 1 to 5 ms
REPORT_INTERVAL_MS_DEFAULT = 30_000  # the coprocessor's own
REPORTS_MISSED_MAX = 10  # a region in the middle of a flush or a move does not report; none takes so long
SNAPSHOT_AGE_MS_MAX = 180_000  # a leader writes one at least every minute
METADATA_AGE_MS_MAX = 180_000  # region servers read the topics every ten seconds
CLOCK_SKEW_MS_OK = 60_000
CLOCK_SKEW_MS_MAX = 30 * 60_000  # retention and pruning allow for an hour between any two clocks
HBASE_VERSION_MIN = 2_005_000
# Counters of a coprocessor that stand for a bug or damaged rows, and not for a network that was away for a while.
FAULTS = ("hookFailures", "rowsUnreadable")
_UPGRADE = "`basalt hbase upgrade --jar PATH` puts one jar on all tables"
_MISSING = "`basalt hbase install` makes it"
_START = {1: "`hbase thrift start`", 2: "`hbase thrift2 start`"}
_KIND = {1: "a first Thrift gateway", 2: "a second Thrift gateway"}
_NO_REPORTS = Reports({}, ())

T = TypeVar("T")


class CheckFinding(NamedTuple):
    """A warning is for what works, but not as it should; an error for what does not, or soon will not."""

    name: str
    level: Level
    detail: str
    hint: str = ""


def ok(name: str, detail: str) -> CheckFinding:
    return CheckFinding(name, "ok", detail)


def warning(name: str, detail: str, hint: str) -> CheckFinding:
    return CheckFinding(name, "warning", detail, hint)


def error(name: str, detail: str, hint: str) -> CheckFinding:
    return CheckFinding(name, "error", detail, hint)


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = sorted(names)
    more = len(listed) - NAMES_SHOWN_MAX
    return ", ".join(listed[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def seconds(duration_ms: float) -> str:
    """A duration for a sentence: 4 s, 3 min, 2 h."""
    for unit, size in (("h", 3_600_000), ("min", 60_000)):
        if abs(duration_ms) >= 2 * size:
            return f"{duration_ms / size:.0f} {unit}"
    return f"{duration_ms / 1_000:.3g} s"


class CheckedGateway(NamedTuple):
    """The answers of a Thrift gateway; `fault` when it gave none."""

    setting: str
    address: str | None
    wanted_type: int
    server_type: int = 0
    cluster: str = ""
    latency_ms: float = 0.0
    fault: str = ""

    @property
    def usable(self) -> bool:
        """True when it answered, and is of the right kind."""
        return not self.fault and self.server_type == self.wanted_type


@dataclass(frozen=True, slots=True)
class InstallationView:
    """An installation as it was found at `now_ms`."""

    prefix: str
    buckets: int  # as the settings have it
    now_ms: int
    gateways: tuple[CheckedGateway, ...]
    tables: Mapping[str, FoundTable] = field(default_factory=dict)
    regions: Mapping[str, list[Region]] = field(default_factory=dict)
    reports: Reports = _NO_REPORTS
    facts: InstallationFacts | None = None
    snapshot: RegionSnapshot | None = None
    lease: LeaseRecord | None = None
    owners: owners.OwnersMap | None = None
    faults: Mapping[str, str] = field(default_factory=dict)  # system entries that could not be read, by kind


def look_at_gateway(
    setting: str, address: str | None, wanted_type: int, clock: Clock, login: KerberosLogin | None = None
) -> CheckedGateway:
    """Ask a gateway what it is, and how fast it answers at best: the first answer opens connections of its own, and of
    those that follow a busy machine holds up one or the other."""
    bare = CheckedGateway(setting, address, wanted_type)
    if address is None:
        return bare._replace(fault="is not set")
    try:
        with Thrift2(address, timeout_ms=ANSWER_TIMEOUT_MS, login=login) as gateway:
            server_type, cluster = gateway.server_type(), gateway.cluster_id()
            latency_ms = min(_answer_ms(gateway, clock) for _ in range(LATENCY_TRIES))
    except BasaltError as error:
        return bare._replace(fault=error.message)
    return bare._replace(server_type=server_type, cluster=cluster, latency_ms=latency_ms)


def _answer_ms(gateway: Thrift2, clock: Clock) -> float:
    started_ms = clock.monotonic_ms()
    gateway.cluster_id()
    return clock.monotonic_ms() - started_ms


def read_installation(gateway: Thrift2, before: InstallationView, clock: Clock) -> InstallationView:
    """The view with what there is of the installation, read through a Thrift 2 gateway."""
    tables = Installation(gateway, before.prefix, clock).existing_tables()
    regions = {name: gateway.regions(name) for name in tables}
    rows = SystemRows(gateway, before.prefix)
    view = replace(before, now_ms=clock.now_ms(), tables=tables, regions=regions)
    if rows.table not in tables or not tables[rows.table].enabled:
        return view
    faults: dict[str, str] = {}

    def entry(kind: str, name: str, decode: Callable[[bytes], T]) -> T | None:
        try:
            body = rows.get(kind, name)
            return None if body is None else decode(body)
        except CorruptionError as error:
            faults[kind] = error.message
            return None

    return replace(
        view,
        now_ms=clock.now_ms(),
        reports=read_reports(rows),
        facts=entry(FACTS.kind, FACTS.name, FACTS.decode),
        snapshot=entry(SNAPSHOT_KIND, SNAPSHOT_NAME, RegionSnapshot.decode),
        lease=entry(LEASE.kind, LEASE.name, LEASE.decode),
        owners=entry(owners.KIND, owners.NAME, owners.OwnersMap.decode),
        faults=faults,
    )


def findings(view: InstallationView) -> Iterator[CheckFinding]:
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
    if owners.KIND in view.faults:
        told = "restore the row owners:map; until then no server can lead, and regions that open let nobody write"
        yield error("owners", view.faults[owners.KIND], told)
    elif view.owners is not None:
        yield ok("owners", f"{count(len(view.owners.members), 'server')} of all shards, by map {view.owners.version}")
    yield from region_findings(view)


def gateway_findings(gateways: tuple[CheckedGateway, ...]) -> Iterator[CheckFinding]:
    """Check that each gateway answers and is of the right kind, and that both belong to one cluster."""
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


def _gateway(gateway: CheckedGateway) -> CheckFinding:
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


def _table(layout: TableLayout, present: FoundTable | None, view: InstallationView) -> CheckFinding:
    name = f"table {layout.name}"
    if present is None:
        return error(name, "is missing", _MISSING)
    told = differences(layout, present.descriptor)
    if told:
        return error(name, "; ".join(told), "another program's table? choose another store.hbase.prefix")
    if not present.enabled:
        return error(name, "is disabled", "`basalt hbase install` enables it; find out who disabled it")
    regions = view.regions.get(layout.name, [])
    closed = [f"{region.id} is {region.state or 'unassigned'}" for region in regions if region.state != "OPEN"]
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


def _facts(view: InstallationView) -> CheckFinding:
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


def _leader(view: InstallationView) -> CheckFinding:
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


def region_findings(view: InstallationView) -> Iterator[CheckFinding]:
    """The lines about coprocessor, reports and snapshot."""
    own = {name: own_coprocessor(table.descriptor.attributes) for name, table in view.tables.items()}
    set_there = {name: found[1] for name, found in own.items() if found is not None}
    yield _coprocessor(view, set_there)
    yield _snapshot(view)
    if not set_there:
        return
    regions = _reporting_regions(view, set_there)
    reports = {name: view.reports.by_region[name] for name in regions if name in view.reports.by_region}
    yield _reports(view, regions, reports, _interval_ms(set_there))
    if not reports:
        return
    yield _jar(reports)
    yield _hbase_version(reports)
    yield _clocks(view, reports)
    yield _snapshot_seen(view, reports)
    yield _metadata_seen(reports)
    yield _faults(reports)


def _coprocessor(view: InstallationView, set_there: Mapping[str, Coprocessor]) -> CheckFinding:
    name = "coprocessor"
    without = [table for table in view.tables if table not in set_there]
    if not set_there:
        hint = "`basalt hbase install --jar PATH` adds it; until then old rows stay and former leaders are not refused"
        return warning(name, "is set on no table", hint)
    if without:
        return error(name, f"is not set on {some(without)}", "`basalt hbase install --jar PATH` completes it")
    wrong = [
        f"{table} runs {found.class_name}"
        for table, found in set_there.items()
        if CoprocessorJar(found.jar).of(table.rpartition(".")[2]).class_name != found.class_name
    ]
    if wrong:
        return error(
            name, some(wrong), "`basalt hbase install --jar PATH` with the same path puts the right class there"
        )
    paths = {found.jar for found in set_there.values()}
    if len(paths) > 1:
        return error(name, f"tables run different jars: {some(paths)}", f"an upgrade was cut short; {_UPGRADE}")
    return ok(name, f"on all tables, from {paths.pop()}")


def _reporting_regions(view: InstallationView, set_there: Mapping[str, Coprocessor]) -> dict[str, Region]:
    """The regions that must report: those of tables whose rows the coprocessor may drop."""
    tables = [table_name(view.prefix, table) for table in sorted(SALTED)]
    return {region.id: region for table in tables if table in set_there for region in view.regions.get(table, [])}


def _interval_ms(set_there: Mapping[str, Coprocessor]) -> int:
    given = [dict(found.options).get(REPORT_INTERVAL, "") for found in set_there.values()]
    return max((int(text) for text in given if text.isdecimal()), default=REPORT_INTERVAL_MS_DEFAULT)


def _reports(
    view: InstallationView, regions: Mapping[str, Region], reports: Mapping[str, RegionReport], interval_ms: int
) -> CheckFinding:
    name = "reports"
    hint = "see the log of that region server for io.basalt.hbase; pruning waits for every region"
    unreadable = set(view.reports.damaged) & set(regions)
    if unreadable:
        return error(name, f"cannot be read: {some(unreadable)}", "is the coprocessor newer than this program?")
    if not reports:
        told = f"none of {count(len(regions), 'region')} has reported yet"
        return warning(name, told, f"after an install, wait {seconds(interval_ms)}; {hint}")
    missing = [f"{region.id} ({region.server})" for region in regions.values() if region.id not in reports]
    if missing:
        return error(name, f"{len(missing)} of {len(regions)} regions have not reported: {some(missing)}", hint)
    ages = {f"{region} ({report.server})": view.now_ms - report.report_ms for region, report in reports.items()}
    late = [f"{region} {seconds(age)} ago" for region, age in ages.items() if age > REPORTS_MISSED_MAX * interval_ms]
    if late:
        return error(name, f"{len(late)} of {len(regions)} regions stopped reporting: {some(late)}", hint)
    return ok(name, f"{count(len(regions), 'region')}, the oldest report {seconds(max(ages.values()))} old")


def _jar(reports: Mapping[str, RegionReport]) -> CheckFinding:
    servers: dict[int, set[str]] = defaultdict(set)
    versions: dict[int, int] = {}
    for report in reports.values():
        servers[report.jar_crc32c].add(report.server)
        versions[report.jar_crc32c] = report.jar_version
    if len(servers) > 1:
        told = "; ".join(f"{_jar_text(jar, versions[jar])} on {some(names)}" for jar, names in sorted(servers.items()))
        hint = "region servers keep a loaded jar under its path: put it there under a new name, then " + _UPGRADE
        return error("jar", f"region servers run different jars: {told}", hint)
    if UNTOLD in servers:
        return ok("jar", "on the class path of region servers, which do not tell its checksum")
    [(jar, version)] = versions.items()
    return ok("jar", f"{_jar_text(jar, version)} on every region server")


def _jar_text(jar: int, version: int) -> str:
    return f"version {version_text(version)}, " + ("no checksum" if jar == UNTOLD else f"CRC-32C {jar:08x}")


def _hbase_version(reports: Mapping[str, RegionReport]) -> CheckFinding:
    # No Thrift call tells a version, so this is the region servers' own word.
    found = {report.counters.get(HBASE_VERSION, UNTOLD) for report in reports.values()}
    told = some(version_text(number) for number in found)
    if UNTOLD in found:
        return warning("HBase", f"region servers do not tell their version ({told})", _UPGRADE)
    if min(found) < HBASE_VERSION_MIN:
        return error("HBase", told, f"Basalt needs {version_text(HBASE_VERSION_MIN)} or later")
    return ok("HBase", told)


def _clocks(view: InstallationView, reports: Mapping[str, RegionReport]) -> CheckFinding:
    """A report from the future shows a clock that is ahead; one that is behind looks like an old report."""
    ahead = {report.server: report.report_ms - view.now_ms for report in reports.values()}
    wrong = {server: skew for server, skew in ahead.items() if skew > CLOCK_SKEW_MS_OK}
    told = some(f"{server} {seconds(skew)} ahead" for server, skew in wrong.items())
    if any(skew > CLOCK_SKEW_MS_MAX for skew in wrong.values()):
        return error("clocks", told, "set the clocks by NTP at once; from one hour on, rows may be dropped early")
    if wrong:
        return warning("clocks", told, "set the clocks by NTP; up to an hour loses nothing")
    return ok("clocks", f"no region server is ahead by more than {seconds(CLOCK_SKEW_MS_OK)}")


def _snapshot(view: InstallationView) -> CheckFinding:
    name = "snapshot"
    hint = "is a server leading, and its job `snapshot` not paused? `basalt job list`; old invalid rows stay until then"
    if "snapshot" in view.faults:
        return error(name, view.faults["snapshot"], "region servers drop nothing by it; the leader's next one mends it")
    if view.snapshot is None:
        return warning(name, "none has been written", "the first server that leads writes one")
    age_ms = view.now_ms - view.snapshot.time_ms
    told = f"{seconds(max(age_ms, 0))} old, epoch {view.snapshot.epoch}, {view.snapshot.invalid_count:,} invalid"
    return warning(name, told, hint) if age_ms > SNAPSHOT_AGE_MS_MAX else ok(name, told)


def _snapshot_seen(view: InstallationView, reports: Mapping[str, RegionReport]) -> CheckFinding:
    name = "snapshot at regions"
    if view.snapshot is None:
        return ok(name, "none to be seen")
    hint = "see those servers' logs for io.basalt.hbase: can they read the system table?"
    none = [report.server for report in reports.values() if report.snapshot_time_ms == NO_SNAPSHOT]
    if none:
        return error(name, f"not seen by {some(set(none))}", hint)
    behind = {report.server: report.report_ms - report.snapshot_time_ms for report in reports.values()}
    # A snapshot that nobody renews is old everywhere, which is the leader's affair and told above.
    current = view.now_ms - view.snapshot.time_ms <= SNAPSHOT_AGE_MS_MAX
    late = [f"{server} by {seconds(age)}" for server, age in behind.items() if current and age > SNAPSHOT_AGE_MS_MAX]
    if late:
        return error(name, f"old at {some(late)}", hint)
    return ok(name, f"at most {seconds(max(behind.values()))} old when they reported")


def _metadata_seen(reports: Mapping[str, RegionReport]) -> CheckFinding:
    name = "metadata at regions"
    hint = "see those servers' logs for io.basalt.hbase: can they read the metadata table?"
    silent = {report.server for report in reports.values() if METADATA_TIME_MS not in report.counters}
    if silent:
        return warning(name, f"not told by the coprocessor of {some(silent)}", _UPGRADE)
    never = {report.server for report in reports.values() if report.counters[METADATA_TIME_MS] == UNTOLD}
    if never:
        return error(name, f"never read by {some(never)}; nothing expires there", hint)
    ages = {report.server: report.report_ms - report.counters[METADATA_TIME_MS] for report in reports.values()}
    late = [f"{server} by {seconds(age)}" for server, age in ages.items() if age > METADATA_AGE_MS_MAX]
    if late:
        return error(name, f"old at {some(late)}; nothing expires there", hint)
    return ok(name, f"at most {seconds(max(ages.values()))} old when they reported")


def _faults(reports: Mapping[str, RegionReport]) -> CheckFinding:
    """Report the faults that coprocessors counted since their servers started; a coprocessor keeps rows after a fault, and goes on."""
    found: dict[tuple[str, str], int] = {}
    for report in reports.values():
        for name in FAULTS:
            count_there = report.counters.get(name, 0)
            if count_there > 0:
                found[report.server, name] = max(count_there, found.get((report.server, name), 0))
    if found:
        told = some(f"{server} {name} {number:,}" for (server, name), number in found.items())
        return warning("faults", told, "see those servers' logs for io.basalt.hbase; rows are kept meanwhile")
    return ok("faults", "none since region servers started")
