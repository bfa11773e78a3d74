"""`basalt hbase install`: what it makes, completes, changes, and refuses to touch."""

from __future__ import annotations

import json

import msgspec
import pytest

from basalt_engine.stores.hbase.gateway import NoTableError
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.system import FACTS as FACTS_RECORD
from basalt_engine.system import entry_key, seal, unseal
from tests.control.cli.conftest import Ran
from tests.control.hbase_admin.conftest import Admin
from tests.control.hbase_admin.fake_gateway import FakeHBase

JAR = "hdfs:///basalt/one.jar"
NAMES = ["shop.message", "shop.payload", "shop.cell", "shop.metadata", "shop.transaction_log", "shop.system"]
FACTS = entry_key("install", "facts")


def actions(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.err
    return [row["action"] for row in json.loads(ran.out)]


def attributes(cluster: FakeHBase, table: str) -> dict[str, str]:
    found = cluster.tables[table].descriptor.attributes
    return {name.decode(): value.decode() for name, value in found.items()}


def test_the_first_run_makes_six_tables_and_writes_the_facts(admin: Admin, cluster: FakeHBase):
    assert actions(admin("install", "--jar", JAR, "-o", "json")) == ["create"] * 6 + ["write"]
    assert list(cluster.tables) == NAMES
    facts = FACTS_RECORD.decode(unseal(FACTS, cluster.tables["shop.system"].rows[FACTS][b"m:v"]))
    assert facts.buckets == 4
    assert len(facts.instance) == 16


def test_salted_tables_are_split_at_each_bucket_and_the_others_not_at_all(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR)
    starts = {name: list(table.regions) for name, table in cluster.tables.items()}
    assert all(starts[name] == [b"", b"\x01", b"\x02", b"\x03"] for name in NAMES[:3])
    assert all(starts[name] == [b""] for name in NAMES[3:])


def test_each_table_gets_its_family_its_flush_interval_and_its_observer(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR, "--flush-interval", "5m", "--refresh-interval", "2s", "--report-interval", "4s")
    observers = ["MessageTableObserver", "PayloadTableObserver", "CellTableObserver", "MetadataTableObserver"]
    observers += ["FencedTableObserver"] * 2
    for name, observer in zip(NAMES, observers, strict=True):
        found = attributes(cluster, name)
        assert found["hbase.regionserver.optionalcacheflushinterval"] == "300000"
        options = "basalt.refresh.interval.ms=2000,basalt.report.interval.ms=4000"
        assert found["coprocessor$1"] == f"{JAR}|io.basalt.hbase.observer.{observer}|1001|{options}"
        (family,) = cluster.tables[name].descriptor.columns
        assert family.name == b"m"
        assert family.attributes[b"VERSIONS"] == b"1"


def test_a_second_run_changes_nothing_and_says_so(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR)
    cluster.calls.clear()
    ran = admin("install", "--jar", JAR)
    assert (ran.code, cluster.writes) == (0, [])
    assert ran.out.endswith("\nnothing to do: everything is there\n")
    assert actions(admin("install", "-o", "json")) == ["keep"] * 7


def test_a_second_run_keeps_a_flush_interval_and_options_that_it_does_not_name(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR, "--flush-interval", "5m", "--report-interval", "4s")
    assert actions(admin("install", "--jar", JAR, "-o", "json")) == ["keep"] * 7
    assert attributes(cluster, "shop.system")["coprocessor$1"].endswith("|basalt.report.interval.ms=4000")


def test_a_dry_run_tells_the_same_and_does_nothing(admin: Admin, cluster: FakeHBase):
    ran = admin("install", "--jar", JAR, "--dry-run")
    assert ran.out.endswith("\nwould make 7 changes\n")
    assert (cluster.tables, cluster.writes) == ({}, [])
    assert actions(admin("install", "--jar", JAR, "--dry-run", "-o", "json")) == ["create"] * 6 + ["write"]


@pytest.mark.parametrize("made", range(1, 6))
def test_an_installation_that_was_cut_short_is_completed(admin: Admin, cluster: FakeHBase, made: int):
    def stop() -> None:
        if len(cluster.tables) == made:
            cluster.refusals["createTable"] = "java.io.IOException: the master has gone"

    cluster.hooks["createTable"] = stop
    ran = admin("install", "--jar", JAR)
    assert (ran.code, ran.err) == (
        1,
        "basalt: the call createTable was refused by HBase: IOException: the master has gone\n",
    )
    cluster.hooks.clear()
    cluster.refusals.clear()
    # Those that are left get the jar of those that are there, even if nobody names it again.
    assert actions(admin("install", "-o", "json")) == ["keep"] * made + ["create"] * (6 - made) + ["write"]
    assert all(JAR in attributes(cluster, name)["coprocessor$1"] for name in NAMES)


def test_facts_that_were_not_written_are_written_by_the_next_run(admin: Admin, cluster: FakeHBase):
    cluster.refusals["checkAndPut"] = "java.io.IOException: the region has moved"
    assert admin("install", "--jar", JAR).code == 1
    cluster.refusals.clear()
    assert actions(admin("install", "-o", "json")) == ["keep"] * 6 + ["write"]


def test_a_coprocessor_and_a_flush_interval_are_added_to_tables_without_them(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    for table in cluster.tables.values():
        table.descriptor.attributes = {b"OWNER": b"somebody", b"coprocessor$1": b"|org.example.Other|5|"}
    assert actions(admin("install", "--jar", JAR, "-o", "json")) == ["alter"] * 6 + ["keep"]
    found = attributes(cluster, "shop.message")
    assert found["OWNER"] == "somebody"
    assert found["coprocessor$1"] == "|org.example.Other|5|"
    assert found["coprocessor$2"] == f"{JAR}|io.basalt.hbase.observer.MessageTableObserver|1001|"
    assert found["hbase.regionserver.optionalcacheflushinterval"] == "600000"


def test_a_disabled_table_is_enabled_again(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR)
    cluster.tables["shop.payload"].enabled = False
    assert actions(admin("install", "-o", "json")) == ["keep", "enable"] + ["keep"] * 5
    assert cluster.tables["shop.payload"].enabled


def test_no_coprocessor_does_not_take_one_away(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR)
    assert actions(admin("install", "--no-coprocessor", "-o", "json")) == ["keep"] * 7
    assert JAR in attributes(cluster, "shop.message")["coprocessor$1"]


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        (b"VERSIONS", b"3", "has VERSIONS 3 instead of 1 in family m"),
        (b"TTL", b"86400", "has TTL 86400 instead of 2147483647 in family m"),
        (b"KEEP_DELETED_CELLS", b"TRUE", "has KEEP_DELETED_CELLS TRUE instead of FALSE in family m"),
        (b"BLOOMFILTER", b"ROWCOL", "has BLOOMFILTER ROWCOL instead of ROW in family m"),
    ],
)
def test_a_table_with_another_family_option_is_refused_with_it(
    admin: Admin, cluster: FakeHBase, option: bytes, value: bytes, told: str
):
    admin("install", "--no-coprocessor")
    cluster.tables["shop.metadata"].descriptor.columns[0].attributes[option] = value
    cluster.calls.clear()
    ran = admin("install", "--jar", JAR)
    assert ran.code == 4
    assert f"shop.metadata {told}; choose another store.hbase.prefix" in ran.err
    assert cluster.writes == []


