"""`basalt hbase check`: each thing that can be wrong has a line that says so, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from basalt.cluster.owners import granted
from basalt.hbase_admin import check
from basalt_engine.system import entry_key
from tests.control.hbase_admin.conftest import Admin
from tests.control.hbase_admin.fake_gateway import FakeHBase, gateway
from tests.control.hbase_admin.reporting import lease, report, report_all, snapshot, write

JAR = "hdfs:///basalt/one.jar"
MINUTE_MS = 60_000


@pytest.fixture
def healthy(admin: Admin, cluster: FakeHBase) -> FakeHBase:
    assert admin("install", "--jar", JAR).code == 0
    report_all(cluster)
    snapshot(cluster)
    lease(cluster)
    cluster.calls.clear()
    return cluster


def lines(admin: Admin, *, code: int, **settings: str) -> dict[str, dict[str, str]]:
    """The check's lines by name."""
    ran = admin("check", "-o", "json", **settings)
    assert ran.code == code, ran.out + ran.err
    return {line["name"]: line for line in json.loads(ran.out)}


def levels(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: line["level"] for name, line in found.items() if line["level"] != "ok"}


def test_a_healthy_installation_has_nothing_but_ok(admin: Admin, healthy: FakeHBase):
    found = lines(admin, code=0)
    assert levels(found) == {}
    assert found["table shop.message"]["detail"] == "4 regions on 2 servers, flushed every 10 min"
    assert found["coprocessor"]["detail"] == f"on all tables, from {JAR}"
    assert found["jar"]["detail"] == "version 1.2.3, CRC-32C deadbeef on every region server"
    assert found["HBase"]["detail"] == "2.6.1"
    assert found["leader"]["detail"] == "alpha at http://alpha:4780, epoch 3"
    assert found["snapshot"]["detail"].endswith(" s old, epoch 3, 2 invalid")
    assert healthy.writes == []


def test_a_new_installation_has_warnings_for_what_has_not_begun_yet(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR)
    found = lines(admin, code=0)
    assert levels(found) == {"leader": "warning", "snapshot": "warning", "reports": "warning"}


