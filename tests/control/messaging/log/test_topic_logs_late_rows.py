"""Rows of a write that failed may still arrive at a store far away: nobody passes their places before it is decided."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from basalt_engine.errors import StoreError, UnknownOutcomeError
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
    with pytest.raises(StoreError):
        await shop.read(A)
    store.away = False
    store.arrive()
    assert await shop.read(A) == ["first", "late"]


async def test_a_commit_that_was_given_up_leaves_no_row_behind_that_arrives_late(shop: Wired):
    store = shop.store
    assert isinstance(store, LateStore)
    store.lose = True
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.one_shot(shop_work(orders=["late"]))
    await shop.transactions.expire()
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