def test_a_table_with_other_families_is_refused(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    cluster.tables["shop.payload"].descriptor.columns[0].name = b"cf"
    ran = admin("install", "--no-coprocessor")
    assert ran.code == 4
    assert "shop.payload has families cf instead of m" in ran.err


def test_every_difference_of_every_table_is_told_at_once(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    cluster.tables["shop.payload"].descriptor.columns[0].attributes[b"VERSIONS"] = b"2"
    cluster.tables["shop.system"].descriptor.columns[0].attributes[b"TTL"] = b"5"
    ran = admin("install", "--no-coprocessor")
    assert "VERSIONS 2" in ran.err
    assert "TTL 5" in ran.err


def test_another_number_of_buckets_than_was_installed_is_refused(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    cluster.calls.clear()
    ran = admin("install", "--no-coprocessor", buckets="8")
    assert ran.code == 4
    assert "the installation has 4 salt buckets, store.hbase.buckets asks for 8" in ran.err
    assert cluster.writes == []


@pytest.mark.parametrize(
    ("buckets", "told"),
    [
        ("2", "shop.message is split for 4 salt buckets instead of 2"),
        ("8", "shop.message has 4 regions, none of which begins at 04, 05, 06, as 8 salt buckets need"),
    ],
)
def test_without_facts_the_split_keys_tell_the_number_of_buckets(
    admin: Admin, cluster: FakeHBase, buckets: str, told: str
):
    admin("install", "--no-coprocessor")
    del cluster.tables["shop.system"].rows[FACTS]
    ran = admin("install", "--no-coprocessor", buckets=buckets)
    assert ran.code == 4
    assert told in ran.err


def test_regions_that_were_split_or_merged_later_are_no_other_layout(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    regions = cluster.tables["shop.message"].regions
    del regions[b"\x02"]
    regions[b"\x01shop:orders:"] = ["OPEN", "one,16020,1"]
    assert actions(admin("install", "--no-coprocessor", "-o", "json")) == ["keep"] * 7


def test_two_who_install_at_once_with_other_buckets_do_not_both_succeed(admin: Admin, cluster: FakeHBase):
    def another() -> None:
        if "shop.system" in cluster.tables:
            facts = msgspec.json.encode({"buckets": 9, "created_ms": 1, "instance": "0" * 16})
            cluster.put("shop.system", FACTS, b"m:v", seal(facts))

    cluster.hooks["createTable"] = another
    ran = admin("install", "--no-coprocessor")
    assert ran.code == 4
    assert "the installation has 9 salt buckets, store.hbase.buckets asks for 4; somebody else installed" in ran.err


def test_another_jar_is_the_business_of_upgrade(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR)
    ran = admin("install", "--jar", "hdfs:///basalt/two.jar")
    assert ran.code == 4
    assert "`basalt hbase upgrade --jar hdfs:///basalt/two.jar` changes it" in ran.err


def test_without_a_jar_it_says_where_to_put_one(admin: Admin, cluster: FakeHBase):
    ran = admin("install")
    assert ran.code == 2
    assert "--jar is missing" in ran.err
    assert "--jar hdfs:///basalt/" in ran.err
    assert "--no-coprocessor does without" in ran.err
    assert cluster.tables == {}


def test_a_jar_that_the_master_does_not_find_is_told_with_what_to_do(admin: Admin):
    ran = admin("install", "--jar", "file:/missing/basalt.jar")
    assert ran.code == 1
    assert "the call createTable was refused by HBase: DoNotRetryIOException: file:/missing/basalt.jar" in ran.err
    assert "HBase's master, too, must be able to read the jar" in ran.err


@pytest.mark.parametrize(
    "path", ["basalt.jar", "/opt/basalt.jar", "hdfs:///a|b.jar", "hdfs:///a b.jar", "hdfs:///a,b.jar"]
)
def test_a_path_that_means_something_else_on_each_machine_is_refused(admin: Admin, path: str):
    ran = admin("install", "--jar", path)
    assert ran.code == 2
    assert "is no path of a jar that every region server sees" in ran.err


def test_jar_and_no_coprocessor_do_not_go_together(admin: Admin):
    assert admin("install", "--jar", JAR, "--no-coprocessor").code == 2


def test_tables_of_other_prefixes_are_not_looked_at(admin: Admin, cluster: FakeHBase):
    admin("install", "--jar", JAR, prefix="shop-2")
    assert actions(admin("install", "--jar", JAR, "-o", "json")) == ["create"] * 6 + ["write"]


# One table of several is missing.


@pytest.fixture
def no_cells(admin: Admin, cluster: FakeHBase) -> FakeHBase:
    assert admin("install", "--jar", JAR, "--report-interval", "4s").code == 0
    del cluster.tables["shop.cell"]
    cluster.calls.clear()
    return cluster


@pytest.mark.parametrize("named", [(), ("--jar", JAR)])
def test_a_missing_table_is_made_with_the_jar_that_the_others_run(
    admin: Admin, no_cells: FakeHBase, named: tuple[str, ...]
):
    assert admin("install", *named).code == 0
    assert attributes(no_cells, "shop.cell")["coprocessor$1"].startswith(
        f"{JAR}|io.basalt.hbase.observer.CellTableObserver|"
    )
    assert list(no_cells.tables["shop.cell"].regions) == [b"", b"\x01", b"\x02", b"\x03"]
    assert no_cells.writes == ["createTable"]


def test_a_missing_table_is_made_without_a_coprocessor_where_the_others_have_none(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    del cluster.tables["shop.cell"]
    assert admin("install", "--no-coprocessor").code == 0
    assert "coprocessor$1" not in attributes(cluster, "shop.cell")


def test_a_server_says_which_command_makes_the_table(no_cells: FakeHBase, thrift2: str):
    with pytest.raises(NoTableError) as raised:
        HBaseStore.open(thrift2, "shop")
    assert raised.value.message == "HBase has no table shop.cell"
    assert "make the tables with `basalt hbase install`" in (raised.value.hint or "")
