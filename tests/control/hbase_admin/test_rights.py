"""Whoever has a right too many on Basalt's tables in HBase, or on the coprocessor's jar, is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt.errors import UnknownOutcomeError
from basalt.hbase_admin.rights import Rights, grant_lines, jar_finding, read_rights, rights_findings, short_name
from basalt_engine.stores.hbase.thrift2 import Thrift2
from basalt_engine.table import TABLE_NAMES
from tests.control.hbase_admin.conftest import PREFIX, Admin
from tests.control.hbase_admin.fake_gateway import FakeHBase, FakeTable

OWN = {f"{PREFIX}.{name}": {"basalt": "RWC", "hbase": "RWXCA"} for name in TABLE_NAMES}
EXPECTED = ("basalt", "hbase")
DENIED = "org.apache.hadoop.hbase.security.AccessDeniedException: Insufficient permissions for user 'basalt', tableName:hbase:acl"


def told(by_entry: dict[str, dict[str, str]]) -> tuple[str, str]:
    [finding] = rights_findings(Rights(OWN | by_entry), PREFIX, EXPECTED)
    return finding.level, finding.detail


def test_rights_of_basalt_and_of_hbase_itself_are_as_they_should_be():
    assert told({}) == ("ok", "nobody but basalt and hbase has any on the tables")
    assert told({"other.table": {"alice": "RW"}, "@default": {"basalt": "C"}})[0] == "ok"


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        (f"{PREFIX}.payload", f"{PREFIX}.payload"),
        ("@default", "all tables of the namespace default"),
        ("hbase:acl", "all tables"),
    ],
)
@pytest.mark.parametrize("user", ["alice", "@analysts"])
def test_whoever_else_has_one_is_named(entry: str, place: str, user: str):
    assert told({entry: {user: "R"}}) == ("warning", f"{user} has R on {place}")


def test_rights_that_are_not_shown_or_not_kept_are_not_taken_for_none():
    for rights in (Rights({}), Rights({}, "AccessDeniedException: no"), Rights({}, kept=False)):
        [finding] = rights_findings(rights, PREFIX, EXPECTED)
        assert finding.level == "warning"


def test_rights_are_read_as_hbase_writes_them(cluster: FakeHBase, thrift2: str):
    cluster.tables["hbase:acl"] = FakeTable(None, [], cluster.servers)
    cluster.put("hbase:acl", b"@default", b"l:basalt", b"C")
    cluster.put("hbase:acl", b"shop.message", b"l:alice", b"R")
    cluster.put("hbase:acl", b"shop.message", b"l:alice,m,v", b"W")
    with Thrift2(thrift2) as gateway:
        assert read_rights(gateway) == Rights({"@default": {"basalt": "C"}, "shop.message": {"alice": "RW"}})


def test_a_refusal_is_told_and_a_gateway_that_fails_is_an_error(cluster: FakeHBase, thrift2: str):
    with Thrift2(thrift2) as gateway:
        cluster.refusals["getScannerResults"] = DENIED
        rights = read_rights(gateway)
        assert rights.kept
        assert "Insufficient permissions" in rights.fault
        cluster.refusals["getScannerResults"] = "hbase:acl"
        assert not read_rights(gateway).kept
        cluster.refusals.clear()
        cluster.tables["hbase:acl"] = FakeTable(None, [], cluster.servers)

        def die() -> None:
            raise ConnectionResetError("killed")

        cluster.hooks["getScannerResults"] = die
        with pytest.raises(UnknownOutcomeError):
            read_rights(gateway)


def test_the_grants_are_lines_for_the_shell(admin: Admin):
    ran = admin("install", "--print-grants", sasl="auth", principal="basalt/host@EXAMPLE.TEST")
    assert ran.code == 0
    assert ran.out.splitlines() == grant_lines(PREFIX, "basalt")
    assert f"grant 'basalt', 'RWC', '{PREFIX}.message'" in ran.out.splitlines()
    assert len(ran.out.splitlines()) == len(TABLE_NAMES)


def test_nobody_is_granted_anything_as_long_as_nobody_is_named(admin: Admin):
    ran = admin("install", "--print-grants", sasl="auth")
    assert ran.code == 2
    assert "store.hbase.principal" in ran.err


@pytest.mark.parametrize("principal", ["basalt", "basalt@EXAMPLE.TEST", "basalt/host.example@EXAMPLE.TEST"])
def test_the_user_is_the_first_part_of_a_principal(principal: str):
    assert short_name(principal) == "basalt"


def test_a_jar_that_others_may_write_to_is_told(tmp_path: Path):
    folder = tmp_path / "jars"
    folder.mkdir(0o700)
    jar = folder / "basalt.jar"
    jar.write_bytes(b"")
    jar.chmod(0o644)
    assert jar_finding(f"file:{jar}").level == "ok"
    jar.chmod(0o664)
    finding = jar_finding(f"file:{jar}")
    assert (finding.level, str(jar) in finding.detail) == ("warning", True)
    jar.chmod(0o644)
    folder.chmod(0o777)
    assert f"others may write to {folder}" in jar_finding(f"file://{jar}").detail
    folder.chmod(0o1777)
    assert jar_finding(f"file:{jar}").level == "ok", "nobody may take away what is another's in such a folder"


def test_a_jar_on_another_file_system_is_the_operators_to_look_at():
    finding = jar_finding("hdfs:///basalt/one.jar")
    assert "is not seen from here" in finding.detail
