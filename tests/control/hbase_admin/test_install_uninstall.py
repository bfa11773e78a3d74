"""`basalt hbase uninstall`: exactly Basalt's tables of the prefix, and only when nobody works on them."""

from __future__ import annotations

import json

import pytest

from tests.control.hbase_admin.conftest import Admin
from tests.control.hbase_admin.fake_gateway import FakeHBase
from tests.control.hbase_admin.reporting import lease
from tests.control.hbase_admin.test_install import NAMES


@pytest.fixture
def installed(admin: Admin, cluster: FakeHBase) -> FakeHBase:
    assert admin("install", "--no-coprocessor").code == 0
    cluster.calls.clear()
    return cluster


def test_it_drops_the_six_tables_and_the_system_table_last(admin: Admin, installed: FakeHBase):
    ran = admin("uninstall", "--yes", "-o", "json")
    assert ran.code == 0, ran.err
    assert [row["table"] for row in json.loads(ran.out)] == NAMES
    assert installed.tables == {}
    assert installed.writes == ["disableTable", "deleteTable"] * 6


def test_other_tables_stay(admin: Admin, installed: FakeHBase):
    admin("install", "--no-coprocessor", prefix="shop2")
    other = installed.tables["shop2.message"]
    installed.tables["shop.invoices"] = other  # nobody's that Basalt knows
    assert admin("uninstall", "--yes").code == 0
    assert [name for name in installed.tables if not name.startswith("shop2.")] == ["shop.invoices"]
    assert len(installed.tables) == 7


def test_without_yes_it_names_what_would_be_lost_and_drops_nothing(admin: Admin, installed: FakeHBase):
    for topic in (b"default:orders:", b"default:users:"):
        installed.put("shop.metadata", topic, b"m:m", b"")
    ran = admin("uninstall")
    assert ran.code == 2
    assert "drop shop.message, shop.payload" in ran.err
    assert "shop.system with 2 topics, and all messages, for ever?" in ran.err
    assert "add --yes to do it" in ran.err
    assert installed.writes == []


def test_a_dry_run_lists_and_drops_nothing(admin: Admin, installed: FakeHBase):
    ran = admin("uninstall", "--dry-run")
    assert ran.code == 0
    assert ran.out.endswith("\nwould drop 6 tables\n")
    assert installed.writes == []


def test_while_a_server_leads_nothing_is_dropped(admin: Admin, installed: FakeHBase):
    lease(installed)
    ran = admin("uninstall", "--yes")
    assert ran.code == 4
    assert "alpha at http://alpha:4780 leads on these tables; stop every server of this installation first" in ran.err
    assert installed.writes == []


@pytest.mark.parametrize("state", [{"expires_in_ms": -1}, {"holder": ""}])
def test_a_leader_that_is_gone_holds_nothing_up(admin: Admin, installed: FakeHBase, state: dict[str, object]):
    lease(installed, **state)
    assert admin("uninstall", "--yes").code == 0
    assert installed.tables == {}


def test_a_removal_that_was_cut_short_is_completed(admin: Admin, installed: FakeHBase):
    def stop() -> None:
        installed.refusals["disableTable"] = "java.io.IOException: the master has gone"

    installed.hooks["disableTable"] = stop
    assert admin("uninstall", "--yes").code == 1
    installed.hooks.clear()
    installed.refusals.clear()
    assert list(installed.tables) == NAMES[1:]
    installed.tables["shop.payload"].enabled = False
    assert admin("uninstall", "--yes").code == 0
    assert installed.tables == {}


def test_where_nothing_is_there_is_nothing_to_find(admin: Admin, cluster: FakeHBase):
    ran = admin("uninstall", "--yes")
    assert ran.code == 3
    assert ran.err == "basalt: there is no table of the prefix shop\n"
