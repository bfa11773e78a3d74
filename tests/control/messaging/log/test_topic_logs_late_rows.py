"""Rows of a write that failed may still arrive at a store far away: nobody passes their places before it is decided."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from basalt.api.codecs.encoded import BatchedMessages
from basalt.messaging.read.log_reader import Fetch
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.keys import MESSAGE_ID_BYTES, position
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import Delete, Put, TableWrite
from tests.wiring import A, Wired, shop_work

pytestmark = pytest.mark.anyio


class LateStore(MemoryStore):
    """Loses the answer of a write of message rows, which arrives when told to. As in HBase, a delete that was sent after it
    hides it all the same."""

    def __init__(self) -> None:
        super().__init__(atomic=False)
        self.lose = False
        self.away = False
        self.late: list[Put] = []

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.away:
            raise StoreError("the store is away")
        rows = [mutation for write in writes if write.table == "message" for mutation in write.mutations]
        if self.lose and rows:
            self.lose = False
            self.late = [row for row in rows if isinstance(row, Put)]
            raise UnknownOutcomeError("no answer")
        gone = {row.key for row in rows if isinstance(row, Delete)}
        self.late = [put for put in self.late if put.key not in gone]
        super().write(writes)

    def arrive(self) -> None:
        late, self.late = self.late, []
        super().write([TableWrite("message", late)])


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


async def test_while_the_store_is_away_nothing_is_decided_and_readers_wait(shop: Wired):
    store = await lose(shop, "late")
    store.away = True
    page = await shop.messaging.fetch(A, None, True)
    assert page.messages == 1
    with pytest.raises(StoreError):
        await shop.messaging.fetch(A, page.next_id, False)
    store.away = False
    store.arrive()
    assert await shop.read(A) == ["first", "late"]


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
    behind = await shop.messaging._writer.run(lambda group: log.append(group, [b"behind"]))
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


async def test_a_commit_that_was_given_up_leaves_no_row_behind_that_arrives_late(shop: Wired):
    store = shop.store
    assert isinstance(store, LateStore)
    store.lose = True
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.one_shot(shop_work(orders=["late"]))
    await shop.transactions.carry_through()  # it is given up
    store.arrive()
    await shop.transactions.one_shot(shop_work(orders=["last"]))
    assert await shop.read(A, committed=True) == ["first", "last"]
    assert await shop.read(A) == ["first", "last"]


async def test_a_topic_that_is_deleted_takes_its_doubts_along(shop: Wired):
    store = await lose(shop, "late")
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    store.arrive()
    await shop.publish(A, "new")
    assert await shop.read(A) == ["new"]
    assert not shop.topics.memory.with_unconfirmed
    assert (await shop.topics.open(A)).in_flight is None


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
