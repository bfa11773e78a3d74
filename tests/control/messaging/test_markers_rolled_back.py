"""Markers of transactions that were given up: what was known of them goes with their rows, whoever asked before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from basalt.catalog.topics import Topic
from basalt.errors import TransactionEndedError
from basalt.messaging.markers import TopicMarkers
from basalt_engine.errors import UnknownOutcomeError
from basalt_engine.snapshot import PointerRuns
from basalt_engine.table import TableWrite
from tests.control.commits.test_recovery_lost_one_shots import LosingStore, faults, is_entry, is_rows
from tests.control.messaging.test_markers import emit, said, work
from tests.wiring import A, B, Wired, shop_work

pytestmark = pytest.mark.anyio

BEFORE = (10, False)
ENDS = work(("a", None), ("b", None), messages=("lost",))


@pytest.fixture(params=[True, False], ids=["cached", "stored"])
async def shop(request: pytest.FixtureRequest) -> Wired:
    shop = await Wired.start(LosingStore(), cached=request.param)
    await shop.topics.create(A, {})
    await shop.topics.create(B, {})
    await shop.transactions.one_shot(work(("a", 10), ("b", 10)))
    shop.clock.advance(10)
    return shop


async def lose(shop: Wired, part: Callable[[TableWrite], bool] = is_entry) -> None:
    """A one-shot transaction that ends both tasks, of which one write fails."""
    faults(shop).lose, faults(shop).before = part, True
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.one_shot(ENDS)


async def later(shop: Wired) -> None:
    """Somebody commits something elsewhere, and what was given up is older than every snapshot from then on."""
    shop.clock.advance(10)
    await shop.transactions.one_shot(shop_work(invoices=["later"]))


@pytest.mark.parametrize("crash", [False, True], ids=["the same process", "a new process"])
async def test_ends_that_were_asked_about_before_they_were_given_up_never_count(shop: Wired, crash: bool):
    await lose(shop)
    if crash:
        shop = await shop.restarted()
    assert await said(shop) == BEFORE
    await shop.transactions.expire()
    await later(shop)
    assert await said(shop) == BEFORE
    await emit(shop, "a", 20)
    await shop.services.markers.save(everything=True)
    assert await said(await shop.restarted()) == await said(shop) == BEFORE
    await emit(shop, "b", 15)
    assert await said(shop) == (15, False)


async def test_so_do_those_of_a_commit_whose_outcome_was_lost(shop: Wired):
    tx = await shop.transactions.begin()
    commits = iter([False, True])
    faults(shop).lose = lambda write: is_entry(write) and next(commits)  # its intent is written, its outcome is not
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.commit(tx.id, ENDS)
    assert await said(shop) == BEFORE
    await shop.transactions.expire()
    await later(shop)
    assert await said(shop) == BEFORE
    await emit(shop, "a", 20)


async def test_ends_that_are_given_up_while_they_are_read_never_count(shop: Wired, monkeypatch: pytest.MonkeyPatch):
    await lose(shop)
    (await shop.topics.open(A)).forget_details()  # as where there are too many topics to remember
    load = TopicMarkers._load

    async def slow(markers: TopicMarkers, topic: Topic) -> object:
        loaded = await load(markers, topic)
        assert loaded.ahead[-1].marker.ends
        await shop.transactions.expire()
        await later(shop)
        return loaded

    monkeypatch.setattr(TopicMarkers, "_load", slow)
    assert await said(shop) == BEFORE
    await emit(shop, "a", 20)


async def test_a_roll_back_that_came_late_is_heard_of_too(shop: Wired):
    tx = await shop.transactions.begin()
    commits = iter([False, True])
    faults(shop).lose = lambda write: is_entry(write) and next(commits)
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.commit(tx.id, ENDS)
    assert await said(shop) == BEFORE
    faults(shop).lose, faults(shop).before = is_rows, False
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.expire()
    assert await said(shop) == BEFORE
    await shop.transactions.expire()  # and finds nothing left to roll back
    await later(shop)
    assert await said(shop) == BEFORE
    await emit(shop, "a", 20)


async def test_rows_that_come_late_are_no_markers(shop: Wired):
    await lose(shop, is_rows)
    assert await said(shop) == BEFORE
    shop.store.arrive()  # type: ignore[attr-defined]
    assert await said(shop) == BEFORE
    await shop.transactions.expire()
    await later(shop)
    assert await said(shop) == BEFORE
    await emit(shop, "a", 20)


async def test_a_client_cannot_roll_back_what_is_given_up_and_it_never_counts(shop: Wired):
    tx = await shop.transactions.begin()
    early = await shop.messaging.publish(A, [b"early"], tx.write_pointer)
    commits = iter([False, True])
    faults(shop).lose = lambda write: is_entry(write) and next(commits)
    with pytest.raises(UnknownOutcomeError):
        await shop.transactions.commit(tx.id, ENDS)
    assert await said(shop) == BEFORE
    with pytest.raises(TransactionEndedError):
        await shop.messaging.roll_back(A, early)
    await shop.transactions.expire()
    await later(shop)
    assert await said(shop) == BEFORE


async def test_a_clients_roll_back_leaves_the_markers_of_its_commit(shop: Wired):
    tx = await shop.transactions.begin()
    early = await shop.messaging.publish(A, [b"early"], tx.write_pointer)
    await asyncio.gather(shop.transactions.commit(tx.id, ENDS), shop.messaging.roll_back(A, early))
    assert await said(shop) == await said(await shop.restarted()) == (10, True)


async def test_failed_writers_that_are_forgotten_do_not_pass_for_committed(shop: Wired):
    reader = await shop.transactions.begin()
    await shop.publish(A, "early", tx=reader)  # so that nothing behind it is settled
    await lose(shop)
    assert await said(shop) == BEFORE
    (lost,) = shop.transactions.state.invalid.runs
    assert await shop.transactions.prune([], PointerRuns([lost]))
    await shop.transactions.abort(reader.id)
    await later(shop)
    assert await said(shop) == BEFORE


async def test_a_topic_that_was_created_again_has_none_of_them(shop: Wired):
    await lose(shop)
    assert await said(shop) == BEFORE
    await shop.topics.delete(A)
    await shop.topics.create(A, {})
    await shop.transactions.expire()
    await emit(shop, "a", 1)
    await later(shop)
    assert await said(shop) == await said(await shop.restarted()) == (None, False)
    await emit(shop, "b", 2)
    assert await said(shop) == (1, False)


async def test_markers_that_are_emitted_during_a_roll_back_count(shop: Wired):
    await lose(shop)
    assert await said(shop) == BEFORE
    await asyncio.gather(shop.transactions.expire(), *(emit(shop, "c", at, 3, B) for at in range(5)))
    await shop.transactions.one_shot(work(("a", 20), ("b", 30)))
    assert await said(shop) == await said(await shop.restarted()) == (20, False)
