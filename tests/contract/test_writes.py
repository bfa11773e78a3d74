"""What a write promises: the order of its mutations, all or nothing, and one winner among many."""

from __future__ import annotations

import os
import threading

import pytest

from basalt_engine.errors import InputError, RowExistsError, StoreError
from basalt_engine.table import Delete, DeleteRange, Insert, Put, TableWrite

LARGE = os.urandom(20_000)
REFUSED = Put(b"", {b"c": b"1"})


@pytest.mark.parametrize("value", [b"small", LARGE], ids=["small", "large"])
def test_mutations_of_a_batch_apply_in_their_order(table, value):
    table.write(
        [
            Put(b"a", {b"c": value}),
            Put(b"a", {b"d": value}),
            Put(b"b", {b"c": value}),
            Delete(b"b"),
            Put(b"b", {b"d": b"2"}),
            Put(b"c", {b"c": value, b"d": value}),
            Delete(b"c", (b"c",)),
            Put(b"d", {b"c": value}),
            DeleteRange(b"d", b"e"),
            Put(b"e", {b"c": b"1"}),
            DeleteRange(b"e", b"f"),
            Put(b"e", {b"d": value}),
        ]
    )
    assert {row.key: row.columns for row in table.scan(b"", None)} == {
        b"a": {b"c": value, b"d": value},
        b"b": {b"d": b"2"},
        b"c": {b"d": value},
        b"e": {b"d": value},
    }


def test_a_range_deletes_what_was_there_before_the_batch_and_not_what_comes_after_it(table):
    table.write([Put(b"a1", {b"c": LARGE}), Put(b"a2", {b"c": b"1", b"d": b"2"})])
    table.write([DeleteRange(b"a", b"b"), Put(b"a2", {b"d": b"3"})])
    assert [(row.key, row.columns) for row in table.scan(b"", None)] == [(b"a2", {b"d": b"3"})]


def test_one_write_may_name_a_table_twice(store):
    store.write(
        [
            TableWrite("message", [Put(b"k", {b"a": b"1"})]),
            TableWrite("system", [Put(b"k", {b"a": b"2"})]),
            TableWrite("message", [Put(b"k", {b"b": b"3"})]),
        ]
    )
    assert store.table("message").get(b"k") == {b"a": b"1", b"b": b"3"}
    assert store.table("system").get(b"k") == {b"a": b"2"}


def test_an_empty_write_succeeds(store):
    store.write([])
    store.write([TableWrite("message", [])])
    store.table("message").write([])


@pytest.mark.parametrize(
    "last", [TableWrite("system", [REFUSED]), TableWrite("orders", [Delete(b"a")])], ids=["key", "table"]
)
def test_a_write_that_fails_at_its_end_leaves_nothing_where_the_store_is_atomic(store, last):
    first = TableWrite("message", [Put(b"a", {b"c": b"1"}), Put(b"b", {b"c": LARGE})])
    with pytest.raises(InputError):
        store.write([first, last])
    found = [row.key for row in store.table("message").scan(b"", None)]
    assert found == ([] if store.atomic else [b"a", b"b"])


def test_a_write_of_one_table_is_atomic_in_the_same_way(store):
    table = store.table("message")
    with pytest.raises(InputError):
        table.write([Put(b"a", {b"c": b"1"}), Delete(b"b"), REFUSED, Put(b"d", {b"c": b"1"})])
    assert [row.key for row in table.scan(b"", None)] == ([] if store.atomic else [b"a"])


def test_check_and_write_creates_a_row_only_while_its_column_is_absent(table):
    assert table.check_and_write(b"k", b"c", None, {b"c": b"1", b"d": b"x"})
    assert not table.check_and_write(b"k", b"c", None, {b"c": b"2"})
    assert table.check_and_write(b"k", b"e", None, {b"e": b"3"})
    assert table.get(b"k") == {b"c": b"1", b"d": b"x", b"e": b"3"}


def test_check_and_write_compares_the_whole_value(table):
    table.write([Put(b"k", {b"c": b"12", b"empty": b""})])
    for wrong in (None, b"", b"1", b"123", b"12\x00"):
        assert not table.check_and_write(b"k", b"c", wrong, {b"c": b"changed"})
    assert not table.check_and_write(b"k", b"empty", None, {b"c": b"changed"})
    assert table.check_and_write(b"k", b"empty", b"", {b"c": b"changed"})
    assert table.get(b"k") == {b"c": b"changed", b"empty": b""}


def test_check_and_write_compares_a_large_value(table):
    table.write([Put(b"k", {b"c": LARGE})])
    assert not table.check_and_write(b"k", b"c", LARGE[:-1], {b"c": b"1"})
    assert table.check_and_write(b"k", b"c", LARGE, {b"c": b"1"})
    assert table.get(b"k") == {b"c": b"1"}


def test_check_and_write_refuses_what_is_over_a_limit_and_writes_nothing(table):
    with pytest.raises(InputError):
        table.check_and_write(b"", b"c", None, {b"c": b"1"})
    with pytest.raises(InputError):
        table.check_and_write(b"k", b"c", None, {b"": b"1"})
    assert list(table.scan(b"", None)) == []


