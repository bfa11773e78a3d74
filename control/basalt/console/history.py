"""Panels of charts, for any page: how figures of the server, or the lag of a group, went over a time that links choose.

A page adds `RANGE` to its query and `charts_panel` to its panels. One call brings the figures of all charts of a panel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup

from basalt.api.bodies.operations import SeriesPage
from basalt.console.call import Call
from basalt.console.page import AS_JSON, PANEL, Panel
from basalt.console.views.charts import Line, chart
from basalt.http.routes.route_table import Query, Request, choice

SERIES = "/v1/admin/series"
RANGE_DEFAULT = "10m"
# How far back, and the length of a slot: some 300 slots are as many as a chart can show, and a page should carry.
RANGES = {
    "10m": ("10 min", "2s"),
    "1h": ("1 h", "10s"),
    "6h": ("6 h", "1m"),
    "24h": ("24 h", "5m"),
    "8d": ("8 days", "30m"),
}
RANGE: Query = choice("range", tuple(RANGES), "how far back charts go")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart of a panel: its title, and its lines, each a figure and the name by which people know it. All have one unit."""

    title: str
    lines: tuple[tuple[str, str], ...]

    def markup(self, panel: str, number: int, page: SeriesPage) -> Markup:
        """The chart; `panel` and `number` make its id."""
        units = {each.name: each.unit for each in page.figures}
        lines = [Line(name, page.values[figure]) for figure, name in self.lines]
        unit = units[self.lines[0][0]]
        return chart(f"{panel}-{number}", self.title, unit, page.time, page.step_ms, lines)


class RangeLink(NamedTuple):
    """A link to the same page with another time."""

    text: str
    target: str
    is_current: bool


def charts_panel(
    request: Request, name: str, title: str, *drawings: Drawing, every: int = 1, default: str = RANGE_DEFAULT,
    meanings: Mapping[str, str] | None = None,
) -> Panel:  # fmt: skip
    """A panel with these charts, over the time that the page's query has, or this one. `meanings` as of `Panel`."""
    wanted = request.text(RANGE.name) or default
    figures = dict.fromkeys(figure for drawing in drawings for figure, _ in drawing.lines)
    asked = {"names": ",".join(figures), "from": f"-{wanted}", "step": RANGES[wanted][1]}
    extra = {"name": name, "drawings": drawings, "ranges": range_links(request, wanted)}
    return Panel(
        name,
        title,
        Call("GET", SERIES, SeriesPage, query=asked),
        "chart",
        every=every,
        extra=extra,
        meanings=meanings or {},
    )


def lag_drawings(namespace: str, topic: str, group: str) -> tuple[Drawing, Drawing]:
    """The two charts of a consumer group: how many messages it has to go, and how old the oldest of them is."""
    title = f"{namespace}:{topic}/{group}"
    return (
        Drawing("Messages to go", ((f"lag_messages:{title}", "Messages"),)),
        Drawing("Age of the oldest message to go", ((f"lag_seconds:{title}", "Age"),)),
    )


def rate_drawing(namespace: str, topic: str) -> Drawing:
    """The chart of a topic: how many messages came to it, and how many readers got."""
    title = f"{namespace}:{topic}"
    return Drawing(
        "Messages a second", ((f"published_per_s:{title}", "Published"), (f"fetched_per_s:{title}", "Fetched"))
    )


def range_links(request: Request, current: str) -> tuple[RangeLink, ...]:
    """A link for each time; the rest of the page's query stays as it is."""
    own = (RANGE.name, PANEL.name, AS_JSON.name)
    rest = [
        (name, value)
        for name, value in parse_qsl(request.head.query_string.decode("ascii", "replace"), keep_blank_values=True)
        if name not in own
    ]
    return tuple(
        RangeLink(words, f"?{urlencode([*rest, (RANGE.name, name)])}", name == current)
        for name, (words, _) in RANGES.items()
    )
