"""Commits that come to a member: what it prepares, what the coordinator makes of it, and what is kept when an answer is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import patch

import msgspec
import pytest

from basalt.api.bodies.messages import Work
from basalt.commits.commit_stage import Beginning
from basalt.commits.of_members import commits as commits_of_members
from basalt.commits.of_members.commits import (
    ACT_MS_MAX,
    COMMIT,
    COMMIT_MS_MAX,
    TRIES_MAX,
    UP_TO_MS_MAX,
    CommitAnswer,
)
from basalt.commits.owning.owner import PREPARED_MS_MAX
from basalt.errors import (
    InputError,
    NotHereError,
    TransactionConflictError,
    TransactionEndedError,
    TransactionNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from basalt.runtime.write_lanes import LOG_LATE_MS_MAX
from basalt.transactions.protocol import JoinedTransaction, Prepare, Prepared
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.refusals import naming
from basalt.transactions.rules.transaction import State, Transaction
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


async def test_one_call_has_a_commit_decided_and_its_bytes_stay_where_they_came(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    outcome = await second(shop).commits.commit(tx.id, BROUGHT)
    assert outcome.state is State.COMMITTED
    assert second(shop).to_leader.asked == ["commit"]
    assert shop.links.links["second"].asked == ["place"]  # type: ignore[attr-defined]
    assert await reads(shop) == [[], ["b"], []]
    assert not second(shop).owner._prepared


async def test_all_owners_that_were_joined_place_what_was_stored(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE, BEYOND):
        await shop.store(title, "stored", tx=tx)
    await second(shop).commits.commit(tx.id, BROUGHT)
    assert await reads(shop) == [["stored"], ["stored", "b"], ["stored"]]


async def test_of_segments_all_owners_publish_those_alone(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE, BEYOND):
        await shop.store(title, "left out", tx=tx)
    checkpoint = await shop.transactions.checkpoint(tx.id)
    for title in (HERE, BEYOND):
        await shop.store(title, "named", tx=checkpoint)
    await second(shop).commits.commit(tx.id, Work(BROUGHT.publish, segments=[checkpoint.write_pointer]))
    assert await reads(shop) == [["named"], ["b"], ["named"]]


@pytest.mark.parametrize("brought", [work_of({HERE: ["a"]}), work_of({HERE: ["a"], THERE: ["b"]})])
async def test_what_is_not_for_topics_of_here_alone_is_the_leaders(shop: Fleet, brought: Work) -> None:
    tx = await shop.transactions.begin()
    with pytest.raises(NotHereError):
        await second(shop).commits.commit(tx.id, brought)
    assert second(shop).to_leader.asked == []


@pytest.mark.parametrize("brought", [None, work_of({})])
async def test_a_commit_without_messages_is_one_call_too(shop: Fleet, brought: Work | None) -> None:
    tx = await shop.transactions.begin()
    for title in (HERE, THERE):
        await shop.store(title, "stored", tx=tx)
    assert (await second(shop).commits.commit(tx.id, brought)).state is State.COMMITTED
    assert second(shop).to_leader.asked == ["commit"]
    assert await reads(shop) == [["stored"], ["stored"], []]


async def test_what_brings_nothing_is_one_call_each(shop: Fleet) -> None:
    member = second(shop).commits
    begun = await member.begin(Beginning(owner="me", request_id="once"))
    assert begun == shop.transactions.state.get(begun.id)
    assert await member.begin(Beginning(owner="me", request_id="once")) == begun
    further = await member.checkpoint(begun.id)
    assert (further.id, len(further.pointers)) == (begun.id, 2)
    assert await member.find(begun.id) == further
    await shop.store(THERE, "stored", tx=further)
    assert (await member.abort(begun.id)).state is State.ABORTED
    ended = await member.find(begun.id)
    assert isinstance(ended, Outcome)
    assert ended.state is State.ABORTED
    assert second(shop).to_leader.asked == ["begin", "begin", "act", "act"]
    assert await reads(shop) == [[], [], []]


async def test_refusals_of_what_brings_nothing_are_the_coordinators(shop: Fleet) -> None:
    member = second(shop).commits
    for call in (member.abort(17), member.checkpoint(17)):
        with pytest.raises(TransactionNotFoundError):
            await call
    with pytest.raises(InputError):
        await member.begin(Beginning(timeout_ms=0))
    second(shop).to_leader.is_cut = True
    for asked in (member.begin(Beginning()), member.abort(17), member.checkpoint(17), member.find(17)):
        with pytest.raises(NotHereError):
            await asked


async def test_without_a_link_or_where_the_owner_refuses_it_the_leader_is_to_see_all_of_it(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    with pytest.raises(NotHereError):
        await second(shop).commits.commit(tx.id, Work(BROUGHT.publish, segments=[17]))
    second(shop).to_leader.is_cut = True
    with pytest.raises(NotHereError):
        await second(shop).commits.commit(tx.id, BROUGHT)
    assert await reads(shop) == [[], [], []]


async def test_what_the_link_refuses_is_the_leaders_and_nothing_is_kept(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    shop.links.runs["second"] = "another run"
    with pytest.raises(NotHereError):
        await second(shop).commits.commit(tx.id, BROUGHT)
    assert second(shop).to_leader.asked == ["commit"]
    assert not second(shop).owner._prepared


async def test_what_has_ended_is_the_leaders_to_answer(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    await second(shop).commits.commit(tx.id, BROUGHT)
    with pytest.raises(NotHereError):
        await second(shop).commits.commit(tx.id, BROUGHT)
    assert await reads(shop) == [[], ["b"], []]


async def test_a_transaction_that_the_member_knows_otherwise_is_looked_at_again(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    before = seen(shop, tx.id)
    await shop.store(BEYOND, "stored", tx=tx)
    known = commits_of_members.seen_of
    asked: list[int] = []

    def late(*given: object) -> object:
        asked.append(1)
        return (before, ()) if len(asked) == 1 else known(*given)  # type: ignore[arg-type]

    with patch.object(commits_of_members, "seen_of", late):
        await second(shop).commits.commit(tx.id, BROUGHT)
        assert second(shop).to_leader.asked == ["commit"] * TRIES_MAX
    assert await reads(shop) == [[], ["b"], ["stored"]]
    assert not second(shop).owner._prepared


async def test_one_that_the_member_never_knows_as_it_is_is_the_leaders(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    before = seen(shop, tx.id)
    await shop.store(BEYOND, "stored", tx=tx)
    with patch.object(commits_of_members, "seen_of", lambda *_: (before, ())), pytest.raises(NotHereError):
        await second(shop).commits.commit(tx.id, BROUGHT)
    assert second(shop).to_leader.asked == ["commit"] * TRIES_MAX
    assert (await shop.transactions.outcome(tx.id)).state is State.OPEN
    assert not second(shop).owner._prepared


async def test_a_guard_refuses_before_anything_is_kept(shop: Fleet) -> None:
    tx = await shop.transactions.begin()

    def guard(found: Transaction | None) -> None:
        assert found is not None
        raise UnavailableError("no")

    with pytest.raises(UnavailableError):
        await second(shop).commits.commit(tx.id, BROUGHT, guard=guard)
    assert second(shop).to_leader.asked == []
    assert not second(shop).owner._prepared


@pytest.mark.parametrize("fate", ["lost", "unanswered", "late"])
async def test_a_lost_answer_is_an_unknown_outcome_of_which_the_bytes_are_kept_for_a_minute(
    shop: Fleet, fate: str
) -> None:
    tx = await shop.transactions.begin()
    second(shop).to_leader.fate = lambda _: fate
    with pytest.raises(UnknownOutcomeError):
        await second(shop).commits.commit(tx.id, BROUGHT)
    await shop.settled()
    state = State.OPEN if fate == "lost" else State.COMMITTED
    assert (await shop.transactions.outcome(tx.id)).state is state
    await shop.transactions.commit(tx.id, BROUGHT)
    assert await reads(shop) == [[], ["b"], []]
    await shop.settled()
    owner = second(shop).owner
    assert len(owner._prepared) == 1
    shop.clock.advance(PREPARED_MS_MAX + 1)
    await owner.prepare(Prepare(BROUGHT, None))
    assert len(owner._prepared) == 1, "the one of now"


async def test_a_place_that_is_lost_gives_the_commit_up(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    shop.links.links["second"].fate = lambda kind: "lost" if kind == "place" else "answered"  # type: ignore[attr-defined]
    with pytest.raises(TransactionEndedError, match="rolled back"):
        await second(shop).commits.commit(tx.id, BROUGHT)
    await shop.settled()
    assert await reads(shop) == [[], [], []]
    assert not second(shop).owner._prepared


async def test_while_it_is_prepared_its_topic_does_not_move(shop: Fleet) -> None:
    tx = await shop.transactions.begin()
    prepared = await second(shop).owner.prepare(Prepare(BROUGHT, seen(shop, tx.id)))
    assert second(shop).gate._visits
    second(shop).owner.drop(prepared)
    assert not second(shop).gate._visits


def test_a_refusal_arrives_with_the_transactions_that_it_names() -> None:
    error = naming(TransactionConflictError("lost to transaction 17"), [17], "lost to another")
    carried = msgspec.msgpack.encode(CommitAnswer.of(error))
    with pytest.raises(TransactionConflictError) as found:
        COMMIT.answer.decode(carried).told()
    assert (found.value.others, found.value.without_names) == ((17,), "lost to another")
    assert COMMIT.answer.decode(msgspec.msgpack.encode(CommitAnswer.of(None))).told() is None


def test_a_log_that_is_late_says_so_before_the_call_is_given_up() -> None:
    assert ACT_MS_MAX > LOG_LATE_MS_MAX > UP_TO_MS_MAX
    assert COMMIT_MS_MAX > 2 * LOG_LATE_MS_MAX
    assert Prepared().number == 0
