"""What a scan yields: order, bounds, limits, and what it sees while rows change."""

from __future__ import annotations

import os
from itertools import islice

import pytest

from basalt_engine.table import Delete, DeleteRange, Put, prefix_stop

ROWS = 3_000  # several of the chunks in which stores read ahead
KEYS = [number.to_bytes(4) for number in range(ROWS)]


@pytest.fixture
def full(table):
    table.write([Put(key, {b"c": key}) for key in reversed(KEYS)])
    return table


def keys(rows):
    return [row.key for row in rows]


def test_keys_come_in_the_order_of_their_bytes(table):
    unordered = [os.urandom(length % 5 + 1) for length in range(500)] + [b"\x00", b"\xff", b"a", b"a\x00", b"a\xff"]
    table.write([Put(key, {b"c": b""}) for key in unordered])
    assert keys(table.scan(b"", None)) == sorted(set(unordered))
    assert keys(table.scan(b"", None, reverse=True)) == sorted(set(unordered), reverse=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_yields_every_row_of_its_range_once(full, reverse):
    for start, stop in [(0, ROWS), (0, 1), (5, 2_500), (2_999, ROWS), (7, 7), (9, 3)]:
        found = keys(full.scan(start.to_bytes(4), stop.to_bytes(4), reverse=reverse))
        assert found == (KEYS[start:stop][::-1] if reverse else KEYS[start:stop])


@pytest.mark.parametrize("reverse", [False, True])
def test_bounds_need_not_be_keys(full, reverse):
    found = keys(full.scan(KEYS[3] + b"\x00", KEYS[6] + b"\x00", reverse=reverse))
    assert found == (KEYS[4:7][::-1] if reverse else KEYS[4:7])


def test_a_range_may_be_open_at_both_ends(full):
    assert keys(full.scan(b"", None)) == KEYS
    assert keys(full.scan(b"", None, reverse=True)) == KEYS[::-1]
    assert keys(full.scan(b"", b"")) == []


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows_max", [0, 1, 15, 16, 17, 256, 1_500, ROWS, ROWS + 1])
def test_a_scan_ends_after_so_many_rows(full, rows_max, reverse):
    found = keys(full.scan(b"", None, rows_max=rows_max, reverse=reverse))
    assert found == (KEYS[::-1] if reverse else KEYS)[:rows_max]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("bytes_max", "rows"), [(1, 1), (8, 1), (9, 2), (16, 2), (8 * 1_000, 1_000), (8 * ROWS, ROWS)])
def test_a_scan_ends_with_the_row_that_reaches_so_many_bytes(full, bytes_max, rows, reverse):
    assert len(list(full.scan(b"", None, bytes_max=bytes_max, reverse=reverse))) == rows


def test_the_bytes_of_large_values_count(table):
    table.write([Put(key, {b"c": bytes(50_000), b"d": b"1"}) for key in KEYS[:10]])
    assert len(list(table.scan(b"", None, bytes_max=100_000))) == 2
    assert len(list(table.scan(b"", None, bytes_max=100_011, rows_max=9))) == 3


def test_the_nearer_of_two_limits_counts(full):
    assert len(list(full.scan(b"", None, rows_max=3, bytes_max=1_000))) == 3
    assert len(list(full.scan(b"", None, rows_max=1_000, bytes_max=24))) == 3


