"""`tx.table(name)`: what is sent when. Plans alone, without a server."""

from __future__ import annotations

import msgspec
import pytest

from basalt.api.bodies.tables import TableInfo
from basalt.api.bodies.transactions import BeginRequest, TransactionInfo, TransactionKind, TransactionOutcome
from basalt.client.calls import tables
from basalt.client.calls.tables import RowPage, TableRow
from basalt.client.transaction import commit_protocol, open_transaction, transactional_table
from basalt.client.transaction.open_transaction import OpenTransaction
from basalt.client.transaction.transactional_table import in_use
from basalt.errors import InputError, TransactionConflictError, TransactionEndedError, UnavailableError
from basalt_engine.cells.names import ROW_BYTES_MAX, VALUE_BYTES_MAX, change_key
from basalt_engine.keys import table_prefix

INFO = TransactionInfo("42", 42, "OPEN")
COMMITTED, INVALID = TransactionOutcome("42", 42, "COMMITTED"), TransactionOutcome("42", 42, "INVALID")
STOCK = "/v1/namespaces/shop/tables/stock"
GET, WRITE, READ, SCAN = f"GET {STOCK}", f"POST {STOCK}/write", f"POST {STOCK}/read", f"POST {STOCK}/scan"
CHANGES, COMMIT, ABORT = (f"POST /v1/transactions/42/{call}" for call in ("changes", "commit", "abort"))
PREFIX = table_prefix("shop", "stock")


def facts(conflict: str = "row") -> TableInfo:
    return TableInfo("stock", conflict, 3, 0)


@pytest.fixture
def make(scope, play):
    """A transaction that has begun."""

    def begun(buffer_bytes_max: int = 1_000_000, kind: TransactionKind = "short") -> OpenTransaction:
        tx = OpenTransaction(scope, BeginRequest(kind), buffer_bytes_max=buffer_bytes_max)
        play(commit_protocol.enter(tx), INFO)
        return tx

    return begun


def body(call) -> dict:
    return msgspec.json.decode(call.body)


def changes_of(call) -> set[bytes]:
    assert body(call)["externalWrites"] is False
    return set(msgspec.json.decode(call.body, type=dict[str, bytes | list[bytes] | bool])["changes"])


