"""Members that follow the log: their state is the leader's, whatever breaks in between, and what they cannot know they do not say."""

from __future__ import annotations

import asyncio

import pytest

from basalt.errors import CoordinatorUnavailableError, TransactionEndedError, UnavailableError
from basalt.transactions import followed as module
from basalt.transactions.follow_calls import ASK, Ask, Standing
from basalt.transactions.followed import (
    ASK_MS_MAX,
    FOLLOW_MS_MAX,
    JOIN_MS_MAX,
    KNOWN_MS_MAX,
    READ_AGAIN_MS_MAX,
    READ_AGAIN_MS_MIN,
)
from basalt.transactions.protocol import Close, End, Expect, Joining, Recovered
from basalt.transactions.rules.transaction import Join
from basalt.transactions.rules.transaction_proposals import TransactionProposals
from tests.control.cluster.links.link_pair import until
from tests.control.transactions.following import Member, World, following
from tests.wiring import A, shop_work

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def told(member: Member, *kinds: type) -> list[int]:
    """The transactions about which the member was told this."""
    return [
        each.transaction.id if isinstance(each, End) else each.transaction_id
        for each in member.told
        if isinstance(each, Close | End | Expect) and (not kinds or isinstance(each, kinds))
    ]


async def some_work(world: World) -> None:
    """A bit of everything."""
    transactions = world.shop.transactions
    await transactions.one_shot(shop_work(orders=["one"]))
    begun = await transactions.begin()
    await world.shop.store_aside(A, "stored", tx=begun)
    await world.shop.commit(begun)
    begun = await transactions.begin()
    await world.shop.publish(A, "early", tx=begun)
    await transactions.abort(begun.id)
    await transactions.begin()


async def test_a_member_knows_what_the_leader_knows() -> None:
    async with following() as world:
        await some_work(world)
        member = await world.member()
        await member.until_as_the_leader()
        for _ in range(3):
            await some_work(world)
        await member.until_as_the_leader()
        assert member.manager.whole_reads == 1, "all else came over the link"
        assert member.manager.current() == world.manager.current()
        durable, working = member.manager.snapshots()
        assert durable is working, "it knows nothing that is not durable"


async def test_a_member_without_a_link_knows_what_it_has_read() -> None:
    async with following() as world:
        await some_work(world)
        member = await world.member(linked=False)
        await member.until_as_the_leader()
        before = member.manager.current()
        await some_work(world)
        assert member.manager.current() == before
        with pytest.raises(CoordinatorUnavailableError, match="no link"):
            await member.manager.ask()
        await member.link()
        await member.until_as_the_leader()
        assert member.manager.whole_reads == 1, "the log has what it missed"


async def test_an_owner_hears_of_a_transaction_in_the_logs_order() -> None:
    async with following() as world:
        member = await world.member()
        await member.until_as_the_leader()
        assert [type(each) for each in member.told] == [Recovered]
        transactions = world.shop.transactions
        begun = await transactions.begin()
        await world.shop.store_aside(A, "stored", tx=begun)
        await world.shop.commit(begun)
        await member.until_as_the_leader()
        assert [type(each) for each in member.told[1:]] == [Expect, End]
        assert told(member) == [begun.id] * 2
        begun = await transactions.begin()
        await world.shop.store_aside(A, "stored", tx=begun)
        await transactions.abort(begun.id)
        await member.until_as_the_leader()
        assert [type(each) for each in member.told[3:]] == [Close, End]


async def test_what_was_durable_when_it_was_asked_is_known_once_that_is_answered() -> None:
    async with following() as world:
        member = await world.member()
        for _ in range(5):
            begun = await world.shop.transactions.begin()
            await member.manager.ask()
            assert member.manager.state.find(begun.id) is not None


