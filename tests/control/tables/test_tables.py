"""Cells written and read through the service, on a store that writes a group as one and on one that does not."""

from __future__ import annotations

import pytest

from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import table_name
from basalt.errors import (
    ConflictError,
    InputError,
    TableNotFoundError,
    TooLargeError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
)
from basalt.tables import tables
from basalt.tables.tables import LOOKUPS_MAX, READ_ROWS_MAX, CellWrites
from basalt.transactions.rules.transaction import State, VisibilityLevel
from basalt_engine.cells.names import CELLS_MAX, COLUMN_BYTES_MAX, ROW_BYTES_MAX, VALUE_BYTES_MAX
from tests.control.tables.conftest import STOCK, Shop


def test_cells_are_seen_by_their_writer_at_once_and_by_others_after_the_commit(shop: Shop):
    tx, other = shop.begin(), shop.begin()
    shop.put(tx, {"chair/count": "5", "chair/colour": ""})
    assert shop.get("chair", tx=tx) == {"chair/count": "5", "chair/colour": ""}
    assert shop.get("chair") == shop.get("chair", tx=other) == {}
    shop.commit(tx)
    assert shop.get("chair") == {"chair/count": "5", "chair/colour": ""}
    assert shop.get("chair", tx=other) == {}


def test_only_named_columns_are_read(shop: Shop):
    shop.committed({"chair/count": "5", "chair/colour": "red", "desk/count": "1"})
    assert shop.get("chair", "desk", columns=[b"count", b"nothing"]) == {"chair/count": "5", "desk/count": "1"}
    assert shop.scan(columns=[b"colour"]) == {"chair/colour": "red"}


def test_rows_named_twice_are_answered_once_and_in_order(shop: Shop):
    shop.committed({"b/1": "x", "a/1": "y"})
    found = shop.run(shop.tables.read(STOCK, [b"b", b"a", b"b"]))
    assert [cell.row for cell in found] == [b"a", b"b"]


def test_what_one_call_both_puts_and_deletes_has_an_order(shop: Shop):
    shop.committed({"chair/old": "1", "chair/count": "1"})
    tx = shop.begin()
    puts = [CellPut(b"chair", b"count", b"2"), CellPut(b"chair", b"new", b"3")]
    shop.run(shop.tables.write(STOCK, tx.id, CellWrites(puts, [(b"chair", b"new")], [b"chair"])))
    assert shop.get("chair", tx=tx) == {"chair/count": "2"}


def test_a_row_is_deleted_as_its_transaction_sees_it(shop: Shop):
    shop.committed({"chair/a": "1"})
    tx = shop.begin()
    shop.committed({"chair/b": "2"})  # it does not see this one
    shop.put(tx, {"chair/c": "3"})
    shop.delete_rows(tx, "chair", "nothing")
    assert shop.get("chair", tx=tx) == {}
    shop.commit(tx)
    assert shop.get("chair") == {"chair/b": "2"}


def test_own_writes_are_seen_as_the_level_says(shop: Shop):
    shop.committed({"chair/count": "0"})
    tx = shop.begin()
    shop.put(tx, {"chair/count": "1"})
    tx = shop.run(shop.wired.transactions.checkpoint(tx.id))
    shop.put(tx, {"chair/count": "2"})
    assert shop.get("chair", tx=tx) == {"chair/count": "2"}
    assert shop.get("chair", tx=tx, level=VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT) == {"chair/count": "1"}
    every = shop.run(shop.tables.read(STOCK, [b"chair"], None, tx.id, VisibilityLevel.SNAPSHOT_ALL))
    assert [(cell.value, cell.write_pointer in tx.pointers) for cell in every] == [
        (b"2", True),
        (b"1", True),
        (b"0", False),
    ]


def test_a_reader_without_a_transaction_has_nothing_of_its_own(shop: Shop):
    with pytest.raises(InputError, match="only a transaction"):
        shop.get("chair", level=VisibilityLevel.SNAPSHOT_ALL)
    with pytest.raises(InputError, match="only a transaction"):
        shop.scan(level=VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT)


@pytest.mark.parametrize("how", ["abort", "invalidate", "time-out"])
def test_whoever_does_not_commit_leaves_nothing_to_be_seen(shop: Shop, how: str):
    tx = shop.begin(timeout_ms=1_000)
    shop.put(tx, {"chair/count": "5"})
    if how == "abort":
        assert shop.run(shop.wired.transactions.abort(tx.id)).state is State.INVALID
    elif how == "invalidate":
        assert shop.run(shop.wired.transactions.invalidate(tx.id))
    else:
        shop.wired.clock.advance(1_000)
        assert shop.run(shop.wired.transactions.expire()) == 1
    assert shop.get("chair") == shop.scan() == {}
    for call in (lambda: shop.put(tx, {"chair/count": "6"}), lambda: shop.get("chair", tx=tx), lambda: shop.scan(tx)):
        with pytest.raises(TransactionEndedError):
            call()


