"""The settings of the Thrift face: what they mean, and what is refused before anything is opened."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from basalt.errors import InvalidSettingError
from basalt.settings import Settings
from basalt.settings.tree import ThriftSettings, TransactionSettings
from basalt.thrift.face import _advertised, check_thrift


def test_without_a_port_there_is_no_face():
    check_thrift(Settings())


def test_a_missing_library_is_named_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidSettingError, match="thriftpy2") as caught:
        check_thrift(Settings(thrift=ThriftSettings(port=15165)))
    assert "basalt-mq[tephra]" in caught.value.hint


def test_an_external_manager_has_a_service_of_its_own():
    external = TransactionSettings(manager="external")
    with pytest.raises(InvalidSettingError, match="external"):
        check_thrift(Settings(thrift=ThriftSettings(port=0), transactions=external))


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
