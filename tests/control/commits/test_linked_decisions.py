"""One-shot transactions of a member that does not lead: what becomes of them when links, members and leaders fail."""

from __future__ import annotations

import asyncio

import pytest

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.catalog.topics import TopicName, topic_name
from basalt.cluster.links.frames import Kind
from basalt.commits import linked_decisions
from basalt.errors import CoordinatorUnavailableError, TransactionNotFoundError, UnavailableError
from basalt.runtime.write_lanes import LOG_LATE_MS_MAX
from basalt.transactions.rules.loans import LOAN_POINTERS, USED_MS
from basalt.transactions.rules.outcomes import Outcome
from basalt_engine.errors import UnknownOutcomeError
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import shard_of
from tests.control.commits.linked_shops import HANG_S, Installation, Member
from tests.control.commits.test_recovery_lost_one_shots import is_entry, is_rows

pytestmark = pytest.mark.anyio

A, A2, B = topic_name("shop", "a"), topic_name("shop", "a-2"), topic_name("shop", "b")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once for what is unknown."""
    monkeypatch.setattr(linked_decisions, "AGAIN_MS", 1)


@pytest.fixture
async def shop() -> Installation:
    """The members a and b have loans."""
    shop = await Installation.start("a", "b")
    for member in shop.members:
        await member.one_shot(topic_name("shop", member.name), "first")
    return shop


def of(shop: Installation, name: str) -> Member:
    return next(member for member in shop.members if member.name == name)


async def lost(*members: Member) -> None:
    """Return once each of these has got no answer to a decision."""
    async with asyncio.timeout(HANG_S):
        while not all(member.linked.lost_total for member in members):
            await asyncio.sleep(0.001)


async def learned(member: Member) -> None:
    """Return once the member knows what became of all that it asked."""
    async with asyncio.timeout(HANG_S):
        while member.linked._learning is not None:
            await asyncio.sleep(0.001)


async def test_a_one_shot_is_one_write_of_rows_one_call_and_one_entry(shop: Installation):
    a, calls = of(shop, "a"), list[int]()
    a.loses = lambda by_member, _number, kind: by_member and calls.append(kind) is not None
    rows, entries = len(a.store.faults.writes), len(shop.store.faults.writes)
    outcome = await a.work({A: ["both"], A2: ["both"]}, "r")
    assert a.store.faults.writes[rows:] == ["message"]
    assert shop.store.faults.writes[entries:] == ["transaction_log"]
    assert [kind for kind in calls if kind != Kind.ANSWER] == [Kind.DECIDE_ONE_SHOTS]
    assert shop.shown(A)[-1:] == shop.shown(A2) == ["both"]
    assert outcome == shop.leader.transactions.state.outcome(outcome.id)


async def test_those_of_one_group_are_decided_by_one_call(shop: Installation):
    a, calls = of(shop, "a"), list[int]()
    a.loses = lambda by_member, _number, kind: by_member and calls.append(kind) is not None
    await asyncio.gather(*(a.one_shot(A, f"{number}") for number in range(30)))
    assert [kind for kind in calls if kind != Kind.ANSWER] == [Kind.DECIDE_ONE_SHOTS]
    assert shop.shown(A) == ["first", *map(str, range(30))]


async def test_without_a_link_nothing_is_written(shop: Installation):
    a = of(shop, "a")
    a.wire.cut()
    await asyncio.sleep(0)
    rows = len(a.store.faults.writes)
    with pytest.raises(CoordinatorUnavailableError):
        await a.one_shot(A, "no")
    assert a.store.faults.writes[rows:] == []


async def test_a_decision_that_never_arrived_is_made_against_it_once_there_is_a_link_and_its_caller_may_repeat(
    shop: Installation,
):
    a = of(shop, "a")
    a.lose(Kind.DECIDE_ONE_SHOTS)
    call = asyncio.ensure_future(a.one_shot(A, "lost", request_id="r"))
    await lost(a)
    assert not call.done()
    assert shop.shown(A) == ["first"]
    assert a.followed.state.in_flight.first is not None
    await a.connect()
    with pytest.raises(CoordinatorUnavailableError, match="nobody will see it"):
        await call
    assert a.followed.state.in_flight.first is None
    await a.one_shot(A, "lost", request_id="r")
    assert shop.shown(A) == ["first", "lost"]


async def test_a_decision_whose_answer_was_lost_is_told_from_the_log(shop: Installation):
    a = of(shop, "a")
    a.lose(Kind.DECIDE_ONE_SHOTS, answer=True)
    call = asyncio.ensure_future(a.one_shot(A, "kept"))
    await lost(a)
    await a.connect()
    outcome = await call
    assert outcome == shop.leader.transactions.state.outcome(outcome.id)
    assert shop.shown(A) == ["first", "kept"]
    assert a.followed.state.in_flight.first is None


async def test_who_waits_too_long_is_told_that_nobody_knows_and_its_request_id_tells_later(
    shop: Installation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linked_decisions, "LEARN_MS_MAX", 10)
    a = of(shop, "a")
    a.lose(Kind.DECIDE_ONE_SHOTS, answer=True)
    with pytest.raises(UnknownOutcomeError, match="has not answered"):
        await a.one_shot(A, "kept", request_id="r")
    await a.connect()
    with pytest.raises(CoordinatorUnavailableError):  # or it waits until that is known
        monkeypatch.setattr(a.linked, "_is_learned", lambda *_: False)
        await a.one_shot(A, "kept", request_id="r")
    monkeypatch.undo()
    await learned(a)
    outcome = await a.one_shot(A, "kept", request_id="r")
    assert shop.shown(A) == ["first", "kept"]
    assert outcome.id == shop.leader.transactions.state.first_one_shot("r")


async def test_a_decision_that_is_not_answered_in_time_is_learned_of_over_the_same_link(
    shop: Installation, monkeypatch: pytest.MonkeyPatch
):
    assert linked_decisions.ASK_MS_MAX > LOG_LATE_MS_MAX, (
        "the coordinator must be the first to say that its log is late"
    )
    monkeypatch.setattr(linked_decisions, "ASK_MS_MAX", 10)
    a = of(shop, "a")
    lane = shop.leader.transactions.manager.lanes.log
    lane._busy = True  # it does not run a stage
    call = asyncio.ensure_future(a.one_shot(A, "kept"))
    await lost(a)
    lane._wake()
    outcome = await call
    assert outcome == shop.leader.transactions.state.outcome(outcome.id)
    assert shop.shown(A) == ["first", "kept"]


async def test_a_link_that_breaks_before_the_rows_are_durable_gives_them_up(shop: Installation):
    a = of(shop, "a")
    ((first, _),) = shop.undecided("a")
    held = a.store.write
    a.store.write = lambda writes: (held(writes), a.wire.cut())[0]  # type: ignore[method-assign, assignment]
    call = asyncio.ensure_future(a.one_shot(A, "lost"))
    await lost(a)
    a.store.write = held  # type: ignore[method-assign]
    await a.connect()
    with pytest.raises(CoordinatorUnavailableError):
        await call
    await a.one_shot(A, "next")
    assert shop.shown(A) == ["first", "next"]
    assert first in shop.leader.transactions.state.invalid


async def test_a_loan_of_which_the_answer_was_lost_is_ended_with_the_next_one(shop: Installation):
    a = of(shop, "a")
    shop.clock.advance(USED_MS)
    a.lose(Kind.LEND, answer=True)
    with pytest.raises(CoordinatorUnavailableError, match="nothing was done"):
        await a.one_shot(A, "lost")
    assert len(shop.undecided("a")) == 2
    await a.connect()
    await a.one_shot(A, "next")
    ((first, last),) = shop.undecided("a")
    assert last - first == LOAN_POINTERS - 2
    assert shop.shown(A) == ["first", "next"]


async def test_another_leader_ends_all_loans_and_decides_nothing_under_them(shop: Installation):
    a, b = shop.members
    a.lose(Kind.DECIDE_ONE_SHOTS)
    b.lose(Kind.DECIDE_ONE_SHOTS, answer=True)
    calls = [asyncio.ensure_future(member.one_shot(topic_name("shop", member.name), "?")) for member in (a, b)]
    await lost(a, b)
    await shop.lead_anew()
    await shop.connect()
    given_up, kept = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(given_up, CoordinatorUnavailableError)
    assert not isinstance(kept, BaseException)
    await asyncio.gather(a.one_shot(A, "next"), b.one_shot(B, "next"))
    assert (shop.shown(A), shop.shown(B)) == (["first", "next"], ["first", "?", "next"])


async def test_rows_of_a_member_that_is_over_hold_readers_up_until_its_loans_are_ended_and_never_show(
    shop: Installation,
):
    a = of(shop, "a")
    a.store.faults.lose, a.store.faults.before = is_rows, True
    a.lose(Kind.DECIDE_ONE_SHOTS)
    with pytest.raises(UnknownOutcomeError):
        await a.one_shot(A, "late")
    shop.over.add("a")
    a.store.arrive()
    assert shop.leader.transactions.has_left_over()
    shop.clock.advance(1)
    other = Member(shop, "another owner of a's topics")
    shop.members.append(other)
    await other.connect()
    await other.one_shot(A, "after")
    assert shop.shown(A) == ["first"], "a row that is not decided was passed"
    await shop.leader.transactions.expire()
    assert not shop.undecided("a")
    assert shop.shown(A) == ["first", "after"]
    await a.connect()  # it does not know yet
    with pytest.raises((CoordinatorUnavailableError, UnavailableError)):
        await a.one_shot(A, "no more")
    assert shop.shown(A) == ["first", "after"]


async def test_a_loan_that_was_ended_meanwhile_decides_nothing_and_another_one_is_borrowed(shop: Installation):
    a = of(shop, "a")
    shop.over.add("a")
    await shop.leader.transactions.expire()
    shop.over.clear()  # as where the leader had not seen it yet
    with pytest.raises(CoordinatorUnavailableError, match="nobody will see it"):
        await a.one_shot(A, "lost")
    await a.one_shot(A, "next")
    assert shop.shown(A) == ["first", "next"]


async def test_one_request_at_two_members_at_a_time_is_carried_out_once_and_both_are_told_so(shop: Installation):
    a, b = shop.members
    outcomes = await asyncio.gather(a.one_shot(A, "once", request_id="r"), b.one_shot(B, "once", request_id="r"))
    assert outcomes[0] == outcomes[1]
    assert [shop.shown(A), shop.shown(B)] in ([["first", "once"], ["first"]], [["first"], ["first", "once"]])
    assert await a.one_shot(A, "once", request_id="r") == outcomes[0]
    await asyncio.gather(a.one_shot(A, "next"), b.one_shot(B, "next"))
    assert shop.shown(A)[-1] == shop.shown(B)[-1] == "next"


async def test_one_request_at_a_member_twice_at_a_time_is_carried_out_once(shop: Installation):
    a = of(shop, "a")
    outcomes = await asyncio.gather(*(a.one_shot(A, "once", request_id="r") for _ in range(3)))
    assert len({outcome.id for outcome in outcomes}) == 1
    assert shop.shown(A) == ["first", "once"]


async def test_rows_of_which_nobody_knows_are_given_up_alone(shop: Installation):
    a = of(shop, "a")
    ((first, last),) = shop.undecided("a")
    a.store.faults.lose = is_rows
    calls = [a.one_shot(A, f"lost {number}") for number in range(3)]
    assert {type(answer) for answer in await asyncio.gather(*calls, return_exceptions=True)} == {UnknownOutcomeError}
    await a.linked.finish()
    assert shop.undecided("a") == [(first + 3, last)]
    assert list(shop.leader.transactions.state.invalid.runs) == [(first, first + 2)]
    a.store.arrive()
    await a.one_shot(A, "next")
    assert shop.shown(A) == ["first", "next"]


async def test_an_entry_that_was_lost_is_learned_of_when_the_log_was_read_again(shop: Installation):
    a = of(shop, "a")
    shop.store.faults.lose, shop.store.faults.before = is_entry, False
    outcome = await a.one_shot(A, "kept")  # made, and its answer lost
    assert outcome == shop.leader.transactions.state.outcome(outcome.id)
    await a.one_shot(A, "again")
    shop.store.faults.lose, shop.store.faults.before = is_entry, True
    with pytest.raises(CoordinatorUnavailableError):
        await a.one_shot(A, "lost")
    await a.one_shot(A, "next")
    assert shop.shown(A) == ["first", "kept", "again", "next"]


async def test_what_is_not_used_any_more_is_given_back(shop: Installation):
    a = of(shop, "a")
    assert not a.one_shots.has_idle_loan()
    shop.clock.advance(USED_MS)
    assert a.one_shots.has_idle_loan()
    await a.one_shots.give_back()
    assert not shop.undecided("a")
    assert not a.one_shots.has_idle_loan()
    assert not shop.leader.transactions.state.invalid.runs


async def test_a_stop_gives_back_what_it_has(shop: Installation):
    a = of(shop, "a")
    call = asyncio.ensure_future(a.one_shot(A, "last"))
    await asyncio.sleep(0)
    await a.lanes.topics.stop()
    await a.one_shots.give_back_all()
    await call
    assert not shop.undecided("a")
    assert not shop.leader.transactions.state.invalid.runs
    assert shop.shown(A) == ["first", "last"]


async def test_a_stop_waits_for_nothing_that_nobody_can_tell(shop: Installation):
    a = of(shop, "a")
    a.lose(Kind.DECIDE_ONE_SHOTS)
    call = asyncio.ensure_future(a.one_shot(A, "unknown"))
    await lost(a)
    await a.one_shots.give_back_all()
    with pytest.raises(UnknownOutcomeError):
        await call
    await learned(a)
    assert a.linked._unknown, "it was learned of without a link"


async def test_a_first_outcome_that_is_forgotten_is_told_to_be(shop: Installation):
    a = of(shop, "a")
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    a.linked.tell_first(1, told)
    with pytest.raises(TransactionNotFoundError):
        await told


async def test_loans_that_a_broken_link_left_are_ended_by_a_member_that_has_nothing_to_do(shop: Installation):
    a = of(shop, "a")
    await a.connect()
    assert shop.undecided("a")
    assert a.one_shots.has_idle_loan()
    await a.one_shots.give_back()
    assert not shop.undecided("a")
    assert not a.one_shots.has_idle_loan()


async def test_a_member_knows_which_work_is_its_own_alone(shop: Installation):
    a = of(shop, "a")
    assert a.owner.has_all_topics(work(A, A2))
    a.gate.close([shard_of(topic_prefix(*A2))])
    assert a.owner.has_all_topics(work(A))
    assert not a.owner.has_all_topics(work(A, A2))
    assert not a.owner.has_all_topics(work())
    assert not a.owner.has_all_topics(work(TopicName("no name!", "a")))


def work(*titles: TopicName) -> Work:
    return Work(publish=[WorkPublish(*title, [b"m"]) for title in titles])
