"""Calls about shards over links: from whom they are taken, and what a server answers that serves nothing."""

from __future__ import annotations

import pytest

from basalt.cluster.links.frames import FRAME_BYTES_MAX
from basalt.cluster.links.shard_calls import MAP, MAP_BYTES_MAX, NewMap, Release
from basalt.cluster.owners import OwnersMap
from basalt.errors import ConflictError, UnavailableError
from basalt_engine.stores.shards import SHARDS
from tests.control.cluster.links.link_pair import HANG_S
from tests.control.operations.dealt_shards import SHARD, DealtWorld, run

MOVED = frozenset([SHARD, 3, 900])


def test_only_the_leader_is_given_shards_or_told_to():
    async def story(world: DealtWorld) -> None:
        _, member = await world.served("first", "second")
        link = member.links.to_leader
        assert link is not None
        with pytest.raises(ConflictError, match="does not lead"):
            await link.call(MAP, NewMap(world.map.encode()), HANG_S * 1_000)

    run(story)


def test_a_member_that_stops_has_its_shards_taken_by_others_before():
    async def story(world: DealtWorld) -> None:
        leader, second, _ = await world.served("first", "second", "third")
        await leader.moves.move(MOVED, second.run)
        assert await second.calls.leave() == len(MOVED)
        assert second.held == {}
        await world.until_all_served()
        assert second.run not in world.map.members

    run(story)


def test_a_server_that_serves_nothing_gives_up_at_once_and_says_so():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        epochs = (await leader.moves.move(MOVED, member.run)).after
        await member.end()
        fellows = leader.moves._fellows
        assert fellows is not None
        asked = Release(1, tuple(epochs.items()))
        with pytest.raises(ConflictError, match="serves no shards now"):
            await fellows.release(member.run, asked, HANG_S * 1_000)
        with pytest.raises(UnavailableError, match="serves no shards now"):
            await fellows.tell(member.run, world.map.encode(), HANG_S * 1_000)
        answer = await fellows.release(member.run, Release(1, asked.shards, at_once=True), HANG_S * 1_000)
        assert answer.shards == asked.shards
        await member.begin(0)
        assert member.gate.reigns[SHARD].epoch == epochs[SHARD]

    run(story)


def test_a_release_under_another_epoch_is_refused():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        epochs = (await leader.moves.move(MOVED, member.run)).after
        fellows = leader.moves._fellows
        assert fellows is not None
        for epoch in (epochs[SHARD] - 1, epochs[SHARD] + 1):
            with pytest.raises(ConflictError, match="under epoch"):
                await fellows.release(member.run, Release(1, ((SHARD, epoch),)), HANG_S * 1_000)
        assert member.held == epochs

    run(story)


def test_a_map_has_room_for_a_thousand_members_in_one_call():
    names = tuple(f"{number:0>200}" for number in range(SHARDS))
    largest = OwnersMap(1, 1, names, tuple(range(SHARDS)), (1,) * SHARDS)
    assert len(largest.encode()) < MAP_BYTES_MAX < FRAME_BYTES_MAX


def test_a_member_with_nothing_has_nothing_to_leave():
    async def story(world: DealtWorld) -> None:
        _, member = await world.served("first", "second")
        assert await member.calls.leave() == 0

    run(story)


def test_a_leader_that_stops_has_its_shards_taken_by_others_before():
    async def story(world: DealtWorld) -> None:
        leader, second, third = await world.served("first", "second", "third")
        assert await leader.calls.leave() == SHARDS
        assert leader.held == {}
        await leader.stop()
        await world.until(lambda: any(seat.served_epoch for seat in (second, third)))
        await world.until_all_served()
        assert leader.run not in world.map.members

    run(story)


def test_a_server_that_cannot_say_that_it_stops_stops_all_the_same(caplog: pytest.LogCaptureFixture):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        await leader.moves.move(MOVED, member.run)
        assert member.links.to_leader is not None
        member.links.to_leader._abort("it was cut")
        assert await member.calls.leave() == 0
        assert "stops with its shards" in caplog.text

    run(story)
