"""The loads of shards as the leader knows them: what members tell, and what it remembers of shards that moved."""

from __future__ import annotations

import pytest

from basalt.cluster.known_loads import REMEMBERED_MS, KnownLoads
from basalt.cluster.links.beats import ToldLoads
from basalt.cluster.owners import OwnersMap, dealt, granted
from basalt.cluster.shard_loads import ShardLoads
from basalt_engine.stores.shards import SHARDS

ALL_OF_A = granted(None, "a", range(SHARDS), 1)


def moved(before: OwnersMap, shard: int, to: str) -> OwnersMap:
    return dealt(before, {shard: to}, "a", 1)


def test_a_busy_shard_counts_as_told_and_the_others_share_the_rest():
    loads = KnownLoads().look(ALL_OF_A, {"a": ToldLoads(3_023_000, ((7, 2_000_000),))}, 0.0)
    assert loads[7] == 2_000
    assert loads[8] == pytest.approx(1.0)


def test_a_shard_that_has_moved_counts_as_much_as_before_at_each_moment_until_its_new_owner_has_measured_it():
    known, of_a, of_b = KnownLoads(), ShardLoads(), ShardLoads()
    owners, now_ms = ALL_OF_A, 0.0
    for second in range(600):
        if second == 300:
            owners = moved(owners, 7, "b")
        owner = of_a if second < 300 else of_b
        for _ in range(50):
            owner.add(7, 0)
        now_ms = second * 1_000.0
        told = {"a": of_a.told(((0, 6), (8, 1_023)) if second >= 300 else ((0, 1_023),), now_ms)}
        told["b"] = of_b.told(((7, 7),) if second >= 300 else (), now_ms)
        load = known.look(owners, told, now_ms)[7]
        assert second < 200 or load == pytest.approx(50, abs=2), second


def test_of_a_member_that_is_not_heard_all_stays_as_it_was():
    known = KnownLoads()
    known.look(ALL_OF_A, {"a": ToldLoads(5_000, ((7, 5_000),))}, 0.0)
    assert known.look(ALL_OF_A, {}, 3_600_000.0)[7] == 5


def test_a_beat_from_before_a_move_gives_the_shard_to_nobody_twice():
    known, told = KnownLoads(), {"a": ToldLoads(5_000, ((7, 5_000),)), "b": ToldLoads()}
    known.look(ALL_OF_A, told, 0.0)
    assert sum(known.look(moved(ALL_OF_A, 7, "b"), told, 250.0)) == pytest.approx(5, abs=0.1)


def test_what_is_remembered_of_a_shard_that_nobody_calls_any_more_is_forgotten():
    known = KnownLoads()
    known.look(ALL_OF_A, {"a": ToldLoads(5_000, ((7, 5_000),))}, 0.0)
    owners = moved(ALL_OF_A, 7, "b")
    known.look(owners, {"a": ToldLoads(), "b": ToldLoads()}, 1_000.0)
    assert known.look(owners, {"a": ToldLoads(), "b": ToldLoads()}, 1_000.0 + REMEMBERED_MS)[7] == 0
