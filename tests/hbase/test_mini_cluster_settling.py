"""What tests on the mini-cluster rest on when they have killed a server."""

from __future__ import annotations

import pytest

from tests.hbase.mini_cluster import MiniCluster, NewTable

pytestmark = [pytest.mark.hbase, pytest.mark.slow]


def test_a_cluster_that_has_settled_names_no_server_that_was_killed(mini_cluster: MiniCluster) -> None:
    mini_cluster.create(NewTable("settling.plain", splits=[b"b", b"c", b"d"]))
    for _ in range(3):
        mini_cluster.kill(mini_cluster.regions("settling.plain")[0].server)
        mini_cluster.start_server()
        mini_cluster.settle()
        assert {region.server for region in mini_cluster.regions("settling.plain")} <= set(mini_cluster.servers())
    mini_cluster.drop_all("settling.")
