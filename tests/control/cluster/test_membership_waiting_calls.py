"""A membership whose calls wait in HBase's gateway, as while the region of its row is away: a later call has the answer sooner."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import cast

import pytest

from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.members import MEMBER, MemberRecord
from basalt.cluster.membership import Membership
from basalt_engine.clock import ManualClock
from basalt_engine.stores.hbase.gateway import CALLS_AT_A_TIME_MAX, ConnectionPool, Gateway
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.system import SystemTable, install
from tests.engine.stores.hbase.fake_gateway import HANG_S, FakeGateway, Held
from tests.ports import reserved_port

LEASE_MS = 6_000
AGAIN_MS = 10.0


@pytest.fixture
def fake():
    with reserved_port() as port:
        gateway = FakeGateway(port)
        yield gateway
        gateway.stop()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def open_rows(fake, clock):
    """Opens one more handle on the rows."""
    pools = []

    def opened():
        pool = ConnectionPool(fake.address, connections_max=CALLS_AT_A_TIME_MAX)
        pools.append(pool)
        return HBaseStore(*[Gateway(pool, "fake", again_ms=AGAIN_MS)] * 2, "t", clock=clock)

    yield opened
    for pool in pools:
        pool.close()


@pytest.fixture
def system(open_rows):
    return SystemTable(open_rows().table("system"))


@pytest.fixture
def membership(open_rows, system, clock):
    install(system, clock, 2)
    leadership = cast("Leadership", SimpleNamespace(is_leader=False, leader=None, unchanged_ms=0.0))
    made = Membership(open_rows(), clock, Candidate("m", "http://m:4780", "m-1", LEASE_MS), leadership, "1.0")
    made.step()
    return made


def record_of(system: SystemTable) -> MemberRecord:
    [(_, record)] = MEMBER.scan(system)
    return record


@pytest.mark.parametrize("method", ["checkAndPut", "get", "getScannerResults"])
def test_a_renewal_that_waits_in_the_gateway_loses_no_lease(fake, clock, membership, system, method):
    waits = Held()
    fake.fail(method, waits)
    clock.advance(LEASE_MS // 2)
    before = record_of(system).count
    membership.step()
    assert record_of(system).count == before + 1
    clock.advance(LEASE_MS // 2)
    assert membership.is_on
    waits.let_go()
    clock.advance(LEASE_MS // 4)
    membership.step()
    assert record_of(system).count == before + 2


def test_a_renewal_that_arrives_late_revives_no_membership_that_was_ended(fake, clock, membership, system):
    waits, answered, put = Held(), queue.SimpleQueue[bool](), fake.handler.checkAndPut
    fake.fail("checkAndPut", waits)
    clock.advance(LEASE_MS // 2)
    membership.step()
    record, former = record_of(system), membership.instance
    ended = MemberRecord(**{**{name: getattr(record, name) for name in record.__struct_fields__}, "ended_ms": 1})
    assert system.replace(MEMBER.kind, former, MEMBER.encode(record), MEMBER.encode(ended))
    fake.handler.checkAndPut = lambda *asked: [is_put := put(*asked), answered.put(is_put)][0]
    waits.let_go()
    assert answered.get(timeout=HANG_S) is False
    assert record_of(system) == ended
    clock.advance(LEASE_MS // 4)
    membership.step()
    assert membership.instance != former