async def test_all_who_ask_while_a_call_is_under_way_share_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        asked: list[int] = []
        followers = world.manager._followers
        assert followers is not None
        standing = followers._standing
        monkeypatch.setattr(followers, "_standing", lambda: asked.append(1) or standing())
        await asyncio.gather(*(member.manager.ask() for _ in range(100)))
        assert len(asked) == 1
        first = asyncio.ensure_future(member.manager.ask())
        while not member.manager._asked:
            await asyncio.sleep(0)  # the call is over before anything else is looked at
        await asyncio.gather(first, *(member.manager.ask() for _ in range(100)))
        assert len(asked) <= 3


async def test_who_asks_behind_a_call_without_an_answer_waits_no_longer_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        assert member.manager._asking_late is not None
        member.manager._be_late()  # nobody waits any more
        assert member.manager._asking_late is None
        monkeypatch.setattr(module, "ASK_MS_MAX", 20)
        may_answer = asyncio.Event()

        async def late(_instance: str, asked: Ask) -> Standing:
            await may_answer.wait()
            return Standing(1, asked.entries)

        world.links.handlers.remove(ASK)
        world.links.handlers.add(ASK, late)
        first = asyncio.ensure_future(member.manager.ask())
        while not member.manager._asked:
            await asyncio.sleep(0)
        monkeypatch.setattr(module, "ASK_MS_MAX", 60_000)
        second, gone = (asyncio.ensure_future(member.manager.ask()) for _ in range(2))
        with pytest.raises(CoordinatorUnavailableError):
            await first
        assert not second.done()
        gone.cancel()
        may_answer.set()
        await second
        await asyncio.wait((gone,))
        assert gone.cancelled()
        assert not member.manager._is_asking


async def test_an_answer_that_comes_before_what_it_tells_of_is_waited_for() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        applied = member.manager.applied
        world.links.handlers.remove(ASK)
        world.links.handlers.add(ASK, lambda *_: Standing(1, applied + 1))
        asking = asyncio.ensure_future(member.manager.ask())
        await until(lambda: bool(member.manager._waiting))
        await world.shop.transactions.begin()
        await asking
        assert member.manager.applied > applied


async def test_a_member_joins_through_the_coordinator() -> None:
    async with following() as world:
        member = await world.member()
        begun = await world.shop.transactions.begin()
        opened = []
        join = Join(b"shop:orders:", 1, 5)
        joining = Joining(begun.id, join)
        admitted = await member.manager.join(joining, lambda *each: opened.append(each))
        assert admitted.transaction_id == begun.id
        assert admitted.deadline_ms == begun.deadline_ms
        assert opened == [(joining, admitted)]
        assert member.manager.state.get(begun.id).topics == (join,)
        await world.shop.transactions.abort(begun.id)
        with pytest.raises(TransactionEndedError):
            await member.manager.join(joining, lambda *each: opened.append(each))
        assert len(opened) == 1


async def test_a_join_that_is_answered_behind_the_end_of_its_transaction_opens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following() as world:
        member = await world.member()
        begun = await world.shop.transactions.begin()
        opened = []
        has_applied = member.manager._applied_in_time

        async def late(entries: int, wait_ms: float) -> None:
            await has_applied(entries, wait_ms)
            await world.shop.transactions.abort(begun.id)
            await member.until_as_the_leader()

        monkeypatch.setattr(member.manager, "_applied_in_time", late)
        with pytest.raises(TransactionEndedError, match="ended while"):
            await member.manager.join(Joining(begun.id, Join(b"shop:orders:", 1, 5)), lambda *each: opened.append(each))
        assert opened == []


async def test_a_coordinator_that_reads_its_log_says_so() -> None:
    async with following() as world:
        member = await world.member()
        await member.until_as_the_leader()
        world.manager.lost()
        with pytest.raises(CoordinatorUnavailableError, match="reading its log"):
            await member.manager.ask()
        assert member.manager.is_known, "what it knows stays true"
        await world.manager.ensure_known()
        await member.manager.ask()
        await member.until_as_the_leader()


