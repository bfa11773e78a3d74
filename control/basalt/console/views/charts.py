"""Charts as SVG, written by the server: lines over time, and sparklines. Pure functions from numbers to markup.

A reader without a script, without colors, or without sight gets the same: lines differ by dashes and by name, a description says in words what they
do, and the numbers are in a table below. Text stands beside the drawing and not in it, so it has its size on a narrow screen, too; the drawing
alone is stretched. There is no inline style: classes of console.css and attributes of SVG, which the console's policy lets through.
docs/decisions/0053-charts-are-drawn-by-the-server.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import NamedTuple

from markupsafe import Markup

from basalt.console import text

WIDTH, HEIGHT = 600, 150  # of the drawing's own units
LINES_MAX = 6  # of one chart: more cannot be told apart
TABLE_ROWS_MAX = 30  # of the numbers below a chart: more of them have the command
COUNT_TOP_MIN = 2.0  # of an axis of whole things: there is no half of one to be named on it
LABELS_Y, LABELS_X = 3, 4  # a narrow screen has room for so many
DASHES = ("", "8 4", "2 4", "12 4 2 4", "4 8", "16 6")  # one for each line
SPARK_WIDTH, SPARK_HEIGHT = 100, 20

Values = Sequence[float | None]


class Line(NamedTuple):
    """A line of a chart: its name, and a value for each slot of time; None is a gap."""

    name: str
    values: Values


class Extent(NamedTuple):
    """The least, the most and the mean of values, and the newest of them; and how many slots have none."""

    least: float
    most: float
    mean: float
    newest: float
    gaps: int


def chart(key: str, title: str, unit: str, time_ms: Sequence[int], step_ms: int, lines: Sequence[Line]) -> Markup:
    """A chart of lines. `key` makes the ids of its parts, and is one of its page; `time_ms` are the beginnings of slots of `step_ms`.

    Lines beyond `LINES_MAX` are counted and left out.
    """
    shown = lines[:LINES_MAX]
    top = scale(max((value for line in shown for value in line.values if value is not None), default=0.0), unit)
    parts = [
        _legend(shown, unit),
        _plot(key, title, unit, top, time_ms, step_ms, shown),
        _numbers(key, title, unit, time_ms, step_ms, shown),
    ]
    if len(lines) > LINES_MAX:
        parts.append(Markup("<p>{} more lines are not drawn.</p>").format(len(lines) - LINES_MAX))
    return Markup('<div class="figure" id="chart-{}">{}</div>').format(key, Markup("").join(parts))


def spark(values: Values, title: str, unit: str) -> Markup:
    """A line as small as a word, for a cell of a table; its text says what it does."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    drawn = path(values, SPARK_WIDTH, SPARK_HEIGHT, top)
    return Markup(
        '<svg class="spark" role="img" viewBox="0 0 {} {}" preserveAspectRatio="none"><title>{}: {}</title><path class="line" d="{}" '
        'vector-effect="non-scaling-stroke"></path></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, text.shown(title), in_words(values, unit), drawn)


def path(values: Values, width: float, height: float, top: float) -> str:
    """The points of a line as SVG has them: from left to right, upwards from nothing to `top`, interrupted where there is a gap."""
    parts: list[str] = []
    last = max(len(values) - 1, 1)
    pen_down = False
    for number, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        x = number * width / last
        y = height - min(max(value / top, 0.0), 1.0) * height
        if pen_down:
            parts.append(f"L{x:.4g} {y:.4g}")
        else:  # a point between two gaps is a dot: a line of no length with round ends
            parts.append(f"M{x:.4g} {y:.4g}h0")
        pen_down = True
    return "".join(parts)


def scale(most: float, unit: str) -> float:
    """The round number at which an axis ends: 1, 2 or 5 times a power of ten, of bytes 1, 2, 4 … times 1,024 …"""
    if most <= 0 or (not unit and most < COUNT_TOP_MIN):
        return 1.0 if unit else COUNT_TOP_MIN
    if unit.startswith("B"):
        power = 1.0
        while power < most:
            power *= 2
        return power
    magnitude = 10.0 ** floor(log10(most))
    for step in (1, 2, 5, 10):
        if most <= step * magnitude * (1 + 1e-9):
            return step * magnitude
    return 10 * magnitude


def amount(value: float | None, unit: str) -> str:
    """A value with its unit, as people write it."""
    if value is None:
        return text.NOTHING
    if unit == "s":
        return text.duration(value * 1_000) if value >= 0.01 or value == 0 else f"{value * 1_000:.2g} ms"
    if unit.startswith("B"):
        return text.size(round(value)) + unit[1:]
    shown = text.number(round(value)) if value == round(value) or abs(value) >= 100 else f"{value:.3g}"
    return f"{shown} {'/s' if unit == '1/s' else unit}".rstrip()


def extent(values: Values) -> Extent | None:
    """The extent of a line; None for one that is all gap."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    return Extent(min(there), max(there), sum(there) / len(there), there[-1], len(values) - len(there))


def in_words(values: Values, unit: str) -> str:
    """A sentence that tells how a line goes."""
    found = extent(values)
    if found is None:
        return "nothing is known"
    least, most, mean, newest = (amount(value, unit) for value in found[:4])
    gaps = f"; {found.gaps} of {len(values)} values are missing" if found.gaps else ""
    return f"{newest} at the end, {least} to {most}, {mean} on average{gaps}"


def _plot(
    key: str, title: str, unit: str, top: float, time_ms: Sequence[int], step_ms: int, lines: Sequence[Line]
) -> Markup:
    grid = Markup("").join(
        Markup('<path class="grid" d="M0 {y:.4g}H{}" vector-effect="non-scaling-stroke"></path>').format(
            WIDTH, y=HEIGHT * number / (LABELS_Y - 1)
        )
        for number in range(LABELS_Y)
    )
    drawn = Markup("").join(
        Markup(
            '<path class="line line-{}" d="{}" stroke-dasharray="{}" vector-effect="non-scaling-stroke"></path>'
        ).format(number, path(line.values, WIDTH, HEIGHT, top), DASHES[number - 1] or "none")
        for number, line in enumerate(lines, 1)
    )
    words = "; ".join(f"{text.shown(line.name)}: {in_words(line.values, unit)}" for line in lines)
    described = f"{_span(time_ms, step_ms)}. {words}." if time_ms else "No time is shown."
    return Markup(
        '<div class="plot"><div class="axis-y" aria-hidden="true">{}</div>'
        '<svg class="chart" role="img" aria-labelledby="chart-{key}-title chart-{key}-text" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '<title id="chart-{key}-title">{}</title><desc id="chart-{key}-text">{}</desc>{}{}</svg>'
        '<div class="axis-x" aria-hidden="true">{}</div></div>'
    ).format(
        _labels_y(top, unit), WIDTH, HEIGHT, text.shown(title), described, grid, drawn, _labels_x(time_ms, step_ms), key=key
    )  # fmt: skip


def _labels_y(top: float, unit: str) -> Markup:
    steps = (top * (1 - number / (LABELS_Y - 1)) for number in range(LABELS_Y))
    return Markup("").join(Markup("<span>{}</span>").format(amount(value, unit)) for value in steps)


def _labels_x(time_ms: Sequence[int], step_ms: int) -> Markup:
    """Times in UTC: as many as fit, from the first slot to the last one."""
    if not time_ms:
        return Markup("")
    long = time_ms[-1] - time_ms[0] >= 86_400_000
    form = "%d %b %H:%M" if long else "%H:%M" if step_ms >= 10_000 else "%H:%M:%S"
    count = min(LABELS_X - long, len(time_ms))
    places = [round(number * (len(time_ms) - 1) / max(count - 1, 1)) for number in range(count)]
    return Markup("").join(Markup("<span>{}</span>").format(_at(time_ms[place], form)) for place in places)


def _legend(lines: Sequence[Line], unit: str) -> Markup:
    """The lines with a piece of each, and their newest values."""
    items: list[Markup] = []
    for number, line in enumerate(lines, 1):
        found = extent(line.values)
        items.append(
            Markup(
                '<li><svg class="sample" viewBox="0 0 40 10" aria-hidden="true"><path class="line line-{}" d="M0 5H40" '
                'stroke-dasharray="{}"></path></svg> {} <strong>{}</strong></li>'
            ).format(
                number,
                DASHES[number - 1] or "none",
                text.shown(line.name),
                amount(None if found is None else found.newest, unit),
            )
        )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _numbers(key: str, title: str, unit: str, time_ms: Sequence[int], step_ms: int, lines: Sequence[Line]) -> Markup:
    """The table of the numbers: of several slots in a row the mean, where there are many."""
    together = max(ceil(len(time_ms) / TABLE_ROWS_MAX), 1)
    rows: list[Markup] = []
    for start in range(0, len(time_ms), together):
        cells = Markup("").join(
            Markup('<td class="num">{}</td>').format(amount(_mean(line.values[start : start + together]), unit))
            for line in lines
        )
        rows.append(Markup('<tr><th scope="row">{}</th>{}</tr>').format(text.moment(time_ms[start]), cells))
    heads = Markup("").join(Markup('<th scope="col">{}</th>').format(text.shown(line.name)) for line in lines)
    each = text.duration(together * step_ms)
    return Markup(
        '<details class="numbers"><summary>Numbers of {0}</summary><div class="wide"><table id="chart-{1}-numbers"><caption class="sr">{0}'
        '{2}</caption><thead><tr><th scope="col">From</th>{3}</tr></thead><tbody>{4}</tbody></table></div></details>'
    ).format(text.shown(title), key, f", on average of {each} each" if together > 1 else "", heads, Markup("").join(rows))  # fmt: skip


def _mean(values: Values) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _span(time_ms: Sequence[int], step_ms: int) -> str:
    form = "%Y-%m-%d %H:%M:%S UTC"
    return f"From {_at(time_ms[0], form)} to {_at(time_ms[-1] + step_ms, form)}"


def _at(time_ms: int, form: str) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime(form)