def test_without_a_coprocessor_there_is_a_warning_that_says_what_is_missing(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    found = lines(admin, code=0)["coprocessor"]
    assert (found["level"], found["detail"]) == ("warning", "is set on no table")
    assert "former leaders are not refused" in found["hint"]


def test_a_line_says_what_to_do_whenever_it_is_not_ok(admin: Admin, cluster: FakeHBase):
    for line in lines(admin, code=1).values():
        assert (line["level"] == "ok") == (line["hint"] == ""), line


@pytest.mark.parametrize(
    ("address", "detail"),
    [("off", "is not set"), ("127.0.0.1:1", "the Thrift gateway at 127.0.0.1:1 cannot be reached")],
)
def test_a_gateway_that_is_away_is_told(admin: Admin, healthy: FakeHBase, address: str, detail: str):
    found = lines(admin, code=1, thrift2=address)
    assert levels(found) == {"store.hbase.thrift2": "error"}
    assert found["store.hbase.thrift2"]["detail"] == detail
    assert set(found) == {"store.hbase.thrift", "store.hbase.thrift2", "cluster"}
    found = lines(admin, code=0, thrift=address)
    assert levels(found) == {"store.hbase.thrift": "warning"}
    assert found["store.hbase.thrift"]["detail"] == detail
    assert "pruning asks it for major compactions" in found["store.hbase.thrift"]["hint"]
    assert "reports" in found


def test_gateways_that_were_mixed_up_are_told(admin: Admin, healthy: FakeHBase, thrift: str, thrift2: str):
    found = lines(admin, code=1, thrift=thrift2, thrift2=thrift)
    assert levels(found) == {"store.hbase.thrift": "error", "store.hbase.thrift2": "error"}
    assert "is a second Thrift gateway" in found["store.hbase.thrift"]["detail"]
    assert "is a first Thrift gateway" in found["store.hbase.thrift2"]["detail"]


def test_gateways_of_two_clusters_are_an_error(admin: Admin, healthy: FakeHBase):
    other = FakeHBase()
    other.cluster = "another"
    with gateway(other, server_type=1) as thrift:
        found = lines(admin, code=1, thrift=thrift)
    assert levels(found) == {"cluster": "error"}
    assert "another" in found["cluster"]["detail"]


def test_a_gateway_that_does_not_tell_its_cluster_is_told(admin: Admin, healthy: FakeHBase):
    with gateway(healthy, without=("getClusterId",)) as old:
        found = lines(admin, code=1, thrift2=old)
    assert "does not know the call getClusterId" in found["store.hbase.thrift2"]["detail"]


def remove_table(cluster: FakeHBase) -> None:
    del cluster.tables["shop.payload"]


def disable_table(cluster: FakeHBase) -> None:
    cluster.tables["shop.payload"].enabled = False


def other_family(cluster: FakeHBase) -> None:
    cluster.tables["shop.payload"].descriptor.columns[0].attributes[b"VERSIONS"] = b"5"


def closed_region(cluster: FakeHBase) -> None:
    cluster.tables["shop.payload"].regions[b"\x01"][0] = "OPENING"


def no_flush_interval(cluster: FakeHBase) -> None:
    del cluster.tables["shop.payload"].descriptor.attributes[b"hbase.regionserver.optionalcacheflushinterval"]


def merged_region(cluster: FakeHBase) -> None:
    del cluster.tables["shop.payload"].regions[b"\x02"]


@pytest.mark.parametrize(
    ("harm", "level", "detail"),
    [
        (remove_table, "error", "is missing"),
        (disable_table, "error", "is disabled"),
        (other_family, "error", "has VERSIONS 5 instead of 1 in family m"),
        (closed_region, "error", "is OPENING"),
        (no_flush_interval, "warning", "has no flush interval of its own"),
        (merged_region, "warning", "no region begins at salt 02"),
    ],
)
def test_what_is_wrong_with_a_table_is_told(
    admin: Admin, healthy: FakeHBase, harm: Callable[[FakeHBase], None], level: str, detail: str
):
    harm(healthy)
    found = lines(admin, code=1 if level == "error" else 0)
    assert levels(found) == {"table shop.payload": level}
    assert detail in found["table shop.payload"]["detail"]


def test_a_missing_table_is_told_with_the_command_that_makes_it(admin: Admin, healthy: FakeHBase):
    del healthy.tables["shop.cell"]
    found = lines(admin, code=1)
    assert levels(found) == {"table shop.cell": "error"}
    assert "`basalt hbase install` makes it" in found["table shop.cell"]["hint"]


def test_a_disabled_system_table_is_told_without_failing_over_it(admin: Admin, healthy: FakeHBase):
    healthy.tables["shop.system"].enabled = False
    assert levels(lines(admin, code=1))["table shop.system"] == "error"


def test_other_buckets_than_installed_are_an_error(admin: Admin, healthy: FakeHBase):
    found = lines(admin, code=1, buckets="2")
    assert found["installation"]["detail"] == "the installation has 4 salt buckets, store.hbase.buckets asks for 2"
    assert found["installation"]["hint"] == "set store.hbase.buckets to 4"


def test_facts_that_are_missing_or_damaged_are_told(admin: Admin, healthy: FakeHBase):
    key = entry_key("install", "facts")
    healthy.put("shop.system", key, b"m:v", b"\x01{}____")
    assert levels(lines(admin, code=1)) == {"installation": "error"}
    del healthy.tables["shop.system"].rows[key]
    assert levels(lines(admin, code=0)) == {"installation": "warning"}


@pytest.mark.parametrize("state", [{"expires_in_ms": -20_000}, {"holder": ""}])
def test_nobody_leading_is_a_warning(admin: Admin, healthy: FakeHBase, state: dict[str, Any]):
    lease(healthy, **state)
    assert levels(lines(admin, code=0)) == {"leader": "warning"}


def test_a_damaged_lease_or_snapshot_is_an_error(admin: Admin, healthy: FakeHBase):
    write(healthy, "lease", "leader", b"[]")
    write(healthy, "snapshot", "latest", b"\x01\x02")
    assert levels(lines(admin, code=1)) == {"leader": "error", "snapshot": "error"}


def test_who_owns_the_shards_is_told(admin: Admin, healthy: FakeHBase):
    write(healthy, "owners", "map", granted(None, "a", (), 7).encode())
    assert "1 server of all shards, by map 1" in str(lines(admin, code=0))


def test_a_damaged_map_of_owners_is_an_error(admin: Admin, healthy: FakeHBase):
    write(healthy, "owners", "map", b"\x01\x02")
    assert levels(lines(admin, code=1)) == {"owners": "error"}


def set_coprocessor(cluster: FakeHBase, table: str, value: bytes | None) -> None:
    attributes = cluster.tables[table].descriptor.attributes
    del attributes[b"coprocessor$1"]
    if value is not None:
        attributes[b"coprocessor$1"] = value


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (None, "is not set on shop.metadata"),
        (b"hdfs:///basalt/one.jar|io.basalt.hbase.observer.MessageTableObserver|1001|", "shop.metadata runs io.basalt"),
        (
            b"hdfs:///b/two.jar|io.basalt.hbase.observer.MetadataTableObserver|1001|",
            "tables run different jars: hdfs:///b/two.jar",
        ),
    ],
)
def test_a_coprocessor_that_is_not_the_same_everywhere_is_an_error(
    admin: Admin, healthy: FakeHBase, value: bytes | None, detail: str
):
    set_coprocessor(healthy, "shop.metadata", value)
    found = lines(admin, code=1)
    assert levels(found) == {"coprocessor": "error"}
    assert detail in found["coprocessor"]["detail"]