def test_a_prefix_is_a_range(table):
    table.write([Put(key, {b"c": b""}) for key in (b"a", b"a\xfe", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff")])
    assert keys(table.scan(b"a", prefix_stop(b"a"))) == [b"a", b"a\xfe", b"a\xff", b"a\xff\xff"]
    assert keys(table.scan(b"a\xff", prefix_stop(b"a\xff"))) == [b"a\xff", b"a\xff\xff"]
    assert keys(table.scan(b"\xff", prefix_stop(b"\xff"))) == [b"\xff", b"\xff\xff"]


def test_a_scan_may_be_left_before_its_end(full):
    scan = full.scan(b"", None)
    assert keys(islice(scan, 5)) == KEYS[:5]
    scan.close()
    assert keys(full.scan(b"", None)) == KEYS


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_sees_every_row_that_stays_while_others_come_and_go(full, reverse):
    staying = KEYS[::2]
    found = []
    for number, row in enumerate(full.scan(b"", None, reverse=reverse)):
        found.append(row.key)
        if number % 50 == 0:
            full.write([Delete(key) for key in KEYS[1::2][number : number + 50]])
            full.write([Put(os.urandom(5), {b"c": b"new"}) for _ in range(5)])
    assert found == sorted(set(found), reverse=reverse)
    assert set(staying) <= set(found)


def test_a_scan_goes_on_over_rows_that_are_deleted_before_it_comes_to_them(table):
    table.write([Put(key, {b"c": key, b"d": bytes(5_000)}) for key in KEYS[:100]])
    scan = table.scan(b"", None)
    first = next(scan)
    table.write([DeleteRange(KEYS[1], KEYS[99])])
    rest = list(scan)
    assert first.key == KEYS[0]
    assert rest[-1].key == KEYS[99]
    # Whether the others are still seen is the store's choice, but what is seen is whole.
    assert all(row.columns == {b"c": row.key, b"d": bytes(5_000)} for row in rest)


def test_two_scans_do_not_disturb_each_other(full):
    pairs = list(zip(full.scan(b"", None), full.scan(b"", None, reverse=True), strict=True))
    assert [(left.key, right.key) for left, right in pairs] == list(zip(KEYS, KEYS[::-1], strict=True))


def test_the_size_estimate_grows_with_the_rows_of_its_range(table):
    assert table.size_bytes(b"a", b"b") == 0
    sizes = []
    for number in range(5):
        table.write([Put(b"a%d" % number, {b"c": bytes(10_000)}), Put(b"c%d" % number, {b"c": bytes(10_000)})])
        sizes.append(table.size_bytes(b"a", b"b"))
    assert sizes == sorted(set(sizes))
    assert 50_000 <= sizes[-1] < 75_000
    assert table.size_bytes(b"b", b"a") == 0


# Some of the columns.

MIXED = [
    Put(key, {b"p": b"payload", **({b"d": key} if number % 3 == 0 else {}), **({b"x": b""} if number % 7 == 0 else {})})
    for number, key in enumerate(KEYS)
]


@pytest.fixture
def mixed(table):
    table.write(MIXED)
    return table


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("names", [(b"d",), (b"d", b"x"), (b"x",), (b"p", b"d"), (b"none",)])
def test_a_scan_of_some_columns_yields_these_and_passes_over_rows_without_them(mixed, names, reverse):
    wanted = [(put.key, {name: put.columns[name] for name in names if name in put.columns}) for put in MIXED]
    wanted = [(key, columns) for key, columns in wanted if columns]
    found = [(row.key, dict(row.columns)) for row in mixed.scan(b"", None, reverse=reverse, columns=names)]
    assert found == (wanted[::-1] if reverse else wanted)


@pytest.mark.parametrize("reverse", [False, True])
def test_limits_of_a_scan_of_some_columns_count_what_it_yields(mixed, reverse):
    every_third = KEYS[::3][::-1] if reverse else KEYS[::3]
    for rows_max in (0, 1, 15, 16, 17, 400, ROWS):
        assert (
            keys(mixed.scan(b"", None, rows_max=rows_max, reverse=reverse, columns=(b"d",))) == every_third[:rows_max]
        )
    for bytes_max, rows in ((1, 1), (8, 1), (9, 2), (8 * 100, 100)):
        assert keys(mixed.scan(b"", None, bytes_max=bytes_max, reverse=reverse, columns=(b"d",))) == every_third[:rows]


def test_a_scan_of_some_columns_has_large_ones_too(table):
    large = os.urandom(100_000)
    table.write(
        [Put(b"a", {b"p": large, b"d": b"small"}), Put(b"b", {b"p": b"small", b"d": large}), Put(b"c", {b"p": large})]
    )
    assert [(row.key, dict(row.columns)) for row in table.scan(b"", None, columns=(b"d",))] == [
        (b"a", {b"d": b"small"}),
        (b"b", {b"d": large}),
    ]
    assert keys(table.scan(KEYS[0], b"b", columns=(b"p",))) == [b"a"]
