"""What the coordinator pushes: each entry as the log has it, in bounded calls, and to nobody who does not keep up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from basalt.cluster.links.link import QUEUE_BYTES_MAX, Link
from basalt.errors import BusyError, CoordinatorUnavailableError, UnavailableError
from basalt.runtime.group_commit import Group
from basalt.runtime.write_lanes import WriteLanes
from basalt.server.wiring import BUCKETS_EMBEDDED
from basalt.transactions import followers as module
from basalt.transactions import manager as manager_module
from basalt.transactions.follow_calls import ASK, ENTRIES, FOLLOW, Ask, Entries, Follow
from basalt.transactions.followed import FollowedTransactions
from basalt.transactions.followers import TAKEN_MS_MAX, TOLD_AGAIN_MS, UNDER_WAY_BYTES_MAX, Followers
from basalt.transactions.log.transaction_log import ENTRY, TransactionLog, entry_key
from basalt_engine.stores.memory import MemoryStore
from tests.control.cluster.links.link_pair import COUNT, until
from tests.control.cluster.links.linked_servers import World as Servers
from tests.control.cluster.links.linked_servers import run as servers
from tests.control.transactions.following import World, following
from tests.wiring import A, Wired, shop_work

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def followers(world: World) -> Followers:
    found = world.manager._followers
    assert found is not None
    return found


def pushed_to(member: Any, monkeypatch: pytest.MonkeyPatch) -> list[Entries]:
    """All that comes to the member from now on."""
    seen: list[Entries] = []
    handled = member.links.handlers._by_number[ENTRIES.number]
    take = handled.answer

    def noted(instance: str, entries: Entries) -> Any:
        seen.append(entries)
        return take(instance, entries)

    monkeypatch.setitem(member.links.handlers._by_number, ENTRIES.number, handled._replace(answer=noted))
    return seen


async def test_what_is_pushed_is_what_the_log_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        seen, first = pushed_to(member, monkeypatch), member.manager.applied
        for _ in range(3):
            begun = await world.shop.transactions.begin()
            await world.shop.transactions.abort(begun.id)
        await member.until_as_the_leader()
        assert [each.first for each in seen] == list(range(first, member.manager.applied))
        table = world.store.table("transaction_log")
        for each in seen:
            (entry,) = each.entries
            assert table.get(entry_key(each.first)) == {ENTRY: entry}
        told = followers(world)._of_members["m1"]
        await until(lambda: told.taken == member.manager.applied)  # the member answers once it has applied
        assert told.under_way_bytes == 0


async def test_where_nobody_follows_nothing_is_kept_and_no_turn_is_asked_for() -> None:
    async with following() as world:
        await world.shop.transactions.one_shot(shop_work(orders=["one"]))
        assert len(followers(world)) == 0
    shop = await Wired.start()
    assert shop.transactions.manager._followers is None


async def test_an_entry_that_is_encoded_while_it_is_written_is_read_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager_module, "INLINE_BYTES_MAX", -1)
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        reads = member.manager.reads
        begun = await world.shop.transactions.begin()
        await member.manager.ask()
        assert member.manager.state.find(begun.id) is not None
        assert member.manager.reads > reads
        assert member.manager.whole_reads == 1


async def test_who_does_not_keep_up_reads_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNDER_WAY_BYTES_MAX", 100)
    assert UNDER_WAY_BYTES_MAX < QUEUE_BYTES_MAX, "a link has room for other calls"
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        for _ in range(5):
            together = [world.shop.transactions.begin() for _ in range(5)]
            await asyncio.gather(*together)
        assert followers(world).dropped
        await member.until_as_the_leader()
        assert member.manager.reads
        # What it reads may be ahead of what it was told, and of its answers to that.
        await until(lambda: not followers(world)._of_members["m1"].behind)


async def test_a_link_that_takes_nothing_is_told_later_where_the_log_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOLD_AGAIN_MS", 1)
    assert TOLD_AGAIN_MS < TAKEN_MS_MAX
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        refused: list[object] = []
        send = Link.send

        def full(self: Link, kind: Any, *args: Any) -> None:
            if kind is ENTRIES and len(refused) < 3:
                refused.append(kind)
                raise BusyError("the link is full")
            send(self, kind, *args)

        monkeypatch.setattr(Link, "send", full)
        await world.shop.transactions.begin()
        await until(lambda: len(refused) == 3)
        await member.until_as_the_leader()


async def test_a_member_whose_services_have_ended_is_pushed_nothing_and_keeps_its_link() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        link = member.links.to_leader
        member.links.handlers.remove(ENTRIES)
        await world.shop.transactions.begin()
        await until(lambda: len(followers(world)) == 0)
        assert link is not None
        assert link.is_open


async def test_a_member_that_fails_to_take_entries_follows_anew_over_the_next_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        link = member.links.to_leader
        handled = member.links.handlers._by_number[ENTRIES.number]
        broken = handled._replace(answer=lambda *_: 1 / 0)
        monkeypatch.setitem(member.links.handlers._by_number, ENTRIES.number, broken)
        await world.shop.transactions.begin()
        assert link is not None
        await until(lambda: not link.is_open)
        monkeypatch.setitem(member.links.handlers._by_number, ENTRIES.number, handled)
        await member.link()
        await member.until_as_the_leader()


async def test_what_is_sent_behind_an_entry_comes_behind_it() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        seen: list[tuple[int, int]] = []
        member.links.handlers.add(COUNT, lambda _, number: seen.append((number, member.manager.applied)) or 0)  # type: ignore[func-returns-value]

        def stage(group: Group) -> None:
            begun = world.manager.state.begin(group.now_ms)
            world.manager.apply(group, begun.edits)
            link = world.links.of_members["m1"]
            group.when_durable(lambda: link.send(COUNT, followers(world)._entries, 60_000, lambda _: None))

        for _ in range(3):
            await world.manager.run(stage)
        await until(lambda: len(seen) == 3)
        assert all(applied >= durable for durable, applied in seen)


async def test_a_call_that_comes_when_nobody_knows_the_log_is_refused() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        link = member.links.to_leader
        assert link is not None
        world.manager.lost()
        for kind, question in ((ASK, Ask(0)), (FOLLOW, Follow(0))):
            with pytest.raises(CoordinatorUnavailableError, match="reading its log"):
                await link.call(kind, question, 60_000)  # type: ignore[arg-type]
        await world.manager.ensure_known()
        del world.links.of_members["m1"]
        with pytest.raises(UnavailableError, match="not there any more"):
            await link.call(FOLLOW, Follow(0), 60_000)
        world.links.of_members["m1"] = world.accepted[0]


async def test_readers_of_members_hold_what_everybody_has_seen() -> None:
    async with following() as world:
        for _ in range(3):
            await world.shop.transactions.one_shot(shop_work(orders=["one"]))
        await world.shop.transactions.give_back_loans()
        alone = await world.manager.snapshot()
        assert alone.visibility_upper_bound == world.manager.current().read_pointer
        for oldest in (5, 0):
            world.links.views = oldest
            assert (await world.manager.snapshot()).visibility_upper_bound == oldest
        world.links.views = None
        assert (await world.manager.snapshot()).visibility_upper_bound == alone.visibility_upper_bound


async def test_from_when_a_member_follows_its_views_count() -> None:
    async with following() as world:
        await world.shop.publish(A, "plain")
        await world.shop.transactions.one_shot(shop_work(orders=["one"]))
        await world.shop.transactions.give_back_loans()
        member = await world.member()
        await member.manager.ask()
        heard = world.links.beats.heard["m1"]
        assert 0 < heard.view <= member.manager.oldest_view() == world.manager.current().read_pointer
        with member.manager.reading(member.manager.current()):
            before = member.manager.oldest_view()
            await world.shop.transactions.one_shot(shop_work(orders=["two"]))
            await world.shop.transactions.give_back_loans()
            await member.until_as_the_leader()
            assert member.manager.oldest_view() == before
        assert member.manager.oldest_view() > before


async def test_a_transaction_that_is_open_at_a_member_is_read_under_though_it_may_have_ended_at_the_coordinator() -> (
    None
):
    async with following() as world:
        transactions = world.shop.transactions
        first = await transactions.begin()
        second = await transactions.begin()  # which does not see what the first one writes
        member = await world.member()
        await until(lambda: world.links.beats.heard["m1"].view > 0)
        assert world.links.beats.heard["m1"].view <= max(1, first.id - 1), "the member may read under any that is open"
        await transactions.abort(first.id)
        await member.until_as_the_leader()
        assert member.manager.oldest_view() < first.id
        await transactions.commit(second.id)
        await member.until_as_the_leader()
        assert member.manager.oldest_view() >= second.id


async def test_a_member_asks_for_the_bound_below_which_no_reader_of_any_server_needs_old_versions() -> None:
    async with following() as world:
        member = await world.member()
        await world.shop.transactions.commit((await world.shop.transactions.begin()).id)
        await member.until_as_the_leader()
        open_one = await world.shop.transactions.begin()
        found = await member.manager.snapshot()
        assert found == await world.manager.snapshot()
        assert 0 < found.visibility_upper_bound < open_one.id
        world.links.views = 7
        assert (await member.manager.snapshot()).visibility_upper_bound == 7
        await member.cut()
        with pytest.raises(CoordinatorUnavailableError):
            await member.manager.snapshot()


async def test_once_the_term_is_over_nobody_is_answered() -> None:
    async with following() as world:
        member = await world.member()
        await member.manager.ask()
        world.manager.close()
        with pytest.raises(CoordinatorUnavailableError, match="answers no calls"):
            await member.manager.ask()


def test_a_server_follows_the_one_that_leads_and_its_readers_count_until_its_membership_ends() -> None:
    async def story(world: Servers) -> None:
        leader = await world.add("first")
        await world.until(lambda: leader.leadership.is_leader)
        data = MemoryStore(atomic=False)  # the leases lie elsewhere
        shop = await Wired.start(data, world.clock)
        manager = shop.transactions.manager
        manager.lead(leader.links)
        standby = await world.add("second")
        store = data.another()
        lanes, log = WriteLanes.of(store, world.clock, BUCKETS_EMBEDDED), TransactionLog(store.table("transaction_log"))
        member = FollowedTransactions(store, world.clock, lanes, log, standby.links)
        member.start()
        await world.until_linked(leader, standby)
        await shop.transactions.begin()
        await world.until(lambda: member.is_known and member.state.image() == manager.state.image())
        await member.ask()
        await world.until(lambda: leader.links.oldest_view_of_members() == member.oldest_view())
        old = member.oldest_view()
        with member.reading(member.current()):
            await shop.transactions.abort((await shop.transactions.list())[0].id)
            await shop.topics.create(A, {})
            for _ in range(3):
                await shop.transactions.one_shot(shop_work(orders=["one"]))
            await shop.transactions.give_back_loans()
            assert (await manager.snapshot()).visibility_upper_bound == old
        await world.until(lambda: leader.links.oldest_view_of_members() != old)
        assert (await manager.snapshot()).visibility_upper_bound == manager.current().read_pointer > old
        await member.close()
        manager.close()

    servers(story)
