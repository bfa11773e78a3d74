"""Shards dealt to several servers: moved to another one, back, and what each step that fails leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from basalt.cluster import owners
from basalt.cluster.balance import FIRST_WAVE_SHARDS_MAX
from basalt.cluster.links.beats import Beat
from basalt.cluster.links.fellows import Fellows
from basalt.cluster.links.shard_calls import Release
from basalt.errors import BasaltError, BusyError, ConflictError, ShardMovingError, UnknownOutcomeError
from basalt.operations import shard_holding, shard_moves
from basalt.operations.shard_moves import ENDED, MISSING
from basalt_engine.errors import FencedError
from basalt_engine.stores.shards import SHARDS
from tests.control.cluster.links.link_pair import HANG_S, until
from tests.control.operations.dealt_shards import SHARD, TOPIC, DealtWorld, Seat, run

MOVED = frozenset([SHARD, 3, 900])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again soon, and looks are made where a story lets time pass."""
    for module in (shard_holding, shard_moves):
        monkeypatch.setattr(module, "TRY_AGAIN_S_MIN", 0.001)
        monkeypatch.setattr(module, "TRY_AGAIN_S_MAX", 0.002)


def published(world: DealtWorld) -> list[bytes]:
    return [row.columns[b"c"] for row in world.store.table("message").scan(b"", None)]


def test_a_shard_moves_to_a_member_which_serves_it_and_back():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        assert len(leader.held) == SHARDS
        await leader.publish(TOPIC, "a")
        moved = await leader.moves.move(frozenset([SHARD]), member.run)
        assert moved.after == {SHARD: moved.before[SHARD] + 1}
        assert (world.map.owner_of(SHARD), member.held) == (member.run, moved.after)
        world.check()
        await member.publish(TOPIC, "b")
        await world.until_all_served()
        await leader.moves.move(frozenset([SHARD]), leader.run)
        assert (member.held, leader.held[SHARD]) == ({}, moved.after[SHARD] + 1)
        await leader.publish(TOPIC, "c")
        assert published(world) == [b"a", b"b", b"c"]

    run(story)


def test_shards_of_several_owners_move_in_one_map():
    async def story(world: DealtWorld) -> None:
        leader, second, third = await world.served("first", "second", "third")
        await leader.moves.move(frozenset([SHARD]), second.run)
        version = world.map.version
        await leader.moves.move(MOVED, third.run)
        assert (world.map.version, third.held.keys(), second.held) == (version + 1, MOVED, {})
        await world.until_all_served()

    run(story)


def test_a_call_that_waits_at_a_server_without_the_shard_is_served_once_it_comes(monkeypatch: pytest.MonkeyPatch):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        publishing = asyncio.create_task(member.publish(TOPIC, "a"))
        await until(lambda: member.gate.waited_total == 1)
        await leader.moves.move(frozenset([SHARD]), member.run)
        await publishing
        monkeypatch.setattr("basalt.cluster.shard_gate.MOVING_WAIT_MS_MAX", 1)
        with pytest.raises(ShardMovingError, match="does not have shard"):
            await leader.publish(TOPIC, "b")
        assert published(world) == [b"a"]

    run(story)


@pytest.mark.parametrize("to", ["nobody", "second"])
def test_shards_go_to_nobody_who_is_not_linked_and_serving(to: str):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        await member.end()
        await world.until(lambda: member.run not in leader.moves._dealer()[0].serving() or member.services is not None)
        whom = to if to == "nobody" else "second-1-of-before"
        with pytest.raises(ConflictError, match="no such member"):
            await leader.moves.move(MOVED, whom)

    run(story)


# What fails.


