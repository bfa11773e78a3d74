"""The settings of the Thrift face: what they mean, and what is refused before anything is opened."""

from __future__ import annotations

import importlib.util
import re
import socket
from dataclasses import replace
from typing import Any

import pytest

from basalt.access.principal import NAME_CHARS_MAX
from basalt.errors import InvalidSettingError
from basalt.settings import Settings, load_settings
from basalt.settings.auth import AuthSettings
from basalt.settings.kinds import _PRINCIPAL_NAME_CHARS_MAX
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


@pytest.mark.parametrize("kinds", [("token",), ("none", "cert"), ("kerberos", "token")])
def test_with_authentication_on_somebody_must_say_who_tephras_clients_count_as(kinds: tuple[Any, ...]):
    proving = Settings(auth=AuthSettings(kinds=kinds), thrift=ThriftSettings(port=0))
    with pytest.raises(InvalidSettingError) as refused:
        check_thrift(proving)
    assert refused.value.field == "thrift.principal"
    check_thrift(replace(proving, thrift=ThriftSettings(port=0, principal="thrift:default")))
    check_thrift(replace(proving, thrift=ThriftSettings()))
    for nobody_proves in ((), ("none",)):
        check_thrift(replace(proving, auth=AuthSettings(kinds=nobody_proves)))


def test_a_face_to_which_nobody_may_connect_is_refused():
    with pytest.raises(InvalidSettingError) as refused:
        check_thrift(Settings(thrift=ThriftSettings(port=0, networks=())))
    assert refused.value.field == "thrift.networks"


def test_the_name_of_the_principal_is_as_long_as_any():
    assert _PRINCIPAL_NAME_CHARS_MAX == NAME_CHARS_MAX
    longest = f"thrift:{'x' * NAME_CHARS_MAX}"
    assert load_settings(flags=[f"thrift.principal={longest}"]).thrift.principal == longest
    with pytest.raises(InvalidSettingError):
        load_settings(flags=[f"thrift.principal={longest}x"])


@pytest.mark.parametrize(
    ("flag", "value", "read"),
    [
        ("thrift.principal", "thrift:default", "thrift:default"),
        ("thrift.principal", "off", None),
        ("thrift.principal", "token:etl", "is not thrift:NAME, off"),
        ("thrift.principal", "thrift:", "is not thrift:NAME, off"),
        ("thrift.principal", "thrift: x", "is not thrift:NAME, off"),
        ("thrift.networks", "10.0.0.0/8,::1", ("10.0.0.0/8", "::1/128")),
        ("thrift.networks", "10.0.0.1/8", "with zeros behind its prefix"),
        ("thrift.networks", "example.org", "which is not a network such as 10.0.0.0/8"),
    ],
)
def test_principal_and_networks_are_read_as_what_they_are(flag: str, value: str, read: object):
    name = flag.partition(".")[2]
    if isinstance(read, str) and read != value:
        with pytest.raises(InvalidSettingError, match=re.escape(read)):
            load_settings(flags=[f"{flag}={value}"])
    else:
        assert getattr(load_settings(flags=[f"{flag}={value}"]).thrift, name) == read
