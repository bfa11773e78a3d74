"""What is written over what, whatever the clocks say, and conditional puts among plain ones."""

from __future__ import annotations

import time
from threading import Event, Thread

import pytest

from basalt_engine.errors import InputError
from basalt_engine.stores.hbase.gateway import ConnectionPool
from basalt_engine.stores.hbase.table import (
    CALL_BYTES_MAX,
    CALL_ROWS_MAX,
    Deletes,
    Puts,
    SharedWriteLock,
    steps,
)
from basalt_engine.table import Delete, DeleteRange, Insert, Put
from tests.engine.stores.hbase.conftest import open_store
from tests.engine.stores.hbase.fake_gateway import HANG_S, Held


@pytest.fixture
def second(fake, clock):
    """A second process's store over the same tables."""
    pool = ConnectionPool(fake.address, connections_max=4)
    store = open_store(fake, pool, clock)
    yield store
    store.close()


@pytest.mark.parametrize("key", [b"k", b"k2"])
def test_a_put_after_a_delete_is_seen_though_the_clock_stands(store, key):
    table = store.table("message")
    table.write([Put(key, {b"a": b"1", b"b": b"1"}), Delete(key), Put(key, {b"a": b"2"}), Delete(key, (b"a",))])
    assert table.get(key) is None
    table.write([Put(key, {b"a": b"3"}), DeleteRange(b"k", b"l"), Insert(key, {b"b": b"4"})])
    assert table.get(key) == {b"b": b"4"}
    assert table.check_and_write(key, b"a", None, {b"a": b"5"})
    table.write([Delete(key)])
    assert table.check_and_write(key, b"a", None, {b"a": b"6"})
    assert table.get(key) == {b"a": b"6"}


def test_a_new_leader_whose_clock_is_behind_writes_over_the_former_one(store, second, clock):
    store.lead(1)
    store.table("system").write([Put(b"k", {b"v": b"former"}), Put(b"gone", {b"v": b"1"}), Delete(b"gone")])
    clock.step(clock.now_ms() - 3_600_000)
    second.lead(2)
    second.table("system").write([Put(b"k", {b"v": b"new"}), Put(b"gone", {b"v": b"2"})])
    assert store.table("system").get(b"k") == {b"v": b"new"}
    assert store.table("system").get(b"gone") == {b"v": b"2"}


def test_who_does_not_lead_takes_over_a_row_that_a_leader_wrote(store, second, clock):
    store.lead(7)
    store.table("system").write([Put(b"lease", {b"v": b"1", b"w": b"1"})])
    clock.step(0)
    assert second.table("system").check_and_write(b"lease", b"v", b"1", {b"v": b"2", b"w": b"2"})
    assert store.table("system").get(b"lease") == {b"v": b"2", b"w": b"2"}


def test_a_conditional_put_waits_for_plain_writes_and_they_wait_for_it(fake, store):
    table = store.table("message")
    made = []

    def plain(value):
        return Thread(target=table.write, args=([Put(b"k", {b"c": value})],))

    def conditional(expected):
        columns = {b"c": b"conditional"}
        return Thread(target=lambda: made.append(table.check_and_write(b"k", b"c", expected, columns)))

    one_waits_for_the_other(fake, "put", plain(b"plain"), conditional(None))
    assert made == [False]
    one_waits_for_the_other(fake, "checkAndPut", conditional(b"plain"), plain(b"last"))
    assert made == [False, True]
    assert table.get(b"k") == {b"c": b"last"}


def one_waits_for_the_other(fake, method, other, one):
    held = Held()
    fake.fail(method, held)
    other.start()
    assert held.reached.wait(HANG_S)
    one.start()
    one.join(0.05)
    assert one.is_alive()
    held.let_go()
    for thread in (other, one):
        thread.join()


def test_plain_writes_go_side_by_side_and_let_a_waiting_conditional_one_pass():
    lock = SharedWriteLock()
    order = []
    go_on = Event()

    def run(name, turn):
        with turn:
            order.append(name)
            go_on.wait(HANG_S)

    def begun(name, turn, is_so):
        thread = Thread(target=run, args=(name, turn))
        thread.start()
        while not is_so():
            time.sleep(0.001)
        return thread

    threads = [
        begun("a", lock.plain(), lambda: order == ["a"]),
        begun("b", lock.plain(), lambda: order == ["a", "b"]),
        begun("C", lock.conditional(), lambda: lock._waiting == 1),
        begun("d", lock.plain(), lambda: True),
    ]
    threads[-1].join(0.05)
    assert order == ["a", "b"]
    go_on.set()
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "C", "d"]


def test_neighbouring_puts_are_one_call_and_so_are_deletes():
    mutations = [
        Put(b"a", {b"x": b"1"}), Put(b"b", {b"x": b"1"}), Put(b"a", {b"x": b"2", b"y": b"3"}), Put(b"c", {}),
        Delete(b"a"), Delete(b"b", (b"x",)), Delete(b"c", ()),
        Insert(b"i", {b"x": b"1"}), DeleteRange(b"a", b"b"), Put(b"d", {b"x": b"1"}),
    ]  # fmt: skip
    assert list(steps(mutations)) == [
        Puts({b"a": {b"x": b"2", b"y": b"3"}, b"b": {b"x": b"1"}}),
        Deletes([Delete(b"a"), Delete(b"b", (b"x",))]),
        Insert(b"i", {b"x": b"1"}),
        DeleteRange(b"a", b"b"),
        Puts({b"d": {b"x": b"1"}}),
    ]


def test_a_call_holds_so_many_bytes_and_so_many_rows():
    large = [Put(b"%d" % number, {b"x": bytes(CALL_BYTES_MAX // 3)}) for number in range(5)]
    assert [len(step.rows) for step in steps(large)] == [2, 2, 1]
    assert [len(step.rows) for step in steps([Put(b"k", {b"x": bytes(2 * CALL_BYTES_MAX)})])] == [1]
    many = [Put(b"%d" % number, {b"x": b""}) for number in range(CALL_ROWS_MAX + 1)]
    assert [len(step.rows) for step in steps(many)] == [CALL_ROWS_MAX, 1]
    assert [len(step.deletes) for step in steps([Delete(put.key) for put in many])] == [CALL_ROWS_MAX, 1]


def test_what_comes_before_a_mutation_that_is_refused_is_written():
    found = []
    with pytest.raises(InputError):
        found.extend(steps([]))
        for step in steps([Put(b"a", {b"x": b"1"}), Put(b"", {b"x": b"1"}), Put(b"b", {b"x": b"1"})]):
            found.append(step)
    assert found == [Puts({b"a": {b"x": b"1"}})]
