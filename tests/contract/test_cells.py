"""Cells under any snapshot are what a dictionary of all versions says they are, on every store."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from basalt_engine.cells import table as cells
from basalt_engine.cells.keys import TableKeys
from basalt_engine.cells.table import CellTable, CellVersion, LargeRowError, PageLimits
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import table_prefix
from basalt_engine.snapshot import InvalidList, TransactionSnapshot
from basalt_engine.table import KEY_BYTES_MAX, Delete, DeleteRange, Put
from tests.budgets import examples
from tests.visible_cells import visible

STOCK = TableKeys(table_prefix("shop", "stock"), 2, 16)
NEIGHBOURS = [
    STOCK._replace(generation=1),
    STOCK._replace(generation=3),
    TableKeys(table_prefix("shop", "stoc"), 2, 16),
]

NAMES = st.sampled_from([b"a", b"a\0", b"a\0\x01", b"b", b"\xff", b"\0"])
WRITERS = st.integers(1, 12)
VALUES = st.none() | st.sampled_from([b"", b"1", b"2", b"\0", b"\x01"])
Versions = dict[tuple[bytes, bytes, int], bytes | None]
VERSIONS = st.dictionaries(st.tuples(NAMES, NAMES, WRITERS), VALUES, max_size=40)


@st.composite
def snapshots(draw):
    """Any snapshot: more than transactions really take."""
    own = draw(st.frozensets(WRITERS, max_size=3))
    return TransactionSnapshot(
        read_pointer=draw(st.integers(0, 12)),
        write_pointer=max(own, default=0),
        in_progress=tuple(sorted(draw(st.frozensets(WRITERS, max_size=4)))),
        invalid=InvalidList(tuple(sorted(draw(st.frozensets(WRITERS, max_size=3))))),
        own=own,
        excluded=draw(st.none() | (st.sampled_from(sorted(own)) if own else st.none())),
    )


def in_order(versions: Versions) -> list[CellVersion]:
    """The versions as their keys sort."""
    made = (CellVersion(row, column, writer, value) for (row, column, writer), value in versions.items())
    return sorted(made, key=lambda version: (version.row, version.column, -version.write_pointer))


def expected(versions: Versions, snapshot: TransactionSnapshot, all_own: bool = False) -> list[CellVersion]:
    """The cells that the reader gets: all of its own versions if it wants them, then the newest one that it may see."""
    ordered = in_order(versions)
    found = []
    for _, of_cell in groupby(ordered, key=lambda version: version[:2]):
        seen = [
            version
            for version in of_cell
            if snapshot.is_visible(version.write_pointer) or (all_own and version.write_pointer in snapshot.own)
        ]
        mine = [version for version in seen if all_own and version.write_pointer in snapshot.own]
        others = [version for version in seen if version not in mine]
        # Here another's version may be newer than an own one; then it is all that the reader gets behind it.
        found += [version for version in mine if not others or version.write_pointer > others[0].write_pointer]
        found += [version for version in others[:1] if version.value is not None]
    return found


def fill(table, versions: Versions, keys: TableKeys = STOCK) -> None:
    table.write(
        [
            CellTable.delete(keys, *key) if value is None else CellTable.put(keys, *key, value)
            for key, value in versions.items()
        ]
    )


@pytest.fixture
def table(store):
    return store.table(CellTable.name)


@pytest.fixture
def model(store):
    return settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60, remote=store.remote)
    )


def emptied(table):
    table.write([DeleteRange(b"\0", b"\xff" * (KEY_BYTES_MAX + 1))])
    return table


def test_a_reader_gets_the_newest_version_that_it_may_see(table, model):
    @model
    @given(VERSIONS, VERSIONS, snapshots(), st.booleans())
    def check(versions, others, snapshot, all_own):
        fill(emptied(table), versions)
        for keys in NEIGHBOURS:
            fill(table, others, keys)
        want = expected(versions, snapshot, all_own)
        read = CellTable(table)
        assert read.scan(STOCK, snapshot, all_own=all_own) == (want, None)
        for row in {cell.row for cell in want} | {b"a", b"nowhere"}:
            in_row = [cell for cell in want if cell.row == row]
            assert read.row(STOCK, row, snapshot, all_own=all_own) == in_row
            some = [cell for cell in in_row if cell.column in (b"a", b"\xff")]
            assert read.row(STOCK, row, snapshot, [b"\xff", b"a", b"a", b"none"], all_own=all_own) == some
        ordered = in_order(versions)
        assert list(visible(ordered, snapshot, all_own=all_own)) == want

    check()


def test_one_cell_is_read_without_the_others(table, model):
    @model
    @given(VERSIONS, snapshots(), NAMES, NAMES)
    def check(versions, snapshot, row, column):
        fill(emptied(table), versions)
        want = [cell for cell in expected(versions, snapshot) if cell[:2] == (row, column)]
        assert CellTable(table).get(STOCK, row, column, snapshot) == (want[0] if want else None)

    check()


def test_pages_are_whole_rows_and_together_the_scan(table, model):
    @model
    @given(
        VERSIONS, snapshots(), st.integers(1, 4), st.integers(1, 8), st.integers(1, 12), st.none() | st.frozensets(NAMES),
        st.sampled_from([b"", b"a", b"a\0", b"b\0"]), st.none() | st.sampled_from([b"a", b"a\0\x01", b"zz", b"\xff\xff"]),
    )  # fmt: skip
    def check(versions, snapshot, cells_max, bytes_max, versions_max, columns, start, stop):
        fill(emptied(table), versions)
        limits = PageLimits(cells_max, bytes_max, versions_max)
        want = [
            cell
            for cell in expected(versions, snapshot)
            if start <= cell.row and (stop is None or cell.row < stop) and (columns is None or cell.column in columns)
        ]
        found: list[CellVersion] = []
        following: bytes | None = start
        rows_before: set[bytes] = set()
        while following is not None:
            page = CellTable(table).scan(STOCK, snapshot, following, stop, columns, limits=limits)
            assert page.next is None or page.next > following
            rows = {cell.row for cell in page.cells}
            assert not rows & rows_before
            found, rows_before, following = found + page.cells, rows_before | rows, page.next
        assert found == want

    check()


def test_a_long_run_of_versions_is_passed_at_once(table, monkeypatch):
    fill(table, {(b"r", b"c", writer): b"%d" % writer for writer in range(1, 3_001)})
    fill(table, {(b"r", b"d", 5): b"last"})
    looked: list[int] = []
    decode = cells.decode_version
    monkeypatch.setattr(cells, "decode_version", lambda *of: looked.append(1) or decode(*of))
    for read_pointer in (3_000, 1_500, 1):
        looked.clear()
        found = CellTable(table).row(STOCK, b"r", TransactionSnapshot(read_pointer))
        assert [cell.value for cell in found] == [b"%d" % read_pointer] + [b"last"] * (read_pointer >= 5)
        assert len(looked) < 100
        looked.clear()
        assert CellTable(table).get(STOCK, b"r", b"c", TransactionSnapshot(read_pointer)) == found[0]
        assert len(looked) < 10


def test_a_cell_behind_many_versions_of_failed_writers_is_found(table):
    fill(table, {(b"r", b"c", writer): b"%d" % writer for writer in range(1, 1_501)})
    failed = TransactionSnapshot(2_000, invalid=InvalidList(tuple(range(3, 1_501))))
    assert CellTable(table).get(STOCK, b"r", b"c", failed) == (b"r", b"c", 2, b"2")
    assert CellTable(table).scan(STOCK, failed).cells == [(b"r", b"c", 2, b"2")]


def test_a_writer_that_writes_a_cell_again_replaces_what_it_wrote(table):
    snapshot = TransactionSnapshot(9)
    for value in (b"1", None, b"2", b"", None):
        fill(table, {(b"r", b"c", 5): value})
        found = CellTable(table).get(STOCK, b"r", b"c", snapshot)
        assert (None if found is None else found.value) == value
    assert len(list(table.scan(b"\0", None))) == 1


@pytest.mark.parametrize(
    "columns", [{b"c": b""}, {b"c": b"\x02x"}, {b"c": b"\0x"}, {b"v": b"\x01x"}, {b"c": b"\0", b"d": b""}]
)
def test_content_that_is_neither_value_nor_tombstone_is_corrupt(table, columns):
    table.write([Put(STOCK.cell_key(b"r", b"c", 5), columns)])
    for read in (
        lambda: CellTable(table).get(STOCK, b"r", b"c", TransactionSnapshot(9)),
        lambda: CellTable(table).row(STOCK, b"r", TransactionSnapshot(9)),
        lambda: CellTable(table).scan(STOCK, TransactionSnapshot(9)),
    ):
        with pytest.raises(CorruptionError, match="one column c"):
            read()


@pytest.mark.parametrize("limits", [PageLimits(hard_cells_max=10), PageLimits(hard_bytes_max=10 * len(b"r00x"))])
def test_a_row_too_large_to_be_read_as_a_whole_is_refused_by_name(table, limits):
    columns = [b"%02d" % column for column in range(11)]
    fill(table, {(b"r", column, 5): b"x" for column in columns})
    fill(table, {(b"s", b"c", 5): b"x"})
    snapshot, read = TransactionSnapshot(9), CellTable(table)
    for call in (
        lambda: read.row(STOCK, b"r", snapshot, limits=limits),
        lambda: read.row(STOCK, b"r", snapshot, columns, limits=limits),
        lambda: read.scan(STOCK, snapshot, limits=limits),
    ):
        with pytest.raises(LargeRowError, match="row 72 has more than"):
            call()
    assert len(read.row(STOCK, b"r", snapshot, [b"00", b"10"], limits=limits)) == 2
    assert len(read.scan(STOCK, snapshot, columns=columns[1:], limits=limits).cells) == 10
    assert list(read.columns(STOCK, b"r", snapshot)) == columns
    table.write([Delete(STOCK.cell_key(b"r", b"00", 5))])
    assert len(read.row(STOCK, b"r", snapshot, limits=limits)) == 10


@pytest.mark.parametrize("limits", [PageLimits(hard_cells_max=3), PageLimits(hard_bytes_max=3 * len(b"rcx"))])
def test_a_page_ends_before_the_row_that_does_not_fit(table, limits):
    fill(table, {(row, column, 5): b"x" for row in (b"r", b"s", b"t") for column in (b"c", b"d")})
    fill(table, {(b"t", b"e", 5): b"x", (b"u", b"c", 5): b"x"})
    snapshot, pages, start = TransactionSnapshot(9), [], b""
    while start is not None:
        page = CellTable(table).scan(STOCK, snapshot, start, limits=limits)
        pages.append(b" ".join(cell.row + cell.column for cell in page.cells))
        start = page.next
    assert pages == [b"rc rd", b"sc sd", b"tc td te", b"uc"]


class CountedTable:
    """Counts the scans of a table and the rows that they read."""

    def __init__(self, table):
        self._table = table
        self.scans = self.rows = 0

    def scan(self, *args, **how):
        self.scans += 1
        for row in self._table.scan(*args, **how):
            self.rows += 1
            yield row


def test_many_named_columns_that_lie_close_together_are_read_in_one_go(table):
    fill(table, {(b"r", b"%04d" % column, 5): b"%d" % column for column in range(2_000)})
    for step, scans_max, rows_max in ((1, 12, 2_000), (3, 12, 2_000), (200, 11, 50)):
        columns = [b"%04d" % column for column in range(0, 2_000, step)]
        counted = CountedTable(table)
        found = CellTable(counted).row(STOCK, b"r", TransactionSnapshot(9), columns)
        assert [cell.column for cell in found] == columns
        assert counted.scans <= scans_max
        assert counted.rows <= rows_max


def test_columns_that_are_not_there_cost_one_look(table):
    fill(table, {(b"r", b"a", 5): b"1", (b"r", b"z", 5): b"2"})
    counted = CountedTable(table)
    columns = [b"b%04d" % number for number in range(1_000)]
    assert CellTable(counted).row(STOCK, b"r", TransactionSnapshot(9), columns) == []
    assert counted.scans == 1


@pytest.mark.parametrize("bytes_each", [1, cells.NEAR_BYTES])
def test_named_columns_among_large_values_and_many_versions_are_all_found(table, bytes_each):
    fill(table, {(b"r", b"%02d" % column, 5): b"%02d" % column * bytes_each for column in range(30)})
    fill(table, {(b"r", b"%02d" % 7, writer): b"old" for writer in range(6, 800)})
    read, columns = CellTable(table), [b"%02d" % column for column in (3, 6, 7, 8, 29, 30)]
    found = read.row(STOCK, b"r", TransactionSnapshot(5), columns)
    assert [(cell.column, cell.write_pointer) for cell in found] == [(column, 5) for column in columns[:-1]]
    found = read.row(STOCK, b"r", TransactionSnapshot(1_000, invalid=InvalidList(tuple(range(6, 800)))), columns)
    assert [(cell.column, cell.write_pointer) for cell in found] == [(column, 5) for column in columns[:-1]]