def test_a_region_server_with_another_jar_is_named(admin: Admin, healthy: FakeHBase):
    report(healthy, "shop.message", b"\x01", counters={"jar.crc32c": 0xFF, "jar.version": 1_002_004})
    found = lines(admin, code=1)
    assert levels(found) == {"jar": "error"}
    assert found["jar"]["detail"] == (
        "region servers run different jars: version 1.2.4, CRC-32C 000000ff on two,16020,2; "
        "version 1.2.3, CRC-32C deadbeef on one,16020,1, two,16020,2"
    )


def test_a_jar_without_checksum_is_no_error(admin: Admin, healthy: FakeHBase):
    report_all(healthy, counters={"jar.crc32c": -1})
    assert levels(lines(admin, code=0)) == {}


def test_a_region_without_a_report_is_named(admin: Admin, healthy: FakeHBase):
    name = healthy.region_name("shop.payload", b"\x03")
    del healthy.tables["shop.system"].rows[entry_key("region", name)]
    found = lines(admin, code=1)
    assert levels(found) == {"reports": "error"}
    assert found["reports"]["detail"] == f"1 of 12 regions have not reported: {name} (two,16020,2)"


def test_a_region_that_has_stopped_reporting_is_named(admin: Admin, healthy: FakeHBase):
    report(healthy, "shop.payload", b"\x03", age_ms=20 * MINUTE_MS)
    found = lines(admin, code=1)
    assert found["reports"]["level"] == "error"
    assert "1 of 12 regions stopped reporting" in found["reports"]["detail"]
    assert "(two,16020,2) 20 min ago" in found["reports"]["detail"]


def test_how_late_a_report_is_depends_on_how_often_regions_report(admin: Admin, healthy: FakeHBase):
    for table in healthy.tables.values():
        value = table.descriptor.attributes[b"coprocessor$1"]
        table.descriptor.attributes[b"coprocessor$1"] = value + b"basalt.report.interval.ms=1000"
    report(healthy, "shop.payload", b"\x03", age_ms=11_000)
    assert levels(lines(admin, code=1)) == {"reports": "error"}


def test_a_report_that_cannot_be_read_is_named(admin: Admin, healthy: FakeHBase):
    name = healthy.region_name("shop.payload", b"\x03")
    write(healthy, "region", name, b"\x63")
    found = lines(admin, code=1)
    assert levels(found) == {"reports": "error"}
    assert found["reports"]["detail"] == f"cannot be read: {name}"


def test_reports_of_regions_that_are_gone_do_not_matter(admin: Admin, healthy: FakeHBase):
    write(healthy, "region", "0" * 32, b"\x63")
    assert levels(lines(admin, code=0)) == {}


def test_an_old_hbase_is_an_error_and_an_unknown_one_a_warning(admin: Admin, healthy: FakeHBase):
    report_all(healthy, counters={"hbase.version": 2_004_017})
    found = lines(admin, code=1)
    assert (found["HBase"]["level"], found["HBase"]["detail"]) == ("error", "2.4.17")
    report_all(healthy, counters={"hbase.version": None})
    assert levels(lines(admin, code=0)) == {"HBase": "warning"}


