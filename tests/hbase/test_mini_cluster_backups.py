"""Groups and producers in copies of HBase's tables, made and put back as docs/operations/hbase.md tells: they are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt_engine.table import TABLE_NAMES
from tests.hbase.bare_installation import BUCKETS, BareInstallation
from tests.hbase.mini_cluster import MiniCluster, wait_until
from tests.system.server_process import ORDERS, ServerProcess
from tests.system.test_group_backups import Story

pytestmark = [pytest.mark.hbase, pytest.mark.slow, pytest.mark.system]


class Backups:
    """Copies of all tables of an installation; servers are stopped by whoever makes one."""

    def __init__(self, installation: BareInstallation) -> None:
        self._cluster = installation.cluster
        self._tables = {installation.table(name): f"{name}-nightly" for name in TABLE_NAMES}

    def make(self) -> None:
        """Copy each."""
        for table, name in self._tables.items():
            self._cluster.snapshot(table, name)

    def restore(self) -> None:
        """Take all off line, put each back, and take all on line again."""
        for table in self._tables:
            self._cluster.disable(table)
        for name in self._tables.values():
            self._cluster.restore(name)
        for table in self._tables:
            self._cluster.enable(table)


@pytest.fixture
def installation(mini_cluster: MiniCluster) -> Iterator[BareInstallation]:
    with BareInstallation(mini_cluster, "backups", tables=TABLE_NAMES) as made:
        yield made
    assert mini_cluster.aborted() == []


@pytest.fixture
def server(installation: BareInstallation, tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path)
    yield made
    made.kill()


def start(server: ServerProcess, installation: BareInstallation) -> None:
    """Start it, and wait until it leads."""
    settings = {
        "store.kind": "hbase",
        "store.hbase.thrift": installation.cluster.thrift,
        "store.hbase.thrift2": installation.cluster.thrift2,
        "store.hbase.prefix": installation.prefix,
        "store.hbase.buckets": BUCKETS,
    }
    server.start(*(word for name, value in settings.items() for word in ("--set", f"{name}={value}")))
    wait_until(lambda: server.ask("GET", "/readyz?leader=true").status == 200, "the server leads")


def test_restored_tables_have_groups_and_producers_as_they_were(
    server: ServerProcess, installation: BareInstallation
) -> None:
    start(server, installation)
    server.ask_json("PUT", ORDERS)
    story, backups = Story(server), Backups(installation)
    server.stop()
    backups.make()
    start(server, installation)
    story.go_on()
    server.stop()
    backups.restore()
    start(server, installation)
    story.check_what_was_restored()
