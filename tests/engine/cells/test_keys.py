"""Keys of the cell table: they sort by row, column and newest writer first, tables never mix, and every key is read strictly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_engine.cells.keys import CellKey, TableKeys, cell_of
from basalt_engine.cells.names import (
    COLUMN_BYTES_MAX,
    ROW_BYTES_MAX,
    VALUE_BYTES_MAX,
    change_key,
    change_text,
    check_column,
    check_row,
    check_value,
    escaped,
    unescaped,
)
from basalt_engine.cells.table import CellTable, decode_version
from basalt_engine.errors import CorruptionError, InputError
from basalt_engine.keys import (
    GENERATION_MAX,
    MessageKey,
    base_bucket,
    is_table_prefix,
    table_prefix,
    topic_prefix,
)
from basalt_engine.snapshot import POINTER_MAX
from basalt_engine.table import KEY_BYTES_MAX, Row, prefix_stop
from tests.vector_lines import cases

relaxed = settings(deadline=None)

# Names that are hard to tell apart: of the bytes that escapes and ends are made of.
TRICKY = st.lists(st.sampled_from([0, 1, 2, 0x61, 0xFE, 0xFF]), min_size=1, max_size=5).map(bytes)
NAMES = TRICKY | st.binary(min_size=1, max_size=6)
TITLES = st.text("abzAZ09_-", min_size=1, max_size=4)
POINTERS = st.integers(1, POINTER_MAX) | st.sampled_from([1, 2, 255, 256, 257, POINTER_MAX - 1, POINTER_MAX])
TABLES = st.builds(
    TableKeys, st.builds(table_prefix, TITLES, TITLES), st.integers(0, GENERATION_MAX), st.integers(1, 256)
)
CELLS = st.tuples(NAMES, NAMES, POINTERS)


@relaxed
@given(TABLES, CELLS)
def test_a_key_comes_back_as_it_was(keys: TableKeys, cell: tuple[bytes, bytes, int]) -> None:
    made = keys.cell_key(*cell)
    assert CellKey.decode(made) == (keys.salt, keys.prefix, keys.generation, *cell)
    assert CellKey.decode(made).encode() == made
    assert cell_of(made, len(keys.start)) == cell


@relaxed
@given(TABLES, st.lists(CELLS, min_size=2, max_size=8))
def test_keys_sort_by_row_then_column_then_the_newest_writer(
    keys: TableKeys, cells: list[tuple[bytes, bytes, int]]
) -> None:
    by_key = sorted(cells, key=lambda cell: keys.cell_key(*cell))
    assert by_key == sorted(cells, key=lambda cell: (cell[0], cell[1], -cell[2]))


@relaxed
@given(TABLES, CELLS, CELLS)
def test_the_beginnings_of_rows_and_cells_hold_just_their_own_keys(
    keys: TableKeys, mine: tuple[bytes, bytes, int], other: tuple[bytes, bytes, int]
) -> None:
    key = keys.cell_key(*other)
    assert key.startswith(keys.row_start(mine[0])) is (mine[0] == other[0])
    assert key.startswith(keys.cell_start(*mine[:2])) is (mine[:2] == other[:2])


@relaxed
@given(TABLES, CELLS, st.binary(max_size=4) | TRICKY)
def test_a_bound_divides_the_rows_before_it_from_the_others(
    keys: TableKeys, cell: tuple[bytes, bytes, int], row: bytes
) -> None:
    assert (keys.cell_key(*cell) < keys.bound(row)) is (cell[0] < row)


@relaxed
@given(TABLES, TABLES, CELLS, CELLS)
def test_tables_and_their_generations_never_mix(
    mine: TableKeys, other: TableKeys, cell: tuple[bytes, bytes, int], others_cell: tuple[bytes, bytes, int]
) -> None:
    if mine == other:
        return
    stop = prefix_stop(mine.start)
    assert stop is not None
    assert mine.start <= mine.cell_key(*cell) < stop
    assert mine.start == other.start or not mine.start <= other.cell_key(*others_cell) < stop


@relaxed
@given(NAMES)
def test_an_escaped_name_comes_back_and_holds_no_end(name: bytes) -> None:
    assert unescaped(escaped(name)) == name
    assert b"\0\x01" not in escaped(name)


@relaxed
@given(st.binary(max_size=6) | TRICKY)
def test_bytes_are_unescaped_only_when_they_are_what_escaping_makes(data: bytes) -> None:
    name = unescaped(data)
    assert name is None or escaped(name) == data


@relaxed
@given(TABLES, CELLS, st.data())
def test_a_damaged_key_is_refused_or_is_another_key(
    keys: TableKeys, cell: tuple[bytes, bytes, int], data: st.DataObject
) -> None:
    good = keys.cell_key(*cell)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=2)) + good[at + data.draw(st.integers(0, 2)) :]
    try:
        assert CellKey.decode(bad).encode() == bad
    except CorruptionError:
        pass


@relaxed
@given(TITLES, TITLES, TITLES, TITLES)
def test_no_topic_has_the_prefix_of_a_table(namespace: str, table: str, other: str, topic: str) -> None:
    prefix, topics = table_prefix(namespace, table), topic_prefix(other, topic)
    assert is_table_prefix(prefix)
    assert not is_table_prefix(topics)
    assert not prefix.startswith(topics)
    assert not topics.startswith(prefix)


def test_a_key_of_a_topic_is_no_key_of_a_cell() -> None:
    with pytest.raises(CorruptionError, match="no prefix of a table"):
        CellKey.decode(b"\3" + topic_prefix("shop", "orders") + bytes(14))
    with pytest.raises(CorruptionError, match="no topic prefix"):
        MessageKey.decode(b"\3" + table_prefix("shop", "stock") + bytes(14))


def test_the_longest_key_fits_into_every_store() -> None:
    keys = TableKeys(table_prefix("n" * 255, "t" * 255), GENERATION_MAX, 256)
    longest = keys.cell_key(bytes(ROW_BYTES_MAX), bytes(COLUMN_BYTES_MAX), 1)
    assert len(longest) < KEY_BYTES_MAX
    assert CellKey.decode(longest).row == bytes(ROW_BYTES_MAX)


# Change sets.


@relaxed
@given(TABLES, NAMES, NAMES, NAMES, NAMES)
def test_change_sets_tell_rows_and_cells_apart(
    keys: TableKeys, row: bytes, column: bytes, other_row: bytes, other_column: bytes
) -> None:
    table = keys[:2]
    assert (change_key(*table, row) == change_key(*table, other_row)) is (row == other_row)
    same = (row, column) == (other_row, other_column)
    assert (change_key(*table, row, column) == change_key(*table, other_row, other_column)) is same
    assert change_key(*table, row) != change_key(*table, other_row, other_column)


def test_change_sets_of_two_generations_are_apart() -> None:
    prefix = table_prefix("shop", "stock")
    assert change_key(prefix, 1, b"r") != change_key(prefix, 2, b"r")


@relaxed
@given(TABLES, NAMES, NAMES)
def test_what_a_change_set_names_is_told_in_printable_words(keys: TableKeys, row: bytes, column: bytes) -> None:
    for key in (change_key(*keys[:2], row), change_key(*keys[:2], row, column)):
        text = change_text(key)
        assert text is not None and text.isprintable()
        assert text.endswith(f" of table {keys.prefix[:-1].decode().replace('~', '')}")


def test_changes_of_rows_and_cells_are_told_as_such() -> None:
    dotted = table_prefix("shop.eu", "stock.v1")
    assert change_text(change_key(dotted, 1, b"r")) == "row 'r' of table shop.eu:stock.v1"
    prefix = table_prefix("shop", "stock")
    assert change_text(change_key(prefix, 1, b"r")) == "row 'r' of table shop:stock"
    assert change_text(change_key(prefix, 1, b"r", b"c")) == "cell 'c' of row 'r' of table shop:stock"
    assert change_text(change_key(prefix, 10, "größe\n".encode() + b"\0\xff")) == (
        r"row 'größe\n\x00\xff' of table shop:stock"
    )


@pytest.mark.parametrize(
    "key",
    [b"", b"row 1", b"shop:stock:\0\0\0\1r", b"shop:~stock:\0\0\0\1", b"shop:~stock:\0\0\0\1r\0\2", b"shop:~stock:\0\0\0\1a\0\1b\0\1c"],
)  # fmt: skip
def test_other_changes_name_no_row(key: bytes) -> None:
    assert change_text(key) is None


# Limits.


@pytest.mark.parametrize(
    ("check", "good", "bad", "field"),
    [
        (check_row, [b"r", b"r" * ROW_BYTES_MAX], [b"", b"r" * (ROW_BYTES_MAX + 1)], "row"),
        (check_column, [b"c", b"c" * COLUMN_BYTES_MAX], [b"", b"c" * (COLUMN_BYTES_MAX + 1)], "column"),
        (check_value, [b"", b"v" * VALUE_BYTES_MAX], [b"v" * (VALUE_BYTES_MAX + 1)], "value"),
    ],
)
def test_limits_are_told_with_the_field_that_is_over_them(
    check: Any, good: list[bytes], bad: list[bytes], field: str
) -> None:
    assert [check(name) for name in good] == good
    for name in bad:
        with pytest.raises(InputError, match="bytes") as refused:
            check(name)
        assert refused.value.field == field


# Vectors.


@pytest.mark.parametrize(("data", "meaning"), cases("cells"))
def test_the_vectors_are_written_and_read(data: bytes, meaning: dict[str, Any]) -> None:
    prefix = table_prefix(meaning["namespace"], meaning["table"])
    keys = TableKeys(prefix, meaning["generation"], meaning["buckets"])
    row, column, pointer = bytes.fromhex(meaning["row"]), bytes.fromhex(meaning["column"]), meaning["writePointer"]
    value = None if meaning["value"] is None else bytes.fromhex(meaning["value"])
    made = (
        CellTable.delete(keys, row, column, pointer)
        if value is None
        else CellTable.put(keys, row, column, pointer, value)
    )
    assert made == (data, {b"c": bytes.fromhex(meaning["c"])})
    assert (keys.salt, base_bucket(prefix, meaning["buckets"])) == (meaning["salt"],) * 2
    assert CellKey.decode(data) == (meaning["salt"], prefix, meaning["generation"], row, column, pointer)
    assert decode_version(Row(*made), len(keys.start)) == (row, column, pointer, value)


@pytest.mark.parametrize(("data", "meaning"), cases("cells-corrupt"))
def test_what_is_no_key_of_a_cell_is_corrupt(data: bytes, meaning: object) -> None:
    with pytest.raises(CorruptionError, match="cell key"):
        CellKey.decode(data)
