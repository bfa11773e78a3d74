"""What a call does when its connection is cut before, during or after it, or the gateway is away."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import basalt_engine.stores.hbase.gateway as connections_module
from basalt_engine.clock import SystemClock
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase.gateway import (
    PING_AFTER_IDLE_MS,
    TRIES_MAX,
    ConnectionPool,
    Gateway,
    GatewayConnection,
    LostError,
    types,
)
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.table import Delete, DeleteRange, Insert, Put
from tests.engine.stores.hbase.conftest import open_store
from tests.engine.stores.hbase.fake_gateway import HANG_S, Held, nothing

CUTS = ["cut-request", "cut-answer", "cut-inside"]


@pytest.fixture
def table(store):
    return store.table("message")


@pytest.fixture
def single_try(fake, pool, clock):
    """The table for a process that tries nothing twice."""
    gateway = Gateway(pool, "fake", tries_max=1)
    return HBaseStore(gateway, gateway, "t", clock=clock).table("message")


@pytest.mark.parametrize("cut", CUTS)
def test_a_read_is_made_again_when_its_connection_is_cut(fake, table, cut):
    table.write([Put(b"k", {b"c": b"1"})])
    fake.fail("get", cut, cut)
    assert table.get(b"k") == {b"c": b"1"}


@pytest.mark.parametrize("cut", CUTS)
def test_a_put_is_made_again_with_the_same_timestamp(fake, table, cut):
    timestamps = []
    put = fake.handler.put
    fake.handler.put = lambda name, sent: [timestamps.append(sent.timestamp), put(name, sent)][1]
    fake.fail("put", cut)
    table.write([Put(b"k", {b"c": b"1"})])
    assert table.get(b"k") == {b"c": b"1"}
    assert fake.calls["put"] == (1 if cut == "cut-request" else 2)
    assert len(set(timestamps)) == 1


@pytest.mark.parametrize("method", ["put", "deleteMultiple"])
def test_a_write_that_is_never_answered_is_unknown_and_not_failed(fake, table, method):
    mutation = Put(b"k", {b"c": b"1"}) if method == "put" else Delete(b"k")
    fake.fail(method, *["cut-answer"] * TRIES_MAX)
    with pytest.raises(UnknownOutcomeError, match="did not answer a write"):
        table.write([mutation])


def test_a_write_is_unknown_when_only_one_of_its_tries_can_have_been_made(fake, table):
    fake.fail("put", "cut-answer")
    table.get(b"k")
    outcome = []
    fake.handler.lock.acquire()  # the try that is made hangs until the gateway is gone
    thread = threading.Thread(target=lambda: outcome.append(raised(table.write, [Put(b"k", {b"c": b"1"})])))
    thread.start()
    until(lambda: fake.calls["put"] == 1)
    fake.stop()
    fake.handler.lock.release()
    thread.join()
    assert isinstance(outcome[0], UnknownOutcomeError)


def until(is_so):
    stop_s = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < stop_s, "it did not come to be"
        time.sleep(0.01)


def raised(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("write", [[Put(b"k", {b"c": b"1"})], [Insert(b"k", {b"c": b"1"})], [Delete(b"k")]])
def test_a_gateway_that_is_away_has_written_nothing_and_is_used_again_when_it_is_back(fake, table, write):
    fake.stop()
    started_s = time.monotonic()
    with pytest.raises(StoreError, match="does not answer"):
        table.write(write)
    with pytest.raises(StoreError, match="does not answer"):
        table.get(b"k")
    assert time.monotonic() - started_s < HANG_S, "a refused connection was waited for"
    fake.start()
    table.write(write)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(64), b"\xff" * 64], ids=["http", "zeros", "ones"]
)
def test_something_else_that_answers_in_the_gateways_place_is_no_gateway(answer):
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    connection = GatewayConnection(listener.getsockname(), 60_000, SystemClock())
    with pytest.raises(LostError):
        connection.call("get", (b"t", types.TGet(row=b"k")), 60_000)
    assert not connection.is_usable()
    listener.shutdown(socket.SHUT_RDWR)
    serving.join()
    listener.close()


def test_a_gateway_that_answers_too_late_is_given_up_in_time(fake, table, short_calls):
    late = Held()
    fake.fail("get", *[late] * TRIES_MAX)
    with short_calls(), pytest.raises(StoreError, match="timed out"):
        table.get(b"k")
    late.let_go()


def test_a_late_answer_is_never_taken_for_the_next_calls(fake, table, single_try, short_calls):
    table.write([Put(b"a", {b"c": b"of a"}), Put(b"b", {b"c": b"of b"})])
    late = Held()
    fake.fail("get", late)
    with short_calls(), pytest.raises(StoreError):
        single_try.get(b"a")
    assert late.reached.wait(HANG_S)
    late.let_go()
    assert single_try.get(b"b") == {b"c": b"of b"}


def test_a_connection_that_the_gateway_closed_while_it_was_idle_is_not_used(fake, pool, single_try):
    single_try.get(b"k")
    (idle,) = pool._idle
    fake.hang_up()
    until(lambda: not idle.is_usable())
    assert single_try.get(b"k") is None
    assert fake.connections == 2


def test_a_call_under_way_is_lost_when_the_pool_is_closed(fake, pool, single_try):
    late = Held()
    fake.fail("get", late)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(single_try.get, b"k")
        assert late.reached.wait(HANG_S)
        pool.close()
        with pytest.raises(StoreError):
            call.result(HANG_S)
        late.let_go()


def test_a_request_that_could_not_be_sent_whole_was_not_carried_out(fake, table):
    fake.deaf = True
    with pytest.raises(StoreError, match="does not answer"):
        table.write([Put(b"k", {b"c": bytes(8 << 20)})])
    assert fake.calls["put"] == 0


def test_a_connection_that_was_idle_for_long_is_asked_for_a_sign_of_life(fake, clock):
    pool = ConnectionPool(fake.address, connections_max=4, clock=clock)
    table = open_store(fake, pool, clock).table("message")
    table.get(b"k")
    assert fake.calls["getThriftServerType"] == 0
    clock.advance(PING_AFTER_IDLE_MS + 1)
    table.get(b"k")
    assert fake.calls["getThriftServerType"] == 1
    clock.advance(PING_AFTER_IDLE_MS + 1)
    fake.fail("getThriftServerType", "cut-request")
    table.get(b"k")
    assert fake.connections == 2
    pool.close()


def test_no_more_connections_are_open_than_allowed(fake, table):
    held = Held()
    fake.fail("get", *[held] * 12)
    threads = [threading.Thread(target=table.get, args=(b"k",)) for _ in range(12)]
    for thread in threads:
        thread.start()
    until(lambda: fake.connections == 4)
    time.sleep(0.1)  # for one more, if it were to come
    held.let_go()
    for thread in threads:
        thread.join()
    assert fake.connections == 4
    assert fake.calls["get"] == 12


def test_who_waits_too_long_for_a_connection_is_told_that_nothing_was_written(fake, pool, table, monkeypatch):
    monkeypatch.setattr(connections_module, "LEND_TIMEOUT_MS", 10)
    with pool.lent(), pool.lent(), pool.lent(), pool.lent(), pytest.raises(StoreError, match="in use"):
        table.write([Put(b"k", {b"c": b"1"})])
    assert fake.calls["put"] == 0


def test_writes_go_through_while_readers_hold_all_connections_of_theirs(fake, clock, monkeypatch):
    monkeypatch.setattr(connections_module, "LEND_TIMEOUT_MS", 10)
    pools = [ConnectionPool(fake.address, connections_max=1) for _ in range(2)]
    store = HBaseStore(*[Gateway(pool, "fake", sleep=lambda _: None) for pool in pools], "t", clock=clock)
    table = store.table("message")
    with pools[0].lent():
        with pytest.raises(StoreError, match="in use"):
            table.get(b"k")
        table.write([Put(b"k", {b"c": b"1"}), Insert(b"i", {b"c": b"1"}), Put(b"r", {b"c": b"1"}), Delete(b"r")])
        assert table.check_and_write(b"k", b"c", b"1", {b"c": b"2"})
        table.write([DeleteRange(b"i", b"j")])
        store.lead(1)
    assert [(row.key, row.columns) for row in table.scan(b"", None)] == [(b"k", {b"c": b"2"})]
    store.close()


def test_conditional_puts_are_not_sent_twice_once_they_may_have_been_read(fake, table):
    fake.fail("checkAndPut", "cut-request")
    with pytest.raises(UnknownOutcomeError):
        table.check_and_write(b"k", b"c", None, {b"c": b"1"})
    assert table.get(b"k") is None
    with pytest.raises(UnknownOutcomeError):
        fake.fail("checkAndPut", "cut-request")
        table.write([Insert(b"k", {b"c": b"1"})])
    assert fake.calls["checkAndPut"] == 0


def test_a_conditional_put_whose_answer_got_lost_is_found_by_its_timestamp(fake, table):
    fake.fail("checkAndPut", "cut-answer", "cut-answer")
    assert table.check_and_write(b"k", b"c", None, {b"c": b"1", b"d": b"2"})
    table.write([Insert(b"i", {b"c": b"1"})])
    assert fake.calls["checkAndPut"] == 2
    assert table.get(b"i") == {b"c": b"1"}


def test_a_conditional_put_that_the_gateway_made_twice_counts_as_made(fake, table):
    made = fake.handler.checkAndPut
    fake.handler.checkAndPut = lambda *arguments: [made(*arguments), made(*arguments)][1]
    assert table.check_and_write(b"k", b"c", None, {b"c": b"1"})
    table.write([Insert(b"i", {b"c": b"1"})])


def test_a_conditional_put_is_unknown_when_it_cannot_be_looked_for(fake, table):
    fake.fail("checkAndPut", "cut-answer")
    fake.fail("get", nothing, *["refuse:the region is closed"] * 2)
    with pytest.raises(UnknownOutcomeError):
        table.check_and_write(b"k", b"c", None, {b"c": b"1"})


def test_no_thread_outlives_the_store(fake, store, pool):
    table = store.table("message")
    table.write([Put(b"%d" % number, {b"c": b"1"}) for number in range(9)])
    scans = [table.scan(b"", None) for _ in range(4)]
    assert len(list(scans[0])) == 9
    store.close()
    until(lambda: not any(thread.name.startswith("basalt-hbase") for thread in threading.enumerate()))
    with pytest.raises(StoreError, match="closed"):
        table.get(b"k")
