"""A Basalt server on a cluster whose regions move, split and lose their servers while clients publish."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from basalt_engine.table import TABLE_NAMES
from tests.hbase.bare_installation import BUCKETS, BareInstallation
from tests.hbase.mini_cluster import MiniCluster, NewTable, wait_until
from tests.hbase.publishers import Publishers
from tests.system.server_process import ServerProcess

pytestmark = [pytest.mark.hbase, pytest.mark.slow, pytest.mark.system]

TOPIC = "/v1/namespaces/shop/topics/orders"


def test_the_file_system_under_test_keeps_acknowledged_puts(mini_cluster: MiniCluster) -> None:
    """The control: without this, what the next test shows would say nothing about Basalt."""
    mini_cluster.create(NewTable("control.plain"))
    done: list[bytes] = []
    stop = threading.Event()

    def put() -> None:
        number = 0
        while not stop.is_set():
            key = b"%08d" % number
            try:
                mini_cluster.write("control.plain", {key: {b"p": key}})
                done.append(key)
            except Py4JError:
                pass  # unknown
            number += 1

    thread = threading.Thread(target=put)
    thread.start()
    try:
        for _ in range(2):
            enough = len(done) + 50
            wait_until(lambda enough=enough: len(done) >= enough, "puts go on")
            mini_cluster.kill(mini_cluster.regions("control.plain")[0].server)
            mini_cluster.start_server()
            mini_cluster.settle()
        enough = len(done) + 50
        wait_until(lambda: len(done) >= enough, "puts go on")
    finally:
        stop.set()
        thread.join()
    assert set(done) <= set(mini_cluster.scan("control.plain"))
    mini_cluster.drop_all("control.")


@pytest.fixture
def installation(mini_cluster: MiniCluster) -> Iterator[BareInstallation]:
    with BareInstallation(mini_cluster, "publishing", tables=TABLE_NAMES) as made:
        yield made
    assert mini_cluster.aborted() == []


@pytest.fixture
def server(installation: BareInstallation, tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path)
    settings = {
        "store.kind": "hbase",
        "store.hbase.thrift": installation.cluster.thrift,
        "store.hbase.thrift2": installation.cluster.thrift2,
        "store.hbase.prefix": installation.prefix,
        "store.hbase.buckets": BUCKETS,
    }
    made.start(*(word for name, value in settings.items() for word in ("--set", f"{name}={value}")))
    try:
        wait_until(lambda: made.ask("PUT", TOPIC).status in (200, 201), "the server leads")
        yield made
    finally:
        made.stop()


def test_nothing_is_lost_doubled_or_renumbered_while_the_cluster_is_disturbed(
    server: ServerProcess, installation: BareInstallation
) -> None:
    cluster, message = installation.cluster, installation.table("message")
    with Publishers(server.port, TOPIC) as publishers:
        publishers.wait_for_more()
        for region in installation.regions():
            cluster.move(region)
            publishers.wait_for_more()
        busiest = next(
            region for region in installation.regions() if _has_rows(installation, region.start, region.stop)
        )
        cluster.split(message, busiest, sorted(cluster.scan(message))[-1])
        publishers.wait_for_more()
        installation.flush()
        installation.compact(major=True)
        publishers.wait_for_more()
        for table in ("message", "transaction_log"):
            cluster.kill(installation.regions(table)[-1].server)
            cluster.start_server()
            cluster.settle()
            publishers.wait_for_more()
        installation.flush()
        installation.compact(major=False)
        publishers.wait_for_more()
    publishers.check_all()


def _has_rows(installation: BareInstallation, start: bytes, stop: bytes) -> bool:
    rows = installation.cluster.scan(installation.table("message"))
    return any(start <= key and (not stop or key < stop) for key in rows)
