"""What is counted of a gateway: each try with its outcome, connections, and callers that had to wait for one."""

from __future__ import annotations

import threading

from basalt_engine.stores.hbase.gateway import ConnectionPool, Gateway, PoolFigures
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.table import Put


def test_each_try_is_counted_by_how_it_ended(fake, store):
    table = store.table("message")
    table.write([Put(b"k", {b"c": b"1"})])
    fake.fail("get", "cut-answer")
    table.get(b"k")
    ended = store.gateways["reads"].calls.ended
    assert (ended["get", "lost"], ended["get", "answered"]) == (1, 1)
    assert store.gateways["writes"].calls.ended["put", "answered"] == 1
    assert sum(store.gateways["reads"].calls.durations.counts) == sum(
        count
        for gateway in {id(each): each for each in store.gateways.values()}.values()
        for count in gateway.calls.ended.values()
    )


def test_a_refusal_is_no_loss(fake, pool, clock):
    gateway = Gateway(pool, "fake")
    table = HBaseStore(gateway, gateway, "t", clock=clock).table("message")
    fake.fail("get", "refuse:no")
    try:
        table.get(b"k")
    except Exception:  # what it is told is another test's matter
        pass
    assert +gateway.calls.ended == {("get", "refused"): 1}


def test_a_caller_who_has_to_wait_for_a_connection_is_counted(fake):
    pool = ConnectionPool(fake.address, connections_max=1)
    waited = threading.Event()

    def lend() -> None:
        with pool.lent():
            waited.set()

    with pool.lent():
        assert pool.figures() == PoolFigures(lent=1, idle=0, connections_max=1, waits=0)
        other = threading.Thread(target=lend)
        other.start()
        while pool.figures().waits == 0:
            assert not waited.is_set()
    other.join()
    assert pool.figures() == PoolFigures(lent=0, idle=1, connections_max=1, waits=1)
    pool.close()
