"""What one server does with the shards that the map gives it, and takes away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from basalt.cluster import owners
from basalt.cluster.links.beats import Held
from basalt.cluster.links.shard_calls import MAP, NewMap
from basalt.cluster.owners import read_map
from basalt.cluster.shard_gate import ShardGate
from basalt.errors import ConflictError
from basalt.operations.shard_holding import COMMITS_PART_MAX, RELEASE_MS_MAX, _Release
from basalt.settings.cluster import ClusterSettings
from basalt_engine.keys import topic_prefix
from basalt_engine.stores.shards import Epochs
from tests.control.cluster.links.link_pair import HANG_S, until
from tests.control.operations.dealt_shards import SHARD, TOPIC, DealtWorld, Seat, Services, run

MOVED = frozenset([SHARD, 3, 900])


def test_a_take_that_ends_after_another_was_granted_the_shard_is_not_served():
    """The fence went through, for nobody had a higher epoch at the regions yet: the map is looked at once more before calls are served."""

    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        stuck, go_on = member.hold_takes(before=False)
        moving = asyncio.create_task(leader.moves.move(MOVED, member.run))
        await asyncio.to_thread(stuck.wait, HANG_S)
        now = await asyncio.to_thread(owners.deal, world.store, lambda _: dict.fromkeys(MOVED, "elsewhere"), "x", 1)
        go_on.set()
        await member.holding.taken()
        assert (member.held, member.gate.owners) == ({}, now)
        moving.cancel()

    run(story)


async def begin_anew(world: DealtWorld, member: Seat, epochs: Epochs) -> None:
    """The member's services end, and others begin, which take nothing back under these epochs."""
    await member.end()
    await member.begin(0)
    await member.holding.taken()
    assert member.held == {}
    await world.until_all_served()
    assert all(world.map.epochs[shard] > epoch for shard, epoch in epochs.items())


def test_services_that_end_and_begin_anew_take_nothing_back_under_the_epoch_that_it_had():
    """A write of the ones before may still be under way, and no fence of that epoch keeps it out."""

    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        epochs = (await leader.moves.move(MOVED, member.run)).after
        await begin_anew(world, member, epochs)

    run(story)


def test_what_was_given_up_stays_so_for_the_next_services_of_the_same_process():
    """Else they would serve it by the map of before, while the leader gives it to another."""

    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        epochs = (await leader.moves.move(MOVED, member.run)).after
        await member.holding.release(MOVED)
        await begin_anew(world, member, epochs)

    run(story)


def test_a_map_of_before_that_comes_late_changes_nothing():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        await leader.moves.move(MOVED, member.run)
        late = world.map
        await leader.moves.move(MOVED, leader.run)
        (link,) = leader.links.of_members.values()
        answer = await link.call(MAP, NewMap(late.encode()), HANG_S * 1_000)
        assert (answer.held, answer.map_version) == ((), world.map.version)
        leader.holding.follow(late)
        assert leader.held.keys() >= MOVED

    run(story)


def test_a_member_that_holds_more_than_the_map_gives_it_lets_go_at_once():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        await leader.moves.move(MOVED, member.run)
        await asyncio.to_thread(owners.deal, world.store, lambda _: {SHARD: leader.run}, leader.run, 1)
        now = read_map(world.system)
        assert now is not None
        member.holding.follow(now)
        assert member.held.keys() == MOVED - {SHARD}
        assert member.holding.lost_total == 1

    run(story)


class KeptForACommit:
    """An owner that keeps something of a commit to one shard."""

    def __init__(self, gate: ShardGate, shard: int) -> None:
        self.gate = gate
        self.kept = [shard]
        assert gate.stay(self.kept)

    def let_go(self, shards: Collection[int]) -> int:
        gone = [shard for shard in self.kept if shard in shards]
        self.gate.leave(gone)
        self.kept = [shard for shard in self.kept if shard not in gone]
        return len(gone)


def test_what_is_kept_for_a_commit_is_waited_for_and_then_let_go_where_the_shard_is_released():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        await leader.moves.move(MOVED, member.run)
        kept = member.holding._owner = KeptForACommit(member.gate, SHARD)  # type: ignore[assignment]
        await leader.moves.move(MOVED, leader.run)
        assert (kept.kept, leader.held.keys() >= MOVED) == ([], True)

    run(story)


def test_what_is_kept_for_a_commit_holds_up_no_shard_that_was_lost():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        await leader.moves.move(MOVED, member.run)
        member.holding._owner = KeptForACommit(member.gate, SHARD)  # type: ignore[assignment]
        await asyncio.to_thread(owners.deal, world.store, lambda _: {SHARD: leader.run}, leader.run, 1)
        now = read_map(world.system)
        assert now is not None
        member.holding.follow(now)
        await until(lambda: not member.holding._forgetting)

    run(story)


def test_a_release_that_cannot_end_says_for_what_it_waits():
    async def story(world: DealtWorld) -> None:
        (leader,) = await world.served("first")
        leader.holding.release_ms_max = 20
        async with leader.gate.visit(topic_prefix("shop", TOPIC)):
            with pytest.raises(ConflictError, match="calls that came before did not end within 20 ms"):
                await leader.holding.release([SHARD])

    run(story)


def test_a_release_may_take_as_long_as_the_setting_says_by_default():
    assert ClusterSettings().release_ms == RELEASE_MS_MAX
    assert COMMITS_PART_MAX * RELEASE_MS_MAX == 2_000, "as docs/operations/several-servers.md says"


@pytest.mark.parametrize(
    ("shards", "ranges"),
    [([], ()), ([5], ((5, 5),)), ([0, 1, 2, 7, 9, 10, 1_023], ((0, 2), (7, 7), (9, 10), (1_023, 1_023)))],
)
def test_what_is_held_is_told_in_ranges(shards: list[int], ranges: tuple[tuple[int, int], ...]):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        if shards:
            await leader.moves.move(frozenset(shards), member.run)
        held = member.holding.held()
        assert (held.shards, held.map_version) == (ranges, world.map.version)
        assert member.holding.held() is held, "it is made anew where something has changed"

    run(story)


def test_a_server_that_has_its_store_to_itself_tells_of_nothing():
    async def story(world: DealtWorld) -> None:
        services = Services(world.store.another(), world.clock)
        assert services.holding.held() == Held()
        await services.close()

    run(story)


def test_a_release_that_was_called_off_forgets_nothing_later():
    """Its last stage may come to the lane when the shard is served again."""

    async def story(world: DealtWorld) -> None:
        (leader,) = await world.served("first")
        async with leader.gate.visit(topic_prefix("shop", TOPIC)):
            releasing = asyncio.create_task(leader.holding.release([SHARD]))
            await until(lambda: not leader.gate.is_held(SHARD))
            releasing.cancel()
            await asyncio.wait([releasing])
        assert leader.gate.is_held(SHARD)
        with pytest.raises(ConflictError, match="called off"):
            leader.holding._forget_released(frozenset([SHARD]), _Release())

    run(story)
