"""The second Thrift gateway: away, mixed up, too old, or passing on what HBase refuses."""

from __future__ import annotations

import sys

import pytest

from tests.control.cli.conftest import Run
from tests.control.hbase_admin.conftest import Admin
from tests.control.hbase_admin.fake_gateway import FakeHBase, gateway

JAR = "hdfs:///basalt/one.jar"


def test_a_gateway_that_is_away_is_exit_code_6(admin: Admin):
    ran = admin("install", "--jar", JAR, thrift2="127.0.0.1:1")
    assert ran.code == 6
    assert "the Thrift gateway at 127.0.0.1:1 cannot be reached" in ran.err
    assert "hbase thrift2 start" in ran.err


def test_a_gateway_that_dies_in_the_middle_is_exit_code_6(admin: Admin, cluster: FakeHBase):
    def die() -> None:
        raise ConnectionResetError("killed")

    cluster.hooks["createTable"] = die
    ran = admin("install", "--jar", JAR)
    assert ran.code == 6
    assert "failed in createTable" in ran.err


def test_a_gateway_that_is_not_set_is_a_usage_error(admin: Admin, run: Run):
    ran = run("hbase", "install", "--no-coprocessor")
    assert ran.code == 2
    assert "store.hbase.thrift2 is not set" in ran.err


def test_kerberos_without_its_library_is_a_usage_error(admin: Admin, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    ran = admin("install", "--jar", JAR, sasl="auth")
    assert ran.code == 2
    assert "basalt-mq[kerberos]" in ran.err


def test_the_first_kind_of_gateway_is_not_taken_for_the_second(admin: Admin, thrift: str):
    ran = admin("install", "--jar", JAR, thrift2=thrift)
    assert ran.code == 2
    assert "which is a first Thrift gateway" in ran.err


def test_a_gateway_that_does_not_know_a_call_is_told_to_be_too_old(admin: Admin, cluster: FakeHBase):
    with gateway(cluster, without=("getTableNamesByPattern",)) as old:
        ran = admin("install", "--jar", JAR, thrift2=old)
    assert ran.code == 6
    assert "does not know the call getTableNamesByPattern; use the Thrift 2 gateway of HBase 2.5 or later" in ran.err


def test_want_of_a_right_is_exit_code_5_and_says_what_else_can_be_done(admin: Admin, cluster: FakeHBase):
    cluster.refusals["createTable"] = (
        "org.apache.hadoop.hbase.security.AccessDeniedException: Insufficient permissions (user=thrift, action=CREATE)"
    )
    ran = admin("install", "--jar", JAR)
    assert ran.code == 5
    assert "refused by HBase: AccessDeniedException: Insufficient permissions (user=thrift, action=CREATE)" in ran.err
    assert "--print-shell" in ran.err


def test_a_master_that_is_starting_is_told_as_such(admin: Admin, cluster: FakeHBase):
    cluster.refusals["getTableNamesByPattern"] = "org.apache.hadoop.hbase.PleaseHoldException: Master is initializing"
    ran = admin("install", "--jar", JAR)
    assert ran.code == 1
    assert (
        "PleaseHoldException: Master is initializing; hBase's master is starting" in ran.err or "is starting" in ran.err
    )
