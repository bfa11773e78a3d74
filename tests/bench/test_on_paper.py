"""The calculation of what many servers cost each other: the page has its table, and its parts do what the rules say."""

from __future__ import annotations

import pytest

from bench import on_paper
from bench.on_paper import (
    coordinator_busy,
    entries,
    fence_core_s,
    fences,
    following_busy,
    passed_share,
    pays,
    pays_up_to,
    pushing_busy,
    rows_cores,
    table,
    worth,
    worth_following,
)
from tests.docs.conftest import ROOT


def test_the_page_has_the_table_as_it_is_calculated():
    page = (ROOT / "docs" / "operations" / "capacity.md").read_text()
    assert f"{table()}\n\n{pays()}" in page, (
        "write what `python -m bench.on_paper` prints into docs/operations/capacity.md"
    )


def test_each_line_has_a_value_for_each_number_of_servers():
    assert {len(line.values) for line in on_paper.lines()} == {len(on_paper.SIZES)}


@pytest.mark.parametrize(("members", "regions", "expected"), [(2, 50, 50), (10, 50, 9 * 50), (100, 50, 90 * 50)])
def test_each_server_that_gets_a_shard_of_the_dead_fences_each_region(members: int, regions: int, expected: int):
    assert fences(members, regions) == expected


def test_what_fences_cost_grows_with_regions_and_servers():
    assert fence_core_s(100, 1_000) == pytest.approx(20 * fence_core_s(100, 50))
    assert fence_core_s(100, 50) == pytest.approx(10 * fence_core_s(10, 50))


def test_frames_that_carry_one_call_each_cost_the_coordinator_more():
    assert coordinator_busy(100, 1) > coordinator_busy(100) > 10 * coordinator_busy(10) * 0.9


def test_rows_of_members_grow_with_their_square():
    assert rows_cores(100) > 10 * rows_cores(10)


def test_what_costs_as_much_passed_on_as_directly_loses_nothing():
    assert worth(10, 1.0) == pytest.approx(10)
    assert worth(10, 2.0) == pytest.approx(10 / (1 + passed_share(10)))


def test_each_server_follows_what_all_of_them_do():
    assert following_busy(100) > 5 * following_busy(10)
    assert entries(100) == entries(10)  # a write of the log holds more of them then
    assert pushing_busy(100) == pytest.approx(11 * pushing_busy(10))


def test_servers_that_follow_nothing_lose_nothing():
    assert worth_following(100, 0.0) == 100
    assert worth_following(1, 0.5) == 1


@pytest.mark.parametrize("cost", [0.02, 0.1])
def test_servers_pay_until_one_more_adds_less_than_half(cost: float):
    members = pays_up_to(cost)
    assert worth_following(members, cost) - worth_following(members - 1, cost) >= 0.5
    assert worth_following(members + 1, cost) - worth_following(members, cost) < 0.5