async def test_whoever_waits_for_what_cannot_be_known_hears_so_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FOLLOW_MS_MAX <= ASK_MS_MAX <= KNOWN_MS_MAX == JOIN_MS_MAX < 5_000, "clients hear of it within five seconds"
    assert READ_AGAIN_MS_MIN <= READ_AGAIN_MS_MAX < KNOWN_MS_MAX
    for name in ("ASK_MS_MAX", "JOIN_MS_MAX", "KNOWN_MS_MAX"):
        monkeypatch.setattr(module, name, 1)
    async with following() as world:
        world.manager.close()  # it answers nothing
        member = await world.member(linked=False)
        member.manager._log.recover = unreadable  # type: ignore[method-assign, assignment]
        with pytest.raises(CoordinatorUnavailableError, match="reading its log"):
            await member.manager.ensure_known()
        with pytest.raises(CoordinatorUnavailableError):
            member.manager.check_view()
        assert member.manager.current().read_pointer == 0
        assert member.manager.oldest_view() == 0
        await member.link()
        for call in (member.manager.ask(), member.manager.join(Joining(1))):
            with pytest.raises(CoordinatorUnavailableError):
                await call
        assert member.manager._waiting == [], "nobody is waited for in vain"


def unreadable(_journal: object) -> TransactionProposals:
    raise UnavailableError("the region is away")


async def test_a_member_that_stops_leaves_nothing_behind() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        await member.manager.close()
        assert member.links.oldest_view() == 0
        assert member.links.calls == []
        member.manager.start()  # as another one would: nothing is in its way


async def test_whoever_waits_for_the_log_while_a_member_stops_is_refused_and_not_cancelled() -> None:
    async with following() as world:
        member = await world.member()
        waiting = asyncio.ensure_future(member.manager.up_to(member.manager.applied + 1, 60_000))
        asking = asyncio.ensure_future(member.manager.ask())
        await asyncio.sleep(0)
        await member.manager.close()
        for each in (waiting, asking):
            with pytest.raises(CoordinatorUnavailableError, match="no more"):
                await each
        member.manager.start()


async def test_a_snapshot_of_a_member_tells_pointers_and_lists_and_no_bound() -> None:
    async with following() as world:
        member = await world.member()
        begun = await world.shop.transactions.begin()
        found = await member.manager.snapshot()
        leaders = await world.manager.snapshot()
        assert found == leaders._replace(visibility_upper_bound=0)
        assert found.decided == begun.id - 1
        assert member.manager.id_of(begun.write_pointer) == begun.id


async def test_a_view_grows_old_once_nobody_pushes() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        assert member.manager.view_age_ms == world.manager.view_age_ms == 0
        world.clock.advance(60_000)
        member.links.answered = (member.links.to_leader, world.clock.monotonic_ms())  # a beat was
        assert member.manager.view_age_ms == world.manager.view_age_ms == 0
        await member.cut()
        world.clock.advance(700)
        assert member.manager.view_age_ms == 700
        await member.link()
        await member.manager.ask()
        assert member.manager.view_age_ms == 0


async def test_another_leader_gives_up_what_the_last_one_did_not_decide_and_owners_hear_so() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        begun = await world.shop.transactions.begin()
        await world.shop.store_aside(A, "stored", tx=begun)
        manager = world.manager
        await manager.run(
            lambda group: manager.apply(group, manager.state.commit(begun.id, group.now_ms, inline=False).edits)
        )
        await member.until_as_the_leader()
        assert [type(each) for each in member.told[1:]] == [Expect]
        manager.close()
        await member.cut()
        world.shop = await world.shop.restarted()
        world.manager.lead(world.links.links)
        assert [type(each) for each in member.told[1:]] == [Expect], "no link, no word"
        await member.link()
        await member.until_as_the_leader()
        assert [type(each) for each in member.told[1:]] == [Expect, Close, End]
        assert member.manager.whole_reads == 1