def test_an_abort_of_one_without_cells_is_a_clean_one(shop: Shop):
    tx = shop.begin()
    shop.get("chair", tx=tx)
    assert shop.run(shop.wired.transactions.abort(tx.id)).state is State.ABORTED


def test_a_committed_transaction_writes_no_more(shop: Shop):
    tx = shop.committed({"chair/count": "5"})
    with pytest.raises(TransactionEndedError):
        shop.put(tx, {"chair/count": "6"})
    assert shop.get("chair") == {"chair/count": "5"}


def test_a_transaction_that_lost_a_conflict_writes_no_more(shop: Shop):
    winner, loser = shop.begin(), shop.begin()
    shop.run(shop.wired.transactions.set_changes(winner.id, [b"k"]))
    shop.commit(winner)
    with pytest.raises(TransactionConflictError):
        shop.run(shop.wired.transactions.set_changes(loser.id, [b"k"]))
    with pytest.raises(TransactionConflictError):
        shop.put(loser, {"chair/count": "6"})


def test_a_transaction_whose_time_is_up_writes_no_more_though_nobody_has_ended_it(shop: Shop):
    tx = shop.begin(timeout_ms=1_000)
    shop.wired.clock.advance(1_000)
    with pytest.raises(TransactionEndedError):
        shop.put(tx, {"chair/count": "6"})


def test_an_unknown_transaction_is_told_apart(shop: Shop):
    nobody = 1_700_000_000_000_999_999
    for call in (
        shop.tables.write(STOCK, nobody, CellWrites([CellPut(b"r", b"c", b"")])),
        shop.tables.read(STOCK, [b"r"], None, nobody),
    ):
        with pytest.raises((TransactionNotFoundError, TransactionEndedError)):
            shop.run(call)


def test_a_table_that_is_not_there_is_told(shop: Shop):
    nothing, tx = table_name("shop", "nothing"), shop.begin()
    for call in (
        shop.tables.write(nothing, tx.id, CellWrites([CellPut(b"r", b"c", b"")])),
        shop.tables.read(nothing, [b"r"]),
        shop.tables.scan(nothing),
    ):
        with pytest.raises(TableNotFoundError):
            shop.run(call)


def test_a_write_to_another_generation_than_the_client_knows_is_refused(shop: Shop):
    tx = shop.begin()
    shop.put(tx, {"chair/count": "1"}, generation=1)
    shop.run(shop.catalog.delete(STOCK))
    with pytest.raises(TableNotFoundError):
        shop.put(tx, {"chair/count": "2"}, generation=1)
    shop.run(shop.catalog.create(STOCK))
    with pytest.raises(ConflictError, match="generation 2"):
        shop.put(tx, {"chair/count": "2"}, generation=1)
    shop.put(tx, {"desk/count": "3"}, generation=2)
    shop.commit(tx)
    assert shop.scan() == {"desk/count": "3"}


@pytest.mark.parametrize("again", [True, False])
def test_a_table_that_is_deleted_before_the_stage_of_a_write_takes_nothing(shop: Shop, monkeypatch, again: bool):
    tx = shop.begin()
    (lane,) = shop.tables._manager.lanes.topics.each
    run = lane.run

    async def run_after_the_deletion(*stage):
        monkeypatch.undo()
        await shop.catalog.delete(STOCK)
        if again:
            await shop.catalog.create(STOCK)
        return await run(*stage)

    monkeypatch.setattr(lane, "run", run_after_the_deletion)
    with pytest.raises(ConflictError if again else TableNotFoundError):
        shop.put(tx, {"chair/count": "1"})
    assert list(shop.wired.store.table("cell").scan(b"", None)) == []
    assert shop.run(shop.wired.transactions.abort(tx.id)).state is State.ABORTED


def test_a_scan_pages_over_whole_rows(shop: Shop):
    cells = {f"{row}/{column}": row for row in "abcde" for column in "12345"}
    shop.committed(cells)
    for limit in (1, 5, 7, 12, 100):
        assert shop.scan(limit=limit) == cells
    page = shop.run(shop.tables.scan(STOCK, cells=7))
    assert (len(page.cells), page.next) == (10, b"c")
    assert list(shop.scan(start=b"b", stop=b"d", columns=[b"3"])) == ["b/3", "c/3"]
    assert shop.scan(start=b"z") == shop.scan(start=b"c", stop=b"b") == {}


