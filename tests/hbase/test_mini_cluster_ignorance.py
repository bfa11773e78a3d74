"""What region servers do with knowledge that is missing, damaged, outdated or out of reach: they keep rows, and count.

None of it may make a flush or a compaction fail, or a server give up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from basalt_engine.stores.hbase.regions import RegionSnapshot
from basalt_engine.system import seal
from tests.hbase.bare_installation import DAY_MS, HOUR_MS, BareInstallation, now_ms, pointer_at
from tests.hbase.mini_cluster import MiniCluster, wait_until

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

Rows = dict[bytes, dict[bytes, bytes]]


@pytest.fixture
def unwary(mini_cluster: MiniCluster) -> Iterator[MiniCluster]:
    """The cluster, of which no server may give up meanwhile."""
    yield mini_cluster
    assert mini_cluster.aborted() == []


def failed_writer() -> int:
    return pointer_at(now_ms() - HOUR_MS)


def rows_of(writer: int, *, topic: str = "orders", age_ms: int = HOUR_MS, count: int = 3) -> Rows:
    """Rows of one writer."""
    keys = BareInstallation.keys(topic)
    start_ms = now_ms() - age_ms
    return {
        keys.message_key(start_ms, sequence): {b"p": b"%d" % sequence, b"t": writer.to_bytes(8, "big")}
        for sequence in range(count)
    }


def flush_and_compact(installation: BareInstallation) -> Rows:
    """What is left in the files after both kinds of compaction."""
    installation.flush()
    installation.compact(major=False)
    installation.compact(major=True)
    return installation.stored()


def wait_for_another_failure(cluster: MiniCluster, cause: Callable[[], None]) -> None:
    """Do something, and return once a refresher has counted that it failed."""
    before = cluster.metrics().get("refreshFailures", 0)
    cause()
    wait_until(lambda: cluster.metrics().get("refreshFailures", 0) > before, "the failure is counted")


def with_unsorted_list(snapshot: RegionSnapshot) -> bytes:
    """The second delta made 0: the same pointer twice."""
    assert len(snapshot.invalid) == 2
    assert snapshot.invalid[1] - snapshot.invalid[0] < 0x80
    assert snapshot.encode()[-4:] == bytes(4), "and no runs behind them"
    return snapshot.encode()[:-5] + bytes(5)


DAMAGES: dict[str, Callable[[RegionSnapshot], bytes]] = {
    "cut": lambda snapshot: seal(snapshot.encode()[:-1]),
    "cut with its checksum": lambda snapshot: seal(snapshot.encode())[:-7],
    "empty": lambda _: b"",
    "with a flipped bit": lambda snapshot: seal(snapshot.encode())[:20] + b"\xff" + seal(snapshot.encode())[21:],
    "unsorted": lambda snapshot: seal(with_unsorted_list(snapshot)),
    "of a format to come": lambda snapshot: seal(b"\3" + snapshot.encode()[1:]),
    "with a count beyond its end": lambda snapshot: seal(
        snapshot.encode()[:73] + struct.pack(">I", 0x7FFFFFFF) + snapshot.encode()[77:]
    ),
}


def test_without_a_snapshot_no_writer_is_taken_to_have_failed(unwary: MiniCluster) -> None:
    before = unwary.metrics().get("rowsNoSnapshot", 0)
    with BareInstallation(unwary, "none") as installation:
        installation.put_topic("orders")
        installation.wait_until_known()
        rows = rows_of(failed_writer())
        expired = rows_of(failed_writer(), age_ms=9 * DAY_MS)
        installation.write(rows | expired)
        assert flush_and_compact(installation) == rows  # what is known of topics holds all the same
        assert unwary.metrics()["rowsNoSnapshot"] >= before + len(rows)
        assert all(report.snapshot_epoch == -1 for report in installation.reports().values())


def test_a_damaged_snapshot_is_refused_and_counted_and_a_good_one_taken_later(unwary: MiniCluster) -> None:
    writer = failed_writer()
    snapshot = BareInstallation.snapshot(invalid=[writer, writer + 1])
    with BareInstallation(unwary, "damaged") as installation:
        installation.put_topic("orders")
        rows = rows_of(writer)
        installation.write(rows)
        for name, damage in DAMAGES.items():
            put = partial(installation.put_system, "snapshot", "latest", damage(snapshot))
            wait_for_another_failure(unwary, put)
            installation.wait_until_known()
            assert all(report.snapshot_epoch == -1 for report in installation.reports().values()), name
            assert flush_and_compact(installation) == rows, name
        installation.put_snapshot(snapshot)
        installation.wait_until_known(snapshot)
        assert flush_and_compact(installation) == {}


def test_a_damaged_snapshot_does_not_displace_a_good_one(unwary: MiniCluster) -> None:
    writer = failed_writer()
    snapshot = BareInstallation.snapshot(invalid=[writer, writer + 1])
    with BareInstallation(unwary, "displaced") as installation:
        installation.put_topic("orders")
        kept = rows_of(pointer_at(now_ms() - HOUR_MS, 99))
        installation.write(rows_of(writer, age_ms=2 * HOUR_MS) | kept)
        installation.put_snapshot(snapshot)
        installation.wait_until_known(snapshot)
        installation.put_system("snapshot", "latest", DAMAGES["cut"](snapshot._replace(sequence=7)))
        installation.wait_until_known()
        assert flush_and_compact(installation) == kept


@pytest.mark.parametrize(("epoch", "sequence"), [(2, 4), (1, 99)], ids=["older", "of a former leader"])
def test_an_older_copy_of_the_snapshot_is_not_taken(unwary: MiniCluster, epoch: int, sequence: int) -> None:
    first, second = failed_writer(), failed_writer() + 5
    newer = BareInstallation.snapshot(epoch=2, sequence=5, invalid=[first])
    older = BareInstallation.snapshot(epoch=epoch, sequence=sequence, invalid=[second])
    with BareInstallation(unwary, f"older{epoch}") as installation:
        installation.put_topic("orders")
        kept = rows_of(second)
        installation.write(rows_of(first, age_ms=2 * HOUR_MS) | kept)
        installation.put_snapshot(newer)
        installation.wait_until_known(newer)
        installation.put_snapshot(older)
        installation.wait_until_known()
        reports = installation.wait_for_reports()
        assert {(report.snapshot_epoch, report.snapshot_sequence) for report in reports.values()} == {(2, 5)}
        assert flush_and_compact(installation) == kept


def test_damaged_metadata_of_one_topic_keeps_its_rows_alone(unwary: MiniCluster) -> None:
    with BareInstallation(unwary, "topic") as installation:
        installation.put_topic("orders")
        wait_for_another_failure(unwary, partial(installation.put_topic_bytes, "carts", b"\1" * 44))
        installation.wait_until_known()
        kept = rows_of(failed_writer(), topic="carts", age_ms=9 * DAY_MS)
        installation.write(kept | rows_of(failed_writer(), age_ms=9 * DAY_MS))
        assert flush_and_compact(installation) == kept


def test_metadata_out_of_reach_keeps_every_row_until_it_is_back(unwary: MiniCluster) -> None:
    writer = failed_writer()
    rows = rows_of(writer) | rows_of(writer, age_ms=9 * DAY_MS)
    # No region of it may have read the topics before: so these two have no coprocessor.
    with BareInstallation(unwary, "unreachable", tables=("metadata", "system"), observed=False) as installation:
        installation.put_topic("orders")
        snapshot = BareInstallation.snapshot(invalid=[writer])
        unwary.disable(installation.table("metadata"))
        with BareInstallation(unwary, "unreachable", tables=("message",)):
            installation.write(rows)
            wait_for_another_failure(unwary, partial(installation.put_snapshot, snapshot))
            assert flush_and_compact(installation) == rows
            unwary.enable(installation.table("metadata"))
            installation.wait_until_known(snapshot)
            assert flush_and_compact(installation) == {}


def test_a_system_table_out_of_reach_keeps_what_only_the_snapshot_could_drop(unwary: MiniCluster) -> None:
    writer = failed_writer()
    kept = rows_of(writer)
    with BareInstallation(unwary, "blind") as installation:
        installation.put_topic("orders")
        installation.wait_until_known()
        installation.write(kept)
        unwary.disable(installation.table("system"))
        assert flush_and_compact(installation) == kept
        unwary.enable(installation.table("system"))
        snapshot = BareInstallation.snapshot(invalid=[writer])
        installation.put_snapshot(snapshot)
        installation.wait_until_known(snapshot)
        assert flush_and_compact(installation) == {}


def test_settings_that_are_no_numbers_do_no_harm(unwary: MiniCluster) -> None:
    with BareInstallation(unwary, "odd") as installation:
        attribute = installation.coprocessor("message").replace("=100", "=often")
        unwary.set_coprocessor(installation.table("message"), attribute)
        rows = rows_of(failed_writer())
        installation.write(rows)
        assert flush_and_compact(installation) == rows