def test_a_clock_that_is_ahead_is_a_warning_and_then_an_error(admin: Admin, healthy: FakeHBase):
    report(healthy, "shop.payload", b"\x03", age_ms=-5 * MINUTE_MS)
    found = lines(admin, code=0)
    assert levels(found) == {"clocks": "warning"}
    assert found["clocks"]["detail"] == "two,16020,2 5 min ahead"
    report(healthy, "shop.payload", b"\x03", age_ms=-40 * MINUTE_MS)
    assert levels(lines(admin, code=1)) == {"clocks": "error"}


def test_an_old_snapshot_is_a_warning_about_the_leader_alone(admin: Admin, healthy: FakeHBase):
    snapshot(healthy, age_ms=10 * MINUTE_MS)
    report_all(healthy, snapshot_time_ms=1)
    found = lines(admin, code=0)
    assert levels(found) == {"snapshot": "warning"}
    assert "basalt job list" in found["snapshot"]["hint"]


def test_region_servers_that_have_not_seen_the_snapshot_are_named(admin: Admin, healthy: FakeHBase):
    report(healthy, "shop.payload", b"\x03", snapshot_epoch=-1, snapshot_sequence=-1, snapshot_time_ms=-1)
    assert lines(admin, code=1)["snapshot at regions"]["detail"] == "not seen by two,16020,2"
    report(healthy, "shop.payload", b"\x03", snapshot_time_ms=1)
    found = lines(admin, code=1)
    assert levels(found) == {"snapshot at regions": "error"}
    assert found["snapshot at regions"]["detail"].startswith("old at two,16020,2 by ")


def test_region_servers_that_have_not_read_the_topics_are_named(admin: Admin, healthy: FakeHBase):
    report_all(healthy, counters={"metadata.time_ms": -1})
    found = lines(admin, code=1)
    assert levels(found) == {"metadata at regions": "error"}
    assert found["metadata at regions"]["detail"] == "never read by one,16020,1, two,16020,2; nothing expires there"
    report_all(healthy)
    report(healthy, "shop.payload", b"\x02", counters={"metadata.time_ms": 1})
    assert lines(admin, code=1)["metadata at regions"]["detail"].startswith("old at one,16020,1 by ")


def test_a_coprocessor_that_does_not_tell_when_it_read_the_topics_is_only_a_warning(admin: Admin, healthy: FakeHBase):
    report(healthy, "shop.payload", b"\x03", counters={"metadata.time_ms": None})
    found = lines(admin, code=0)
    assert levels(found) == {"metadata at regions": "warning"}
    assert found["metadata at regions"]["detail"] == "not told by the coprocessor of two,16020,2"


def test_faults_that_a_coprocessor_met_are_told_once_for_each_server(admin: Admin, healthy: FakeHBase):
    for start, number in ((b"\x01", 2), (b"\x03", 3)):
        report(healthy, "shop.payload", start, counters={"hookFailures": number, "refreshFailures": 9})
    found = lines(admin, code=0)
    assert levels(found) == {"faults": "warning"}
    assert found["faults"]["detail"] == "two,16020,2 hookFailures 3"


def test_people_get_a_table(admin: Admin, healthy: FakeHBase):
    ran = admin("check")
    assert ran.code == 0
    assert ran.out.splitlines()[0].split() == ["CHECK", "LEVEL", "DETAIL", "HINT"]


def test_a_refusal_of_hbase_is_told_like_any_other(admin: Admin, healthy: FakeHBase):
    healthy.refusals["getTableDescriptor"] = "org.apache.hadoop.hbase.security.AccessDeniedException: no right"
    ran = admin("check")
    assert ran.code == 5
    assert "AccessDeniedException: no right" in ran.err


@pytest.mark.parametrize("limit", [2, 3])
def test_a_line_names_the_first_few_and_counts_the_others(monkeypatch: pytest.MonkeyPatch, limit: int):
    monkeypatch.setattr(check, "NAMES_SHOWN_MAX", limit)
    assert check.some("dacb"[:limit]) == ", ".join(sorted("dacb"[:limit]))
    assert check.some("dacbe") == f"{', '.join('abcde'[:limit])} and {5 - limit} more"
