"""Who can be given shards and how many, as the leader's settings, members' weights and operators' drains say."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from basalt.cluster.balance import LOSSES_MAX
from basalt.cluster.members import MEMBERS_MAX
from basalt.cluster.owners import OwnersMap, granted
from basalt.cluster.shard_targets import ShardTargets
from basalt.errors import ConflictError
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.stores.shards import SHARDS
from tests.control.operations.willing_members import WillingMembers

LEADER, OTHER, THIRD = "leader", "other", "third"
ALL = granted(None, LEADER, range(SHARDS), 1)


def targets(*names: str, store: MemoryStore | None = None, weight: int = 100) -> ShardTargets:
    return ShardTargets(store or MemoryStore(), LEADER, WillingMembers(*names, weight=weight).as_fellows)


def after(dealt: dict[int, str]) -> OwnersMap:
    found = ALL
    for member in set(dealt.values()):
        found = granted(found, member, [shard for shard, to in dealt.items() if to == member], 1)
    return found


def test_a_leader_has_half_of_a_share_and_alone_all():
    assert {name: load.weight for name, load in targets(OTHER).members().items()} == {LEADER: 0.5, OTHER: 1.0}
    assert targets().members().keys() == {LEADER}
    assert ShardTargets(MemoryStore(), LEADER, None).members().keys() == {LEADER}


def test_weights_are_of_shares():
    found = targets(OTHER, weight=300)
    found.weight, found.leader_share = 200, 100
    counts = Counter(found.dealt(ALL, range(SHARDS), 0.0).values())
    assert counts[OTHER] == pytest.approx(SHARDS * 3 / 5, abs=1)


def test_who_lost_its_lease_again_and_again_is_given_nothing():
    members = WillingMembers(OTHER, THIRD)
    members.lost[OTHER] = (1.0,) * LOSSES_MAX
    found = ShardTargets(MemoryStore(), LEADER, members.as_fellows)
    assert set(found.dealt(ALL, range(SHARDS), 1_000.0).values()) == {LEADER, THIRD}


def test_a_drain_is_known_to_the_next_leader_and_ends_with_the_run():
    store = MemoryStore()

    async def story() -> None:
        await targets(OTHER, THIRD, store=store).drain(OTHER, True)
        found = targets(OTHER, THIRD, store=store)
        await found.read()
        assert found.drained == {OTHER}
        assert found.members().keys() == {LEADER, THIRD}
        assert found.out_with_shards(granted(ALL, OTHER, [3, 4], 1)) == {OTHER: [3, 4]}
        await targets(THIRD, store=store).drain(THIRD, True)  # the other one has ended
        await found.drain(THIRD, False)
        again = targets(OTHER, THIRD, store=store)
        await again.read()
        assert again.drained == {OTHER}, "as the one knew it who wrote last"

    asyncio.run(story())


def test_a_leader_that_is_drained_keeps_what_has_to_be_with_it_and_all_where_it_is_alone():
    async def story() -> None:
        found = targets(OTHER)
        await found.drain(LEADER, True)
        assert found.out_with_shards(ALL) == {LEADER: list(range(SHARDS))}
        alone = targets()
        await alone.drain(LEADER, True)
        assert alone.out_with_shards(ALL) == {}
        assert alone.members().keys() == {LEADER}

    asyncio.run(story())


def test_not_more_members_are_drained_than_there_can_be():
    async def story() -> None:
        found = ShardTargets(MemoryStore(), LEADER, None)
        found.drained = frozenset(map(str, range(MEMBERS_MAX)))
        with pytest.raises(ConflictError, match="the limit is"):
            await found.drain("one more", True)

    asyncio.run(story())


def test_a_wave_leaves_out_what_members_have_that_cannot_be_reached():
    found = targets(OTHER)
    owners = after(dict.fromkeys(range(500), "away") | dict.fromkeys(range(500, SHARDS), OTHER))
    wave = found.wave(owners, 1e6, 0.0, 0.0)
    assert wave
    assert {move.origin for move in wave} == {OTHER}


def test_of_members_that_have_stopped_no_more_names_are_kept_than_there_can_be_members():
    found = targets(OTHER, THIRD)
    found.leaves(OTHER)
    for number in range(10 * MEMBERS_MAX):
        found.leaves(f"run-{number}")
        assert len(found.leaving) <= MEMBERS_MAX
        assert found.is_out(f"run-{number}"), "it lives for some time more"
    assert found.is_out(OTHER), "it has not stopped yet"
    assert not found.is_out(THIRD)
