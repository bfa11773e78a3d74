"""Commits over the topics of several servers: all of it or nothing, in each topic's order, whatever becomes of the calls between them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.errors import TransactionEndedError, UnavailableError
from basalt.transactions.rules.transaction import State
from tests.control.commits.several_owners import LEADER, FakeLink, Fleet, fleet, titles, work_of

pytestmark = pytest.mark.anyio

HERE, THERE, BEYOND = titles(3)


@pytest.fixture
async def shop() -> AsyncIterator[Fleet]:
    """A topic at the leader, and one at each of two members."""
    async with fleet("second", "third") as made:
        made.fake_links()
        for title, at in ((HERE, LEADER), (THERE, "second"), (BEYOND, "third")):
            await made.create(title, at)
        yield made


def link(shop: Fleet, name: str) -> FakeLink:
    found = shop.links.links[name]
    assert isinstance(found, FakeLink)
    return found


async def reads(shop: Fleet) -> list[list[str]]:
    return [await shop.read(title) for title in (HERE, THERE, BEYOND)]


async def test_a_commit_over_three_owners_places_what_was_stored_then_what_it_brings(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE):
        await shop.store(title, "one", "two", tx=tx)
    outcome = await shop.transactions.commit(tx.id, work_of({THERE: ["three"], BEYOND: ["b"], HERE: ["c"]}))
    assert outcome.state is State.COMMITTED
    assert await reads(shop) == [["one", "two", "c"], ["one", "two", "three"], ["b"]]


async def test_a_one_shot_over_three_owners_is_one_transaction(shop: Fleet) -> None:
    outcome = await shop.transactions.one_shot(
        work_of({HERE: ["a"], THERE: ["b", "c"], BEYOND: ["d"]}), "me", "request"
    )
    assert await reads(shop) == [["a"], ["b", "c"], ["d"]]
    again = await shop.transactions.one_shot(work_of({HERE: ["a"], THERE: ["b", "c"], BEYOND: ["d"]}), "me", "request")
    assert again == outcome
    assert await reads(shop) == [["a"], ["b", "c"], ["d"]]


async def test_an_abort_hides_early_rows_and_stored_ones_at_all_owners(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE, BEYOND):
        await shop.publish(title, "early", tx=tx)
        await shop.store(title, "stored", tx=tx)
    await shop.transactions.abort(tx.id)
    assert await reads(shop) == [[], [], []]
    for title in (HERE, THERE):
        with pytest.raises(TransactionEndedError):
            await shop.store(title, "late", tx=tx)


@pytest.mark.parametrize("fate", ["lost", "unanswered", "late"])
async def test_a_place_without_an_answer_gives_the_commit_up_everywhere(shop: Fleet, fate: str) -> None:
    tx = await shop.transactions.begin()
    await shop.store(THERE, "stored", tx=tx)
    link(shop, "second").fate = lambda kind: fate if kind == "place" else "answered"
    with pytest.raises(TransactionEndedError, match="rolled back"):
        await shop.transactions.commit(tx.id, work_of({HERE: ["a"], BEYOND: ["b"]}))
    await shop.settled()
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
    assert await reads(shop) == [[], [], []]


async def test_an_owner_that_cannot_be_reached_leaves_the_transaction_open_at_prepare(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    link(shop, "second").is_cut = True
    with pytest.raises(UnavailableError):
        await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    link(shop, "second").is_cut = False
    await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    assert await reads(shop) == [["a"], ["b"], []]


async def test_an_abort_that_an_owner_does_not_answer_is_finished_by_the_expiry_job(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.publish(THERE, "early", tx=tx)
    link(shop, "second").is_cut = True
    with pytest.raises(UnavailableError):
        await shop.transactions.abort(tx.id)
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTING
    link(shop, "second").is_cut = False
    await shop.transactions.expire()
    assert (await shop.transactions.outcome(tx.id)).state is State.ABORTED
    assert await reads(shop) == [[], [], []]


async def test_a_topic_that_moves_between_prepare_and_place_is_not_lost(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.store(THERE, "stored", tx=tx)
    await shop.move(THERE, "third")
    await shop.transactions.commit(tx.id, work_of({BEYOND: ["b"]}))
    assert await reads(shop) == [[], ["stored"], ["b"]]


async def test_nothing_is_kept_once_the_commit_has_an_answer(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await shop.transactions.commit(tx.id, work_of({HERE: ["a"], THERE: ["b"]}))
    await shop.settled()
    assert not shop.leader.owner._prepared
    assert not shop.leader.owner._apart  # type: ignore[attr-defined]
    assert not shop.members["second"].owner._prepared


async def test_work_for_a_topic_that_is_not_there_is_refused_by_its_owner_and_changes_nothing(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    missing = Work([WorkPublish(*HERE, [b"a"]), WorkPublish("shop", "nowhere", [b"b"])])
    with pytest.raises(Exception, match="nowhere"):
        await shop.transactions.commit(tx.id, missing)
    assert (await shop.transactions.outcome(tx.id)).state is State.OPEN
    await shop.transactions.abort(tx.id)