BAD_WRITES = {
    "nothing": (CellWrites(), InputError, "puts"),
    "an empty row": (CellWrites([CellPut(b"", b"c", b"")]), InputError, "puts[0].row"),
    "an empty column": (CellWrites([CellPut(b"r", b"c", b""), CellPut(b"r", b"", b"")]), InputError, "puts[1].column"),
    "a long row": (CellWrites([CellPut(b"r" * (ROW_BYTES_MAX + 1), b"c", b"")]), InputError, "puts[0].row"),
    "a long column": (CellWrites(deletes=[(b"r", b"c" * (COLUMN_BYTES_MAX + 1))]), InputError, "deletes[0].column"),
    "a long value": (CellWrites([CellPut(b"r", b"c", bytes(VALUE_BYTES_MAX + 1))]), TooLargeError, "puts[0].value"),
    "an empty row to delete": (CellWrites(delete_rows=[b"r", b""]), InputError, "deleteRows[1].row"),
    "too many cells": (CellWrites(deletes=[(b"r", b"c")] * (CELLS_MAX + 1)), TooLargeError, "puts"),
    "too many rows": (CellWrites(delete_rows=[b"r"] * (READ_ROWS_MAX + 1)), TooLargeError, "deleteRows"),
}


@pytest.mark.parametrize("name", BAD_WRITES)
def test_a_write_that_is_out_of_bounds_says_where_and_changes_nothing(shop: Shop, name: str):
    writes, error, field = BAD_WRITES[name]
    tx = shop.begin()
    with pytest.raises(error) as told:
        shop.run(shop.tables.write(STOCK, tx.id, writes))
    assert told.value.field == field
    assert told.value.hint
    assert shop.run(shop.wired.transactions.abort(tx.id)).state is State.ABORTED  # it never took part


def test_what_is_at_the_limits_is_taken(shop: Shop):
    tx = shop.begin()
    put = CellPut(b"\0" * ROW_BYTES_MAX, b"\xff" * COLUMN_BYTES_MAX, bytes(VALUE_BYTES_MAX))
    shop.run(shop.tables.write(STOCK, tx.id, CellWrites([put])))
    shop.run(shop.tables.write(STOCK, tx.id, CellWrites([CellPut(b"%d" % n, b"c", b"") for n in range(CELLS_MAX)])))
    shop.commit(tx)
    (found,) = shop.run(shop.tables.read(STOCK, [put.row]))
    assert CellPut(found.row, found.column, found.value) == put


def test_a_read_of_too_much_says_what_to_do(shop: Shop):
    with pytest.raises(TooLargeError, match="1001 rows"):
        shop.run(shop.tables.read(STOCK, [b"%d" % n for n in range(1_001)]))
    for number in range(9):
        shop.committed({f"row-{number % 3}/{number}": "x" * VALUE_BYTES_MAX})
    with pytest.raises(TooLargeError) as told:
        shop.get("row-0", "row-1", "row-2")
    assert (told.value.field, told.value.hint) == ("rows", "read fewer rows at a time, or name the columns")
    assert len(shop.get("row-0", "row-1", "row-2", columns=[b"1", b"2"])) == 2
    with pytest.raises(InputError, match="0 columns"):
        shop.get("row", columns=[])


@pytest.mark.parametrize(("limit", "value"), [("READ_CELLS_MAX", 2), ("READ_BYTES_MAX", 2 * len("a1x"))])
def test_rows_that_are_too_much_together_are_read_one_by_one(shop: Shop, monkeypatch, limit: str, value: int):
    shop.committed({"a/1": "x", "a/2": "x", "b/1": "y"})
    monkeypatch.setattr(tables, limit, value)
    with pytest.raises(TooLargeError, match=f"more than .*{value}"):
        shop.get("a", "b")
    assert shop.get("a") | shop.get("b") == shop.scan() == {"a/1": "x", "a/2": "x", "b/1": "y"}


@pytest.fixture
def large_row(shop: Shop) -> list[bytes]:
    """The columns of `row`, which is larger than an answer; there is a row before it and one behind it."""
    columns = [b"%02d" % number for number in range(9)]
    for column in columns:
        shop.committed({f"row/{column.decode()}": "x" * VALUE_BYTES_MAX})
    shop.committed({"a/1": "before", "z/1": "behind"})
    return columns


