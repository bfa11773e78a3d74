"""What a row is: columns that are put, merged and deleted, under keys and names of any bytes."""

from __future__ import annotations

import os

import pytest

from basalt_engine.errors import InputError
from basalt_engine.table import COLUMNS_MAX, KEY_BYTES_MAX, TABLE_NAMES, Delete, DeleteRange, Put

AWKWARD = [
    bytes.fromhex(key) for key in ["00", "0000", "01", "61", "6100", "610000", "61ff", "62", "feff", "ff", "ffff"]
]
LARGE = os.urandom(100_000)


def test_a_row_that_was_never_written_is_none(table):
    assert table.get(b"absent") is None


@pytest.mark.parametrize("key", [*AWKWARD, b"k" * KEY_BYTES_MAX], ids=lambda key: key[:4].hex())
def test_a_row_is_found_under_any_key(table, key):
    table.write([Put(key, {b"c": key})])
    assert table.get(key) == {b"c": key}
    assert [row.key for row in table.scan(b"", None)] == [key]


@pytest.mark.parametrize("value", [b"", b"\x00", b"\xff" * 4_095, b"\x00" * 4_096, LARGE], ids=len)
def test_a_value_is_read_as_it_was_written(table, value):
    table.write([Put(b"k", {b"c": value, b"d": b"other"})])
    columns = table.get(b"k")
    assert columns == {b"c": value, b"d": b"other"}
    assert all(type(part) is bytes for item in columns.items() for part in item)
    assert [row.columns for row in table.scan(b"", None)] == [columns]


def test_column_names_may_have_any_bytes_and_255_of_them(table):
    columns = {b"\x00": b"1", b"\xff": b"2", b"n" * 255: b"3", b"n" * 254: b"4"}
    table.write([Put(b"k", columns)])
    assert table.get(b"k") == columns


def test_a_row_may_have_255_columns(table):
    columns = {bytes([number]): b"" for number in range(COLUMNS_MAX)}
    table.write([Put(b"k", columns)])
    assert table.get(b"k") == columns


def test_a_put_keeps_the_columns_that_it_does_not_name(table):
    table.write([Put(b"k", {b"a": b"1", b"b": b"2"})])
    table.write([Put(b"k", {b"b": b"3", b"c": b"4"})])
    assert table.get(b"k") == {b"a": b"1", b"b": b"3", b"c": b"4"}


@pytest.mark.parametrize("before", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("after", [b"tiny", LARGE[::-1]], ids=["to small", "to large"])
def test_a_column_changes_its_size_beside_others(table, before, after):
    table.write([Put(b"k", {b"a": before, b"b": b"kept", b"c": LARGE})])
    table.write([Put(b"k", {b"a": after})])
    assert table.get(b"k") == {b"a": after, b"b": b"kept", b"c": LARGE}


def test_a_put_without_columns_changes_nothing(table):
    table.write([Put(b"absent", {}), Put(b"k", {b"a": b"1"}), Put(b"k", {})])
    assert [row.key for row in table.scan(b"", None)] == [b"k"]
    assert table.get(b"k") == {b"a": b"1"}


def test_a_deleted_row_is_gone(table):
    table.write([Put(b"k", {b"a": b"1", b"b": LARGE}), Put(b"other", {b"a": b"1"})])
    table.write([Delete(b"k")])
    assert table.get(b"k") is None
    assert [row.key for row in table.scan(b"", None)] == [b"other"]


def test_a_deleted_row_does_not_shine_through_when_it_is_written_again(table):
    table.write([Put(b"k", {b"a": b"1", b"b": LARGE})])
    table.write([Delete(b"k")])
    table.write([Put(b"k", {b"c": b"2"})])
    assert table.get(b"k") == {b"c": b"2"}


@pytest.mark.parametrize("value", [b"small", LARGE], ids=["small", "large"])
def test_deleting_columns_leaves_the_others(table, value):
    table.write([Put(b"k", {b"a": value, b"b": value, b"c": b"3"})])
    table.write([Delete(b"k", (b"a", b"absent"))])
    assert table.get(b"k") == {b"b": value, b"c": b"3"}


@pytest.mark.parametrize("value", [b"small", LARGE], ids=["small", "large"])
def test_a_row_whose_last_column_is_deleted_does_not_exist(table, value):
    table.write([Put(b"k", {b"a": value, b"b": b"2"})])
    table.write([Delete(b"k", (b"a", b"b"))])
    assert table.get(b"k") is None
    assert list(table.scan(b"", None)) == []


def test_deleting_what_is_not_there_succeeds(table):
    table.write([Delete(b"absent"), Delete(b"absent", (b"a",)), DeleteRange(b"a", b"z"), DeleteRange(b"z", b"a")])
    assert list(table.scan(b"", None)) == []


def test_deleting_a_range_takes_its_start_and_leaves_its_stop(table):
    table.write([Put(key, {b"c": LARGE}) for key in AWKWARD])
    table.write([DeleteRange(b"a", b"b")])
    kept = [key for key in AWKWARD if not b"a" <= key < b"b"]
    assert [row.key for row in table.scan(b"", None)] == kept
    assert all(table.get(key) == {b"c": LARGE} for key in kept)


def test_what_was_read_cannot_be_changed_by_later_writes(table):
    table.write([Put(b"k", {b"a": b"1"})])
    before = table.get(b"k")
    table.write([Put(b"k", {b"a": b"2", b"b": b"3"})])
    assert before == {b"a": b"1"}


def test_tables_of_one_store_do_not_share_rows(store):
    for name in TABLE_NAMES:
        store.table(name).write([Put(b"k", {b"c": name.encode()})])
    assert [store.table(name).get(b"k") for name in TABLE_NAMES] == [{b"c": name.encode()} for name in TABLE_NAMES]
    store.table("message").write([DeleteRange(b"", b"z")])
    assert store.table("payload").get(b"k") == {b"c": b"payload"}


def test_a_table_knows_its_name(store):
    assert [store.table(name).name for name in TABLE_NAMES] == list(TABLE_NAMES)


def test_a_table_that_the_spi_does_not_name_is_refused(store):
    with pytest.raises(InputError, match="orders"):
        store.table("orders")


@pytest.mark.parametrize(
    "mutation",
    [
        Put(b"", {b"c": b"1"}),
        Put(b"k" * (KEY_BYTES_MAX + 1), {b"c": b"1"}),
        Put(b"k", {b"": b"1"}),
        Put(b"k", {b"n" * 256: b"1"}),
        Put(b"k", {number.to_bytes(2): b"" for number in range(COLUMNS_MAX + 1)}),
        Delete(b""),
    ],
    ids=["empty key", "long key", "empty name", "long name", "too many columns", "delete of an empty key"],
)
def test_what_is_over_a_limit_is_refused(table, mutation):
    with pytest.raises(InputError):
        table.write([mutation])
    assert list(table.scan(b"", None)) == []


def test_columns_are_counted_over_all_the_puts_of_a_row(store, table):
    table.write([Put(b"k", {number.to_bytes(2): b"" for number in range(COLUMNS_MAX)})])
    # A remote store would have to ask for each row that it writes, and counts what one write puts.
    row = {number.to_bytes(2): b"" for number in range(COLUMNS_MAX)} if store.remote else {}
    with pytest.raises(InputError):
        table.write([Put(b"k", row), Put(b"k", {b"one more": b""})])
    assert len(table.get(b"k")) == COLUMNS_MAX
