"""A hundred members in virtual time: falls, balance, and what the coordinator costs. A model: the product has no owners yet."""

from __future__ import annotations

import pytest

from basalt.cluster import balance
from basalt.cluster.balance import LOSSES_MAX, WAVE_EVERY_MS, WAVE_SHARDS_MAX, MemberLoad
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


def test_nothing_moves_while_all_are_within_a_fifth_of_their_share() -> None:
    members = {"a": MemberLoad(), "b": MemberLoad()}
    loads = [1.0] * 20
    near: list[str | None] = ["a"] * 11 + ["b"] * 9
    far: list[str | None] = ["a"] * 13 + ["b"] * 7
    assert balance.wave(near, loads, members, 1e6, 0.0, 0.0) == []
    moves = balance.wave(far, loads, members, 1e6, 0.0, 0.0)
    assert {(move.origin, move.to) for move in moves} == {("a", "b")}
    assert len(moves) == 1  # twelve of twenty is a fifth off, and no more than that


def test_no_wave_follows_another_at_once_or_a_change_of_leader() -> None:
    members = {"a": MemberLoad(), "b": MemberLoad()}
    owners: list[str | None] = ["a"] * 40
    loads = [1.0] * 40
    assert len(balance.wave(owners, loads, members, 1e6, 0.0, 0.0)) == WAVE_SHARDS_MAX
    assert balance.wave(owners, loads, members, 1e6, 1e6 - WAVE_EVERY_MS + 1, 0.0) == []
    assert balance.wave(owners, loads, members, 1e6, 0.0, 1e6 - balance.QUIET_AFTER_LEADER_MS + 1) == []


def test_a_topic_that_is_heavier_than_a_share_does_not_go_to_and_fro() -> None:
    members = {"a": MemberLoad(), "b": MemberLoad(), "c": MemberLoad()}
    fleet = Fleet(2, members=3, topics=100)
    fleet.members = members
    fleet.loads = [0.0] * SHARDS
    fleet.loads[7], fleet.loads[8] = 1_000.0, 1.0
    fleet.owners = ["a"] * SHARDS
    fleet.even_out(100_000)
    assert fleet.even_out(600_000) == (0, 0)


def test_who_loses_its_lease_again_and_again_is_given_nothing_until_it_has_rested() -> None:
    shaky = MemberLoad(losses_ms=tuple(1_000.0 * loss for loss in range(LOSSES_MAX)))
    members = {"shaky": shaky, "firm": MemberLoad()}
    owners: list[str | None] = [None] * 10
    assert {move.to for move in balance.dealt(owners, [1.0] * 10, members, 10_000.0)} == {"firm"}
    rested = balance.dealt(owners, [1.0] * 10, members, balance.LOSSES_WITHIN_MS + 1)
    assert {move.to for move in rested} == {"firm", "shaky"}


def test_shards_wait_where_nobody_is_left() -> None:
    assert balance.dealt([None, "gone"], [1.0, 1.0], {}, 0.0) == []


def test_a_coordinator_is_less_than_seventy_percent_busy_at_sixty_thousand_one_shots_a_second() -> None:
    assert coordinator_busy(60_000, 3, 100) < 0.7
    assert coordinator_busy(60_000, 1, 100) > 0.7  # so frames must be batched
    renewals, looks = rows_of_members(100)
    assert (round(renewals, -1), round(looks, -1)) == (70, 200)
