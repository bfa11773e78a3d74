"""The coordinator, to members to which commits come: whom it believes, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from basalt.commits.of_members.commits import COMMIT, CommitCall
from basalt.errors import ShardMovingError, TransactionEndedError, UnavailableError
from basalt.transactions.protocol import JoinedTransaction, Prepare, Prepared
from basalt.transactions.rules.transaction import State
from tests.several_owners import LEADER, Fleet, Member, fleet, titles, work_of

pytestmark = pytest.mark.anyio

HERE, THERE, BEYOND = titles(3)
BROUGHT = work_of({THERE: ["b"]})


@pytest.fixture
async def shop() -> AsyncIterator[Fleet]:
    """A topic at the leader, and one at each of two members."""
    async with fleet("second", "third") as made:
        made.fake_links()
        for title, at in ((HERE, LEADER), (THERE, "second"), (BEYOND, "third")):
            await made.create(title, at)
        yield made


def second(shop: Fleet) -> Member:
    return shop.members["second"]


async def reads(shop: Fleet) -> list[list[str]]:
    return [await shop.read(title) for title in (HERE, THERE, BEYOND)]


def seen(shop: Fleet, transaction_id: int) -> JoinedTransaction:
    found = shop.transactions.state.find(transaction_id)
    assert found is not None
    return JoinedTransaction.of(found)


async def test_a_run_that_is_over_has_nothing_committed(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    before = second(shop)
    prepared = await before.owner.prepare(Prepare(BROUGHT, None))
    shop.crash("second")
    shop.fake_links()
    call = CommitCall("second", seen(shop, tx.id), prepared, None, (), None)
    with pytest.raises(UnavailableError, match="not the member"):
        await before.to_leader.call(COMMIT, call, 1_000)
    answer = await second(shop).to_leader.call(COMMIT, call, 1_000)
    with pytest.raises(TransactionEndedError, match="not kept"):
        answer.told()
    assert await reads(shop) == [[], [], []]


async def test_a_topic_that_has_another_owner_by_now_refuses_the_commit(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    prepared = await second(shop).owner.prepare(Prepare(BROUGHT, None))
    second(shop).owner.drop(prepared)
    await shop.move(THERE, "third")
    answer = await second(shop).to_leader.call(
        COMMIT, CommitCall("second", seen(shop, tx.id), prepared, None, (), None), 1_000
    )
    with pytest.raises(ShardMovingError):
        answer.told()
    assert (await shop.transactions.outcome(tx.id)).state is State.OPEN


async def test_what_is_kept_for_one_transaction_is_placed_by_no_other(shop: Fleet) -> None:
    mine, other = await shop.transactions.begin(), await shop.transactions.begin()
    prepared = await second(shop).owner.prepare(Prepare(BROUGHT, seen(shop, mine.id)))
    call = CommitCall("second", seen(shop, other.id), prepared, None, (), None)
    answer = await second(shop).to_leader.call(COMMIT, call, 1_000)
    with pytest.raises(TransactionEndedError, match="not kept"):
        answer.told()
    assert await reads(shop) == [[], [], []]


async def test_a_transaction_that_has_changed_is_not_committed_also_where_it_changes_while_others_prepare(
    shop: Fleet,
) -> None:
    tx = await shop.transactions.begin()
    before = seen(shop, tx.id)
    owners = shop.leader.owner
    original = owners.prepared_by

    async def prepared_by(*given: object) -> Prepared:
        await shop.store(BEYOND, "stored", tx=tx)
        return await original(*given)  # type: ignore[arg-type]

    owners.prepared_by = prepared_by  # type: ignore[method-assign]
    prepared = await second(shop).owner.prepare(Prepare(BROUGHT, before))
    call = CommitCall("second", before, prepared, None, (), None)
    assert (await second(shop).to_leader.call(COMMIT, call, 1_000)).told() is None
    assert (await shop.transactions.outcome(tx.id)).state is State.OPEN
    assert await reads(shop) == [[], [], []]
    assert not owners._apart
