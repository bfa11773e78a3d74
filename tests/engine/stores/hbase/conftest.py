"""A store over a fake gateway, with time-outs that only a hang meets, and no pauses between tries."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import basalt_engine.stores.hbase.gateway as gateway_module
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.gateway import ConnectionPool, Gateway
from basalt_engine.stores.hbase.store import HBaseStore
from tests.engine.stores.hbase.fake_gateway import HANG_S, FakeGateway
from tests.ports import reserved_port

TIMEOUTS = ("CALL_TIMEOUT_MS", "CONNECT_TIMEOUT_MS", "LEND_TIMEOUT_MS", "PING_TIMEOUT_MS", "TOTAL_MS_MAX")


@pytest.fixture
def fake(monkeypatch):
    for name in TIMEOUTS:
        monkeypatch.setattr(gateway_module, name, int(HANG_S * 1_000))
    with reserved_port() as port:  # its own, also while it is away
        gateway = FakeGateway(port)
        yield gateway
        gateway.stop()


@pytest.fixture
def short_calls(monkeypatch):
    """Gives a call up soon, from when it is entered to when it is left."""

    @contextmanager
    def given_up_soon():
        with monkeypatch.context() as shortened:
            shortened.setattr(gateway_module, "CALL_TIMEOUT_MS", 100)
            yield

    return given_up_soon


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
