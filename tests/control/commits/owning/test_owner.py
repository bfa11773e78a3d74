"""The owner's part of a commit: what it keeps, what it places and how often, and when it takes no more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from basalt.api.bodies.messages import Work
from basalt.commits.owning.owner import PLANS_MAX, PREPARED_MS_MAX, Owner
from basalt.errors import InputError, ShardMovingError, TransactionEndedError, UnavailableError
from basalt.transactions.protocol import Close, End, Expect, JoinedTransaction, Place, Prepare, Recovered, Settled
from basalt.transactions.rules.transaction import Transaction
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import shard_of
from tests.led_servers import HANG_S
from tests.wiring import A, B, Wired, shop_work

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop() -> Wired:
    shop = await Wired.start(MemoryStore(atomic=False))
    for title in (A, B):
        await shop.topics.create(title, {})
    return shop


def owner_of(shop: Wired) -> Owner:
    return shop.transactions._owner


def joined(shop: Wired, tx: Transaction) -> JoinedTransaction:
    return JoinedTransaction.of(shop.transactions.state.get(tx.id))


async def test_a_place_that_is_not_expected_is_refused_and_one_that_is_comes_once(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    owner, place = owner_of(shop), Place(joined(shop, tx), 0)
    with pytest.raises(TransactionEndedError, match="is not expected"):
        await owner.place(place)
    assert await shop.read(A) == []
    owner.expect(Expect(tx.id))
    await owner.place(place)
    assert await shop.read(A) == ["stored"]
    with pytest.raises(TransactionEndedError, match="is not expected"):
        await owner.place(place)


async def test_a_commit_that_was_given_up_is_placed_no_more(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    owner = owner_of(shop)
    owner.expect(Expect(tx.id))
    owner.close(Close(tx.id))
    with pytest.raises(TransactionEndedError, match="is not expected"):
        await owner.place(Place(joined(shop, tx), 0))


async def test_a_place_takes_what_was_written_before_it_and_nothing_after(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "before", tx=tx)
    owner = owner_of(shop)
    owner.expect(Expect(tx.id))
    await owner.place(Place(joined(shop, tx), 0))
    with pytest.raises(Exception, match="leaves memory faster"):  # the coordinator would admit it: only the owner knows
        await shop.store_aside(A, "after", tx=tx)
    assert await shop.read(A) == ["before"]


async def test_what_a_commit_brings_is_kept_until_it_is_answered(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.commit(tx, orders=["a"], invoices=["b"])
    assert owner_of(shop)._prepared == {}
    with pytest.raises(TransactionEndedError):
        await shop.transactions.commit((await aborted(shop)).id, shop_work(orders=["never"]))
    assert owner_of(shop)._prepared == {}


async def aborted(shop: Wired) -> Transaction:
    tx = await shop.transactions.begin()
    await shop.transactions.abort(tx.id)
    return tx


async def test_what_nobody_carries_is_kept_for_a_minute(shop: Wired) -> None:
    owner = owner_of(shop)
    first = await owner.prepare(Prepare(shop_work(orders=["one"]), None))
    shop.clock.advance(PREPARED_MS_MAX)
    second = await owner.prepare(Prepare(shop_work(orders=["two"]), None))
    assert len(owner._prepared) == 2
    shop.clock.advance(1)
    await owner.prepare(Prepare(shop_work(orders=["three"]), None))
    assert first.number not in owner._prepared
    assert second.number in owner._prepared
    tx = await shop.transactions.begin()
    owner.expect(Expect(tx.id))
    with pytest.raises(UnavailableError, match="not kept"):
        await owner.place(Place(joined(shop, tx), first.number))


async def test_a_shard_does_not_move_while_something_is_kept_for_a_commit_to_its_topic(shop: Wired) -> None:
    owner, gate, shards = owner_of(shop), shop.topics.gate, [shard_of(topic_prefix(*A))]
    kept = await owner.prepare(Prepare(shop_work(orders=["one"]), None))
    gate.close(shards)
    leaving = asyncio.ensure_future(gate.left(shards))
    await asyncio.sleep(0)
    assert not leaving.done()
    owner.drop(kept)
    await leaving


async def test_what_is_kept_for_a_commit_is_let_go_where_its_topic_has_to_move_and_it_is_placed_nowhere(
    shop: Wired,
) -> None:
    owner, gate, shard = owner_of(shop), shop.topics.gate, shard_of(topic_prefix(*A))
    kept = await owner.prepare(Prepare(shop_work(orders=["one"]), None))
    other = await owner.prepare(Prepare(shop_work(invoices=["two"]), None))
    gate.close([shard])
    assert owner.let_go([shard]) == 1
    await asyncio.wait_for(gate.left([shard]), HANG_S)
    gate.call_off([shard])
    tx = await shop.transactions.begin()
    owner.expect(Expect(tx.id))
    with pytest.raises(UnavailableError, match="not kept"):
        await owner.place(Place(joined(shop, tx), kept.number))
    assert other.number in owner._prepared


async def test_a_commit_whose_topic_moves_each_time_that_it_is_planned_is_refused(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, tries = owner_of(shop), list[int]()

    def moves(shards: Collection[int]) -> bool:
        tries.extend(shards)
        return False

    monkeypatch.setattr(shop.topics.gate, "stay", moves)
    with pytest.raises(ShardMovingError, match="moves between servers"):
        await owner.prepare(Prepare(shop_work(orders=["one"]), None))
    assert len(tries) == PLANS_MAX
    assert owner._prepared == {}


async def test_a_commit_that_brings_nothing_is_not_kept(shop: Wired) -> None:
    owner = owner_of(shop)
    assert (await owner.prepare(Prepare(None, None))).number == 0
    assert (await owner.prepare(Prepare(Work(), None))).number == 0


async def test_a_commit_whose_topic_is_deleted_and_created_again_on_the_way_leaves_its_transaction_open_or_is_rolled_back(
    shop: Wired,
) -> None:
    tx = await shop.transactions.begin()
    with pytest.raises(InputError):
        await shop.transactions.commit(tx.id, Work(shop_work(orders=["a"]).publish, segments=[tx.id + 1]))
    assert await states(shop, tx) == ["OPEN"]
    owner = owner_of(shop)
    place = owner.place

    async def renewed(asked: Place) -> None:
        await shop.topics.delete(A)
        await shop.topics.create(A, {})
        await place(asked)

    owner.place = renewed  # type: ignore[method-assign]
    with pytest.raises(InputError, match="deleted and created again"):
        await shop.commit(tx, orders=["a"], invoices=["b"])
    await shop.transactions.carry_through()
    assert await shop.read(A, committed=True) == await shop.read(B, committed=True) == []
    assert await states(shop, tx) == ["ABORTED"]


async def states(shop: Wired, *transactions: Transaction) -> Sequence[str]:
    return [(await shop.transactions.outcome(each.id)).state.name for each in transactions]


async def test_an_owner_hears_of_transactions_in_their_order(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    owner, place = owner_of(shop), Place(joined(shop, tx), 0)
    owner.hear([Expect(tx.id), Close(tx.id)])
    with pytest.raises(TransactionEndedError, match="is not expected"):
        await owner.place(place)
    owner.hear([Expect(tx.id)])
    await owner.place(place)
    assert len(owner._pointers) == 1
    owner.hear([End(place.transaction)])
    assert len(owner._pointers) == 0


async def test_what_is_read_anew_is_forgotten(shop: Wired) -> None:
    tx = await shop.transactions.begin()
    await shop.store_aside(A, "stored", tx=tx)
    owner = owner_of(shop)
    owner.hear([Expect(tx.id), Recovered(tx.id, ((tx.id + 1, tx.id + 5),))])
    assert len(owner._pointers) == 0
    with pytest.raises(TransactionEndedError, match="is not expected"):
        await owner.place(Place(joined(shop, tx), 0))


@pytest.mark.parametrize("settled", [Settled((7,)), Settled((), ((5, 9),))])
async def test_whoever_is_held_up_by_a_one_shot_transaction_is_woken_once_it_is_settled(
    shop: Wired, settled: Settled
) -> None:
    log, other = await shop.topics.open(A), await shop.topics.open(B)
    owner_of(shop).hear([Recovered(0, ())])
    log.note_uncommitted(7, b"", b"\1")
    log.note_uncommitted(70, b"", b"\1")
    held, idle = log.waiter(), other.waiter()
    owner_of(shop).hear([Settled((8,)), Settled((), ((10, 69),))])
    assert not held.done()
    owner_of(shop).hear([settled])
    assert held.done()
    assert not idle.done(), "it was held up by nobody"
    assert log.uncommitted_writers({7, 70}) == [70]
