"""The rule of balance: when shards move, how many, whose, and which never."""

from __future__ import annotations

from basalt.cluster import balance
from basalt.cluster.balance import FIRST_WAVE_SHARDS_MAX, LOSSES_MAX, WAVE_EVERY_MS, WAVE_SHARDS_MAX, MemberLoad


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


def test_who_loses_its_lease_again_and_again_is_given_nothing_until_it_has_rested() -> None:
    shaky = MemberLoad(losses_ms=tuple(1_000.0 * loss for loss in range(LOSSES_MAX)))
    members = {"shaky": shaky, "firm": MemberLoad()}
    owners: list[str | None] = [None] * 10
    assert {move.to for move in balance.dealt(owners, [1.0] * 10, members, 10_000.0)} == {"firm"}
    rested = balance.dealt(owners, [1.0] * 10, members, balance.LOSSES_WITHIN_MS + 1)
    assert {move.to for move in rested} == {"firm", "shaky"}


def test_shards_wait_where_nobody_is_left() -> None:
    assert balance.dealt([None, "gone"], [1.0, 1.0], {}, 0.0) == []


def test_while_one_has_far_too_much_waves_are_larger_and_small_again_at_the_end() -> None:
    members = {"a": MemberLoad(), "b": MemberLoad()}
    owners: list[str | None] = ["a"] * 1_024
    sizes = []
    while moves := balance.wave(owners, [1.0] * 1_024, members, 1e6, 0.0, 0.0):
        sizes.append(len(moves))
        for move in moves:
            owners[move.shard] = move.to
    assert sizes[0] == FIRST_WAVE_SHARDS_MAX
    assert sizes == sorted(sizes, reverse=True)
    assert WAVE_SHARDS_MAX <= sizes[-2] < 16
    assert len(sizes) <= 20, "each takes five seconds"
    assert abs(owners.count("a") - 512) <= 512 / 5


def test_a_weight_is_a_share() -> None:
    members = {"a": MemberLoad(weight=0.5), "b": MemberLoad(weight=2.0)}
    dealt = balance.dealt([None] * 100, [1.0] * 100, members, 0.0)
    assert sum(move.to == "a" for move in dealt) == 20


def test_where_nobody_that_is_there_has_anything_nothing_moves() -> None:
    assert balance.wave(["gone"] * 10, [1.0] * 10, {"a": MemberLoad()}, 1e6, 0.0, 0.0) == []
