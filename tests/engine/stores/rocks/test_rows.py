"""The packed row of the RocksDB store, byte by byte. Format: docs/formats/rocks-store.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt_engine.errors import CorruptionError
from basalt_engine.stores.rocks.rows import PackedRow, joined, packed, row_bytes, unpack

LINES = (Path(__file__).parents[3] / "vectors" / "rocks-rows.tsv").read_text().splitlines()

names = st.binary(min_size=1, max_size=255)
values = st.binary(max_size=50)
columns = st.dictionaries(names, values, max_size=6)


def from_hex(columns):
    return {bytes.fromhex(name): bytes.fromhex(value) for name, value in columns.items()}


def encoded(inline, large):
    large_values, crc = joined(large)
    return packed(inline, {name: len(value) for name, value in large.items()}, crc), large_values


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("\t")[0])
def test_a_row_has_the_bytes_of_its_vector(line):
    _, row_hex, meaning = line.split("\t")
    told = json.loads(meaning)
    inline, large = from_hex(told["inline"]), from_hex(told["large"])
    row, large_values = encoded(inline, large)
    assert (row.hex(), large_values.hex()) == (row_hex, told["largeValues"])
    read = unpack(bytes.fromhex(row_hex))
    assert (read.inline, read.split(large_values)) == (inline, large)


def test_the_example_of_the_page_is_a_vector():
    page = (Path(__file__).parents[4] / "docs" / "formats" / "rocks-store.md").read_text()
    example = next(line for line in page.splitlines() if line.strip().startswith("01 01 01"))
    assert example.replace(" ", "") in {line.split("\t")[1] for line in LINES}


@given(columns, columns)
def test_a_row_is_read_as_it_was_written(inline, large):
    large = {name: value for name, value in large.items() if name not in inline}
    row, large_values = encoded(inline, large)
    read = unpack(row)
    assert (read.inline, read.split(large_values)) == (inline, large)
    assert read.column_count == len(inline) + len(large)
    assert row_bytes(row) == len(row) + len(large_values)


@given(columns, columns, st.data())
def test_a_row_that_is_cut_or_goes_on_is_refused(inline, large, data):
    row, _ = encoded(inline, {name: value for name, value in large.items() if name not in inline})
    cut = data.draw(st.integers(0, len(row) - 1))
    for damaged in (row[:cut], row + b"\0"):
        with pytest.raises(CorruptionError):
            unpack(damaged)


def test_a_row_of_a_later_format_is_refused():
    row, _ = encoded({b"a": b"1"}, {})
    with pytest.raises(CorruptionError, match="format 2"):
        unpack(b"\x02" + row[1:])


def test_a_name_that_occurs_twice_is_refused():
    row, _ = encoded({b"a": b"1", b"b": b"2"}, {})
    with pytest.raises(CorruptionError):
        unpack(row.replace(b"b", b"a"))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_row_or_refused(value):
    try:
        row = unpack(value)
    except CorruptionError:
        return
    assert packed(row.inline, row.large, row.large_crc32c) == value


@given(st.dictionaries(names, st.binary(min_size=1, max_size=50), min_size=1, max_size=3), st.data())
def test_large_values_with_one_bit_changed_are_not_those_of_the_row(large, data):
    row, large_values = encoded({}, large)
    changed = bytearray(large_values)
    bit = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[bit // 8] ^= 1 << bit % 8
    read = unpack(row)
    assert read.split(bytes(changed)) is None
    assert read.split(large_values[:-1]) is None
    assert read.split(large_values + b"\0") is None
    assert read.split(None) is None


def test_a_single_large_value_is_not_copied():
    value = bytes(10_000)
    large_values, crc = joined({b"p": value})
    assert large_values is value
    assert PackedRow({}, {b"p": len(value)}, crc).split(value)[b"p"] is value
