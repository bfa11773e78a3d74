"""What the settings of discovery mean, and that a ZooKeeper which is away keeps no server from starting or stopping."""

from __future__ import annotations

import importlib.util
import json
import socket
import time

import pytest

from basalt.errors import InvalidSettingError
from basalt.settings import Settings
from basalt.settings.tree import ThriftSettings
from basalt.thrift.discovery import Registration, node_data, node_path
from basalt.thrift.face import ThriftMetrics, _advertised, check_thrift

STOP_S_MAX = 10.0


def test_a_node_tells_host_and_port_as_twill_writes_them():
    assert json.loads(node_data("mq.example", 15_165)) == {
        "service": "transaction",
        "hostname": "mq.example",
        "port": 15_165,
        "payload": [],
    }
    assert node_path("a", 1) != node_path("a", 2)
    assert node_path("a", 1).startswith("/discoverable/transaction/")


@pytest.mark.parametrize(
    ("advertise", "host", "told"),
    [
        (None, "10.0.0.7", ("10.0.0.7", 4)),
        (None, "0.0.0.0", (socket.getfqdn(), 4)),
        (None, "::", (socket.getfqdn(), 4)),
        ("mq.example:99", "0.0.0.0", ("mq.example", 99)),
        ("[2001:db8::1]:99", "127.0.0.1", ("2001:db8::1", 99)),
    ],
)
def test_clients_are_told_what_is_set_or_where_the_server_listens(advertise, host, told):
    assert _advertised(advertise, host, 4) == told


def test_a_registration_without_a_service_is_refused():
    with pytest.raises(InvalidSettingError) as refused:
        check_thrift(Settings(thrift=ThriftSettings(zookeeper="zk:2181")))
    assert refused.value.field == "thrift.zookeeper"
    assert "set thrift.port" in refused.value.hint


def test_a_missing_library_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "kazoo" else found(name))
    check_thrift(Settings(thrift=ThriftSettings(port=0)))
    with pytest.raises(InvalidSettingError, match="kazoo") as refused:
        check_thrift(Settings(thrift=ThriftSettings(port=0, zookeeper="zk:2181")))
    assert refused.value.field == "thrift.zookeeper"


def test_a_zookeeper_that_is_away_is_waited_for_without_holding_anyone_up():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        ensemble = f"127.0.0.1:{nobody.getsockname()[1]}"
    figures = ThriftMetrics()
    registration = Registration(ensemble, "mq.example", 1, figures)
    began_s = time.monotonic()
    registration.start()
    assert figures.registered is False
    registration.stop()
    assert time.monotonic() - began_s < STOP_S_MAX
