"""Balance by load in virtual time: how many waves until loads are by weight, and that nothing moves for an hour then, whatever the loads look like."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from basalt_engine.stores.shards import SHARDS
from tests.budgets import SOAK
from tests.sim.members.loaded_fleet import LoadedFleet

SEEDS = range(20 if SOAK else 1)
HOUR_S = 3_600
LOOKED_AT_S = 20  # in an hour in which nothing is to happen
SETTLING_S = 420


def zipf(seed: int, total: float, exponent: float) -> list[float]:
    """Loads of which a few shards have most, wherever these are."""
    chances = random.Random(seed)
    rates = [1 / (rank + 1) ** exponent for rank in range(SHARDS)]
    chances.shuffle(rates)
    return [rate * total / sum(rates) for rate in rates]


def jittered(rates: Sequence[float], chances: random.Random) -> list[float]:
    return [rate * chances.uniform(0.85, 1.15) for rate in rates]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("members", [2, 3, 10])
@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_loads_are_by_weight_after_some_minutes_and_then_nothing_moves_for_an_hour(
    members: int, exponent: float, seed: int
) -> None:
    fleet, rates, chances = LoadedFleet(members), zipf(seed, 20_000, exponent), random.Random(seed)
    fleet.run(SETTLING_S, lambda _: jittered(rates, chances))
    assert fleet.waves <= 60
    if max(rates) < 20_000 / members / 2:  # else a shard alone is more than the leader's share, or nearly
        assert all(0.75 < ratio < 1.25 for ratio in fleet.ratios(rates).values()), fleet.ratios(rates)
    assert fleet.run(HOUR_S, lambda _: jittered(rates, chances), LOOKED_AT_S) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_topic_that_is_more_than_a_share_stays_and_the_others_leave_its_server(seed: int) -> None:
    fleet, rates = LoadedFleet(4), zipf(seed, 5_000, 0.3)
    rates[7] = 20_000.0
    fleet.run(SETTLING_S, lambda _: rates)
    hot = fleet.owners.owner_of(7)
    assert fleet.run(HOUR_S, lambda _: rates, LOOKED_AT_S) == 0
    assert fleet.owners.owner_of(7) == hot
    assert sum(rates[shard] for shard in fleet.owners.shards_of(hot)) <= 24_000
    others = [name for name in fleet.members if name not in (hot, "m0")]
    held = [sum(rates[shard] for shard in fleet.owners.shards_of(name)) for name in others]
    assert max(held) <= 1.5 * min(held)


def test_without_any_calls_numbers_of_shards_are_by_weight() -> None:
    fleet = LoadedFleet(3)
    fleet.run(SETTLING_S, lambda _: ())
    assert all(0.8 <= ratio <= 1.2 for ratio in fleet.ratios([1.0] * SHARDS).values())
    assert fleet.run(HOUR_S, lambda _: (), LOOKED_AT_S) == 0


def test_a_handful_of_calls_moves_nothing() -> None:
    fleet = LoadedFleet(3)
    fleet.run(SETTLING_S, lambda _: ())
    few = [0.0] * SHARDS
    few[3], few[500] = 5.0, 8.0
    assert fleet.run(HOUR_S, lambda _: few, LOOKED_AT_S) == 0


def test_a_load_that_comes_goes_away_and_comes_again_every_ten_seconds_moves_nothing_once_it_is_known() -> None:
    fleet, low, high = LoadedFleet(3), zipf(1, 20_000, 0.5), zipf(2, 20_000, 0.5)
    fleet.run(2 * SETTLING_S, lambda now_s: low if now_s // 10 % 2 else high)
    assert fleet.run(HOUR_S, lambda now_s: low if now_s // 10 % 2 else high) == 0  # seen in steps of five


def test_loads_that_become_others_every_quarter_of_an_hour_are_followed_and_then_rest() -> None:
    fleet = LoadedFleet(4)
    for turn in range(4):
        rates = zipf(100 + turn, 20_000, 0.8)
        fleet.run(SETTLING_S, lambda _, rates=rates: rates)  # type: ignore[misc]
        assert all(0.75 < ratio < 1.25 for ratio in fleet.ratios(rates).values()), (turn, fleet.ratios(rates))
        assert fleet.run(900 - SETTLING_S, lambda _, rates=rates: rates) == 0, turn  # type: ignore[misc]


def test_while_a_members_beats_do_not_come_its_shards_count_as_before() -> None:
    fleet, rates = LoadedFleet(3), zipf(5, 20_000, 0.6)
    fleet.run(SETTLING_S, lambda _: rates)
    fleet.silent.add("m2")
    assert fleet.run(600, lambda _: rates) == 0