def race(count, run):
    """Run `run(number)` on so many threads at once; what each returned."""
    results = [None] * count
    start = threading.Barrier(count)

    def one(number):
        start.wait()
        results[number] = run(number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_one_of_twelve_racing_creators_wins(table):
    for turn in range(10):
        key = b"k%d" % turn

        def create(number, key=key):
            return table.check_and_write(key, b"c", None, {b"c": b"%d" % number})

        results = race(12, create)
        assert sorted(results) == [False] * 11 + [True]
        assert table.get(key) == {b"c": b"%d" % results.index(True)}


def test_a_counter_that_is_raised_by_check_and_write_loses_no_step(table):
    table.write([Put(b"k", {b"c": b"0"})])

    def count(_):
        for _ in range(20):
            while True:
                now = table.get(b"k")[b"c"]
                if table.check_and_write(b"k", b"c", now, {b"c": b"%d" % (int(now) + 1)}):
                    break

    race(4, count)
    assert table.get(b"k") == {b"c": b"80"}


def test_puts_of_many_threads_into_one_row_all_stay(table):
    race(8, lambda number: [table.write([Put(b"k", {b"%d-%d" % (number, turn): LARGE[:5_000]})]) for turn in range(5)])
    assert len(table.get(b"k")) == 40


def test_a_reader_never_sees_half_a_row(table):
    writing = threading.Event()
    values = [bytes([number]) * 6_000 for number in range(20)]
    table.write([Put(b"k", {b"a": values[0], b"b": values[0], b"c": values[0][:1]})])
    torn = []

    def read():
        while not writing.is_set():
            seen = [table.get(b"k"), *(row.columns for row in table.scan(b"", None))]
            torn.extend(columns for columns in seen if len({value[:1] for value in columns.values()}) != 1)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for value in values * 5:
            table.write([Put(b"k", {b"a": value, b"b": value, b"c": value[:1]})])
    finally:
        writing.set()
        reader.join()
    assert torn == []


def test_a_closed_store_refuses_every_call(own_store):
    store = own_store
    table = store.table("message")
    table.write([Put(b"k", {b"c": b"1"})])
    scan = table.scan(b"", None)
    store.close()
    calls = [
        lambda: table.get(b"k"),
        lambda: list(table.scan(b"", None)),
        lambda: list(scan),
        lambda: table.write([Put(b"k", {b"c": b"2"})]),
        lambda: table.check_and_write(b"k", b"c", b"1", {b"c": b"2"}),
        lambda: table.write([DeleteRange(b"", b"z")]),
        lambda: table.size_bytes(b"", b"z"),
        lambda: store.write([TableWrite("message", [Put(b"k", {b"c": b"2"})])]),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="closed"):
            call()
    store.close()


@pytest.mark.parametrize("value", [b"small", LARGE], ids=["small", "large"])
def test_a_row_is_inserted_where_there_is_none(table, value):
    table.write([Insert(b"k", {b"c": value, b"d": b""})])
    assert table.get(b"k") == {b"c": value, b"d": b""}


@pytest.mark.parametrize("value", [b"small", LARGE], ids=["small", "large"])
def test_an_insert_writes_over_nothing(table, value):
    table.write([Put(b"k", {b"c": value})])
    with pytest.raises(RowExistsError):
        table.write([Insert(b"k", {b"c": b"other", b"d": b"2"})])
    assert table.get(b"k") == {b"c": value}


def test_an_insert_asks_only_for_its_first_column(table):
    table.write([Put(b"k", {b"d": b"1"})])
    table.write([Insert(b"k", {b"c": b"1", b"d": b"2"})])
    assert table.get(b"k") == {b"c": b"1", b"d": b"2"}


def test_an_insert_sees_what_its_write_did_before(table):
    table.write([Put(b"k", {b"c": b"1"}), Delete(b"k"), Insert(b"k", {b"c": b"2"})])
    assert table.get(b"k") == {b"c": b"2"}
    with pytest.raises(StoreError):
        table.write([Put(b"l", {b"c": b"1"}), Insert(b"l", {b"c": b"2"})])


def test_what_comes_after_an_insert_that_is_refused_is_not_written(table):
    table.write([Put(b"k", {b"c": b"1"})])
    with pytest.raises(RowExistsError):
        table.write([Insert(b"k", {b"c": b"2"}), Put(b"z", {b"c": b"3"})])
    assert [row.key for row in table.scan(b"", None)] == [b"k"]


@pytest.mark.parametrize("columns", [{}, {b"c": b""}])
def test_an_insert_of_nothing_is_refused(table, columns):
    with pytest.raises(InputError):
        table.write([Insert(b"k", columns)])


def test_of_many_that_insert_the_same_row_one_wins(table):
    won, barrier = [], threading.Barrier(8)

    def insert(number):
        barrier.wait()
        try:
            table.write([Insert(b"k", {b"c": b"%d" % number})])
            won.append(number)
        except RowExistsError:
            pass

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert table.get(b"k") == {b"c": b"%d" % won[0]}
