"""What a check says of the coprocessor: where it is set, which jar runs, what regions report, how old their knowledge is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from basalt.hbase_admin.finding import Finding, count, error, ok, seconds, some, warning
from basalt.hbase_admin.reports import HBASE_VERSION, JAR_VERSION, METADATA_TIME_MS, UNKNOWN, jar_of, version_text
from basalt.hbase_admin.view import View
from basalt_engine.regions.report import NO_SNAPSHOT, RegionReport
from basalt_engine.stores.hbase.tables import (
    REPORT_INTERVAL,
    SALTED,
    Coprocessor,
    CoprocessorJar,
    own_coprocessor,
    table_name,
)
from basalt_engine.stores.hbase.thrift2 import Region

REPORT_INTERVAL_MS_DEFAULT = 30_000  # the coprocessor's own
REPORTS_MISSED_MAX = 10  # a region in the middle of a flush or a move does not report; for so long, none takes
SNAPSHOT_AGE_MS_MAX = 180_000  # a leader writes one at least every minute
METADATA_AGE_MS_MAX = 180_000  # region servers read the topics every ten seconds
CLOCK_SKEW_MS_OK = 60_000
CLOCK_SKEW_MS_MAX = 30 * 60_000  # retention and pruning allow for an hour between any two clocks
HBASE_VERSION_MIN = 2_005_000
# Counters of a coprocessor that stand for a bug or damaged rows, and not for a network that was away for a while.
FAULTS = ("hookFailures", "rowsUnreadable")
_UPGRADE = "`basalt hbase upgrade --jar PATH` puts one jar on all tables"


def region_findings(view: View) -> Iterator[Finding]:
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


def _coprocessor(view: View, set_there: Mapping[str, Coprocessor]) -> Finding:
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


def _reporting_regions(view: View, set_there: Mapping[str, Coprocessor]) -> dict[str, Region]:
    """The regions that must report: those of tables whose rows the coprocessor may drop."""
    tables = [table_name(view.prefix, table) for table in sorted(SALTED)]
    return {region.name: region for table in tables if table in set_there for region in view.regions.get(table, [])}


def _interval_ms(set_there: Mapping[str, Coprocessor]) -> int:
    given = [dict(found.options).get(REPORT_INTERVAL, "") for found in set_there.values()]
    return max((int(text) for text in given if text.isdecimal()), default=REPORT_INTERVAL_MS_DEFAULT)


def _reports(
    view: View, regions: Mapping[str, Region], reports: Mapping[str, RegionReport], interval_ms: int
) -> Finding:
    name = "reports"
    hint = "see the log of that region server for io.basalt.hbase; pruning waits for every region"
    unreadable = set(view.reports.damaged) & set(regions)
    if unreadable:
        return error(name, f"cannot be read: {some(unreadable)}", "is the coprocessor newer than this program?")
    if not reports:
        told = f"none of {count(len(regions), 'region')} has reported yet"
        return warning(name, told, f"after an install, wait {seconds(interval_ms)}; {hint}")
    missing = [f"{region.name} ({region.server})" for region in regions.values() if region.name not in reports]
    if missing:
        return error(name, f"{len(missing)} of {len(regions)} regions have not reported: {some(missing)}", hint)
    ages = {f"{region} ({report.server})": view.now_ms - report.report_ms for region, report in reports.items()}
    late = [f"{region} {seconds(age)} ago" for region, age in ages.items() if age > REPORTS_MISSED_MAX * interval_ms]
    if late:
        return error(name, f"{len(late)} of {len(regions)} regions stopped reporting: {some(late)}", hint)
    return ok(name, f"{count(len(regions), 'region')}, the oldest report {seconds(max(ages.values()))} old")


def _jar(reports: Mapping[str, RegionReport]) -> Finding:
    servers: dict[int, set[str]] = defaultdict(set)
    versions: dict[int, int] = {}
    for report in reports.values():
        servers[jar_of(report)].add(report.server)
        versions[jar_of(report)] = report.counters.get(JAR_VERSION, UNKNOWN)
    if len(servers) > 1:
        told = "; ".join(f"{_jar_text(jar, versions[jar])} on {some(names)}" for jar, names in sorted(servers.items()))
        hint = "region servers keep a loaded jar under its path: put it there under a new name, then " + _UPGRADE
        return error("jar", f"region servers run different jars: {told}", hint)
    if UNKNOWN in servers:
        return ok("jar", "on the class path of region servers, which do not tell its checksum")
    [(jar, version)] = versions.items()
    return ok("jar", f"{_jar_text(jar, version)} on every region server")


def _jar_text(jar: int, version: int) -> str:
    return f"version {version_text(version)}, " + ("no checksum" if jar == UNKNOWN else f"CRC-32C {jar:08x}")


def _hbase_version(reports: Mapping[str, RegionReport]) -> Finding:
    # No Thrift call tells a version, so this is the region servers' own word.
    found = {report.counters.get(HBASE_VERSION, UNKNOWN) for report in reports.values()}
    told = some(version_text(number) for number in found)
    if UNKNOWN in found:
        return warning("HBase", f"region servers do not tell their version ({told})", _UPGRADE)
    if min(found) < HBASE_VERSION_MIN:
        return error("HBase", told, f"Basalt needs {version_text(HBASE_VERSION_MIN)} or later")
    return ok("HBase", told)


def _clocks(view: View, reports: Mapping[str, RegionReport]) -> Finding:
    """A report from the future shows a clock that is ahead; one that is behind looks like an old report."""
    ahead = {report.server: report.report_ms - view.now_ms for report in reports.values()}
    wrong = {server: skew for server, skew in ahead.items() if skew > CLOCK_SKEW_MS_OK}
    told = some(f"{server} {seconds(skew)} ahead" for server, skew in wrong.items())
    if any(skew > CLOCK_SKEW_MS_MAX for skew in wrong.values()):
        return error("clocks", told, "set the clocks by NTP at once; from one hour on, rows may be dropped early")
    if wrong:
        return warning("clocks", told, "set the clocks by NTP; up to an hour loses nothing")
    return ok("clocks", f"no region server is ahead by more than {seconds(CLOCK_SKEW_MS_OK)}")


def _snapshot(view: View) -> Finding:
    name = "snapshot"
    hint = "is a server leading, and its job `snapshot` not paused? `basalt job list`; old invalid rows stay until then"
    if "snapshot" in view.faults:
        return error(name, view.faults["snapshot"], "region servers drop nothing by it; the leader's next one mends it")
    if view.snapshot is None:
        return warning(name, "none has been written", "the first server that leads writes one")
    age_ms = view.now_ms - view.snapshot.time_ms
    told = f"{seconds(max(age_ms, 0))} old, epoch {view.snapshot.epoch}, {len(view.snapshot.invalid):,} invalid"
    return warning(name, told, hint) if age_ms > SNAPSHOT_AGE_MS_MAX else ok(name, told)


def _snapshot_seen(view: View, reports: Mapping[str, RegionReport]) -> Finding:
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


def _metadata_seen(reports: Mapping[str, RegionReport]) -> Finding:
    name = "metadata at regions"
    hint = "see those servers' logs for io.basalt.hbase: can they read the metadata table?"
    silent = {report.server for report in reports.values() if METADATA_TIME_MS not in report.counters}
    if silent:
        return warning(name, f"not told by the coprocessor of {some(silent)}", _UPGRADE)
    never = {report.server for report in reports.values() if report.counters[METADATA_TIME_MS] == UNKNOWN}
    if never:
        return error(name, f"never read by {some(never)}; nothing expires there", hint)
    ages = {report.server: report.report_ms - report.counters[METADATA_TIME_MS] for report in reports.values()}
    late = [f"{server} by {seconds(age)}" for server, age in ages.items() if age > METADATA_AGE_MS_MAX]
    if late:
        return error(name, f"old at {some(late)}; nothing expires there", hint)
    return ok(name, f"at most {seconds(max(ages.values()))} old when they reported")


def _faults(reports: Mapping[str, RegionReport]) -> Finding:
    """What a coprocessor met that it should not: it then keeps rows, and goes on. Counted since its server started."""
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
