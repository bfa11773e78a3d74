"""What calls to shards cost their server: a measure that rises and falls by halves, and is told of the busiest."""

from __future__ import annotations

import pytest

from basalt.cluster.links.beats import BUSIEST_MAX, ToldLoads
from basalt.cluster.shard_loads import BYTES_PER_CALL, FOLD_MS, HALF_LIFE_MS, ShardLoads

ALL = ((0, 1_023),)


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
