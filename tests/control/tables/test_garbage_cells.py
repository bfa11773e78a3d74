"""Which tables are quiet: never one in which something was written that a look may have missed."""

from __future__ import annotations

import pytest

from basalt.tables import garbage_cells
from basalt.tables.garbage_cells import CellActivity

STOCK, PRICES = (b"shop:~stock:", 1), (b"shop:~prices:", 1)


def test_a_table_is_quiet_after_a_look_and_until_the_next_write():
    activity = CellActivity()
    assert not activity.is_quiet(STOCK)
    activity.set_quiet(STOCK, activity.writes(STOCK))
    assert activity.is_quiet(STOCK)
    activity.wrote(*PRICES)
    assert activity.is_quiet(STOCK)
    activity.wrote(*STOCK)
    assert not activity.is_quiet(STOCK)


def test_a_write_during_a_look_is_not_passed_over():
    activity = CellActivity()
    activity.wrote(*STOCK)
    before = activity.writes(STOCK)
    activity.wrote(*STOCK)
    activity.set_quiet(STOCK, before)
    assert not activity.is_quiet(STOCK)


@pytest.mark.parametrize("writes_before", [0, 1, 2])
@pytest.mark.parametrize("writes_during", [1, 2])
@pytest.mark.parametrize("writes_after", [0, 1, 2])
def test_nor_is_one_that_was_forgotten_during_the_look(
    monkeypatch, writes_before: int, writes_during: int, writes_after: int
):
    monkeypatch.setattr(garbage_cells, "TABLES_REMEMBERED_MAX", 3)
    activity = CellActivity()
    for _ in range(writes_before):
        activity.wrote(*STOCK)
    before = activity.writes(STOCK)
    for _ in range(writes_during):
        activity.wrote(*STOCK)
    for number in range(3):
        activity.wrote(b"shop:~other-%d:" % number, 1)
    for _ in range(writes_after):
        activity.wrote(*STOCK)
    activity.set_quiet(STOCK, before)
    assert not activity.is_quiet(STOCK)
    activity.set_quiet(STOCK, activity.writes(STOCK))
    assert activity.is_quiet(STOCK)
