"""Rows of a write that failed may still arrive at a store far away: nobody passes their places before it is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from basalt.api.codecs.encoded import BatchedMessages
from basalt.errors import TopicNotFoundError
from basalt.messaging.log.staged_payloads import GroupWriters
from basalt.messaging.log.staged_writers import StagedWriter
from basalt.messaging.read.log_reader import Fetch
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.keys import MESSAGE_ID_BYTES, position
from basalt_engine.payloads import PayloadTable
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, Put, TableWrite
from tests.wiring import A, B, Wired, shop_work

pytestmark = pytest.mark.anyio


class LateStore(MemoryStore):
    """Loses the answer of a write of rows, which arrives when told to. As in HBase, a delete that was sent after it hides it
    all the same, and one that arrives late takes what has arrived before it."""

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.table_name = "message"
        self.lose = False
        self.lose_deletes = False
        self.away = False
        self.late: list[Put] = []
        self.late_deletes: list[Delete] = []

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.away:
            raise StoreError("the store is away")
        rows = [mutation for write in writes if write.table == self.table_name for mutation in write.mutations]
        if self.lose and rows:
            self.lose = False
            self.late = [row for row in rows if isinstance(row, Put)]
            raise UnknownOutcomeError("no answer")
        deletes = [row for row in rows if isinstance(row, Delete)]
        if self.lose_deletes and deletes:
            self.lose_deletes = False
            self.late_deletes = deletes
            raise UnknownOutcomeError("no answer")
        gone = {row.key for row in deletes}
        self.late = [put for put in self.late if put.key not in gone]
        put = {row.key for row in rows if isinstance(row, Put)}  # later than any delete that is under way
        self.late_deletes = [delete for delete in self.late_deletes if delete.key not in put]
        super().write(writes)

    def arrive(self) -> None:
        late, self.late = self.late, []
        super().write([TableWrite(self.table_name, late)])

    def deletes_arrive(self) -> None:
        late, self.late_deletes = self.late_deletes, []
        super().write([TableWrite(self.table_name, late)])


@pytest.fixture(params=[True, False], ids=["cached", "stored"])
async def shop(request: pytest.FixtureRequest) -> Wired:
    shop = await Wired.start(LateStore(), cached=request.param)
    await shop.topics.create(A, {})
    await shop.publish(A, "first")
    return shop


async def lose(shop: Wired, *messages: str) -> LateStore:
    store = shop.store
    assert isinstance(store, LateStore)
    store.lose = True
    with pytest.raises(UnknownOutcomeError):
        await shop.publish(A, *messages)
    return store


@pytest.mark.parametrize("settled_by", ["a reader", "a publisher"])
async def test_a_row_that_arrives_after_others_have_gone_on_is_never_seen(shop: Wired, settled_by: str):
    store = await lose(shop, "late")
    if settled_by == "a reader":
        assert await shop.read(A) == ["first"]
    else:
        await shop.publish(A, "next")
    store.arrive()
    seen = await shop.read(A)
    assert "late" not in seen
    await shop.publish(A, "last")
    assert await shop.read(A) == [*seen, "last"]
    assert await (await shop.restarted()).read(A) == [*seen, "last"]


async def test_a_row_that_arrives_before_anybody_has_looked_stays(shop: Wired):
    store = await lose(shop, "late")
    store.arrive()
    await shop.publish(A, "last")
    assert await shop.read(A) == ["first", "late", "last"]
    assert (await shop.services.topic_stats.stats(A)).messages == 3


@pytest.mark.parametrize("asked_by", ["a reader", "a publisher"])
async def test_a_row_whose_delete_was_sent_is_never_seen_though_it_arrives_before_the_delete(
    shop: Wired, asked_by: str
):
    store = await lose(shop, "late")
    store.lose_deletes = True
    if asked_by == "a reader":
        assert (await shop.messaging.fetch(A, None, True)).messages == 1
    else:
        with pytest.raises(UnknownOutcomeError):
            await shop.publish(A, "refused")
    store.arrive()
    seen = await shop.read(A)
    await shop.publish(A, "next")
    assert await shop.read(A) == [*seen, "next"]
    store.deletes_arrive()
    assert await (await shop.restarted()).read(A) == [*seen, "next"]
    assert seen == ["first"]
    assert not shop.topics.memory.rows_in_doubt.condemned


async def test_a_delete_that_nobody_waits_for_any_more_counts_as_sent(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    store = await lose(shop, "late")
    log = shop.topics.memory.with_unconfirmed.copy().pop()
    call, calls = StoreCalls.__call__, []

    async def hanging(calling: StoreCalls, what: Callable[..., Any], *given: Any) -> Any:
        calls.append(what)
        if len(calls) == 2:
            await asyncio.get_running_loop().create_future()
        return await call(calling, what, *given)

    monkeypatch.setattr(StoreCalls, "__call__", hanging)
    deciding = asyncio.ensure_future(log.confirm_or_delete())
    while len(calls) < 2 and not deciding.done():
        await asyncio.sleep(0)
    assert len(calls) == 2
    deciding.cancel()
    await asyncio.wait([deciding])
    store.arrive()
    await log.confirm_or_delete()
    assert await shop.read(A) == ["first"]


async def test_rows_that_were_found_stay_when_the_delete_of_their_neighbours_is_repeated(shop: Wired):
    log = await shop.topics.open(A)
    there = await shop.messaging._writer.each[0].run(lambda group: log.append(group, [b"there"]))
    store = await lose(shop, "late")
    log.unconfirmed = (log.topic.keys.message_key(there.start_ms, there.start_sequence), *log.unconfirmed)
    store.lose_deletes = True
    with pytest.raises(UnknownOutcomeError):
        await log.confirm_or_delete()
    store.arrive()
    assert await shop.read(A) == ["first", "there"]


async def test_while_the_store_is_away_readers_wait(shop: Wired):
    store = await lose(shop, "late")
    store.away = True
    page = await shop.messaging.fetch(A, None, True)
    assert page.messages == 1
    with pytest.raises(StoreError):
        await shop.messaging.fetch(A, page.next_id, False)
    store.away = False
    store.arrive()  # a delete that failed counts as one that is under way
    assert await shop.read(A) == ["first"]


@pytest.mark.parametrize("encoded", [False, True], ids=["decoded", "encoded"])
async def test_while_the_store_takes_no_writes_what_lies_before_the_doubts_is_read_and_its_end_is_not_claimed(
    shop: Wired, encoded: bool
):
    encoding = BatchedMessages if encoded else None

    async def fetch(start: bytes | None, messages_max: int | None = None) -> Fetch:
        return await shop.messaging.fetch(A, start, start is None, messages_max=messages_max, encoding=encoding)

    await shop.publish(A, "second")
    store = await lose(shop, "late")
    store.away = True
    for messages_max in (1, 2, 3):
        assert (await fetch(None, messages_max)).messages == min(messages_max, 2)
    end = (await fetch(None)).next_id
    with pytest.raises(StoreError):
        await fetch(end)
    store.away = False
    assert (await fetch(end)).messages == 0
    store.arrive()
    await shop.publish(A, "last")
    assert await shop.read(A) == ["first", "second", "last"]


async def test_who_begins_behind_doubts_would_pass_them_and_has_them_decided_first(shop: Wired):
    log = await shop.topics.open(A)
    store = await lose(shop, "late")
    # It was staged before the other write failed.
    behind = await shop.messaging._writer.each[0].run(lambda group: log.append(group, [b"behind"]))
    start = position(behind.start_ms, behind.start_sequence).ljust(MESSAGE_ID_BYTES, b"\0")
    store.away = True
    with pytest.raises(StoreError):
        await shop.messaging.fetch(A, start, True)
    store.away = False
    assert (await shop.messaging.fetch(A, start, True)).messages == 1
    store.arrive()
    assert await shop.read(A) == ["first", "behind"]


async def test_a_page_that_ends_before_doubts_goes_on_behind_them_where_it_can_be_decided(shop: Wired):
    store = await lose(shop, "late")
    store.arrive()
    page = await shop.messaging.fetch(A, None, True)
    assert page.messages == 2


async def test_a_row_of_a_one_shot_that_was_given_up_and_arrives_late_is_seen_only_by_who_reads_without_transactions(
    shop: Wired,
):
    store = shop.store
    assert isinstance(store, LateStore)
    store.lose = True
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.one_shot(shop_work(orders=["late"]))
    await shop.transactions.carry_through()  # it is given up
    store.arrive()
    await shop.transactions.one_shot(shop_work(orders=["last"]))
    assert await shop.read(A, committed=True) == ["first", "last"]
    assert await shop.read(A) == ["first", "late", "last"]


async def test_a_topic_that_is_deleted_takes_its_doubts_along(shop: Wired):
    store = await lose(shop, "late")
    store.lose_deletes = True
    await shop.messaging.fetch(A, None, True)
    assert shop.topics.memory.rows_in_doubt.condemned
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    store.arrive()
    await shop.publish(A, "new")
    assert await shop.read(A) == ["new"]
    assert not shop.topics.memory.with_unconfirmed
    assert not shop.topics.memory.rows_in_doubt.condemned
    assert (await shop.topics.open(A)).in_flight is None


async def test_a_staged_row_whose_delete_was_sent_is_never_published_though_it_arrives_before_the_delete(shop: Wired):
    store = shop.store
    assert isinstance(store, LateStore)
    store.table_name = PayloadTable.name
    tx = await shop.transactions.begin()
    await shop.messaging.store(A, [b"one"], tx.write_pointer)
    store.lose = True
    with pytest.raises(UnknownOutcomeError):
        await shop.messaging.store(A, [b"two"], tx.write_pointer)
    store.lose_deletes = True
    with pytest.raises(UnknownOutcomeError):
        await shop.messaging.store(A, [b"three"], tx.write_pointer)
    shop.clock.advance(1)
    store.arrive()
    await shop.messaging.store(A, [b"four"], tx.write_pointer)
    log = await shop.topics.open(A)
    assert shop.topics.staged.in_memory(log, tx.write_pointer) == (2, len("one") + len("four"))
    store.deletes_arrive()
    await shop.transactions.commit(tx.id, shop_work(), "commit")
    assert await shop.read(A, committed=True) == ["first", "one", "four"]
    assert not shop.topics.staged._rows_in_doubt.condemned


async def lose_staged(shop: Wired) -> None:
    """A staged row is in doubt, and its delete may be under way."""
    store = shop.store
    assert isinstance(store, LateStore)
    store.table_name = PayloadTable.name
    tx = await shop.transactions.begin()
    store.lose = True
    with pytest.raises(UnknownOutcomeError):
        await shop.messaging.store(A, [b"one"], tx.write_pointer)
    store.lose_deletes = True
    with pytest.raises(UnknownOutcomeError):
        await shop.messaging.store(A, [b"two"], tx.write_pointer)
    assert shop.topics.staged._unconfirmed
    assert shop.topics.staged._rows_in_doubt.condemned


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_topic_that_is_no_more_takes_the_doubts_about_staged_rows_along(shop: Wired, in_memory: bool):
    await lose_staged(shop)
    if in_memory:
        await shop.topics.delete(A)
    else:  # its delete's answer was lost, say, and its log dropped from memory since
        await shop.topics.catalog.delete(await shop.topics.get(A))
        shop.topics.memory.recent.clear()
        shop.topics._open.clear()
        with pytest.raises(TopicNotFoundError):
            await shop.topics.get(A)
    assert not shop.topics.staged._unconfirmed
    assert not shop.topics.staged._rows_in_doubt.condemned


async def test_another_topic_keeps_its_doubts_about_staged_rows(shop: Wired):
    await shop.topics.create(B, {})
    await lose_staged(shop)
    await shop.topics.delete(B)
    assert shop.topics.staged._unconfirmed


async def test_staged_rows_that_fail_after_their_topic_was_deleted_leave_no_doubt(shop: Wired):
    failed = GroupWriters(shop.topics.staged, shop.topics.memory.writers)
    log = await shop.topics.open(A)
    failed.add(log, shop.topics.staged._keep(log, StagedWriter(7)))
    failed.stored(log, 7, b"row")
    await shop.topics.delete(A)
    failed.failed()
    assert not shop.topics.staged._unconfirmed


@pytest.mark.parametrize("end", ["roll back", "invalidate"])
async def test_the_place_of_a_row_that_the_store_itself_dropped_is_not_given_out_again(
    end: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(MemoryStore, "applies_retention", True)
    shop = await Wired.start(MemoryStore(atomic=False))
    await shop.topics.create(A, {})
    tx = await shop.transactions.begin()
    published = await shop.messaging.publish(A, [b"gone"], tx.write_pointer)
    if end == "roll back":
        await shop.messaging.roll_back(A, published)
    else:
        await shop.transactions.invalidate(tx.id)
    (row,) = list(shop.store.table("message").scan(b"\0", None))
    shop.store.table("message").write([Delete(row.key)])  # as a compaction in the region does
    shop.clock.step(shop.clock.now_ms() - 60_000)
    again = await shop.restarted()
    placed = await again.messaging.publish(A, [b"new"])
    assert (placed.start_ms, placed.start_sequence) > (published.end_ms, published.end_sequence)
