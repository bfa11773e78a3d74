"""What a transaction has written and not sent yet, laid over what the server has: against plain dictionaries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.api.bodies.transactions import TransactionInfo
from basalt.client.calls.tables import RowPage, TableRow
from basalt.client.transaction.transactional_table import CALL_BYTES_MAX, CALL_DELETED_ROWS_MAX, TableBuffer
from basalt_engine.cells.names import CELLS_MAX

BEGUN = TransactionInfo("1", 17, "OPEN")

names = st.sampled_from([b"a", b"b", b"c", b"d"])
Table = dict[bytes, dict[bytes, bytes]]
tables = st.dictionaries(names, st.dictionaries(names, st.binary(max_size=2), min_size=1))
puts = st.tuples(names, st.dictionaries(names, st.none() | st.binary(max_size=2)))
writes = st.lists(puts | names)  # a row's name alone: the row is deleted


def applied(table: Table, done) -> Table:
    """The table once the writes are made, the plain way."""
    result = {row: dict(cells) for row, cells in table.items()}
    for write in done:
        if isinstance(write, bytes):
            result.pop(write, None)
            continue
        row, cells = write
        merged = {**result.get(row, {}), **cells}
        result[row] = {column: value for column, value in merged.items() if value is not None}
    return {row: cells for row, cells in result.items() if cells}


def buffer_of(done) -> TableBuffer:
    buffer = TableBuffer()
    for write in done:
        if isinstance(write, bytes):
            buffer.delete_row(write)
        else:
            buffer.put(*write)
    return buffer


@given(tables, writes, names, st.none() | st.lists(names, unique=True, min_size=1))
def test_a_row_reads_as_if_it_were_written(table: Table, done, row: bytes, columns):
    def chosen(cells):
        return {column: value for column, value in sorted(cells.items()) if columns is None or column in columns}

    buffer = buffer_of(done)
    server = {} if buffer.answers(row, columns) else chosen(table.get(row, {}))
    seen = buffer.with_own_writes(row, server, columns)
    assert list(chosen(seen).items()) == list(chosen(applied(table, done).get(row, {})).items())


@given(tables, writes, names, st.none() | names, st.integers(1, 3))
def test_a_scan_reads_as_if_it_were_written(table: Table, done, start: bytes, stop: bytes | None, page_rows: int):
    buffer, found, following = buffer_of(done), [], start
    while following is not None:
        rows = sorted(row for row in table if row >= following and (stop is None or row < stop))
        after = rows[page_rows] if len(rows) > page_rows else None
        page = RowPage([TableRow(row, table[row]) for row in rows[:page_rows]], after)
        page = buffer.page_with_own_writes(page, following, stop, None)
        found += [(row.row, row.cells) for row in page.rows]
        following = page.next_row
    expected = applied(table, done)
    assert found == [
        (row, dict(sorted(expected[row].items())))
        for row in sorted(expected)
        if row >= start and (stop is None or row < stop)
    ]


@given(tables, writes)
def test_its_calls_make_the_same_of_a_table_on_the_server(table: Table, done):
    """The server deletes rows first, then puts, then deletes cells."""
    sent: list = []
    for body in buffer_of(done).bodies(BEGUN, 3):
        assert (body.transaction, body.generation, body.write_pointer) == ("1", 3, 17)
        sent += body.delete_rows
        sent += [(put.row, {put.column: put.value}) for put in body.puts]
        sent += [(gone.row, {gone.column: None}) for gone in body.deletes]
    assert applied(table, sent) == applied(table, done)


@given(writes)
def test_what_is_deleted_or_written_over_is_not_counted(done):
    buffer = buffer_of(done)
    again = buffer_of(part for body in buffer.bodies(BEGUN, 1) for part in (
        *body.delete_rows, *((put.row, {put.column: put.value}) for put in body.puts), *((gone.row, {gone.column: None}) for gone in body.deletes)
    ))  # fmt: skip
    assert buffer.size_bytes == again.size_bytes
    buffer.clear()
    assert (bool(buffer), buffer.size_bytes) == (False, 0)


def sizes(buffer: TableBuffer) -> list[tuple[int, int, int]]:
    return [(len(body.puts), len(body.deletes), len(body.delete_rows)) for body in buffer.bodies(BEGUN, 1)]


def test_calls_stay_within_their_limits():
    buffer = TableBuffer()
    buffer.put(b"row", {b"%d" % number: b"" for number in range(CELLS_MAX + 1)})
    assert sizes(buffer) == [(CELLS_MAX, 0, 0), (1, 0, 0)]
    buffer.clear()
    for number in range(CALL_DELETED_ROWS_MAX + 1):
        buffer.delete_row(b"%d" % number)
    assert sizes(buffer) == [(0, 0, CALL_DELETED_ROWS_MAX), (0, 0, 1)]
    buffer.clear()
    for number in range(5):
        buffer.put(b"%d" % number, {b"c": bytes(CALL_BYTES_MAX // 4)})
    assert sizes(buffer) == [(3, 0, 0), (2, 0, 0)]


def test_a_row_that_is_deleted_and_written_again_is_deleted_no_later_than_it_is_written():
    buffer = TableBuffer()
    buffer.put(b"a", {b"%d" % number: b"" for number in range(CELLS_MAX)})
    buffer.delete_row(b"b")
    buffer.put(b"b", {b"c": b"1"})
    assert sizes(buffer) == [(CELLS_MAX, 0, 0), (1, 0, 1)]