class Lost:
    """Calls to members whose question, or whose answer, is lost: of one name, the first `count`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, done: bool, count: int = 1) -> None:
        self.left = count
        call: Callable[..., Any] = getattr(Fellows, name)

        async def lost(fellows: Fellows, *args: Any) -> Any:
            if not self.left:
                return await call(fellows, *args)
            self.left -= 1
            if done:
                await call(fellows, *args)
            raise UnknownOutcomeError("it was lost on its way")

        monkeypatch.setattr(Fellows, name, lost)


@pytest.mark.parametrize("done", [False, True], ids=["question", "answer"])
def test_a_release_that_is_lost_moves_nothing_and_the_shard_is_served_again_by_itself(
    monkeypatch: pytest.MonkeyPatch, done: bool
):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        epochs = (await leader.moves.move(MOVED, member.run)).after
        Lost(monkeypatch, "release", done)
        with pytest.raises(ConflictError, match="did not release"):
            await leader.moves.move(MOVED, leader.run)
        assert [world.map.epochs[shard] for shard in MOVED] == [epochs[shard] for shard in MOVED]
        assert member.held == ({} if done else epochs)
        await world.until_all_served()
        await world.until(lambda: not leader.moves._under_way)  # which counts a move when it has ended
        assert (leader.moves.moves[MISSING], len(member.held)) == ((3, 0) if done else (0, 3))

    run(story)


def test_a_shard_that_its_owner_does_not_serve_is_dealt_anew_however_often_somebody_asks_to_move_it(
    monkeypatch: pytest.MonkeyPatch,
):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        await leader.moves.move(frozenset([SHARD]), member.run)
        member.holding.withdraw(member.held)
        await world.until(lambda: (SHARD, world.map.epochs[SHARD]) in leader.moves._missing_ms)
        look, release, looks = leader.moves._late, Fellows.release, 0

        def counted() -> dict[str, dict[int, int]]:
            nonlocal looks
            looks += 1
            return look()

        async def slow(fellows: Fellows, run: str, asked: Release, ms: float) -> Any:
            """The next look comes before the answer."""
            before = looks
            await until(lambda: asked.at_once or looks > before)
            return await release(fellows, run, asked, ms)

        async def ask_again_and_again() -> None:
            while SHARD not in leader.held:
                with suppress(ConflictError, BusyError):
                    await leader.moves.move(frozenset([SHARD]), leader.run)
                await asyncio.sleep(0)

        monkeypatch.setattr(leader.moves, "_late", counted)
        monkeypatch.setattr(Fellows, "release", slow)
        asking = asyncio.create_task(ask_again_and_again())
        await world.until(lambda: SHARD in leader.held)
        await asking
        await world.until(lambda: leader.moves.moves[MISSING] == 1)  # which counts it when it has ended
        assert looks <= 3 * shard_moves.TAKE_MS_MAX / shard_moves.LOOK_MS

    run(story)


@pytest.mark.parametrize("done", [False, True], ids=["question", "answer"])
def test_a_map_that_is_lost_on_its_way_to_the_new_owner_gives_the_shard_to_the_leader(
    monkeypatch: pytest.MonkeyPatch, done: bool
):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        Lost(monkeypatch, "tell", done)
        moved = await leader.moves.move(MOVED, member.run)
        assert {moved.after[shard] - epoch for shard, epoch in moved.before.items()} == {2}
        await world.until_all_served()
        assert member.held == {}

    run(story)


def test_a_new_owner_that_does_not_take_and_does_not_answer_keeps_the_shard_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
):
    """It has the map from its row, and takes: nobody else may have the shard then."""

    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        Lost(monkeypatch, "tell", False, 2)
        release = Fellows.release

        async def lost(fellows: Fellows, run: str, asked: Release, ms: float) -> Any:
            if asked.at_once:
                raise UnknownOutcomeError("it was lost on its way")
            return await release(fellows, run, asked, ms)

        monkeypatch.setattr(Fellows, "release", lost)
        await leader.moves.move(MOVED, member.run)
        assert not MOVED & leader.held.keys()
        await world.until_all_served()
        assert member.held.keys() == MOVED

    run(story)


def test_a_member_that_is_stuck_in_its_take_is_replaced_and_serves_nothing_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shard_moves, "TAKE_MS_MAX", 50)

    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        stuck, go_on = member.hold_takes()
        moving = asyncio.create_task(leader.moves.move(MOVED, member.run))
        await asyncio.to_thread(stuck.wait, HANG_S)
        await moving
        assert world.map.owner_of(SHARD) == leader.run
        assert leader.held.keys() >= MOVED
        go_on.set()
        await member.holding.taken()
        assert member.held == {}
        await world.until_all_served()
        await leader.publish(TOPIC, "a")

    run(story)


def test_a_member_that_serves_though_its_beats_do_not_say_so_keeps_its_shards_until_it_gives_them_up(
    monkeypatch: pytest.MonkeyPatch,
):
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        epochs = (await leader.moves.move(MOVED, member.run)).after
        monkeypatch.setattr(Fellows, "beats", lambda _: {member.run: Beat(1, map_version=world.map.version)})
        lost = Lost(monkeypatch, "release", False, SHARDS)
        await world.pass_ms(3 * shard_moves.TAKE_MS_MAX)
        assert (member.held, leader.moves.moves[MISSING]) == (epochs, 0)
        assert lost.left < SHARDS, "it was asked"
        lost.left = 0
        await world.until(lambda: leader.moves.moves[MISSING] == len(MOVED))
        assert member.held == {}

    run(story)


@pytest.mark.parametrize("dies", ["before the map", "after the map"])
def test_a_leader_that_dies_between_release_and_take_leaves_shards_that_the_next_one_deals(
    monkeypatch: pytest.MonkeyPatch, dies: str
):
    async def story(world: DealtWorld) -> None:
        leader, second, third = await world.served("first", "second", "third")
        await leader.moves.move(MOVED, second.run)
        deal, reached, over = owners.deal, threading.Event(), threading.Event()

        def stops(*args: Any) -> Any:
            now = deal(*args) if dies == "after the map" else None
            reached.set()
            assert over.wait(HANG_S)
            if now is None:
                raise FencedError("it is dead")
            return now

        monkeypatch.setattr(shard_moves, "deal", stops)
        moving = asyncio.create_task(leader.moves.move(MOVED, third.run))
        await asyncio.to_thread(reached.wait, HANG_S)
        dying = asyncio.create_task(leader.die())
        over.set()
        await dying
        monkeypatch.setattr(shard_moves, "deal", deal)
        with pytest.raises(BasaltError):
            await moving
        assert world.map.owner_of(SHARD) == (third.run if dies == "after the map" else second.run)
        await world.until_all_served()
        assert {seat.run for seat in (second, third)} >= {world.map.owner_of(shard) for shard in range(SHARDS)}

    run(story)


def test_a_new_leader_leaves_what_live_members_hold_where_it_is():
    async def story(world: DealtWorld) -> None:
        leader, second, third = await world.served("first", "second", "third")
        await leader.moves.move(frozenset([1]), second.run)
        await leader.moves.move(frozenset([2]), third.run)
        held = {seat.run: seat.held for seat in (second, third)}
        version = world.map.version
        await leader.stop()
        await world.until(lambda: any(seat.served_epoch for seat in (second, third)))
        new = world.leader
        other = third if new is second else second
        assert world.map.version == version + 1, "all that it takes is one map"
        assert other.held == held[other.run]
        assert len(new.held) == SHARDS - 1
        await world.until_all_served()
        assert other.held == held[other.run]

    run(story)


def test_shards_of_a_member_that_dies_are_dealt_to_who_is_left():
    async def story(world: DealtWorld) -> None:
        leader, second, third = await world.served("first", "second", "third")
        await leader.moves.move(MOVED, second.run)
        await second.die()
        await world.until(lambda: second.run not in world.map.members)
        await world.until_all_served()
        await world.until(lambda: leader.moves.moves[ENDED] == len(MOVED))
        assert {world.map.owner_of(shard) for shard in MOVED} <= {leader.run, third.run}

    run(story)


def test_a_member_whose_membership_was_ended_and_begins_anew_serves_under_new_epochs_alone():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        epochs = (await leader.moves.move(MOVED, member.run)).after
        member.is_stopped = True
        await world.until(lambda: member.run not in world.map.members)
        assert member.held == {}
        member.is_stopped = False
        await world.until_linked(leader, member)
        await world.until_all_served()
        assert all(world.map.epochs[shard] > epochs[shard] for shard in MOVED)
        await world.until(lambda: member.run in leader.moves._dealer()[0].serving() and not leader.moves._under_way)
        await leader.moves.move(MOVED, member.run)
        assert member.held.keys() == MOVED

    run(story)


def test_of_two_moves_of_a_shard_at_once_one_is_refused():
    async def story(world: DealtWorld) -> None:
        leader, second, third = await world.served("first", "second", "third")
        moves = [leader.moves.move(MOVED, seat.run) for seat in (second, third)]
        first, other = await asyncio.gather(*moves, return_exceptions=True)
        assert isinstance(other, BusyError), (first, other)
        await world.until_all_served()
        assert (second.held.keys(), third.held) == (MOVED, {})

    run(story)


# What has to be at the leader.


async def _drained(world: DealtWorld) -> tuple[Seat, Seat, Seat]:
    leader, second, third = await world.served("first", "second", "third")
    await leader.moves.move(MOVED, second.run)
    left = await leader.moves.drain(second.run)
    assert (left.drained, left.left) == (True, len(MOVED))
    await world.until(lambda: second.run not in world.map.members)
    await world.until_all_served()
    return leader, second, third


def test_a_drained_member_has_no_shards_also_under_the_next_leader_until_it_is_taken_back():
    async def story(world: DealtWorld) -> None:
        leader, second, third = await _drained(world)
        await leader.stop()
        await world.until(lambda: any(seat.served_epoch for seat in (second, third)))
        new = world.leader
        await world.until(lambda: new.moves._dealer()[0].drained == {second.run})
        left = await new.moves.drain(second.run, False)
        assert not left.drained

    run(story)


def test_shards_are_evened_out_between_a_leader_that_has_all_and_who_joins():
    async def story(world: DealtWorld) -> None:
        leader, second, third = await world.served("first", "second", "third")
        leader.moves.balances = True
        share = 2 * SHARDS / 5  # the leader has half of it
        await world.until(lambda: min(len(seat.held) for seat in (second, third)) > 0.8 * share)
        await world.until(lambda: not leader.moves.planned_balance())
        await world.until_all_served()
        assert len(leader.held) <= 1.2 * share / 2
        assert world.map.version <= 40, "waves of many shards while much is to be moved"

    run(story)


def test_a_wave_can_be_asked_for_at_any_time():
    async def story(world: DealtWorld) -> None:
        leader, member = await world.served("first", "second")
        planned = leader.moves.planned_balance()
        assert len(planned) == FIRST_WAVE_SHARDS_MAX
        await leader.moves.balance(planned)
        assert member.held.keys() == {move.shard for move in planned}

    run(story)
