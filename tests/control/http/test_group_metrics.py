"""Figures by group: bounded, and never falling."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from basalt.groups.figures import GroupTotals
from basalt.http.group_metrics import DECAY_MS, GroupSeries, flat

_looks = itertools.count()


def totals(fetched: int = 0, acknowledged: int = 0, **returned: int) -> GroupTotals:
    made = GroupTotals()
    made.was_fetched(0, fetched)
    made.was_acknowledged(0, acknowledged)
    made.returned.update(returned)
    return made


def look(series: GroupSeries, groups: Iterable[tuple[int, GroupTotals | None]]) -> None:
    """A look long enough after the one before."""
    series.look(groups, DECAY_MS * next(_looks))


def fetched(series: GroupSeries) -> dict[int, int]:
    return {number: counts["fetched"] for number, counts in series.shown.items()}


def test_each_group_has_a_series_while_there_is_room_one_that_nobody_works_for_too():
    series = GroupSeries(shown_max=2)
    look(series, [(1, totals(5, 3, aborted=2)), (2, None)])
    assert series.shown[1] == {"fetched": 5, "acknowledged": 3, "returned_aborted": 2}
    assert series.shown[2] == {}
    assert not series.other


def test_groups_beyond_the_limit_share_one_series():
    series = GroupSeries(shown_max=1)
    look(series, [(1, totals(100)), (2, totals(7)), (3, totals(8))])
    assert (fetched(series), series.other["fetched"]) == ({1: 100}, 15)


def test_only_what_came_since_the_last_look_is_added():
    series, group = GroupSeries(), totals(5)
    for _ in range(3):
        look(series, [(1, group)])
    group.was_fetched(0, 4)
    look(series, [(1, group)])
    assert fetched(series) == {1: 9}


def test_a_group_that_this_process_counts_anew_goes_on_rising():
    series = GroupSeries()
    look(series, [(1, totals(50))])
    look(series, [(1, None)])
    look(series, [(1, totals(3))])
    assert fetched(series) == {1: 53}


def test_a_group_that_is_much_busier_takes_a_quiet_ones_place_and_starts_at_zero():
    series, busy = GroupSeries(shown_max=1), totals(0)
    look(series, [(1, totals(1)), (2, busy)])
    busy.was_fetched(0, 50)
    look(series, [(1, totals(1)), (2, busy)])
    assert (fetched(series), series.other["fetched"]) == ({2: 0}, 50)
    busy.was_fetched(0, 5)
    look(series, [(1, totals(1)), (2, busy)])
    assert (fetched(series), series.other["fetched"]) == ({2: 5}, 50)


def test_whoever_looks_often_makes_no_groups_take_turns():
    series, quiet, busy = GroupSeries(shown_max=1), totals(8), totals(0)
    series.look([(1, quiet), (2, busy)], 0)
    busy.was_fetched(0, 10)  # more than twice as busy, if what the quiet one did were halved at each look
    for now_ms in range(0, DECAY_MS, 1_000):
        series.look([(1, quiet), (2, busy)], now_ms)
    assert fetched(series) == {1: 8}
    assert series.other["fetched"] == 10


def test_two_groups_alike_do_not_take_turns():
    series, first, second = GroupSeries(shown_max=1), totals(), totals()
    for _ in range(3):
        first.was_fetched(0, 10)
        second.was_fetched(0, 19)
        look(series, [(1, first), (2, second)])
        assert 1 in series.shown


def test_a_deleted_group_makes_room():
    series = GroupSeries(shown_max=1)
    look(series, [(1, totals(1))])
    look(series, [(2, totals(2))])
    look(series, [(2, totals(2))])
    assert 1 not in series.shown
    assert list(series.shown) == [2]


def test_every_count_of_a_group_has_a_name():
    made = totals(1, 2, timed_out=3)
    made.dead_lettered, made.conflicts = 4, 5
    assert flat(made) == {"fetched": 1, "acknowledged": 2, "dead_lettered": 4, "conflicts": 5, "returned_timed_out": 3}
