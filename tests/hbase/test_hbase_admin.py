"""The commands of `basalt hbase` on a real HBase: what the pretended one of tests/control/hbase_admin claims to be like."""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from crc32c import crc32c

from basalt.hbase_admin.rights import Rights, read_rights
from basalt_engine.errors import BasaltError, StoreError
from basalt_engine.stores.hbase.gateway import NoTableError
from basalt_engine.stores.hbase.regions import Region
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.stores.hbase.tables import layouts
from basalt_engine.stores.hbase.thrift2 import TableDescriptor, Thrift2, refusal
from deploy.hbase.standalone import Gateways
from tests.control.cli.conftest import Ran, Run, run
from tests.control.hbase_admin.ruby_lines import created

__all__ = ["run"]  # the fixture is for these tests, too

pytestmark = pytest.mark.hbase

BUCKETS = 3
WRITES_BEHIND = 50  # a change of the tables
HANG_S = 120.0
Admin = Callable[..., Ran]


@pytest.fixture
def thrift2(hbase_gateways: Gateways) -> Iterator[Thrift2]:
    with Thrift2(hbase_gateways.thrift2) as gateway:
        yield gateway


@pytest.fixture
def prefix(thrift2: Thrift2) -> Iterator[str]:
    """A prefix of this test's own; whatever it made is dropped."""
    name = f"admin-{secrets.token_hex(4)}"
    yield name
    for table in thrift2.table_names(name):
        with suppress(StoreError):
            thrift2.disable(table)
        thrift2.drop(table)


@pytest.fixture
def admin(run: Run, hbase_gateways: Gateways, prefix: str) -> Admin:
    """`basalt hbase …` on tables of the test's own."""

    def command(*arguments: str, buckets: int = BUCKETS) -> Ran:
        where = {"thrift": hbase_gateways.thrift, "thrift2": hbase_gateways.thrift2}
        settings = {**where, "prefix": prefix, "buckets": str(buckets)}
        options = [part for key, value in settings.items() for part in ("--set", f"store.hbase.{key}={value}")]
        return run("hbase", *arguments, *options)

    return command


