"""The rule of balance: when shards move, how many, whose, and which never."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from basalt.cluster import balance
from basalt.cluster.balance import (
    FIRST_WAVE_SHARDS_MAX,
    LOSSES_MAX,
    WAVE_EVERY_MS,
    WAVE_SHARDS_MAX,
    MemberLoad,
    Move,
    standing,
)

NOW_MS = 1e6
RESTS = MemberLoad(losses_ms=(NOW_MS,) * LOSSES_MAX)
Fleet = tuple[list[str | None], list[float], dict[str, MemberLoad]]


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Some members with some shards, a few of which carry most."""
    count = draw(st.integers(1, 6))
    weights = draw(st.lists(st.sampled_from([0.01, 0.5, 1.0, 1.0, 3.0]), min_size=count, max_size=count))
    members = {f"m{number}": MemberLoad(weight) for number, weight in enumerate(weights)}
    if draw(st.booleans()):
        members["m0"] = RESTS
    shards = draw(st.integers(1, 80))
    kinds = st.one_of(st.just(0.25), st.floats(0.25, 20), st.floats(0.25, 5_000))
    loads = draw(st.lists(kinds, min_size=shards, max_size=shards))
    names = st.sampled_from([*members, "gone"])
    return draw(st.lists(names, min_size=shards, max_size=shards)), loads, members


def next_wave(fleet: Fleet) -> list[Move]:
    """The next wave, which the map has then."""
    moves = balance.wave(*fleet, NOW_MS, 0.0, 0.0)
    for move in moves:
        assert fleet[0][move.shard] == move.origin
        fleet[0][move.shard] = move.to
    return moves


def after(fleet: Fleet, limit: int = 1_000) -> int:
    """Have all waves made; the number of moves."""
    total = 0
    for _ in range(limit):
        moves = next_wave(fleet)
        if not moves:
            return total
        total += len(moves)
    raise AssertionError("waves have no end")


@given(fleets())
def test_no_move_makes_the_fullest_member_fuller_and_waves_are_small_and_come_to_an_end(fleet: Fleet) -> None:
    owners, loads, members = fleet
    for _ in range(1_000):
        stands = standing(owners, loads, members, NOW_MS)
        moves = next_wave(fleet)
        if not moves:
            break
        assert len(moves) <= FIRST_WAVE_SHARDS_MAX
        assert len({move.shard for move in moves}) == len(moves)
        for move in moves:
            assert move.origin is not None
            assert members[move.to] is not RESTS or len(members) == 1
            fullest = max(stands.ratio(name) for name in members)
            stands.held[move.origin] -= loads[move.shard]
            stands.held[move.to] += loads[move.shard]
            assert max(stands.ratio(name) for name in members) <= fullest * (1 + 1e-9), move
    else:
        raise AssertionError("waves have no end")


@given(fleets())
def test_loads_that_change_by_a_few_percent_after_the_last_wave_move_nothing_in_a_fleet_of_many_light_shards(
    fleet: Fleet,
) -> None:
    members = {name: MemberLoad() for name in fleet[2]}
    loads = [1.0 + number % 7 / 10 for number in range(60 * len(members))]
    owners: list[str | None] = ["m0"] * len(loads)
    after((owners, loads, members))
    for change in (0.96, 1.04):
        changed = [load * (change if owner == "m0" else 1.0) for owner, load in zip(owners, loads, strict=True)]
        assert balance.wave(owners, changed, members, NOW_MS, 0.0, 0.0) == []


def test_a_shard_that_is_more_than_a_share_stays_and_the_others_leave_its_owner() -> None:
    fleet: Fleet = (["a"] * 41, [1_000.0] + [10.0] * 40, {"a": MemberLoad(), "b": MemberLoad(), "c": MemberLoad()})
    after(fleet)
    assert fleet[0][0] == "a"
    assert fleet[0].count("a") - 1 <= 10, "what is left there is less than a fifth of its share"
    assert abs(fleet[0].count("b") - fleet[0].count("c")) <= 2, "and the others share the rest"


def test_of_two_such_shards_at_one_member_one_goes_to_another_and_not_to_and_fro() -> None:
    fleet: Fleet = (
        ["a", "a", *"bcd"],
        [1_000.0, 900.0, 100.0, 100.0, 100.0],
        {name: MemberLoad() for name in "abcd"},
    )
    assert after(fleet) <= 3
    assert fleet[0][0] == "a"
    assert fleet[0][1] != "a"


def test_a_shard_that_is_too_much_for_the_leaders_part_goes_to_one_with_a_whole_share() -> None:
    fleet: Fleet = (["lead"] * 5 + ["b"] * 2, [400.0] + [50.0] * 6, {"lead": MemberLoad(0.5), "b": MemberLoad(1.0)})
    after(fleet)
    assert fleet[0][0] == "b"


def test_nothing_moves_while_all_are_within_a_fifth_of_their_share() -> None:
    members = {"a": MemberLoad(), "b": MemberLoad()}
    loads = [1.0] * 20
    near: list[str | None] = ["a"] * 11 + ["b"] * 9
    far: list[str | None] = ["a"] * 13 + ["b"] * 7
    assert balance.wave(near, loads, members, 1e6, 0.0, 0.0) == []
    moves = balance.wave(far, loads, members, 1e6, 0.0, 0.0)
    assert {(move.origin, move.to) for move in moves} == {("a", "b")}
    assert len(moves) == 2  # eleven of twenty is a tenth off: a wave that has begun goes on up to there


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