def test_writes_wait_for_the_commit_and_are_told_before_they_are_sent(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    assert play(transactional_table.put(stock, "chair", {"count": b"5"})).calls == []
    assert play(transactional_table.delete(stock, "chair", ["colour"])).calls == []
    assert play(open_transaction.publish(tx, "orders", ["1"])).calls == []
    done = play(commit_protocol.commit(tx), facts(), None, None, COMMITTED)
    assert done.paths == [GET, CHANGES, WRITE, COMMIT]
    assert changes_of(done.calls[1]) == {change_key(PREFIX, 3, b"chair")}
    assert body(done.calls[2]) == {
        "transaction": "42",
        "puts": [{"row": "Y2hhaXI=", "column": "Y291bnQ=", "value": "NQ=="}],
        "deletes": [{"row": "Y2hhaXI=", "column": "Y29sb3Vy"}],
        "generation": 3,
        "writePointer": 42,
    }


def test_a_table_is_the_same_one_each_time_that_it_is_asked_for(make):
    tx = make()
    assert in_use(tx, "stock") is in_use(tx, "stock", namespace="shop")
    assert in_use(tx, "stock", namespace="elsewhere") is not in_use(tx, "stock")
    assert len(tx.participants) == 2


def test_a_transaction_that_loses_a_conflict_has_sent_no_cell(make, play):
    tx = make()
    play(transactional_table.put(in_use(tx, "stock"), "chair", {"count": b"5"}))
    done = play(commit_protocol.leave(tx, None), facts(), TransactionConflictError("lost"), INVALID)
    assert done.paths == [GET, CHANGES, ABORT]
    assert isinstance(done.raised, TransactionConflictError)


def test_a_write_that_fails_ends_the_transaction(make, play):
    tx = make()
    play(transactional_table.put(in_use(tx, "stock"), "chair", {"count": b"5"}))
    done = play(commit_protocol.leave(tx, None), facts(), None, UnavailableError("gone"), INVALID)
    assert done.paths == [GET, CHANGES, WRITE, ABORT]
    assert isinstance(done.raised, UnavailableError)


def test_the_facts_of_a_table_are_asked_for_once_and_again_after_a_failure(make, play):
    tx = make()
    play(transactional_table.put(in_use(tx, "stock"), "chair", {"count": b"5"}))
    assert play(commit_protocol.leave(tx, None), facts(), None, None, COMMITTED).paths == [GET, CHANGES, WRITE, COMMIT]
    tx = make()
    play(transactional_table.put(in_use(tx, "stock"), "chair", {"count": b"5"}))
    assert play(commit_protocol.leave(tx, None), None, InputError("another one"), INVALID).paths == [
        CHANGES,
        WRITE,
        ABORT,
    ]
    tx = make()
    play(transactional_table.put(in_use(tx, "stock"), "chair", {"count": b"5"}))
    assert play(commit_protocol.leave(tx, None), facts(), None, None, COMMITTED).paths == [GET, CHANGES, WRITE, COMMIT]


@pytest.mark.parametrize(
    ("conflict", "expected"),
    [
        ("row", {change_key(PREFIX, 3, b"chair"), change_key(PREFIX, 3, b"desk")}),
        ("cell", {change_key(PREFIX, 3, b"chair", b"a"), change_key(PREFIX, 3, b"chair", b"b"), change_key(PREFIX, 3, b"desk", b"a")}),
    ],
)  # fmt: skip
def test_changes_are_rows_or_cells_as_the_table_says(make, play, conflict, expected):
    tx = make()
    stock = in_use(tx, "stock")
    play(transactional_table.put(stock, "chair", {"a": "1"}))
    play(transactional_table.delete(stock, "chair", "b"))
    play(transactional_table.put(stock, "desk", {"a": "1"}))
    done = play(commit_protocol.commit(tx), facts(conflict), None, None, COMMITTED)
    assert changes_of(done.calls[1]) == expected


def test_a_table_without_conflicts_tells_no_changes(make, play):
    tx = make()
    play(transactional_table.put(in_use(tx, "stock"), "chair", {"a": "1"}))
    assert play(commit_protocol.commit(tx), facts("none"), None, COMMITTED).paths == [GET, WRITE, COMMIT]


def test_a_long_transaction_tells_no_changes(make, play):
    tx = make(kind="long")
    play(transactional_table.put(in_use(tx, "stock"), "chair", {"a": "1"}))
    assert play(commit_protocol.commit(tx), facts(), None, COMMITTED).paths == [GET, WRITE, COMMIT]


def test_reading_alone_sends_nothing_at_the_end(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    assert play(transactional_table.get(stock, "chair"), [TableRow(b"chair", {b"a": b"1"})]).result == {b"a": b"1"}
    assert play(commit_protocol.commit(tx), COMMITTED).paths == [COMMIT]


def test_own_writes_are_laid_over_what_the_server_answers(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    play(transactional_table.put(stock, "chair", {"a": "1", "b": "2"}))
    play(transactional_table.delete(stock, "chair", ["c"]))
    server = [TableRow(b"chair", {b"a": b"0", b"c": b"0", b"d": b"0"})]
    got = play(transactional_table.get(stock, "chair"), server)
    assert (got.paths, body(got.calls[0])["transaction"]) == ([READ], "42")
    assert got.result == {b"a": b"1", b"b": b"2", b"d": b"0"}
    assert play(transactional_table.get(stock, "chair", ["a", "c"])).result == {b"a": b"1"}  # known without asking
    without = play(transactional_table.get(stock, "chair", visibility="exclude_current"), server)
    assert without.result == server[0].cells


def test_a_deleted_row_needs_no_asking(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    assert play(transactional_table.delete_row(stock, "chair"), facts()).paths == [GET]
    assert play(transactional_table.get(stock, "chair")).result == {}
    play(transactional_table.put(stock, "chair", {"a": "1"}))
    assert play(transactional_table.get(stock, "chair")).result == {b"a": b"1"}


def test_where_cells_conflict_a_row_is_deleted_cell_by_cell(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    done = play(
        transactional_table.delete_row(stock, "chair"), facts("cell"), [TableRow(b"chair", {b"a": b"1", b"b": b"2"})]
    )
    assert done.paths == [GET, READ]
    done = play(commit_protocol.commit(tx), None, None, COMMITTED)
    assert changes_of(done.calls[0]) == {change_key(PREFIX, 3, b"chair", column) for column in (b"a", b"b")}
    assert len(body(done.calls[1])["deletes"]) == 2


def test_a_scan_has_own_rows_in_their_places(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    for row in ("b", "d", "z"):
        play(transactional_table.put(stock, row, {"own": "1"}))
    cursor = transactional_table.scan(stock, stop="y")
    first = play(cursor.next_items(), RowPage([TableRow(b"a", {b"c": b"1"}), TableRow(b"b", {b"c": b"1"})], b"c"))
    assert [(row.row, set(row.cells)) for row in first.result] == [(b"a", {b"c"}), (b"b", {b"c", b"own"})]
    second = play(cursor.next_items(), RowPage([], None))
    assert [row.row for row in second.result] == [b"d"]
    assert cursor.done
    assert [body(call.calls[0]).get("start") for call in (first, second)] == [None, "Yw=="]


def test_past_its_limit_the_buffer_is_told_and_sent_at_once(make, play):
    tx = make(buffer_bytes_max=1_000)
    stock = in_use(tx, "stock")
    assert play(transactional_table.put(stock, "a", {"c": "1"})).calls == []
    done = play(transactional_table.put(stock, "b", {"c": "x" * 1_000}), facts(), None, None)
    assert done.paths == [GET, CHANGES, WRITE]
    assert len(changes_of(done.calls[1])) == 2
    play(transactional_table.put(stock, "c", {"c": "2"}))
    done = play(commit_protocol.commit(tx), None, None, COMMITTED)
    assert done.paths == [CHANGES, WRITE, COMMIT]
    assert len(changes_of(done.calls[0])) == 3  # all of them, for a second set replaces the first


def test_a_checkpoint_sends_what_is_there_under_the_pointer_before_it(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    play(transactional_table.put(stock, "a", {"c": "1"}))
    moved = TransactionInfo("42", 43, "OPEN")
    done = play(commit_protocol.checkpoint(tx), facts(), None, None, moved)
    assert done.paths == [GET, CHANGES, WRITE, "POST /v1/transactions/42/checkpoint"]
    assert play(commit_protocol.commit(tx), COMMITTED).paths == [COMMIT]


def test_an_abort_sends_no_cell(make, play):
    tx = make()
    stock = in_use(tx, "stock")
    play(transactional_table.put(stock, "a", {"c": "1"}))
    assert play(commit_protocol.abort(tx), INVALID).paths == [ABORT]
    with pytest.raises(TransactionEndedError):
        next(transactional_table.put(stock, "a", {"c": "1"}))


@pytest.mark.parametrize(
    ("row", "cells", "error"),
    [
        ("", {"c": "1"}, InputError),
        ("r" * (ROW_BYTES_MAX + 1), {"c": "1"}, InputError),
        ("r", {"": "1"}, InputError),
        ("r", {"c": bytes(VALUE_BYTES_MAX + 1)}, InputError),
        (5, {"c": "1"}, TypeError),
        ("r", {"c": 5}, TypeError),
        ("r", {"c": None}, TypeError),
    ],
)
def test_what_cannot_be_a_cell_is_refused_when_it_is_put(make, row, cells, error):
    tx = make()
    with pytest.raises(error):
        list(transactional_table.put(in_use(tx, "stock"), row, cells))
    assert not in_use(tx, "stock").buffer


def test_one_column_may_be_named_without_a_list(scope, play):
    done = play(tables.get(scope.table("stock"), "chair", "count"), [])
    assert body(done.calls[0]) == {"rows": ["Y2hhaXI="], "columns": ["Y291bnQ="]}


def test_a_write_by_hand_is_one_call(scope, play):
    cells = {"chair": {"count": "5", "colour": None}}
    done = play(tables.write(scope.table("stock"), INFO, cells, delete_rows=["desk"]), None)
    assert done.paths == [WRITE]
    assert (len(body(done.calls[0])["puts"]), body(done.calls[0])["deleteRows"]) == (1, ["ZGVzaw=="])