def actions(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.err
    return [row["action"] for row in json.loads(ran.out)]


def levels(ran: Ran) -> dict[str, str]:
    """What is not ok, but for the speed of the gateways: the machine that runs the tests may be busy."""
    return {
        line["name"]: line["level"]
        for line in json.loads(ran.out)
        if line["level"] != "ok" and not (line["level"] == "warning" and " answers in " in line["detail"])
    }


def test_tables_are_made_once_and_found_as_they_should_be(admin: Admin, thrift2: Thrift2, prefix: str):
    assert actions(admin("install", "--no-coprocessor", "-o", "json")) == ["create"] * 6 + ["write"]
    assert actions(admin("install", "--no-coprocessor", "-o", "json")) == ["keep"] * 7
    assert [region.start for region in thrift2.regions(f"{prefix}.message")] == [b"", b"\x01", b"\x02"]
    checked = admin("check", "-o", "json")
    assert checked.code == 0
    assert levels(checked) == {"leader": "warning", "coprocessor": "warning", "snapshot": "warning"}


def test_an_installation_that_was_cut_short_is_completed(admin: Admin, thrift2: Thrift2, prefix: str):
    message, payload = layouts(prefix, BUCKETS)[:2]
    thrift2.create(message.descriptor(), message.splits)
    thrift2.create(payload.descriptor()._replace(attributes={"OWNER": "somebody"}), payload.splits)
    thrift2.disable(payload.name)
    assert actions(admin("install", "--no-coprocessor", "-o", "json")) == ["keep", "alter"] + ["create"] * 4 + ["write"]
    found = thrift2.descriptor(payload.name)
    assert found is not None
    assert found.attributes["OWNER"] == "somebody"
    assert found.attributes["hbase.regionserver.optionalcacheflushinterval"] == "600000"
    assert thrift2.table_enabled(payload.name)


def test_the_lines_for_the_shell_make_what_the_installation_makes(admin: Admin, thrift2: Thrift2):
    for line in admin("install", "--print-shell", "--no-coprocessor").out.splitlines():
        thrift2.create(*created(line))
    assert actions(admin("install", "--no-coprocessor", "-o", "json")) == ["keep"] * 6 + ["write"]


def test_other_buckets_and_other_layouts_are_refused(admin: Admin, thrift2: Thrift2, prefix: str):
    admin("install", "--no-coprocessor")
    ran = admin("install", "--no-coprocessor", buckets=5)
    assert ran.code == 4
    assert "the installation has 3 salt buckets, store.hbase.buckets asks for 5" in ran.err
    found = thrift2.descriptor(f"{prefix}.metadata")
    assert found is not None
    thrift2.modify(found._replace(families={"m": {**found.families["m"], "VERSIONS": "3"}}))
    ran = admin("install", "--no-coprocessor")
    assert ran.code == 4
    assert f"{prefix}.metadata has VERSIONS 3 instead of 1 in family m" in ran.err


def test_an_hbase_without_access_control_keeps_no_rights(thrift2: Thrift2):
    assert read_rights(thrift2) == Rights({}, kept=False)


def test_a_jar_that_is_not_there_is_refused_by_the_master(admin: Admin, thrift2: Thrift2, prefix: str):
    ran = admin("install", "--jar", "file:/nowhere/basalt.jar")
    assert ran.code == 1
    assert "HBase's master, too, must be able to read the jar" in ran.err
    assert thrift2.table_names(prefix) == []


def test_uninstalling_drops_the_tables_of_the_prefix_alone(admin: Admin, thrift2: Thrift2, prefix: str):
    admin("install", "--no-coprocessor")
    other = f"{prefix}.other"
    thrift2.create(TableDescriptor(other, {"m": {}}, {}))
    assert admin("uninstall").code == 2
    assert admin("uninstall", "--yes").code == 0
    assert thrift2.table_names(prefix) == [other]
    assert admin("uninstall", "--yes").code == 3


@contextmanager
def writing(gateways: Gateways, table: str) -> Iterator[list[bool]]:
    """Whether each of the writes succeeded that somebody makes, one after the other, while the block runs."""
    done, written = threading.Event(), []

    def write() -> None:
        with Thrift2(gateways.thrift2) as gateway:
            while not done.is_set():
                row = b"row%d" % len(written)
                try:
                    written.append(gateway.check_and_put(table, row, b"m:x", None, b"1"))
                except BasaltError:
                    written.append(False)
                    return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join(timeout=HANG_S)


@pytest.mark.slow
def test_regions_run_the_jar_that_an_upgrade_puts_there(
    admin: Admin, thrift2: Thrift2, hbase_gateways: Gateways, prefix: str, coprocessor_jar: Path, tmp_path: Path
):
    jars = []
    for name in ("one", "two"):
        # Two builds differ in their bytes; the comment at a zip's end is the least that makes two of one.
        jar = Path(shutil.copy(coprocessor_jar, tmp_path / f"{prefix}-{name}.jar"))
        with jar.open("r+b") as archive:
            archive.seek(-2, 2)
            archive.write(len(name).to_bytes(2, "little") + name.encode())
        jars.append(jar)
    often = ("--refresh-interval", "200ms", "--report-interval", "200ms")
    ran = admin("install", "--jar", f"file:{jars[0]}", *often)
    assert ran.code == 0, ran.err
    cell = f"{prefix}.cell"
    thrift2.disable(cell)
    thrift2.drop(cell)
    with pytest.raises(NoTableError, match=f"no table {cell}"):
        HBaseStore.open(hbase_gateways.thrift2, prefix)
    assert admin("upgrade", "--jar", f"file:{jars[1]}").code == 4
    assert admin("install").code == 0
    with writing(hbase_gateways, f"{prefix}.metadata") as written:
        ran = admin("upgrade", "--jar", f"file:{jars[1]}", "--wait", "5m")
        before, hang_s = len(written), time.monotonic() + HANG_S
        while len(written) < before + WRITES_BEHIND and all(written):
            assert time.monotonic() < hang_s, "nobody writes any more"
            time.sleep(0.01)
    assert ran.code == 0, ran.err
    assert before > 0, "nobody wrote meanwhile"
    assert all(written), "a write failed while the tables were changed"
    checked = admin("check", "-o", "json")
    assert checked.code == 0, checked.out
    found = {line["name"]: line for line in json.loads(checked.out)}
    checksum = crc32c(jars[1].read_bytes())
    assert found["jar"]["detail"].endswith(f", CRC-32C {checksum:08x} on every region server")
    assert found["HBase"]["detail"].startswith("2.")
    assert "jar" not in levels(checked)
    attributes = thrift2.descriptor(f"{prefix}.payload")
    assert attributes is not None
    assert (
        f"file:{jars[1]}|io.basalt.hbase.observer.PayloadTableObserver|1001|" in attributes.attributes["coprocessor$1"]
    )
    new = thrift2.descriptor(cell)
    assert new is not None
    assert (
        f"file:{jars[1]}|io.basalt.hbase.observer.CellTableObserver|1001|basalt.refresh"
        in new.attributes["coprocessor$1"]
    )
    assert len(thrift2.regions(cell)) == BUCKETS
    assert admin("upgrade", "--jar", f"file:{jars[1]}").code == 4


def test_refusals_are_those_that_the_pretended_gateway_gives(thrift2: Thrift2, prefix: str):
    table = TableDescriptor(f"{prefix}.t", {"m": {"VERSIONS": "1"}}, {})
    thrift2.create(table)
    for call, told in (
        (lambda: thrift2.create(table), f"TableExistsException: {prefix}.t"),
        (lambda: thrift2.enable(table.name), f"tableName={prefix}.t, state=ENABLED"),
        (
            lambda: thrift2.drop(table.name),
            f"TableNotDisabledException: Not DISABLED; tableName={prefix}.t, state=ENABLED",
        ),
        (lambda: thrift2.get(f"{prefix}.none", b"row"), f"{prefix}.none"),
        (lambda: thrift2.table_enabled(f"{prefix}.none"), f"{prefix}.none"),
    ):
        with pytest.raises(StoreError) as raised:
            call()
        assert raised.value.message.endswith(f" was refused by HBase: {told}")
        assert refusal(raised.value)
    thrift2.disable(table.name)
    with pytest.raises(StoreError, match=f"TableNotEnabledException: {prefix}.t"):
        thrift2.disable(table.name)


def test_the_gateway_reads_and_writes_rows(thrift2: Thrift2, prefix: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("basalt_engine.stores.hbase.thrift2.SCAN_ROWS", 2)  # so that a scan takes several answers
    table = f"{prefix}.t"
    thrift2.create(TableDescriptor(table, {"m": {"VERSIONS": "1"}}, {}), [b",", b"b."])
    assert thrift2.get(table, b"row") is None
    assert thrift2.check_and_put(table, b"row", b"m:v", None, b"1")
    assert not thrift2.check_and_put(table, b"row", b"m:v", None, b"2")
    assert not thrift2.check_and_put(table, b"row", b"m:v", b"2", b"3")
    assert thrift2.check_and_put(table, b"row", b"m:v", b"1", b"2")
    for number in range(5):
        thrift2.check_and_put(table, b"row%d" % number, b"m:v", None, b"")
    assert [key for key, _ in thrift2.scan_prefix(table, b"row")] == [b"row", *(b"row%d" % n for n in range(5))]
    assert thrift2.get(table, b"row") == {b"m:v": b"2"}
    # Start keys with the very signs that region names are made of.
    regions = thrift2.regions(table)
    assert [region.start for region in regions] == [b"", b",", b"b."]
    assert all(isinstance(region, Region) and region.state == "OPEN" and len(region.id) == 32 for region in regions)
    assert thrift2.server_type() == 2
    assert thrift2.cluster_id()
