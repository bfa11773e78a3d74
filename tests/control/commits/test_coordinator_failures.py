"""What the coordinator tells, and what goes on, when a write fails or a roll back does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from basalt.commits.commit_stage import Beginning
from basalt.commits.owning.owner import Owner
from basalt.errors import RequestReusedError, TopicNotFoundError, TransactionEndedError
from basalt.transactions.protocol import RollBack
from basalt.transactions.rules.transaction import SessionBinding, State, Transaction
from basalt_engine.errors import CorruptionError, StoreError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.table import TableWrite
from tests.wiring import A, Wired, shop_work

pytestmark = pytest.mark.anyio

HANG_S = 60.0  # nothing waits that long


class GatedStore(MemoryStore):
    """A far store, whose writes wait at the gate and then fail, if they are to."""

    remote = True

    def __init__(self) -> None:
        super().__init__(atomic=True)
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()  # the gate, by a write
        self.failing = False

    def write(self, writes: Sequence[TableWrite]) -> None:
        self.reached.set()
        assert self.gate.wait(HANG_S)
        if self.failing:
            raise StoreError("the disk is gone")
        super().write(writes)


class RollBacks:
    """Of these transactions the roll back fails; none begins before the gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.damaged: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        real = Owner.roll_back

        async def roll_back(owner: Owner, asked: RollBack) -> None:
            await self.gate.wait()
            if asked.transaction.id in self.damaged:
                raise CorruptionError("a row is damaged")
            await real(owner, asked)

        monkeypatch.setattr(Owner, "roll_back", roll_back)


@pytest.fixture
async def roll_backs(monkeypatch: pytest.MonkeyPatch) -> RollBacks:
    return RollBacks(monkeypatch)


@pytest.fixture
async def shop() -> Wired:
    shop = await Wired.start(MemoryStore(atomic=True))
    await shop.topics.create(A, {})
    return shop


async def with_rows(shop: Wired, session: SessionBinding | None = None) -> Transaction:
    """A transaction that has something to roll back."""
    begun: Any = await (
        shop.transactions.begin() if session is None else shop.transactions.sessions.begin(session, Beginning())
    )
    await shop.store_aside(A, "undone", tx=begun)
    return begun


def state_of(shop: Wired, transaction: Transaction) -> State:
    return shop.transactions.state.outcome(transaction.id).state


async def soon(call: asyncio.Future[Any]) -> bool:
    """Whether the call is answered by and by."""
    await asyncio.wait([call], timeout=0.05)
    return call.done()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("ask", ["outcome", "get", "find", "invalidate"])
async def test_nobody_is_told_of_a_commit_that_is_not_durable(ask: str, fails: bool) -> None:
    store = GatedStore()
    shop = await Wired.start(store)
    begun = await shop.transactions.begin()
    store.gate.clear()
    store.reached.clear()
    commit = asyncio.ensure_future(shop.transactions.commit(begun.id))
    if ask != "invalidate":  # which meets the commit in its group
        assert await asyncio.to_thread(store.reached.wait, HANG_S)
    asked: asyncio.Future[object] = asyncio.ensure_future(getattr(shop.transactions, ask)(begun.id))
    assert not await soon(commit)
    assert not await soon(asked)
    store.failing = fails
    store.gate.set()
    (answer,) = await asyncio.gather(asked, return_exceptions=True)
    await asyncio.wait([commit])
    store.failing = False
    if fails:
        assert isinstance(commit.exception(), StoreError)
        assert isinstance(answer, Exception)
        assert not isinstance(answer, TransactionEndedError)
        assert (await shop.transactions.outcome(begun.id)).state is State.OPEN
    elif ask in ("get", "invalidate"):
        assert isinstance(answer, TransactionEndedError)
    else:
        assert answer == commit.result()


async def test_looking_at_a_transaction_writes_nothing() -> None:
    shop = await Wired.start(MemoryStore(atomic=True))
    begun = await shop.transactions.begin()
    length = shop.transactions.manager.log_length
    assert await shop.transactions.get(begun.id) == await shop.transactions.find(begun.id) == begun
    assert (await shop.transactions.outcome(begun.id)).state is State.OPEN
    assert shop.transactions.manager.log_length == length


