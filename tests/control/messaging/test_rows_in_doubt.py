"""Rows in doubt: those that are there stay, the others are deleted, and a delete that may be under way is repeated until one succeeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from basalt.messaging.rows_in_doubt import RowsInDoubt
from basalt_engine.errors import StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, Mutation, Put, Table

pytestmark = pytest.mark.anyio

TABLE = "message"


class Failing:
    """A table whose next writes fail, though they may arrive."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.failures = 0
        self.writes: list[list[Mutation]] = []
        self.looked_for: list[bytes] = []

    def get(self, row: bytes) -> object:
        self.looked_for.append(row)
        return self._table.get(row)

    def write(self, mutations: Sequence[Mutation]) -> None:
        self.writes.append(list(mutations))
        if self.failures:
            self.failures -= 1
            raise StoreError("the gateway does not answer")
        self._table.write(mutations)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> tuple[RowsInDoubt, Failing, Table]:
    store = MemoryStore()
    in_doubt, table = RowsInDoubt(store, TABLE), store.table(TABLE)
    failing = Failing(table)
    monkeypatch.setattr(in_doubt, "_table", failing)
    return in_doubt, failing, table


async def test_what_is_there_stays_and_what_is_not_there_is_deleted(rows: tuple[RowsInDoubt, Failing, Table]):
    in_doubt, failing, table = rows
    table.write([Put(b"there", {b"r": b"x"})])
    await in_doubt.decide([b"there", b"late"])
    assert table.get(b"there") is not None
    assert failing.writes == [[Delete(b"late")]]
    assert not in_doubt.condemned


async def test_where_all_are_there_nothing_is_written(rows: tuple[RowsInDoubt, Failing, Table]):
    in_doubt, failing, table = rows
    table.write([Put(b"there", {b"r": b"x"})])
    await in_doubt.decide([b"there"])
    assert failing.writes == []


async def test_a_row_whose_delete_may_be_under_way_is_looked_for_no_more_and_deleted_again(
    rows: tuple[RowsInDoubt, Failing, Table],
):
    in_doubt, failing, table = rows
    failing.failures = 1
    with pytest.raises(StoreError):
        await in_doubt.decide([b"late"])
    assert in_doubt.condemned == {b"late"}
    table.write([Put(b"late", {b"r": b"x"})])  # it arrives: found and shown, the delete would take it away again
    failing.looked_for.clear()
    await in_doubt.decide([b"late"])
    assert failing.looked_for == []
    assert table.get(b"late") is None
    assert not in_doubt.condemned


async def test_rows_that_nobody_asks_for_any_more_take_no_memory(rows: tuple[RowsInDoubt, Failing, Table]):
    in_doubt, failing, _ = rows
    failing.failures = 1
    with pytest.raises(StoreError):
        await in_doubt.decide([b"a", b"b"])
    in_doubt.forget([b"a"])
    assert in_doubt.condemned == {b"b"}
