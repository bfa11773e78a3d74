"""Charts as text: where lines go, what they are called, and that everybody can read them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from basalt.console.text import NOTHING
from basalt.console.views import charts
from basalt.console.views.charts import (
    DASHES,
    HEIGHT,
    LINES_MAX,
    TABLE_ROWS_MAX,
    WIDTH,
    Line,
    amount,
    chart,
    in_words,
    path,
    scale,
    spark,
)

TIME_MS = [1_700_000_000_000 + 1_000 * second for second in range(5)]


class Drawn(HTMLParser):
    """The elements of a piece of markup with their text; what is not closed as it was opened fails."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open:
            self.texts[self._open[-1]][-1] += data

    def all(self, tag: str, of_class: str = "") -> list[dict[str, str | None]]:
        return [each for name, each in self.elements if name == tag and of_class in (each.get("class") or "")]


def drawn(*lines: Line, unit: str = "1/s", time_ms: list[int] = TIME_MS) -> Drawn:
    return Drawn(chart("rates", "Rates", unit, time_ms, 1_000, lines))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 5, 10], "M0 10h0L50 5L100 0"),
        ([0, None, 10], "M0 10h0M100 0h0"),
        ([None, 5, None], "M50 5h0"),
        ([None, None], ""),
        ([], ""),
        ([7], "M0 3h0"),
        ([-3, 30], "M0 10h0L100 0"),  # beyond the drawing is its edge
    ],
)
def test_a_line_goes_through_its_values_and_breaks_at_gaps(values, expected):
    assert path(values, 100, 10, 10) == expected


@pytest.mark.parametrize(
    ("most", "unit", "expected"),
    [
        (0, "1/s", 1), (0.2, "1/s", 0.2), (0.21, "s", 0.5), (1, "1/s", 1), (1.01, "1/s", 2), (3, "1/s", 5), (7, "", 10), (1_000, "", 1_000),
        (0, "", 2), (1, "", 2), (0.00003, "s", 0.00005), (900, "B", 1_024), (1_025, "B/s", 2_048), (1 << 30, "B", 1 << 30),
    ],
)  # fmt: skip
def test_an_axis_ends_at_a_round_number(most, unit, expected):
    assert scale(most, unit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "s", NOTHING), (0.0042, "s", "4.2 ms"), (0.25, "s", "250 ms"), (90, "s", "1 min 30 s"), (0, "s", "0 ms"), (1_536, "B", "1.5 KiB"),
        (2_048, "B/s", "2.0 KiB/s"), (12, "1/s", "12 /s"), (0.333, "1/s", "0.333 /s"), (12_345.6, "", "12,346"), (3.5, "%", "3.5 %"),
    ],
)  # fmt: skip
def test_a_value_is_written_with_its_unit(value, unit, expected):
    assert amount(value, unit) == expected


def test_what_a_line_does_is_said_in_words():
    assert in_words([1, None, 3], "1/s") == "3 /s at the end, 1 /s to 3 /s, 2 /s on average; 1 of 3 values are missing"
    assert in_words([None], "s") == "nothing is known"


def test_lines_differ_by_dashes_and_by_name_and_not_by_color_alone():
    found = drawn(*(Line(f"line {number}", [number] * 5) for number in range(LINES_MAX)))
    (svg,) = found.all("svg", "chart")
    assert svg["role"] == "img"
    lines = [each for each in found.all("path", "line-") if each.get("vector-effect")]
    assert len({each["stroke-dasharray"] for each in lines}) == LINES_MAX == len(DASHES)
    assert [each["stroke-dasharray"] for each in found.all("path", "line-") if not each.get("vector-effect")] == [
        each["stroke-dasharray"] for each in lines
    ]
    assert [text.strip() for text in found.texts["li"]] == [f"line {number}" for number in range(LINES_MAX)]


