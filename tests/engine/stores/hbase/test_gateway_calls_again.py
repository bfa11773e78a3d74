"""A call that waits in the gateway is made over further connections by whoever has a lease to renew, and the first answer counts."""

from __future__ import annotations

import threading
import time

import pytest

import basalt_engine.stores.hbase.gateway as gateway_module
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.hbase.gateway import CALLS_AT_A_TIME_MAX, ConnectionPool, Gateway, LostError
from basalt_engine.stores.hbase.store import HBaseStore
from basalt_engine.table import Delete, Put
from tests.engine.stores.hbase.fake_gateway import HANG_S, Held, HeldAnswer

AGAIN_MS = 20.0


class HeldCalls:
    """Calls that are held one after the other, each until it is let go; `reached` of them are."""

    def __init__(self, count):
        self.each = [Held() for _ in range(count)]

    def wait_for(self, count):
        for held in self.each[:count]:
            assert held.reached.wait(HANG_S)

    def let_go(self):
        for held in self.each:
            held.let_go()


@pytest.fixture
def pool(fake):
    made = ConnectionPool(fake.address, connections_max=CALLS_AT_A_TIME_MAX + 2)
    yield made
    made.close()


@pytest.fixture
def store(fake, pool, clock):
    gateway = Gateway(pool, f"127.0.0.1:{fake.address[1]}", sleep=lambda _: None, again_ms=AGAIN_MS)
    opened = HBaseStore(gateway, gateway, "t", clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def row(store):
    """The table, with a row `k` whose column `c` is 1."""
    table = store.table("system")
    table.write([Put(b"k", {b"c": b"1"})])
    return table


@pytest.fixture
def hold(fake):
    """Holds the next so many calls of a method, until the end of the test or until they are let go."""
    made = []

    def held(method, count=1):
        calls = HeldCalls(count)
        fake.fail(method, *calls.each)
        made.append(calls)
        return calls

    yield held
    for calls in made:
        calls.let_go()


def until(holds):
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end, "it never was so"
        time.sleep(0.001)


def test_a_read_that_waits_in_the_gateway_is_answered_over_another_connection(hold, row):
    waiting = hold("get", 3)
    assert row.get(b"k") == {b"c": b"1"}
    waiting.wait_for(3)


def test_a_conditional_put_that_waits_is_made_over_another_connection(hold, row):
    waiting = hold("checkAndPut")
    assert row.check_and_write(b"k", b"c", b"1", {b"c": b"2"})
    waiting.wait_for(1)
    assert row.get(b"k") == {b"c": b"2"}


@pytest.mark.parametrize("goes_on", ["as it is", "changed by another", "deleted"])
def test_a_conditional_put_that_arrives_late_changes_nothing_any_more(fake, hold, row, goes_on):
    waiting, results, put = hold("checkAndPut"), [], fake.handler.checkAndPut
    fake.handler.checkAndPut = lambda *asked: results.append(put(*asked)) or results[-1]
    assert row.check_and_write(b"k", b"c", b"1", {b"c": b"2"})
    if goes_on == "changed by another":
        assert row.check_and_write(b"k", b"c", b"2", {b"c": b"ended"})
    elif goes_on == "deleted":
        row.write([Delete(b"k")])
    then, made = row.get(b"k"), len(results)
    waiting.let_go()
    until(lambda: len(results) > made)
    assert (row.get(b"k"), results[-1]) == (then, False)


def test_a_put_that_finds_what_its_own_double_has_put_was_made(fake, row):
    put, late = fake.calls["checkAndPut"], HeldAnswer()
    fake.fail("checkAndPut", late)
    assert row.check_and_write(b"k", b"c", b"1", {b"c": b"2"})
    assert row.get(b"k") == {b"c": b"2"}
    assert fake.calls["checkAndPut"] >= put + 2
    late.let_go()


def test_a_put_whose_double_finds_no_gateway_may_still_be_made_by_the_first(fake, hold, pool, clock, monkeypatch):
    gateway = Gateway(pool, "fake", sleep=lambda _: None, again_ms=1_000)  # what is not held is answered within that
    row = HBaseStore(gateway, gateway, "t", clock=clock).table("system")
    row.write([Put(b"k", {b"c": b"1"})])

    def refused(*_):
        raise LostError("connection refused", asked=False)

    hold("checkAndPut")
    monkeypatch.setattr(gateway_module, "_opened", refused)  # from now on there is the one connection of before
    with pytest.raises(UnknownOutcomeError):
        row.check_and_write(b"k", b"c", b"1", {b"c": b"2"})


def test_the_answer_to_a_slow_call_counts_though_others_were_made_since(hold, row):
    waiting = hold("get", CALLS_AT_A_TIME_MAX)

    def answer_the_first():
        waiting.wait_for(2)
        waiting.each[0].let_go()

    other = threading.Thread(target=answer_the_first)
    other.start()
    assert row.get(b"k") == {b"c": b"1"}
    other.join()


def test_so_many_calls_are_made_at_a_time_and_no_more(fake, hold, row):
    before, waiting = fake.calls["get"], hold("get", 2 * CALLS_AT_A_TIME_MAX)

    def answer_the_last():
        waiting.wait_for(CALLS_AT_A_TIME_MAX)
        time.sleep(5 * AGAIN_MS / 1_000)  # nothing is waited for: more would begin in it, if it were wrong
        waiting.each[CALLS_AT_A_TIME_MAX - 1].let_go()

    other = threading.Thread(target=answer_the_last)
    other.start()
    assert row.get(b"k") == {b"c": b"1"}
    other.join()
    assert not waiting.each[CALLS_AT_A_TIME_MAX].reached.is_set()
    assert fake.calls["get"] == before + 1


def test_calls_that_lost_are_cut_off_and_leave_their_connections_free(hold, pool, row):
    hold("get", CALLS_AT_A_TIME_MAX - 1)
    assert row.get(b"k") == {b"c": b"1"}
    until(lambda: pool.figures().lent == 0)


def test_a_put_that_expects_no_row_is_made_once(hold, store):
    waiting = hold("checkAndPut", 2)

    def answer():
        waiting.wait_for(1)
        time.sleep(5 * AGAIN_MS / 1_000)  # nothing is waited for: another would begin in it, if it were wrong
        waiting.each[0].let_go()

    other = threading.Thread(target=answer)
    other.start()
    assert store.table("system").check_and_write(b"new", b"c", None, {b"c": b"1"})
    other.join()
    assert not waiting.each[1].reached.is_set()


def test_a_store_that_is_closed_says_so_and_lets_go_of_who_waits(hold, row, store):
    waiting, errors = hold("get", CALLS_AT_A_TIME_MAX), []

    def ask():
        try:
            row.get(b"k")
        except StoreError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    waiting.wait_for(1)
    store.close()
    asking.join()
    assert [error.message for error in errors] == ["the HBase store is closed"]
