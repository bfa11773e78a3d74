"""What calls to shards cost their server: a measure that rises and falls by halves, and is told of the busiest."""

from __future__ import annotations

import pytest

from basalt.cluster.links.beats import BUSIEST_MAX, ToldLoads
from basalt.cluster.owners import OwnersMap, dealt, granted
from basalt.cluster.shard_loads import BYTES_PER_CALL, FOLD_MS, HALF_LIFE_MS, REMEMBERED_MS, KnownLoads, ShardLoads
from basalt_engine.stores.shards import SHARDS

ALL = ((0, 1_023),)
ALL_OF_A = granted(None, "a", range(SHARDS), 1)


def after(loads: ShardLoads, seconds: int, calls: dict[int, int], begin_s: int = 0) -> ToldLoads:
    """What is told after so many seconds with so many calls to these shards in each."""
    told = loads.told(ALL, begin_s * 1_000.0)
    for second in range(begin_s + 1, begin_s + seconds + 1):
        for shard, count in calls.items():
            for _ in range(count):
                loads.add(shard, 0)
        told = loads.told(ALL, second * 1_000.0)
    return told


def test_a_load_that_lasts_is_told_as_calls_a_second_half_of_it_after_half_a_minute():
    assert dict(after(ShardLoads(), HALF_LIFE_MS // 1_000, {7: 10}).busiest)[7] == pytest.approx(5_000, rel=0.01)
    assert dict(after(ShardLoads(), 300, {7: 10}).busiest)[7] == pytest.approx(10_000, rel=0.01)


def test_a_load_that_ended_is_forgotten_by_halves():
    loads = ShardLoads()
    after(loads, 300, {7: 10})
    assert after(loads, 30, {}, 300).total == pytest.approx(5_000, rel=0.01)
    assert after(loads, 600, {}, 330) == ToldLoads()


def test_bytes_count_as_calls():
    loads = ShardLoads()
    loads.told(ALL, 0.0)
    loads.add(1, 9 * BYTES_PER_CALL)
    for _ in range(10):
        loads.add(2, 0)
    told = dict(loads.told(ALL, 1_000.0).busiest)
    assert told[1] == told[2] > 0


def test_only_the_busiest_are_told_one_by_one_and_the_sum_has_all():
    told = after(ShardLoads(), 300, {shard: 1 + shard % 5 for shard in range(3 * BUSIEST_MAX)})
    assert len(told.busiest) == BUSIEST_MAX
    assert min(load for _, load in told.busiest) >= 3_900
    assert told.total == pytest.approx(sum(1 + shard % 5 for shard in range(3 * BUSIEST_MAX)) * 1_000, rel=0.01)


def test_what_was_measured_of_a_shard_that_is_elsewhere_is_forgotten():
    loads = ShardLoads()
    after(loads, 60, {7: 10, 8: 10})
    assert [shard for shard, _ in loads.told(((8, 8),), 61_000.0).busiest] == [8]
    assert [shard for shard, _ in loads.told(ALL, 62_000.0).busiest] == [8]


def test_between_two_looks_all_that_is_told_stays_as_it_was():
    loads = ShardLoads()
    told = after(loads, 10, {7: 10})
    loads.add(7, 0)
    assert loads.told(ALL, 10_000.0 + FOLD_MS - 1) is told


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
