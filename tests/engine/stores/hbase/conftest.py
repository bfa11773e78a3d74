"""A store over a fake gateway, with short time-outs and no pauses between tries."""

from __future__ import annotations

import pytest

import basalt_engine.stores.hbase.gateway as gateway_module
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.gateway import ConnectionPool, Gateway
from basalt_engine.stores.hbase.store import HBaseStore
from tests.engine.stores.hbase.fake_gateway import FakeGateway

CALL_TIMEOUT_S = 0.6


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(gateway_module, "CALL_TIMEOUT_MS", int(CALL_TIMEOUT_S * 1_000))
    gateway = FakeGateway()
    yield gateway
    gateway.stop()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def pool(fake):
    made = ConnectionPool(fake.address, connections_max=4)
    yield made
    made.close()


@pytest.fixture
def store(fake, pool, clock):
    opened = open_store(fake, pool, clock)
    yield opened
    opened.close()


def open_store(fake, pool, clock):
    """A store as a process has one open."""
    gateway = Gateway(pool, f"127.0.0.1:{fake.address[1]}", sleep=lambda _: None)
    return HBaseStore(gateway, gateway, "t", clock=clock)
