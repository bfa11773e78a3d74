"""The stable end: nothing at or below it may still appear, or change who sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from basalt.api.bodies.ranges import StableEnd
from basalt.errors import InputError
from basalt.messaging.read import first_unstable
from basalt.messaging.read.log_reader import end_of
from basalt.settings import Settings
from basalt.settings.tree import TransactionSettings
from basalt_engine.errors import StoreError, UnknownOutcomeError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite
from tests.control.messaging.log.test_topic_log_in_flight import SlowlySynced
from tests.control.messaging.log.test_topic_logs_late_rows import LateStore
from tests.wiring import A, Wired, ids, shop_work

pytestmark = pytest.mark.anyio


async def end(shop: Wired, *, committed: bool = True) -> bytes | None:
    return (await shop.services.ranges.stable_end(A, committed=committed)).id


async def end_of_newest(shop: Wired) -> bytes:
    """An id behind the newest message of all."""
    return end_of(ids(await shop.messaging.fetch(A, None, True))[-1][:10])


async def test_it_is_behind_the_newest_message_and_nothing_where_there_is_none(shop: Wired):
    assert (await shop.services.ranges.stable_end(A)) == StableEnd(None, 1)
    for number in range(3):
        await shop.publish(A, str(number))
        assert await end(shop) == await end(shop, committed=False) == await end_of_newest(shop)


async def test_a_row_that_was_published_early_holds_it_until_its_transaction_has_ended(shop: Wired):
    await shop.publish(A, "one", "two")
    before = await end(shop)
    for ending in (shop.transactions.commit, shop.transactions.abort, shop.transactions.invalidate):
        tx = await shop.transactions.begin()
        await shop.publish(A, "early", "too", tx=tx)
        early = ids(await shop.messaging.fetch(A, None, True))[-2]
        await shop.publish(A, "behind it")
        held = await end(shop)
        assert held is not None and held < early
        assert before is not None and held is not None and before <= held
        assert len(await range_of(shop, held)) == len(await range_of(shop, before))
        assert await end(shop, committed=False) == await end_of_newest(shop)
        await ending(tx.id)
        before = await end(shop)
        assert before == await end_of_newest(shop)


async def range_of(shop: Wired, through: bytes) -> list[bytes]:
    found = await shop.messaging.fetch(A, None, True, committed=True)
    return [each for each in ids(found) if each <= through]


async def test_what_is_only_stored_holds_nothing(shop: Wired):
    await shop.publish(A, "one")
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    await shop.publish(A, "two")
    assert await end(shop) == await end_of_newest(shop)
    await shop.commit(tx, orders=["three"])
    assert await end(shop) == await end_of_newest(shop)


async def test_it_never_goes_back(shop: Wired):
    await shop.topics.update(A, {"ttl": "1"})
    await shop.publish(A, "one")
    seen = await end(shop)
    shop.clock.advance(700_000)
    await shop.services.scheduler.run_now("retention")
    assert await end(shop) == seen


async def test_it_does_not_go_back_when_the_last_row_has_expired_and_the_server_starts_anew(shop: Wired):
    """A reader that planned up to there would else be told, for ever, that its range is not settled yet."""
    await shop.topics.update(A, {"ttl": "1"})
    await shop.publish(A, "one", "two")
    seen = await end(shop)
    assert seen is not None
    shop.clock.advance(700_000)
    await shop.services.scheduler.run_now("retention")
    again = await shop.restarted()
    assert await end(again) == await end(again, committed=False) == seen
    splits = (await again.services.ranges.splits(A, None, seen, 3)).splits
    assert [(part.through, part.messages) for part in splits] == [(seen, 0)]
    await again.publish(A, "three")
    assert await end(again) == await end_of_newest(again)
    await again.services.close()


async def test_another_generation_begins_anew(shop: Wired):
    await shop.publish(A, "one")
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    assert await shop.services.ranges.stable_end(A) == StableEnd(None, 2)


async def test_a_place_without_a_row_is_not_part_of_it():
    """A publish of nothing takes a place, which a new process does not know."""
    shop = await Wired.start()
    await shop.topics.create(A, {})
    await shop.publish(A, "zero")
    assert await end(shop) is not None
    await shop.publish(A, "one")
    tx = await shop.transactions.begin()
    await shop.publish(A, tx=tx)
    await shop.transactions.commit(tx.id)
    before = await end(shop)
    shop = await shop.restarted()
    await shop.publish(A, "two")
    assert [each > before for each in ids(await shop.messaging.fetch(A, None, True))] == [False, False, True]


class FailingStore(MemoryStore):
    """A write fails when told to, and nothing of it is made."""

    fails = False

    def write(self, writes: Sequence[TableWrite]) -> None:
        if self.fails:
            raise StoreError("the disk is full")
        super().write(writes)


async def test_a_write_that_failed_leaves_it_where_it_was():
    shop = await Wired.start(FailingStore())
    await shop.topics.create(A, {})
    await shop.publish(A, "one")
    before = await end(shop)
    assert isinstance(shop.store, FailingStore)
    shop.store.fails = True
    with pytest.raises(StoreError):
        await shop.publish(A, "two")
    shop.store.fails = False
    assert await end(shop) == before
    await shop.publish(A, "three")
    assert await end(shop) == await end_of_newest(shop)


class AnswerLostStore(MemoryStore):
    """A write is made, and nobody is told."""

    loses = False

    def write(self, writes: Sequence[TableWrite]) -> None:
        super().write(writes)
        if self.loses:
            raise UnknownOutcomeError("no answer")


async def test_a_row_that_was_written_though_nobody_was_told_is_part_of_it():
    shop = await Wired.start(AnswerLostStore())
    await shop.topics.create(A, {})
    await shop.publish(A, "one")
    assert await end(shop) == await end_of_newest(shop)
    assert isinstance(shop.store, AnswerLostStore)
    shop.store.loses = True
    with pytest.raises(UnknownOutcomeError):
        await shop.publish(A, "two")
    shop.store.loses = False
    assert await shop.read(A) == ["one", "two"]
    assert await end(shop) == await end_of_newest(shop)


@pytest.mark.parametrize("asked_before", [True, False])
async def test_a_row_of_which_nobody_knows_whether_it_was_written_is_passed_only_once_that_is_decided(
    asked_before: bool,
):
    store = LateStore()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.publish(A, "one")
    before = await end(shop) if asked_before else await end_of_newest(shop)
    store.lose = True
    with pytest.raises(UnknownOutcomeError):
        await shop.publish(A, "late")
    assert await end(shop) == before
    store.arrive()
    assert len(await range_of(shop, await end(shop) or b"")) == 1


async def test_a_commit_that_is_being_written_has_not_ended_its_transaction_yet():
    """The working state is ahead of what is durable: the commit may still fail, and the row be rolled back."""
    store = SlowlySynced()
    shop = await Wired.start(store)
    await shop.topics.create(A, {})
    await shop.publish(A, "one")
    before = await end(shop)
    tx = await shop.transactions.begin()
    await shop.publish(A, "early", tx=tx)
    store.synced.clear()
    committing = asyncio.ensure_future(shop.transactions.commit(tx.id))
    while shop.transactions.state.find(tx.id) is not None:
        await asyncio.sleep(0)
    asking = asyncio.ensure_future(end(shop))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asking.done() or asking.result() == before
    store.synced.set()
    await committing
    assert await asking == await end_of_newest(shop)
    await shop.services.close()


async def test_a_transaction_of_before_a_restart_is_searched_for_bit_by_bit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(first_unstable, "ROWS_MAX", 1)
    shop = await Wired.start()
    await shop.topics.create(A, {})
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    for number in range(600):
        await shop.publish(A, str(number))
        shop.clock.advance(1)
    shop = await shop.restarted()
    found = [await end(shop) for _ in range(4)]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2] == found[3] == await end_of_newest(shop)


async def test_where_transactions_are_managed_elsewhere_nobody_knows_it():
    shop = await Wired.start(settings=Settings(transactions=TransactionSettings(manager="external")))
    await shop.topics.create(A, {})
    await shop.publish(A, "one")
    with pytest.raises(InputError, match="external"):
        await end(shop)
    assert await end(shop, committed=False) == await end_of_newest(shop)


async def test_a_one_shot_is_settled_as_soon_as_it_is_answered(shop: Wired):
    for number in range(3):
        await shop.transactions.one_shot(shop_work(orders=[str(number)]))
        assert await end(shop) == await end_of_newest(shop)