def test_a_chart_has_a_title_a_description_and_its_numbers():
    found = drawn(Line("Published", [1, 2, None, 4, 5]), Line("Read", [0] * 5))
    (svg,) = found.all("svg", "chart")
    ids = [each["id"] for _, each in found.elements if each.get("id")]
    assert len(ids) == len(set(ids))
    assert set(str(svg["aria-labelledby"]).split()) <= set(ids)
    assert found.texts["title"] == ["Rates"]
    (described,) = found.texts["desc"]
    assert described == (
        "From 2023-11-14 22:13:20 UTC to 2023-11-14 22:13:25 UTC. Published: 5 /s at the end, 1 /s to 5 /s, 3 /s on average; "
        "1 of 5 values are missing; Read: 0 /s at the end, 0 /s to 0 /s, 0 /s on average."
    )
    assert [each.strip() for each in found.texts["td"]] == [
        "1 /s",
        "0 /s",
        "2 /s",
        "0 /s",
        NOTHING,
        "0 /s",
        "4 /s",
        "0 /s",
        "5 /s",
        "0 /s",
    ]
    assert [each["scope"] for each in found.all("th")] == ["col"] * 3 + ["row"] * 5


def test_many_numbers_are_averages_of_several_slots():
    time_ms = [TIME_MS[0] + 1_000 * second for second in range(300)]
    found = drawn(Line("a", list(range(300))), time_ms=time_ms)
    assert len(found.texts["td"]) == TABLE_ROWS_MAX
    assert found.texts["td"][0] == "4.5 /s"
    assert found.texts["caption"] == ["Rates, on average of 10 s each"]


def test_the_axes_have_round_numbers_and_times_and_are_not_read_out():
    found = drawn(Line("a", [0, 1, 2, 3, 4]))
    assert found.texts["span"] == ["5 /s", "2.5 /s", "0 /s", "22:13:20", "22:13:21", "22:13:23", "22:13:24"]
    assert [each["aria-hidden"] for name, each in found.elements if (each.get("class") or "").startswith("axis")] == [
        "true"
    ] * 2
    days = drawn(Line("a", [1, 2]), time_ms=[TIME_MS[0], TIME_MS[0] + 86_400_000])
    assert days.texts["span"][3:] == ["14 Nov 22:13", "15 Nov 22:13"]


def test_without_any_time_or_value_there_is_a_chart_that_says_so():
    found = drawn(Line("a", []), time_ms=[])
    assert found.texts["desc"] == ["No time is shown."]
    assert "nothing is known" in drawn(Line("a", [None] * 5)).texts["desc"][0]
    assert drawn().texts["svg"]


def test_more_lines_than_can_be_told_apart_are_counted():
    found = drawn(*(Line(f"l{number}", [1] * 5) for number in range(LINES_MAX + 3)))
    assert found.texts["p"] == ["3 more lines are not drawn."]
    assert len(found.texts["li"]) == LINES_MAX


@pytest.mark.parametrize(
    "hostile", ['"><script>alert(1)</script>', "</title></svg><script>", "a\u202eb\x00", "x' onload='y"]
)
def test_hostile_names_are_text(hostile):
    for markup in (
        chart("rates", hostile, "", TIME_MS, 1_000, [Line(hostile, [1] * 5)]),
        spark([1, 2], hostile, ""),
    ):
        found = Drawn(markup)
        assert not found.all("script")
        assert not [name for _, each in found.elements for name in each if name.startswith("on") or name == "style"]
        assert "\u202e" not in markup
        assert "\x00" not in markup


def test_there_is_no_style_and_no_number_that_is_not_one():
    markup = chart("rates", "Rates", "B", TIME_MS, 1_000, [Line("a", [0.1, 1e-12, 1e18, None, 3])]) + spark(
        [None, 1], "a", "s"
    )
    assert "style=" not in markup
    assert not re.search(r"nan|inf|e\+308", markup)
    for each in re.findall(r' d="([^"]*)"', markup):
        assert re.fullmatch(r"(?:[MLHh][-0-9.e+]+(?: [-0-9.e+]+)?)*", each), each
    assert charts.WIDTH == WIDTH > HEIGHT


def test_a_spark_is_a_word_that_says_what_it_does():
    found = Drawn(spark([0, 1, 2], "Lag of billing", ""))
    assert found.texts["title"] == ["Lag of billing: 2 at the end, 0 to 2, 1 on average"]
    assert found.all("svg", "spark")[0]["role"] == "img"
    assert Drawn(spark([0, 0], "Lag", "")).all("path")[0]["d"] == "M0 20h0L100 20"
