"""What was begun for a one-shot transaction ends as soon as nobody carries it on, and holds nothing then. Whole servers: test_failover_groups.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from basalt.api.bodies.groups import GroupOptions
from basalt.api.bodies.messages import Work
from basalt.commits.begun_one_shots import BegunOneShots
from basalt.commits.commit_stage import Asking, OneShotAsked
from basalt.errors import (
    AcknowledgeOrderError,
    InputError,
    StoppingError,
    TransactionEndedError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.groups.live_group import GroupFetch
from basalt.operations.jobs import end_late
from basalt.runtime.group_commit import Group
from basalt.transactions.rules.edits import ForOneShot
from basalt.transactions.rules.transaction import State, Transaction
from basalt_engine.errors import CorruptionError
from basalt_engine.stores.memory import MemoryStore
from tests.control.groups.conftest import Billing, ids_of
from tests.wiring import A, Wired, texts

pytestmark = pytest.mark.anyio

ONCE = GroupOptions("keyed", attempts_max=1, dead_letter_topic="dead")


LEFT: list[object] = []  # calls that go on for ever


class Crash(Exception):
    """Whoever carried it on is gone."""


@pytest.fixture
async def shop() -> AsyncIterator[Wired]:
    made = await Wired.start(MemoryStore(atomic=False))
    await made.topics.create(A, {})
    yield made
    await made.services.close()


def begun_of(shop: Wired) -> BegunOneShots:
    return shop.transactions._begun


async def held(shop: Wired, billing: Billing) -> tuple[Transaction, GroupFetch]:
    """A transaction that was begun for a one-shot, and is left open with what it has acknowledged, as by a crash."""
    page = await billing.fetch("mary", 1)
    begin = begun_of(shop).begin(Asking("label", None, "token:ann"))
    LEFT.append(begin)
    begun = await begin.__aenter__()
    await billing.acknowledge(page.claim, member="mary", tx=begun.id)
    return begun, page


async def test_it_is_marked_in_the_log_and_belongs_to_who_asked(shop: Wired) -> None:
    async with begun_of(shop).begin(Asking("label", "request", "token:ann")) as begun:
        assert (begun.for_one_shot, begun.owner, begun.principal, begun.request_id) == (
            True, "label", "token:ann", None,
        )  # fmt: skip
        assert shop.transactions.state.begun_for_one_shots() == [begun]
        assert not begun_of(shop).has_uncarried()
        assert await shop.transactions.expire() == 0
    other = await shop.transactions.begin()
    assert not other.for_one_shot
    await shop.transactions.abort(other.id)


async def test_one_that_is_left_behind_is_ended_by_the_next_look_and_no_other_transaction_is(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: BegunOneShots) -> int:
        raise UnavailableError("the log is late")

    other = await shop.transactions.begin()
    with pytest.raises(Crash), monkeypatch.context() as late:
        late.setattr(BegunOneShots, "give_up_uncarried", fails)
        async with begun_of(shop).begin(Asking()) as begun:
            raise Crash
    async with begun_of(shop).begin(Asking()) as carried:
        assert begun_of(shop).has_uncarried()
        assert await end_late(shop.transactions, shop.clock) == {"expired": 1}
        assert not shop.transactions.has_left_over()
        assert (await shop.transactions.outcome(begun.id)).state is State.ABORTED
        assert (await shop.transactions.outcome(carried.id)).state is State.OPEN
        assert (await shop.transactions.outcome(other.id)).state is State.OPEN


@pytest.mark.parametrize(
    "how", ["another leads", "another leads from a snapshot", "the log is read again", "a stop", "nobody carries it on"]
)
async def test_what_it_had_acknowledged_comes_back_at_once_and_that_is_no_attempt(shop: Wired, how: str) -> None:
    billing = await Billing.made(shop, ONCE)
    await shop.publish(A, "first")
    begun, page = await held(shop, billing)
    other = await shop.transactions.begin()
    if how == "another leads from a snapshot":
        await shop.transactions.write_log_snapshot()
    if how.startswith("another leads"):
        shop = await shop.restarted()
        billing = Billing(shop)
    elif how == "the log is read again":
        shop.transactions.manager.lost()
        await shop.transactions.manager.ensure_known()
    elif how == "a stop":
        await shop.transactions.give_up_begun()
        with pytest.raises(StoppingError):
            async with begun_of(shop).begin(Asking()):
                pass
    else:
        begun_of(shop)._carried.clear()
        await shop.transactions.expire()
    state = shop.transactions.state
    assert (state.begun_for_one_shots(), state.unfinished()) == ([], [])
    assert (await shop.transactions.outcome(begun.id)).state is State.ABORTED
    assert (await shop.transactions.outcome(other.id)).state is State.OPEN
    known = billing.live.members.get("mary")
    again = await billing.fetch("mary", epoch=0 if known is None else known.epoch)
    assert (ids_of(again), again.attempt) == (ids_of(page), 1)
    assert not len(billing.live.state.returns)
    if how.startswith("another leads"):
        await shop.services.close()


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (InputError("it would be refused again"), 1), (AcknowledgeOrderError("an earlier one is held"), 0), (UnavailableError("away"), 0),
        (UnknownOutcomeError("it broke"), 0), (Crash(), 0), (asyncio.CancelledError(), 0),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
async def test_a_call_that_fails_is_an_attempt_where_the_work_is_at_fault_alone(
    shop: Wired, error: BaseException, attempts: int
) -> None:
    billing = await Billing.made(shop, GroupOptions("keyed", attempts_max=2))
    await shop.publish(A, "first")
    page = await billing.fetch("mary", 1)

    class Elsewhere:
        """The owner of the group, where the work is acknowledged, and nothing more comes of it."""

        async def acknowledged(self, work: object, begun: Transaction) -> object:
            await billing.acknowledge(page.claim, member="mary", tx=begun.id)
            raise error

    asked = OneShotAsked(Asking("", "request"), None, begun=True)
    with pytest.raises(type(error)):
        await shop.transactions._one_shot_apart(Elsewhere(), Work(), asked)  # type: ignore[arg-type]
    assert shop.transactions.state.begun_for_one_shots() == []
    assert sum(attempt.attempts for _, _, attempt in billing.live.state.returns) == attempts


async def test_one_that_its_call_aborts_counts_as_a_failed_attempt(shop: Wired) -> None:
    """Something spoke against the work, and would again."""
    billing = await Billing.made(shop, ONCE)
    await shop.publish(A, "first")
    begun, _ = await held(shop, billing)
    await shop.transactions.abort(begun.id)
    assert len(billing.live.state.returns) == 1
    assert await shop.transactions.move_dead_letters() == 1


async def test_one_whose_commit_has_an_intent_is_what_recovery_makes_of_it(shop: Wired) -> None:
    async with begun_of(shop).begin(Asking()) as begun:
        manager, state = shop.transactions.manager, shop.transactions.state
        await manager.run(lambda group: manager.apply(group, state.commit(begun.id, group.now_ms).edits))
        assert state.begun_for_one_shots() == []
        assert state.give_up_begun(shop.clock.now_ms()).edits == ()
        await shop.transactions.give_up_begun()
        assert (await shop.transactions.outcome(begun.id)).state is State.COMMITTING
    after = await shop.restarted()
    assert (await after.transactions.outcome(begun.id)).state is State.ABORTED
    await after.services.close()


async def test_one_that_is_given_up_commits_no_more_and_its_client_is_to_send_the_call_again(shop: Wired) -> None:
    begun_ids = list[int]()

    class Elsewhere:
        """The owners of groups elsewhere, while whose answers come the log is read again."""

        async def acknowledged(self, work: object, begun: Transaction) -> object:
            begun_ids.append(begun.id)
            shop.transactions.manager.lost()
            await shop.transactions.manager.ensure_known()
            return work

    one_shot = shop.transactions._one_shot_apart

    with pytest.raises(UnavailableError, match="takes no commit"):
        await one_shot(Elsewhere(), Work(), OneShotAsked(Asking("", "request"), None, begun=True))  # type: ignore[arg-type]
    with pytest.raises(TransactionEndedError):
        await shop.transactions.commit(begun_ids[0])
    assert await shop.transactions._one_shots.answered(Asking("", "request")) is None


async def test_a_begin_that_nobody_waits_for_any_more_is_carried_on_by_nobody(shop: Wired) -> None:
    async def begin() -> None:
        async with begun_of(shop).begin(Asking()):
            raise AssertionError("it was cancelled")

    go_on = await shop.transactions.manager.lanes.log.pause()
    beginning = asyncio.ensure_future(begin())
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait((beginning,))
    go_on()
    await shop.transactions.manager.run(lambda _: None)
    assert begun_of(shop)._carried == set()
    await shop.transactions.expire()
    assert shop.transactions.state.begun_for_one_shots() == []


async def test_a_begin_of_which_nobody_knows_and_that_comes_late_is_carried_on_by_nobody(
    shop: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[Callable[[Group], object]] = []

    async def is_late(stage: Callable[[Group], object]) -> None:
        stages.append(stage)
        raise UnknownOutcomeError("the log is late")

    with monkeypatch.context() as late, pytest.raises(UnknownOutcomeError):
        late.setattr(shop.transactions.manager, "run", is_late)
        async with begun_of(shop).begin(Asking()):
            pass
    await shop.transactions.manager.run(stages[0])
    assert begun_of(shop).has_uncarried()
    await shop.transactions.expire()
    assert shop.transactions.state.begun_for_one_shots() == []


async def test_one_whose_id_somebody_found_and_wrote_under_is_rolled_back_and_with_cells_ends_when_its_time_is_up(
    shop: Wired,
) -> None:
    begin = begun_of(shop).begin(Asking())
    begun, cells = await begin.__aenter__(), begun_of(shop).begin(Asking())
    other = await cells.__aenter__()
    LEFT.extend((begin, cells))
    await shop.publish(A, "strange", tx=begun)
    await shop.transactions.mark_external_writes(other.id, "a client's own table")
    after = await shop.restarted()
    assert (await after.transactions.outcome(begun.id)).state is State.ABORTED
    assert texts(await after.messaging.fetch(A, None, True, committed=True)) == []
    assert (await after.transactions.outcome(other.id)).state is State.OPEN
    assert not after.transactions.has_left_over()
    after.clock.advance(30_000)
    await after.transactions.expire()
    assert (await after.transactions.outcome(other.id)).state is State.INVALID
    await after.services.close()


async def test_the_mark_is_of_a_transaction_that_has_just_begun_alone(shop: Wired) -> None:
    first = await shop.transactions.begin()
    second = await shop.transactions.begin()
    state = shop.transactions.state
    with pytest.raises(CorruptionError, match="did not just begin"):
        state.apply(ForOneShot(first.id))
    state.apply(ForOneShot(second.id))
    with pytest.raises(CorruptionError, match="or is one"):
        state.apply(ForOneShot(second.id))
    with pytest.raises(CorruptionError):
        state.apply(ForOneShot(second.id + 1))


async def test_a_server_that_stops_leaves_none_open(shop: Wired) -> None:
    billing = await Billing.made(shop, ONCE)
    await shop.publish(A, "first")
    begun, _ = await held(shop, billing)
    other = await shop.transactions.begin()
    await shop.services._stop_writing()
    state = shop.transactions.manager.state
    assert state.outcome(begun.id).state is State.ABORTED
    assert state.outcome(other.id).state is State.OPEN
