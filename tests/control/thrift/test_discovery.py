"""The node by which clients find the server, and that a ZooKeeper which is away keeps no server from starting or stopping."""

from __future__ import annotations

import json
import time

from basalt.thrift.discovery import Registration, node_data, node_path
from basalt.thrift.metrics import ThriftMetrics
from tests.ports import reserved_port

HANG_S = 60.0  # who waits for an ensemble waits for ever


def test_a_node_tells_host_and_port_as_twill_writes_them():
    assert json.loads(node_data("mq.example", 15_165)) == {
        "service": "transaction",
        "hostname": "mq.example",
        "port": 15_165,
        "payload": [],
    }
    assert node_path("a", 1) != node_path("a", 2)
    assert node_path("a", 1).startswith("/discoverable/transaction/")


def test_a_zookeeper_that_is_away_is_waited_for_without_holding_anyone_up():
    figures = ThriftMetrics()
    with reserved_port() as nobodys:
        registration = Registration(f"127.0.0.1:{nobodys}", "mq.example", 1, figures)
        began_s = time.monotonic()
        registration.start()
        assert figures.registered is False
        registration.stop()
    assert time.monotonic() - began_s < HANG_S
