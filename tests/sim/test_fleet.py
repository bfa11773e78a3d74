"""A hundred members in virtual time: falls, balance, and what the coordinator costs. A model: the product has no owners yet."""

from __future__ import annotations

import pytest

from basalt.cluster.balance import WAVE_EVERY_MS, WAVE_SHARDS_MAX, MemberLoad
from tests.budgets import SOAK
from tests.sim.members.fleet import LEASE_MS, SHARDS, Fleet, coordinator_busy, rows_of_members

FALLS = 2_000 if SOAK else 40


@pytest.mark.parametrize("leader_too", [False, True])
def test_shards_of_ten_that_die_at_once_are_owned_two_seconds_after_a_lease_with_three_writes_of_the_map(
    leader_too: bool,
) -> None:
    for seed in range(FALLS):
        fleet = Fleet(seed, topics=1_000)
        fall = fleet.fall(10, leader_too=leader_too)
        assert fall.owned_ms <= LEASE_MS + 2_000, (seed, fall)
        assert fall.map_writes <= 3, (seed, fall)
        assert set(fleet.owners) <= set(fleet.members)


def test_shards_are_dealt_evenly_and_a_fall_leaves_members_near_their_share() -> None:
    fleet = Fleet(0)
    before = list(fleet.owners)
    fleet.fall(10)
    stayed = sum(now == then for now, then in zip(fleet.owners, before, strict=True) if then in fleet.members)
    assert stayed == sum(then in fleet.members for then in before)  # nobody else's shards move in a fall
    fleet.even_out(600_000)
    assert fleet.even_out(60_000) == (0, 0)


def test_a_new_member_gets_its_share_a_wave_after_the_other() -> None:
    fleet = Fleet(1)
    fleet.even_out(600_000)
    fleet.members["new"] = MemberLoad(weight=2.0)
    waves, moves = fleet.even_out(120_000)
    assert 0 < waves <= 120_000 / WAVE_EVERY_MS
    assert moves <= waves * WAVE_SHARDS_MAX
    held = sum(load for owner, load in zip(fleet.owners, fleet.loads, strict=True) if owner == "new")
    assert held > 0.8 * sum(fleet.loads) * 2 / 102


def test_a_topic_that_is_heavier_than_a_share_does_not_go_to_and_fro() -> None:
    members = {"a": MemberLoad(), "b": MemberLoad(), "c": MemberLoad()}
    fleet = Fleet(2, members=3, topics=100)
    fleet.members = members
    fleet.loads = [0.0] * SHARDS
    fleet.loads[7], fleet.loads[8] = 1_000.0, 1.0
    fleet.owners = ["a"] * SHARDS
    fleet.even_out(100_000)
    assert fleet.even_out(600_000) == (0, 0)


def test_a_coordinator_is_less_than_seventy_percent_busy_at_sixty_thousand_one_shots_a_second() -> None:
    assert coordinator_busy(60_000, 3, 100) < 0.7
    assert coordinator_busy(60_000, 1, 100) > 0.7  # so frames must be batched
    renewals, looks = rows_of_members(100)
    assert (round(renewals, -1), round(looks, -1)) == (70, 200)
