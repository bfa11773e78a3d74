"""The sweep of transactional tables: what goes and what it waits for, where it goes on, and when pruning may follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from basalt.api.bodies.tables import CellPut
from basalt.catalog.tables import TableName, table_name
from basalt.retention import cells as sweeping
from basalt.settings import Settings, TransactionSettings
from basalt.tables import garbage_cells
from basalt.tables.tables import CellWrites
from basalt_engine.cells.keys import CellKey, TableKeys
from basalt_engine.keys import table_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Put
from tests.control.retention.crashing_store import CrashingStore
from tests.control.retention.readers import LIFETIME_MS, entries, run
from tests.wiring import A, Wired, described

pytestmark = pytest.mark.anyio

STOCK = table_name("shop", "stock")
KEYS = TableKeys(table_prefix(*STOCK), 1, 16)
ROW, COLUMN = b"bolt-7", b"n"


@pytest.fixture(params=["atomic", "by-row"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Wired]:
    """An empty table; a transaction lives an hour at most."""
    settings = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS))
    wired = await Wired.start(MemoryStore(atomic=request.param == "atomic"), settings=settings)
    await wired.services.tables.catalog.create(STOCK)
    yield wired
    await wired.services.close()


async def write(shop: Wired, transaction: int, value: bytes | None, row: bytes = ROW, title: TableName = STOCK) -> None:
    change = CellWrites(deletes=[(row, COLUMN)]) if value is None else CellWrites(puts=[CellPut(row, COLUMN, value)])
    await shop.services.tables.write(title, transaction, change)


async def put(shop: Wired, value: bytes | None, row: bytes = ROW, title: TableName = STOCK) -> int:
    """One committed write; its pointer."""
    transaction = await shop.transactions.begin()
    await write(shop, transaction.id, value, row, title)
    await shop.transactions.commit(transaction.id)
    return transaction.id


def keys(shop: Wired) -> list[CellKey]:
    return [CellKey.decode(row.key) for row in shop.store.table("cell").scan(b"", None)]


def writers(shop: Wired) -> list[int]:
    """Of all versions that are left."""
    return [key.write_pointer for key in keys(shop)]


async def test_replaced_versions_go_and_the_newest_stays(shop: Wired):
    newest = [await put(shop, value) for value in (b"1", b"2", b"3")][-1]
    assert (await run(shop)).report == {"cells_superseded": 2}
    assert writers(shop) == [newest]


async def test_a_deleted_cell_leaves_nothing(shop: Wired):
    for value in (b"1", b"2", None):
        await put(shop, value)
    assert (await run(shop)).report == {"cells_deleted": 1, "cells_superseded": 2}
    assert writers(shop) == []


@pytest.mark.parametrize("mutations", range(4))
async def test_a_deleted_cell_stays_deleted_when_the_process_is_gone_in_the_middle(mutations: int):
    settings = Settings(transactions=TransactionSettings(lifetime_ms_max=LIFETIME_MS))
    store = CrashingStore(atomic=False)
    shop = await Wired.start(store, settings=settings)
    await shop.services.tables.catalog.create(STOCK)
    for value in (b"1", b"2", None):
        await put(shop, value)
    await put(shop, b"behind it", b"nut-3")  # so that all of the cell is dealt with in one write
    store.mutations_left = mutations
    await shop.services.scheduler.run_now("retention")  # it fails, but for the last
    store.mutations_left = None
    assert len(writers(shop)) == 4 - mutations
    assert await shop.services.tables.read(STOCK, [ROW]) == []
    await shop.services.close()


async def test_what_an_open_transaction_may_read_stays_until_it_ends(shop: Wired):
    first = await put(shop, b"1")
    reader = await shop.transactions.begin()
    await put(shop, b"2")
    deleted = await put(shop, None)
    assert (await run(shop)).report == {}
    assert len(writers(shop)) == 3
    (cell,) = await shop.services.tables.read(STOCK, [ROW], transaction_id=reader.id)
    assert (cell.write_pointer, cell.value) == (first, b"1")
    await shop.transactions.commit(reader.id)
    assert (await run(shop)).report == {"cells_deleted": 1, "cells_superseded": 2}
    assert deleted not in writers(shop)


async def test_what_a_read_under_way_may_get_stays_until_it_is_over(shop: Wired):
    first = await put(shop, b"1")
    with shop.transactions.manager.reading(shop.transactions.manager.current()):
        await put(shop, b"2")
        assert (await run(shop)).report == {}
        assert first in writers(shop)
    assert (await run(shop)).report == {"cells_superseded": 1}


async def test_what_a_failed_writer_wrote_goes_and_then_the_note_and_then_the_writer(shop: Wired):
    kept = await put(shop, b"1")
    failed = await shop.transactions.begin()
    await write(shop, failed.id, None)
    checkpointed = await shop.transactions.checkpoint(failed.id)
    await write(shop, failed.id, b"9", b"nut-3")
    await shop.transactions.abort(failed.id)
    assert set(shop.transactions.state.invalid.pointers) == {failed.id, checkpointed.write_pointer}
    (note,) = entries(shop, garbage_cells.GARBAGE.kind)
    assert note == f"shop:~stock:1:{failed.id:019d}"
    shop.clock.advance(3 * LIFETIME_MS)
    assert (await shop.services.pruner.run()).pruned == ()
    assert (await run(shop)).report == {"cells_invalid": 2}
    assert writers(shop) == [kept]
    assert entries(shop, garbage_cells.GARBAGE.kind) == []
    assert (await shop.services.pruner.run()).pruned == (failed.id, checkpointed.write_pointer)


async def test_operators_are_told_of_notes_about_cells_as_they_come_and_go(shop: Wired):
    async def held() -> list[int]:
        certificate = (await shop.services.pruner.survey()).certificate
        return [pointer for pointer in shop.transactions.state.invalid.pointers if certificate.holds(pointer)]

    assert await held() == []
    failed = await shop.transactions.begin()
    await write(shop, failed.id, b"9")
    await shop.transactions.abort(failed.id)
    shop.clock.advance(3 * LIFETIME_MS)
    assert await held() == [failed.id]
    await run(shop)
    assert await held() == []
    assert shop.services.pruner.noted.reads == 1
    assert shop.transactions.state.invalid.pointers == (failed.id,)


async def test_a_transaction_that_times_out_is_noted_too(shop: Wired):
    await write(shop, (await shop.transactions.begin()).id, b"1")
    shop.clock.advance(60_000)
    await run(shop, "expiry")
    assert len(entries(shop, garbage_cells.GARBAGE.kind)) == 1
    assert (await run(shop)).report == {"cells_invalid": 1}
    assert (entries(shop, garbage_cells.GARBAGE.kind), writers(shop)) == ([], [])


async def test_a_pass_that_began_before_a_writer_failed_does_not_vouch_for_it(shop: Wired, monkeypatch):
    monkeypatch.setattr(sweeping, "PAGE_ROWS", 1)
    monkeypatch.setattr(sweeping, "ROWS_MAX", 1)
    for row in (b"a", b"b", b"c"):
        await put(shop, b"1", row)
    failed = await shop.transactions.begin()
    await write(shop, failed.id, b"2", b"a")
    await run(shop)
    await run(shop)  # has passed row a
    await shop.transactions.abort(failed.id)
    monkeypatch.setattr(sweeping, "ROWS_MAX", 3)
    await run(shop)  # ends that pass
    assert len(entries(shop, garbage_cells.GARBAGE.kind)) == 1
    assert failed.id in writers(shop)
    monkeypatch.setattr(sweeping, "ROWS_MAX", 10)
    await run(shop)
    assert entries(shop, garbage_cells.GARBAGE.kind) == []
    assert failed.id not in writers(shop)


async def test_a_run_looks_at_so_many_versions_and_the_next_one_goes_on(shop: Wired, monkeypatch):
    monkeypatch.setattr(sweeping, "PAGE_ROWS", 2)
    monkeypatch.setattr(sweeping, "ROWS_MAX", 4)
    other = table_name("shop", "a-table-before")
    await shop.services.tables.catalog.create(other)
    for number in range(10):
        await put(shop, b"%d" % number)
        await put(shop, b"%d" % number, title=other)
    left = [len(keys(shop))]
    while left[-1] > 2:
        await run(shop)
        left.append(len(keys(shop)))
    assert left[0] == 20
    assert all(before - after <= 4 for before, after in pairwise(left))
    assert len(left) <= 8


async def test_a_tombstone_goes_last_even_when_the_older_versions_take_several_runs(shop: Wired, monkeypatch):
    monkeypatch.setattr(sweeping, "PAGE_ROWS", 2)
    monkeypatch.setattr(sweeping, "ROWS_MAX", 4)
    for number in range(10):
        await put(shop, b"%d" % number)
    deleted = await put(shop, None)
    while writers(shop):
        assert writers(shop)[0] == deleted
        await run(shop)
    assert await shop.services.tables.read(STOCK, [ROW]) == []


async def test_a_table_in_which_nothing_was_written_is_passed_over(shop: Wired, monkeypatch):
    looks: list[bytes] = []
    judge_next = sweeping.CellVersions._judge_next
    monkeypatch.setattr(
        sweeping.CellVersions,
        "_judge_next",
        lambda job, table, horizon: looks.append(table.next) or judge_next(job, table, horizon),
    )
    await put(shop, b"1")
    for judged in (True, False, False):
        looks.clear()
        await run(shop)
        assert bool(looks) is judged
    await put(shop, b"2")
    looks.clear()
    assert (await run(shop)).report == {"cells_superseded": 1}
    assert looks


async def test_a_table_is_looked_at_again_when_its_open_writer_has_ended(shop: Wired):
    await put(shop, b"1")
    writer = await shop.transactions.begin()
    await write(shop, writer.id, b"2")
    assert (await run(shop)).report == {}
    await shop.transactions.commit(writer.id)
    assert (await run(shop)).report == {"cells_superseded": 1}


async def test_a_failed_look_is_taken_up_again(shop: Wired, monkeypatch):
    await put(shop, b"1")
    await put(shop, b"2")

    async def fails(job: object) -> None:
        raise OSError("for once")

    with monkeypatch.context() as failing:
        failing.setattr(shop.transactions, "manager_snapshot", lambda: fails(None))
        assert (await shop.services.scheduler.run_now("retention")).outcome == "failed"
    assert (await run(shop)).report == {"cells_superseded": 1}


async def test_past_generations_go_as_a_whole_with_their_notes(shop: Wired):
    writer = await shop.transactions.begin()
    await write(shop, writer.id, b"open")
    await put(shop, b"1", b"other")
    failed = await shop.transactions.begin()
    await write(shop, failed.id, b"failed")
    await shop.transactions.abort(failed.id)
    await shop.services.tables.catalog.delete(STOCK)
    assert (await run(shop)).report == {"old_table_generations": 1}
    assert (keys(shop), entries(shop, garbage_cells.GARBAGE.kind)) == ([], [])
    assert entries(shop, "swept") == ["shop:~stock:"]
    assert (await run(shop)).report == {}
    await shop.services.tables.catalog.create(STOCK)
    await put(shop, b"2")
    await run(shop)
    assert [key.generation for key in keys(shop)] == [2]
    # The note of one that fails only now is about rows that went long ago.
    await shop.transactions.abort(writer.id)
    assert len(entries(shop, garbage_cells.GARBAGE.kind)) == 1
    await run(shop)
    assert entries(shop, garbage_cells.GARBAGE.kind) == []


async def test_tables_whose_names_begin_alike_keep_their_cells(shop: Wired):
    longer = table_name("shop", "stock-2")
    await shop.services.tables.catalog.create(longer)
    await put(shop, b"1", title=longer)
    await put(shop, b"1")
    await shop.services.tables.catalog.delete(STOCK)
    await run(shop)
    assert [key.prefix for key in keys(shop)] == [table_prefix(*longer)]


async def test_what_cannot_be_read_is_kept_with_the_tombstone_above_it(shop: Wired):
    first = await put(shop, b"1")
    deleted = await put(shop, None)
    bad = Put(KEYS.cell_key(ROW, COLUMN, first), {b"c": b"\x07new"})
    shop.store.table("cell").write([bad])
    assert (await run(shop)).report == {"cells_deleted": 1, "cells_unreadable": 1}
    assert writers(shop) == [deleted, first]


async def test_a_store_that_applies_retention_itself_is_left_alone(shop: Wired, monkeypatch):
    await put(shop, b"1")
    await put(shop, b"2")
    monkeypatch.setattr(shop.store, "applies_retention", True, raising=False)
    assert (await run(shop)).report == {}
    assert len(keys(shop)) == 2


async def test_there_is_no_note_where_the_store_applies_retention_itself(monkeypatch):
    monkeypatch.setattr(MemoryStore, "applies_retention", True)
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.services.tables.catalog.create(STOCK)
    failed = await shop.transactions.begin()
    await write(shop, failed.id, b"1")
    await shop.transactions.abort(failed.id)
    assert failed.id in shop.transactions.state.invalid
    assert entries(shop, garbage_cells.GARBAGE.kind) == []
    await shop.services.close()


async def test_lists_of_topics_do_not_know_tables(shop: Wired):
    await shop.topics.create(A, {})
    assert await shop.topics.catalog.list("shop") == [A.name]
    assert [title for title, _ in await described(shop.topics.catalog, None)] == [A]
    assert await shop.services.tables.catalog.list("shop") == [STOCK.name]
    await shop.topics.delete(A)
    assert await shop.topics.catalog.namespaces() == []