async def test_a_roll_back_that_fails_holds_up_no_other_one(
    shop: Wired, roll_backs: RollBacks, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await with_rows(shop), await with_rows(shop)
    roll_backs.damaged = {bad.id}
    shop.clock.advance(31_000)
    with caplog.at_level(logging.WARNING), pytest.raises(CorruptionError):
        await shop.transactions.expire()
    assert (state_of(shop, bad), state_of(shop, good)) == (State.ABORTING, State.ABORTED)
    assert f"transaction {bad.id} is not rolled back" in caplog.text
    again = await shop.restarted()
    assert state_of(again, bad) is State.ABORTING
    roll_backs.damaged = set()
    assert await again.transactions.expire() == 0
    assert state_of(again, bad) is State.ABORTED


async def test_a_session_is_opened_and_deleted_whatever_cannot_be_rolled_back(
    shop: Wired, roll_backs: RollBacks
) -> None:
    sessions = shop.transactions.sessions
    opened = await sessions.open("nightly", "first")
    stranger, own = await with_rows(shop), await with_rows(shop, SessionBinding("nightly", opened.epoch))
    roll_backs.damaged = {stranger.id, own.id}
    with pytest.raises(CorruptionError):
        await shop.transactions.abort(stranger.id)
    opened = await sessions.open("nightly", "second")
    assert state_of(shop, own) is State.ABORTING
    last = await with_rows(shop, SessionBinding("nightly", opened.epoch))
    await sessions.delete("nightly")
    assert state_of(shop, last) is State.ABORTED


async def test_a_session_drives_no_transaction_but_its_own(shop: Wired, roll_backs: RollBacks) -> None:
    stranger = await with_rows(shop)
    roll_backs.gate.clear()
    abort = asyncio.ensure_future(shop.transactions.abort(stranger.id))
    assert not await soon(abort)
    await asyncio.wait_for(shop.transactions.sessions.open("nightly", "first"), HANG_S)
    roll_backs.gate.set()
    assert (await abort).state is State.ABORTED


@pytest.mark.parametrize("fails", [False, True])
async def test_who_needs_a_roll_back_waits_for_the_call_that_does_it(
    shop: Wired, roll_backs: RollBacks, fails: bool
) -> None:
    sessions = shop.transactions.sessions
    opened = await sessions.open("nightly", "first")
    old = await with_rows(shop, SessionBinding("nightly", opened.epoch))
    roll_backs.gate.clear()
    abort = asyncio.ensure_future(shop.transactions.abort(old.id))
    assert not await soon(abort)
    takes_over = asyncio.ensure_future(sessions.open("nightly", "second"))
    assert not await soon(takes_over)
    if fails:
        abort.cancel()
        assert not await soon(takes_over)
    roll_backs.gate.set()
    await asyncio.wait_for(takes_over, HANG_S)
    assert state_of(shop, old) is State.ABORTED


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_one_shot_is_not_answered_with_the_commit_of_another(atomic: bool) -> None:
    shop = await Wired.start(MemoryStore(atomic=atomic))
    await shop.topics.create(A, {})
    begun = await shop.transactions.begin()
    await shop.transactions.commit(begun.id, request_id="r")
    with pytest.raises(RequestReusedError, match="used for the commit"):
        await shop.transactions.one_shot(shop_work(orders=["m"]), request_id="r")
    await shop.topics.delete(A)
    with pytest.raises(RequestReusedError):
        await shop.transactions.one_shot(shop_work(orders=["m"]), request_id="r")
    with pytest.raises(TopicNotFoundError):
        await shop.transactions.one_shot(shop_work(orders=["m"]), request_id="new")


async def test_a_snapshot_of_the_log_that_is_not_written_shortens_it_by_nothing() -> None:
    store = GatedStore()
    shop = await Wired.start(store)
    for _ in range(3):
        await shop.transactions.begin()
    length = shop.transactions.manager.log_length
    assert length[0] >= 3
    store.failing = True
    with pytest.raises(StoreError):
        await shop.transactions.write_log_snapshot()
    assert shop.transactions.manager.log_length == length
    store.failing = False
    await shop.transactions.write_log_snapshot()
    assert shop.transactions.manager.log_length == (0, 0)
