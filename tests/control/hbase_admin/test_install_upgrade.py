"""`basalt hbase upgrade`: another jar on every table, and the regions' word that they run it."""

from __future__ import annotations

import json

import pytest

from tests.control.hbase_admin.conftest import Admin
from tests.control.hbase_admin.fake_gateway import FakeHBase
from tests.control.hbase_admin.reporting import lease, report, report_all
from tests.control.hbase_admin.test_install import NAMES, attributes

OLD = "hdfs:///basalt/one.jar"
NEW = "hdfs:///basalt/two.jar"


@pytest.fixture
def installed(admin: Admin, cluster: FakeHBase) -> FakeHBase:
    assert admin("install", "--jar", OLD, "--report-interval", "4s").code == 0
    cluster.calls.clear()
    return cluster


def jars(cluster: FakeHBase) -> list[str]:
    there = [name for name in NAMES if name in cluster.tables]
    return [attributes(cluster, name)["coprocessor$1"].partition("|")[0] for name in there]


def report_after_the_last(cluster: FakeHBase, **changed: object) -> None:
    """Regions report (for instance with `counters`) once they have been asked for after the last alteration."""
    cluster.hooks["getScannerResults"] = lambda: report_all(cluster, **changed) if jars(cluster) == [NEW] * 6 else None


def test_every_table_runs_the_new_jar_and_keeps_its_class_and_options(admin: Admin, installed: FakeHBase):
    report_after_the_last(installed)
    ran = admin("upgrade", "--jar", NEW)
    assert ran.code == 0, ran.err
    assert ran.out.endswith("\nmade 6 changes\n")
    assert attributes(installed, "shop.payload")["coprocessor$1"] == (
        f"{NEW}|io.basalt.hbase.observer.PayloadTableObserver|1001|basalt.report.interval.ms=4000"
    )
    assert jars(installed) == [NEW] * 6
    assert installed.writes == ["modifyTable"] * 6


def test_tables_stay_enabled_all_the_while(admin: Admin, installed: FakeHBase):
    admin("upgrade", "--jar", NEW, "--wait", "0s")
    assert not {"disableTable", "enableTable"} & set(installed.calls)


def test_new_options_replace_the_old_ones(admin: Admin, installed: FakeHBase):
    admin("upgrade", "--jar", NEW, "--wait", "0s", "--refresh-interval", "1s")
    assert attributes(installed, "shop.system")["coprocessor$1"].endswith("|1001|basalt.refresh.interval.ms=1000")


def test_the_same_path_is_refused_for_region_servers_keep_what_they_loaded(admin: Admin, installed: FakeHBase):
    ran = admin("upgrade", "--jar", OLD)
    assert ran.code == 4
    assert f"every table runs the coprocessor from {OLD} already" in ran.err
    assert "region servers keep a jar that they have loaded under its path" in ran.err
    assert installed.writes == []


def test_an_upgrade_that_was_cut_short_goes_on_with_the_tables_that_are_left(admin: Admin, installed: FakeHBase):
    def stop() -> None:
        installed.refusals["modifyTable"] = "java.io.IOException: a region server has gone"

    installed.hooks["modifyTable"] = stop
    assert admin("upgrade", "--jar", NEW).code == 1
    assert jars(installed) == [NEW] + [OLD] * 5
    installed.hooks.clear()
    installed.refusals.clear()
    ran = admin("upgrade", "--jar", NEW, "--wait", "0s", "-o", "json")
    assert [row["action"] for row in json.loads(ran.out)] == ["keep"] + ["alter"] * 5
    assert jars(installed) == [NEW] * 6


def test_a_dry_run_changes_nothing(admin: Admin, installed: FakeHBase):
    ran = admin("upgrade", "--jar", NEW, "--dry-run")
    assert ran.code == 0
    assert f"{OLD} -> {NEW}" in ran.out
    assert (installed.writes, jars(installed)) == ([], [OLD] * 6)


def test_regions_that_do_not_report_in_time_are_a_failure(admin: Admin, installed: FakeHBase):
    report_all(installed)
    ran = admin("upgrade", "--jar", NEW, "--wait", "20ms")
    assert ran.code == 1
    assert "all tables were changed and reopened, but after 20ms 0 of 12 regions have reported since" in ran.err
    assert jars(installed) == [NEW] * 6


def test_a_report_from_before_does_not_count(admin: Admin, installed: FakeHBase):
    report_all(installed, age_ms=-5_000)  # by a clock that is ahead
    assert admin("upgrade", "--jar", NEW, "--wait", "20ms").code == 1


def test_one_region_that_still_runs_another_jar_is_a_failure(admin: Admin, installed: FakeHBase):
    def uneven() -> None:
        if jars(installed) == [NEW] * 6:
            report_all(installed)
            report(installed, "shop.payload", b"\x02", counters={"jar.crc32c": 1})

    installed.hooks["getScannerResults"] = uneven
    ran = admin("upgrade", "--jar", NEW, "--wait", "20ms")
    assert ran.code == 1
    assert "regions report 2 different jars" in ran.err


def test_missing_tables_are_told_before_anything_is_changed(admin: Admin, installed: FakeHBase):
    del installed.tables["shop.metadata"]
    ran = admin("upgrade", "--jar", NEW)
    assert ran.code == 4
    assert "table shop.metadata is not there; `basalt hbase install` makes what is missing" in ran.err
    assert installed.writes == []


def test_a_server_may_lead_meanwhile(admin: Admin, installed: FakeHBase):
    lease(installed)
    assert admin("upgrade", "--jar", NEW, "--wait", "0s").code == 0


def test_tables_without_a_coprocessor_get_one(admin: Admin, cluster: FakeHBase):
    admin("install", "--no-coprocessor")
    assert admin("upgrade", "--jar", NEW, "--wait", "0s").code == 0
    assert jars(cluster) == [NEW] * 6


def test_the_shell_commands_change_only_what_differs(admin: Admin, installed: FakeHBase):
    ran = admin("upgrade", "--jar", NEW, "--print-shell")
    assert ran.out.splitlines()[0] == (
        "alter 'shop.message', {METADATA => {'coprocessor$1' => "
        f"'{NEW}|io.basalt.hbase.observer.MessageTableObserver|1001|basalt.report.interval.ms=4000'}}}}"
    )
    assert len(ran.out.splitlines()) == 6
    assert installed.writes == []
