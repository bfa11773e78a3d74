"""What the reports of regions tell of their servers: the counts of the coprocessors, for the metrics."""

from __future__ import annotations

from basalt.pruning.prune import RegionServer, region_servers
from basalt_engine.stores.hbase.regions import EMPTY_MEMSTORE, UNTOLD, Region, RegionReport

ONE, TWO = "rs1,16020,77", "rs2,16020,78"


def region(name: str, server: str) -> Region:
    return Region("message", name, name.encode(), b"", b"", server)


def report(server: str, report_ms: int, **counters: int) -> RegionReport:
    return RegionReport("basalt.message", b"", server, report_ms, EMPTY_MEMSTORE, 1, 1, 1, b"", b"", (), counters)


def test_each_report_has_the_counts_of_its_whole_server_and_the_newest_are_the_highest():
    reports = {
        "a": report(ONE, 100, rowsKept=5, refreshes=9),
        "b": report(ONE, 200, rowsKept=7),
        "c": report(TWO, 300, rowsKept=1),
    }
    regions = [region("a", ONE), region("b", ONE), region("c", TWO)]
    assert region_servers(regions, reports) == {
        "rs1:16020": RegionServer(100, {"rowsKept": 7, "refreshes": 9}, UNTOLD),
        "rs2:16020": RegionServer(300, {"rowsKept": 1}, UNTOLD),
    }


def test_a_report_of_a_server_that_has_the_region_no_more_tells_nothing():
    assert region_servers([region("a", TWO), region("b", ONE)], {"a": report(ONE, 100, rowsKept=5)}) == {}


def test_what_is_no_count_is_left_out():
    told = report(ONE, 100)._replace(counters={"rowsKept": 1, "jar.version": 3, "refresh.failures": 2})
    assert region_servers([region("a", ONE)], {"a": told}) == {"rs1:16020": RegionServer(100, {"rowsKept": 1}, 3)}


def test_a_server_whose_tables_are_upgraded_one_after_the_other_still_runs_the_oldest_jar():
    reports = {
        name: report(ONE, 100)._replace(counters={"jar.version": jar})
        for name, jar in {"a": 2_000, "b": 1_000, "c": 3_000}.items()
    }
    found = region_servers([region(name, ONE) for name in reports], reports)
    assert found["rs1:16020"].jar_version == 1_000
