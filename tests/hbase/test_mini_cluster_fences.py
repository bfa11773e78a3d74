"""Who may still write: a region refuses a leader whose term is over, wherever it moves, and a writer who has failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crc32c import crc32c
from py4j.protocol import Py4JJavaError

from tests.hbase.bare_installation import DAY_MS, HOUR_MS, BareInstallation, now_ms, pointer_at
from tests.hbase.mini_cluster import MiniCluster

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

FENCED, REFUSED = "basalt fenced", "basalt refused"


@pytest.fixture
def installation(mini_cluster: MiniCluster, request: pytest.FixtureRequest) -> Iterator[BareInstallation]:
    tables = ("message", "payload", "cell", "metadata", "system", "transaction_log")
    with BareInstallation(mini_cluster, f"fence{crc32c(request.node.name.encode())}", tables=tables) as made:
        yield made
    assert mini_cluster.aborted() == []


def row(number: int, writer: int | None = None) -> dict[bytes, dict[bytes, bytes]]:
    columns = {b"p": b"%d" % number}
    if writer is not None:
        columns[b"t"] = writer.to_bytes(8, "big", signed=True)
    return {bytes([number % 2]) + b"shop:orders:%014d" % number: columns}


def assert_refused(installation: BareInstallation, why: str, number: int, **how: object) -> None:
    """Neither written nor said to be."""
    table = how.get("table", "message")
    before = written(installation, table)
    with pytest.raises(Py4JJavaError) as error:
        installation.write(row(number, how.pop("writer", None)), **how)
    assert why in str(error.value.java_exception)
    assert written(installation, table) == before


def written(installation: BareInstallation, table: object) -> dict[bytes, object]:
    """The rows of a table, but for the reports that its regions write by themselves now and then."""
    rows = installation.cluster.scan(installation.table(table))
    return {key: columns for key, columns in rows.items() if not key.startswith(b"region:")}


@pytest.mark.parametrize("table", ["message", "payload", "cell", "metadata", "system", "transaction_log"])
def test_after_a_fence_a_former_leader_writes_nothing(installation: BareInstallation, table: str) -> None:
    installation.lead(3)
    installation.write(row(2), table, epoch=3)
    installation.lead(4)
    installation.fence(4, table)
    assert_refused(installation, FENCED, 4, table=table, epoch=3)
    installation.write(row(6), table, epoch=4)
    installation.write(row(8), table)  # nobody's: an operator's, or a server's before it led
    rows = installation.cluster.scan(installation.table(table))
    assert {*row(2), *row(6), *row(8)} <= {*rows}
    assert b"f" not in {column for columns in rows.values() for column in columns}


def test_a_fence_that_reaches_a_file_is_not_counted_as_an_unreadable_row(installation: BareInstallation) -> None:
    tables = ("message", "payload", "cell")
    installation.lead(3)
    for table in tables:
        installation.fence(3, table)
        installation.flush(table)
    reports = installation.wait_for_reports(tables)
    assert [region for region, report in reports.items() if not report.files] == []
    assert {report.counters["rowsUnreadable"] for report in reports.values()} == {0}


def test_a_late_fence_of_a_former_leader_is_refused(installation: BareInstallation) -> None:
    installation.lead(5)
    installation.fence(5)
    with pytest.raises(Py4JJavaError) as error:
        installation.fence(4)
    assert FENCED in str(error.value.java_exception)
    installation.write(row(2), epoch=5)


def test_a_fence_holds_over_a_move_a_split_a_merge_and_a_crash(installation: BareInstallation) -> None:
    cluster = installation.cluster
    message = installation.table("message")
    installation.lead(7)
    installation.fence(7)
    installation.write(row(2) | row(3), epoch=7)
    for region in installation.regions():
        cluster.move(region)
    assert_refused(installation, FENCED, 4, epoch=6)
    assert_refused(installation, FENCED, 5, epoch=6)
    installation.write(row(4) | row(5), epoch=7)
    first = installation.regions()[0]
    cluster.split(message, first, b"\0shop:orders:5")
    daughters = installation.regions()[:2]
    assert_refused(installation, FENCED, 6, epoch=6)
    installation.write(row(6), epoch=7)
    installation.compact(major=True)  # references cannot be merged
    cluster.merge(*daughters)
    assert_refused(installation, FENCED, 8, epoch=6)
    installation.write(row(8), epoch=7)
    cluster.kill(installation.regions()[0].server)
    cluster.start_server()
    cluster.settle()
    assert_refused(installation, FENCED, 10, epoch=6)
    installation.write(row(10), epoch=7)


def test_a_region_that_was_opened_after_the_lease_changed_needs_no_fence(installation: BareInstallation) -> None:
    """It reads the lease before it lets the first one in."""
    installation.lead(1)
    installation.write(row(2) | row(3), epoch=1)
    installation.lead(2)
    for region in installation.regions():
        installation.cluster.move(region)
    assert_refused(installation, FENCED, 4, epoch=1)
    assert_refused(installation, FENCED, 5, epoch=1)
    installation.write(row(4) | row(5), epoch=2)


@pytest.mark.parametrize("table", ["message", "payload", "cell"])
def test_a_late_write_of_a_failed_writer_is_refused(installation: BareInstallation, table: str) -> None:
    recent = now_ms() - HOUR_MS
    failed, fine = pointer_at(recent, 1), pointer_at(recent, 2)
    ancient = pointer_at(now_ms() - DAY_MS - HOUR_MS)
    snapshot = BareInstallation.snapshot(invalid=[failed], lifetime_ms_max=DAY_MS)
    installation.put_topic("orders")
    installation.put_snapshot(snapshot)
    installation.wait_until_known(snapshot, (table,))

    def late(writer: int) -> dict[bytes, dict[bytes, bytes]]:
        keys = BareInstallation.keys()
        if table == "payload":
            return {keys.payload_key(writer, recent, 1): {b"p": b"late"}}
        if table == "cell":
            return {BareInstallation.table_keys().cell_key(b"r", b"c", writer): {b"c": b"\0"}}
        return {keys.message_key(recent, writer % 1000): {b"p": b"late", b"t": writer.to_bytes(8, "big")}}

    installation.write(late(fine), table)
    for writer in (failed, ancient):
        with pytest.raises(Py4JJavaError) as error:
            installation.write(late(writer), table)
        assert REFUSED in str(error.value.java_exception)
    assert installation.cluster.scan(installation.table(table)) == late(fine)
    assert installation.cluster.metrics()["writesRefused"] >= 2


def test_the_roll_back_of_a_failed_writer_passes(installation: BareInstallation) -> None:
    """It is how its rows are hidden, however late."""
    failed = pointer_at(now_ms() - HOUR_MS, 1)
    key = BareInstallation.keys().message_key(now_ms(), 1)
    snapshot = BareInstallation.snapshot(invalid=[failed])
    installation.write({key: {b"p": b"1", b"t": failed.to_bytes(8, "big")}})
    installation.put_topic("orders")
    installation.put_snapshot(snapshot)
    installation.wait_until_known(snapshot)
    negated = (-failed).to_bytes(8, "big", signed=True)
    installation.write({key: {b"t": negated}})
    assert installation.cluster.scan(installation.table("message"))[key][b"t"] == negated
