"""Two Basalt servers that share topics on a cluster whose regions split and move and whose region servers die, while shards move between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from basalt_engine.table import TABLE_NAMES
from tests.budgets import CLUSTER_ROUNDS
from tests.hbase.bare_installation import BUCKETS, BareInstallation
from tests.hbase.member_servers import Members, members
from tests.hbase.mini_cluster import MiniCluster, wait_until
from tests.hbase.publishers import Publishers
from tests.hbase.server_pair import BUCKETS as BUCKETS_OF_SERVERS
from tests.hbase.server_pair import Installation

pytestmark = [pytest.mark.hbase, pytest.mark.slow, pytest.mark.system]

NAMESPACE = "shop"
MOVED = ("orders", "bills")
MOVES_MIN = 3  # that end while one thing happens to the cluster


@pytest.fixture
def installation(mini_cluster: MiniCluster) -> Iterator[BareInstallation]:
    assert BUCKETS == BUCKETS_OF_SERVERS
    with BareInstallation(mini_cluster, "members", tables=TABLE_NAMES) as made:
        yield made
    assert mini_cluster.aborted() == []


@pytest.fixture
def servers(installation: BareInstallation, tmp_path: Path) -> Iterator[Members]:
    cluster = installation.cluster
    place = Installation(cluster.thrift, cluster.thrift2, installation.prefix)
    with members(tmp_path, place, 2, share=True, balance=False) as made:
        for topic in MOVED:
            made.make(f"/v1/namespaces/{NAMESPACE}/topics/{topic}")
        yield made


class Moves(threading.Thread):
    """Moves both topics to and fro, one after the other."""

    def __init__(self, servers: Members) -> None:
        super().__init__(daemon=True)
        self.made = 0
        self.wrong: BaseException | None = None
        self.enough = threading.Event()
        self._servers = servers

    def run(self) -> None:
        try:
            while not self.enough.is_set():
                to = self._servers.those[(self.made // len(MOVED)) % 2]
                self._servers.move(NAMESPACE, MOVED[self.made % len(MOVED)], to)
                self.made += 1
        except BaseException as error:
            self.wrong = error

    def wait_for_more(self) -> None:
        """Return once some more moves were made."""
        enough = self.made + MOVES_MIN
        wait_until(lambda: self.made >= enough or self.wrong, "shards move")
        assert self.wrong is None, repr(self.wrong)


def disturb(installation: BareInstallation, go_on: list[Publishers], moves: Moves) -> None:
    """One thing after the other, each while shards move; then publishers and moves go on."""
    cluster, message = installation.cluster, installation.table("message")

    def wait() -> None:
        for each in go_on:
            each.wait_for_more()
        moves.wait_for_more()

    for region in installation.regions():
        cluster.move(region)
        wait()
    busiest = max(installation.regions(), key=lambda region: len(keys_of(installation, region.start, region.stop)))
    keys = keys_of(installation, busiest.start, busiest.stop)
    cluster.split(message, busiest, keys[len(keys) // 2])
    wait()
    installation.flush()
    installation.compact(major=True)
    wait()
    for table in ("message", "transaction_log", "system"):
        cluster.kill(installation.regions(table)[-1].server)
        cluster.start_server()
        cluster.settle()
        wait()


def keys_of(installation: BareInstallation, start: bytes, stop: bytes) -> list[bytes]:
    rows = installation.cluster.scan(installation.table("message"))
    return sorted(key for key in rows if start <= key and (not stop or key < stop))


def test_nothing_is_lost_doubled_or_renumbered_while_shards_move_on_a_disturbed_cluster(
    servers: Members, installation: BareInstallation
) -> None:
    moves = Moves(servers)
    load = [
        Publishers(each.port, f"/v1/namespaces/{NAMESPACE}/topics/{topic}")
        for each, topic in zip(servers.those, MOVED, strict=True)
    ]
    with load[0], load[1]:
        for each in load:
            each.wait_for_more()
        moves.start()
        try:
            for _ in range(CLUSTER_ROUNDS):
                disturb(installation, load, moves)
        finally:
            moves.enough.set()
            moves.join()
    assert moves.wrong is None, repr(moves.wrong)
    for each in load:
        each.check_all()
    print(f"{moves.made} moves; {[len(each.done) for each in load]} messages")