def test_a_row_larger_than_an_answer_is_read_by_its_columns(shop: Shop, large_row: list[bytes]):
    for call in (
        shop.tables.read(STOCK, [b"row"]),
        shop.tables.read(STOCK, [b"row"], large_row),
        shop.tables.scan(STOCK, b"row"),
        shop.tables.scan(STOCK, b"row", columns=large_row),
    ):
        with pytest.raises(TooLargeError, match="row 726f77 has more than 10000 cells or 8388608 bytes") as told:
            shop.run(call)
        assert told.value.field == "columns"
        assert told.value.hint == "name the columns that you want, fewer of them in a call"
    for some in (large_row[:5], large_row[5:]):
        assert (
            len(shop.get("row", columns=some)) == len(shop.scan(start=b"row", stop=b"row\0", columns=some)) == len(some)
        )


def test_a_scan_stops_before_a_row_larger_than_an_answer_and_goes_on_behind_it(shop: Shop, large_row: list[bytes]):
    page = shop.run(shop.tables.scan(STOCK))
    assert ([cell.row for cell in page.cells], page.next) == ([b"a"], b"row")
    assert shop.scan(start=b"row\0") == {"z/1": "behind"}


def test_an_answer_of_a_scan_is_never_larger_than_it_may_be(shop: Shop):
    cells = {f"row-{row}/{column}": "x" * VALUE_BYTES_MAX for row in range(3) for column in range(5)}
    for at, value in cells.items():
        shop.committed({at: value})
    page = shop.run(shop.tables.scan(STOCK))
    assert (len(page.cells), page.next) == (5, b"row-1")
    assert shop.scan() == cells


def test_a_row_larger_than_an_answer_is_deleted_as_a_whole(shop: Shop, large_row: list[bytes]):
    tx = shop.begin()
    shop.delete_rows(tx, "row")
    shop.commit(tx)
    assert shop.scan() == {"a/1": "before", "z/1": "behind"}


@pytest.mark.parametrize("limit", ["DELETED_CELLS_MAX", "DELETED_BYTES_MAX"])
def test_rows_of_too_many_cells_to_delete_say_how_to_go_on(shop: Shop, monkeypatch, limit: str):
    monkeypatch.setattr(tables, limit, 2 if limit == "DELETED_CELLS_MAX" else 2 * len("a/1"))
    shop.committed({f"{row}/{column}": "x" for row in "ab" for column in "1234"})
    tx = shop.begin()
    with pytest.raises(TooLargeError) as told:
        shop.delete_rows(tx, "a")
    assert (told.value.field, told.value.hint) == (
        "deleteRows",
        "delete fewer rows in a call; of one so large, delete its cells in several calls",
    )
    shop.delete(tx, "a/1", "a/2")
    shop.delete_rows(tx, "a")
    shop.commit(tx)
    assert list(shop.scan()) == ["b/1", "b/2", "b/3", "b/4"]


def test_cells_to_look_up_are_counted_over_all_rows(shop: Shop):
    shop.committed({"1/1": "x", "99/99": "y"})
    rows, columns = [b"%d" % n for n in range(100)], [b"%d" % n for n in range(LOOKUPS_MAX // 100)]
    assert len(shop.run(shop.tables.read(STOCK, rows, columns))) == 2
    with pytest.raises(TooLargeError, match="10100 cells to look up in one call, the limit is 10000") as told:
        shop.run(shop.tables.read(STOCK, rows, [*columns, b"one more"]))
    assert told.value.hint == "name fewer rows or fewer columns in a call"


def test_what_a_reader_under_way_needs_is_not_dropped_meanwhile(shop: Shop):
    """What compactions of a remote store may drop goes by `moment`."""
    shop.committed({"chair/count": "1"})
    coordinator = shop.wired.transactions
    snapshot = coordinator.manager.current()
    with coordinator.manager.reading(snapshot):
        later = shop.committed({"chair/count": "2"})
        assert shop.run(coordinator.manager_snapshot()).visibility_upper_bound <= snapshot.read_pointer < later.id
        with coordinator.manager.reading(coordinator.manager.current()):
            assert shop.run(coordinator.manager_snapshot()).visibility_upper_bound <= snapshot.read_pointer
    assert shop.run(coordinator.manager_snapshot()).visibility_upper_bound >= later.id


def test_a_reader_counts_for_the_writers_that_were_open_when_it_began(shop: Shop):
    open_one = shop.begin()
    shop.committed({"chair/count": "1"})
    with shop.wired.transactions.manager.reading(shop.wired.transactions.manager.current()):
        shop.commit(open_one)
        assert shop.run(shop.wired.transactions.manager_snapshot()).visibility_upper_bound < open_one.id


def test_the_sweep_is_told_of_every_write(shop: Shop):
    told = []

    class Heard:
        def wrote(self, prefix: bytes, generation: int) -> None:
            told.append((prefix, generation))

    shop.tables.activity = Heard()
    shop.committed({"chair/count": "1"})
    assert told == [(b"shop:~stock:", 1)]
