"""`basalt series`, and what `basalt top` shows of how figures went."""

from __future__ import annotations

import json
import sys

import pytest

from basalt.api.bodies.operations import SeriesFigure, SeriesPage
from basalt.cli.commands import top
from basalt.operations.series.series import RESOLUTIONS
from basalt.operations.series.table import FIGURES


def test_without_a_name_it_lists_the_figures_that_there_are(cli):
    ran = cli("series", "-o", "json")
    assert [each["name"] for each in json.loads(ran.out)] == [figure.name for figure in FIGURES]
    assert "loop_lag_s" in cli("series").out


def test_figures_are_a_column_each_and_every_slot_a_line(cli):
    found = json.loads(cli("series", "open,groups", "memory_bytes", "--from", "-4s", "-o", "json").out)
    assert len(found) == 4
    assert list(found[0]) == ["time_ms", "open", "groups", "memory_bytes"]
    ran = cli("series", "open", "--from", "-3m", "--step", "1m")
    assert len(ran.out.splitlines()) == 4
    assert ran.out.splitlines()[0].split() == ["TIME", "OPEN"]


def test_csv_has_a_heading_and_empty_places_for_gaps(cli):
    lines = cli("series", "open", "groups", "--from", "-2s", "--csv").out.splitlines()
    assert lines[0] == "time,open,groups"
    assert len(lines) == 3
    assert all(line.endswith(",,") for line in lines[1:])  # nobody has looked at this server


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("opne",), 3, "did you mean open?"),
        (("--csv",), 2, "needs the names"),
        (("open", "--step", "10ms"), 2, "shorter or longer"),
        (("open", "--from", "start"), 1, "must be a time"),
    ],
)
def test_what_it_cannot_show_is_refused(cli, arguments, code, expected):
    ran = cli("series", *arguments)
    assert (ran.code, expected in ran.err) == (code, True), ran.err


def test_a_cell_has_its_unit_and_a_gap_a_dash():
    for unit, value, expected in (
        ("s", 0.25, "250ms"),
        ("B", 2_048, "2 KiB"),
        ("", 1_500, "1,500"),
        ("s", None, "-"),
        ("B/s", None, "-"),
    ):
        assert top._text_of(SeriesFigure("x", unit, ""))(value) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], ""), ([0, 0], "▁▁"), ([0, None, 1, 0.5], "▁ █▅"), ([None, None], ""), ([-1, 7], "▁█")],
)
def test_bars_go_from_nothing_to_the_most_and_a_gap_is_a_space(values, expected):
    assert top.bars(values) == expected


def test_top_shows_the_newest_value_of_each_figure(monkeypatch):
    page = SeriesPage(
        20_000, (1, 2, 3), {"publish_p99_s": (0.5, 0.25, None), "open": (None, None, None)},
        (SeriesFigure("publish_p99_s", "s", ""), SeriesFigure("open", "", "")),
    )  # fmt: skip
    look = top.Look(0, 0, {}, (), page)
    shown = top.activity("http://a:1", look, look, 10, None)["figures"]
    assert [(each["figure"], each["now"]) for each in shown] == [("publish_p99_s", 0.25), ("open", None)]
    assert [top._in_words(each)["now"] for each in shown] == ["250ms", "-"]


def test_a_terminal_that_has_no_bars_gets_none(monkeypatch):
    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr(sys, "__stdout__", Ascii())
    assert top._in_words({"figure": "open", "unit": "", "now": 1, "values": [1]})["last_10_min"] is None


def test_it_asks_for_figures_that_there_are_and_steps_that_are_kept():
    assert set(top.WENT) <= {figure.name for figure in FIGURES}
    assert RESOLUTIONS[0].step_ms == top.STEP_MS_MIN
