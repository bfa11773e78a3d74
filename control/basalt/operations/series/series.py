"""The history of a server's figures: what `GET /v1/admin/series`, `basalt series` and the console's charts show.

All of it is a value that is told what was seen and at what time: it looks at no clock and at nothing of the server. Three rings keep the
same figures ever more coarsely. The finest has what was seen in each second. In a coarser one a slot is made when it is over: a rate or
a quantile anew from the counts at its ends, so that it is exact; any other figure from the slots of the finer ring.

A slot in which nothing was seen, because the server was down, or its event loop or its host held up, is a gap. Nobody fills it.
"""

from __future__ import annotations

import difflib
import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from math import isnan, nan
from typing import Literal, NamedTuple, TypeAlias

from basalt.api.bodies.operations import SeriesFigure, SeriesPage
from basalt.api.positions import parse_position
from basalt.errors import InputError, SeriesNotFoundError
from basalt_engine.clock import DURATION_BOUNDS_S

GROUPS_SHOWN_MAX = 200  # consumer groups whose lag is kept: 16 KiB of memory each
TOPICS_SHOWN_MAX = 100  # topics whose rates are kept, as many as /metrics counts alone: 16 KiB of memory each
POINTS_MAX = 2_000  # of one answer and figure: more than a screen has columns
VALUES_MAX = 50_000  # of one answer: some hundred KiB, and 30 ms of the event loop
STEP_MS_MAX = 86_400_000  # of an answer's slots
NAMES_MAX = 60  # figures of one call: all but those of groups
SINCE_DEFAULT = "-10m"
DIGITS = 6  # behind the point: a microsecond, and what 32 bits have of it
LAG_MESSAGES, LAG_SECONDS = "lag_messages", "lag_seconds"  # and behind a colon NAMESPACE:TOPIC/GROUP
PUBLISHED, FETCHED = "published_per_s", "fetched_per_s"  # and behind a colon NAMESPACE:TOPIC

How: TypeAlias = Literal["rate", "p50", "p99", "mean", "most", "least"]


class Figure(NamedTuple):
    """A figure: its name, its unit ("" for a number of things), how it is made, of what, and what it says.

    `rate` and the quantiles are made from counts, by the name in `source`; the others are gauges, of which a longer slot has the
    mean, the most or the least.
    """

    name: str
    unit: str
    how: How
    source: str
    help: str


class Resolution(NamedTuple):
    """A ring's slot, and how many of them it has."""

    step_ms: int
    slots: int

    @property
    def span_ms(self) -> int:
        """The time that it reaches back."""
        return self.step_ms * self.slots


SECOND, TEN_SECONDS = Resolution(1_000, 600), Resolution(10_000, 6 * 360)
MINUTE, MINUTE_OF_GROUPS = Resolution(60_000, 8 * 1_440), Resolution(60_000, 1_440)
RESOLUTIONS = (SECOND, TEN_SECONDS, MINUTE)
RESOLUTIONS_OF_GROUPS = (SECOND, MINUTE_OF_GROUPS)  # of topics, too


class Observation(NamedTuple):
    """A look at one time: counts since the start, counts of the buckets of durations, and gauges.

    `at_ms` is of the calendar, `monotonic_ms` of a clock that never steps. A gauge that is unknown is left out.
    """

    at_ms: int
    monotonic_ms: float
    counters: Mapping[str, float]
    durations: Mapping[str, Sequence[int]]
    gauges: Mapping[str, float]


class Stretch(NamedTuple):
    """Figures over a time: the beginnings of slots of `step_ms`, and the values in them; not a number is a gap."""

    step_ms: int
    time_ms: list[int]
    values: dict[str, list[float]]


class Ring:
    """Columns of values over the same slots of time. A column has memory for what it has had, and never for more than the ring."""

    def __init__(self, resolution: Resolution) -> None:
        self.step_ms, self.slots = resolution
        self._origin = 0  # the slot that lies first in every column
        self._length = 0  # of every column
        self.newest: int | None = None
        self._columns: dict[str, array[float]] = {}

    @property
    def names(self) -> Set[str]:
        """The columns that there are."""
        return self._columns.keys()

    @property
    def oldest(self) -> int:
        """The first slot of which it knows; behind the newest while there is none."""
        return 0 if self.newest is None else max(self._origin, self.newest - self.slots + 1)

    @property
    def memory_bytes(self) -> int:
        """The memory of its values."""
        return sum(column.buffer_info()[1] * column.itemsize for column in self._columns.values())

    def put(self, slot: int, values: Mapping[str, float]) -> None:
        """Write a slot. Slots that were left out since the newest are gaps; a clock that was set back takes those behind it away."""
        if self.newest is not None and slot <= self.newest:
            self._rewind(slot)
        if self.newest is None or slot - self.newest >= self.slots:
            self._origin, self.newest, self._length = slot, slot - 1, 0
            self._columns = {name: array("f") for name in self._columns}
        for name in values.keys() - self._columns.keys():
            self._columns[name] = array("f", [nan]) * self._length
        for missing in range(self.newest + 1, slot):
            self._write(missing, {})
        self._write(slot, values)
        self.newest = slot

    def fill(self, first: int, columns: Mapping[str, array[float]]) -> None:
        """Begin with what was kept: columns of one length, no longer than the ring, the first values of which are of the slot `first`."""
        lengths = {len(column) for column in columns.values()}
        assert len(lengths) == 1, lengths
        self._length = length = lengths.pop()
        assert 0 < length <= self.slots, length
        self._origin, self.newest = first, first + length - 1
        self._columns = dict(columns)

    def read(self, name: str, first: int, last: int) -> Sequence[float]:
        """The values of the slots from `first` to `last`, both included."""
        low, high = max(first, self.oldest), min(last, -1 if self.newest is None else self.newest)
        column = self._columns.get(name)
        if column is None or low > high:
            return array("f", [nan]) * (last - first + 1)
        start, stop = (low - self._origin) % self.slots, (high - self._origin) % self.slots + 1
        found = column[start:stop] if start < stop else column[start:] + column[:stop]
        return array("f", [nan]) * (low - first) + found + array("f", [nan]) * (last - high)

    def keep_only(self, names: Iterable[str]) -> None:
        """Drop all other columns."""
        kept = set(names)
        for gone in self._columns.keys() - kept:
            del self._columns[gone]

    def _write(self, slot: int, values: Mapping[str, float]) -> None:
        place = (slot - self._origin) % self.slots
        if place < self._length:
            for name, column in self._columns.items():
                column[place] = values.get(name, nan)
            return
        for name, column in self._columns.items():
            column.append(values.get(name, nan))
        self._length += 1

    def _rewind(self, slot: int) -> None:
        assert self.newest is not None
        if slot < self.oldest:
            self.newest = None
            return
        for gone in range(slot, self.newest + 1):
            self._write(gone, {})
        self.newest = slot - 1


class NamedRings:
    """Figures of things that come and go, groups or topics: each has two, by the second and by the minute of a day."""

    def __init__(self, kinds: tuple[str, str], how: How, most: int) -> None:
        self.kinds = kinds
        self._how = how
        self._most = most
        self.rings = tuple(map(Ring, RESOLUTIONS_OF_GROUPS))

    @property
    def names(self) -> set[str]:
        """The figures that there are; what is kept from before a start is there first."""
        second, minute = self.rings
        return {*second.names, *minute.names}

    def observe(self, at_ms: int, values: Mapping[str, tuple[float, float]], shown: Iterable[str]) -> None:
        """Take in the values of things by their names. Those not `shown` are forgotten."""
        second, minute = self.rings
        names = {name for title in shown for name in _names_of(self.kinds, title)}
        assert len(names) <= 2 * self._most, len(names)
        for ring in self.rings:
            if ring.names - names:
                ring.keep_only(names)
        before = None if second.newest is None else second.newest * SECOND.step_ms // minute.step_ms
        if before is not None and before != at_ms // minute.step_ms:
            self.make_minute()
        found = dict[str, float]()
        for title, pair in values.items():
            found.update(zip(_names_of(self.kinds, title), pair, strict=True))
        second.put(at_ms // SECOND.step_ms, found)

    def make_minute(self) -> None:
        """Write the minute of the last look, as far as it came."""
        second, minute = self.rings
        if second.newest is not None:
            slot = second.newest * SECOND.step_ms // minute.step_ms
            minute.put(slot, _of_finer(second, minute.step_ms, slot, dict.fromkeys(second.names, self._how)))


class Series:
    """The rings of all figures, of the lag of consumer groups, and of the rates of topics."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        self.figures = {figure.name: figure for figure in figures}
        self.rings = tuple(map(Ring, RESOLUTIONS))
        self.groups = NamedRings((LAG_MESSAGES, LAG_SECONDS), "most", GROUPS_SHOWN_MAX)
        self.topics = NamedRings((PUBLISHED, FETCHED), "mean", TOPICS_SHOWN_MAX)
        self._last: Observation | None = None
        self._bases: dict[int, Observation] = {}  # by the step of a coarser ring: what was seen before its slot began

    @property
    def memory_bytes(self) -> int:
        """The memory of all values."""
        return sum(ring.memory_bytes for ring in (*self.rings, *self.groups.rings, *self.topics.rings))

    @property
    def minutes(self) -> tuple[Ring, Ring]:
        """The rings of minutes, which are kept over a restart: of the figures, and of groups."""
        return self.rings[-1], self.groups.rings[-1]

    def observe(self, seen: Observation) -> None:
        """Take in what was seen; once a second."""
        last, self._last = self._last, seen
        self._make_coarser(last, seen)
        self.rings[0].put(seen.at_ms // SECOND.step_ms, {**self._counted(last, seen), **self._gauges(seen)})

    def finish(self) -> None:
        """Keep the slots that go on as far as they came, for the server stops. Where it goes on within one, the later part takes the place."""
        if self._last is not None:
            for finer, ring in itertools.pairwise(self.rings):  # the finer ones first, of which the coarser are made
                self._make(ring, finer, self._bases[ring.step_ms], self._last)
        self.groups.make_minute()

    def known(self) -> list[Figure]:
        """Every figure that can be asked for."""
        further = (*sorted(self.groups.names), *sorted(self.topics.names))
        return [*self.figures.values(), *map(_figure_of, further)]

    def find(self, name: str) -> Figure | None:
        """The figure of this name."""
        found = self.figures.get(name)
        return _figure_of(name) if found is None and name in self._named(name).names else found

    def read(self, names: Sequence[str], from_ms: int, to_ms: int, now_ms: int, step_ms: int | None) -> Stretch:
        """These figures from a time up to, and not with, another one. `to_ms` lies behind `from_ms`.

        The finest ring that reaches back to `from_ms` is asked, for what it does not know yet the next one. It answers in its own slots,
        or several of them put together where `step_ms` is longer, or there would be more than `POINTS_MAX`. Slots begin at whole multiples of their length, so that the same call a moment
        later has the same slots.
        """
        is_named = any(name not in self.figures for name in names)
        resolutions = RESOLUTIONS_OF_GROUPS if is_named else RESOLUTIONS
        place = next(
            (n for n, each in enumerate(resolutions) if from_ms >= now_ms - each.span_ms), len(resolutions) - 1
        )
        own_ms = resolutions[place].step_ms
        from_ms = max(from_ms, now_ms - resolutions[-1].span_ms)
        most = max(min(POINTS_MAX, VALUES_MAX // max(len(names), 1)), 1)
        least_ms = max(step_ms or own_ms, -(-(to_ms - from_ms) // most))
        together = -(-least_ms // own_ms)
        step_ms = together * own_ms
        time_ms = list(range(-(-from_ms // step_ms) * step_ms, to_ms, step_ms))
        first, last = (time_ms[0] // own_ms, time_ms[-1] // own_ms + together - 1) if time_ms else (0, -1)
        values = dict[str, list[float]]()
        for name in names:
            rings = self.rings if name in self.figures else self._named(name).rings
            figure = self.find(name)
            how = "most" if figure is None else figure.how
            values[name] = _together(_values(rings[place:], name, first, last), together, how)
        return Stretch(step_ms, time_ms, values)

    def _named(self, name: str) -> NamedRings:
        return self.topics if name.partition(":")[0] in self.topics.kinds else self.groups

    def _make_coarser(self, last: Observation | None, seen: Observation) -> None:
        for finer, ring in zip(self.rings, self.rings[1:], strict=False):
            base = self._bases.setdefault(ring.step_ms, seen)
            if last is None or last.at_ms // ring.step_ms == seen.at_ms // ring.step_ms:
                continue
            self._make(ring, finer, base, last)
            self._bases[ring.step_ms] = last

    def _make(self, ring: Ring, finer: Ring, base: Observation, last: Observation) -> None:
        """Write the slot in which the last look was: its counts since what was seen before it began, its gauges of the finer ring."""
        slot = last.at_ms // ring.step_ms
        hows = {name: each.how for name, each in self.figures.items() if each.how in ("mean", "most", "least")}
        ring.put(slot, {**self._counted(base, last), **_of_finer(finer, ring.step_ms, slot, hows)})

    def _counted(self, before: Observation | None, seen: Observation) -> dict[str, float]:
        if before is None or seen.monotonic_ms <= before.monotonic_ms:
            return {}
        seconds = (seen.monotonic_ms - before.monotonic_ms) / 1_000
        found = dict[str, float]()
        for name, figure in self.figures.items():
            source = figure.source
            if figure.how == "rate":
                if source in seen.counters and source in before.counters:
                    found[name] = max(seen.counters[source] - before.counters[source], 0) / seconds
            elif figure.how in ("p50", "p99") and source in seen.durations:
                part = 0.5 if figure.how == "p50" else 0.99
                found[name] = quantile(seen.durations[source], before.durations.get(source), part)
        return found

    def _gauges(self, seen: Observation) -> dict[str, float]:
        return {
            name: seen.gauges[figure.source]
            for name, figure in self.figures.items()
            if figure.how in ("mean", "most", "least") and figure.source in seen.gauges
        }


def quantile(counts: Sequence[int], before: Sequence[int] | None, part: float) -> float:
    """The duration in seconds that so large a part of them did not exceed, of those that came to the buckets since `before`.

    Within a bucket they are taken to lie evenly; beyond the last bound it is that bound. Not a number where none came.
    """
    come = counts if before is None else [now - then for now, then in zip(counts, before, strict=True)]
    total = sum(come)
    if total <= 0:
        return nan
    rank, passed, low = part * total, 0, 0.0
    for bound, count in zip(DURATION_BOUNDS_S, come, strict=False):
        if count and passed + count >= rank:
            return low + (bound - low) * (rank - passed) / count
        passed += count
        low = bound
    return low


@lru_cache(2 * (GROUPS_SHOWN_MAX + TOPICS_SHOWN_MAX))  # each is asked for once a second
def _names_of(kinds: tuple[str, str], title: str) -> tuple[str, str]:
    return f"{kinds[0]}:{title}", f"{kinds[1]}:{title}"


def _figure_of(name: str) -> Figure:
    """The figure of a group's lag or of a topic's rate, by its whole name."""
    kind, _, title = name.partition(":")
    if kind in (PUBLISHED, FETCHED):
        text = "Messages that were appended to topic" if kind == PUBLISHED else "Messages that readers got from topic"
        return Figure(name, "1/s", "mean", name, f"{text} {title}")
    if kind == LAG_MESSAGES:
        return Figure(name, "", "most", name, f"Living messages that group {title} has not acknowledged")
    return Figure(name, "s", "most", name, f"Age of the oldest message that group {title} has not acknowledged")


def title_of_topic(name: str) -> tuple[str, str] | None:
    """Namespace and topic in the name of a figure; None for one that is of no topic."""
    kind, _, title = name.partition(":")
    namespace, colon, topic = title.partition(":")
    return (namespace, topic) if kind in (PUBLISHED, FETCHED) and colon else None


def title_of_group(name: str) -> tuple[str, str, str] | None:
    """Namespace, topic and group in the name of a figure; None for one that is of no group."""
    kind, _, title = name.partition(":")
    namespace, colon, rest = title.partition(":")
    topic, slash, group = rest.partition("/")
    return (namespace, topic, group) if kind in (LAG_MESSAGES, LAG_SECONDS) and colon and slash else None


def _values(rings: Sequence[Ring], name: str, first: int, last: int) -> Sequence[float]:
    """The values of slots of the first ring; of before it knows anything those of the next one, which may be from before a restart."""
    ring, further = rings[0], rings[1:]
    found = ring.read(name, first, last)
    stop = min(last + 1 if ring.newest is None else ring.oldest, last + 1)
    if first >= stop or not further:
        return found
    together = further[0].step_ms // ring.step_ms
    coarser = _values(further, name, first // together, (stop - 1) // together)
    before = array("f", (coarser[slot // together - first // together] for slot in range(first, stop)))
    return before + array("f", found[stop - first :])


def _of_finer(finer: Ring, step_ms: int, slot: int, hows: Mapping[str, How]) -> dict[str, float]:
    """One value for each figure: of what a finer ring has in a slot of a coarser one."""
    together = step_ms // finer.step_ms
    found = dict[str, float]()
    for name, how in hows.items():
        (value,) = _together(finer.read(name, slot * together, (slot + 1) * together - 1), together, how)
        if not isnan(value):
            found[name] = value
    return found


def _together(values: Sequence[float], together: int, how: How) -> list[float]:
    """So many values each as one: their mean, most or least. Of p99 the most: that something was slow must not be lost."""
    if together == 1:
        return list(values)
    found = list[float]()
    for start in range(0, len(values), together):
        there = [value for value in values[start : start + together] if value == value]  # not a number
        if not there:
            found.append(nan)
        elif how in ("most", "p99"):
            found.append(max(there))
        else:
            found.append(min(there) if how == "least" else sum(there) / len(there))
    return found


def page_of(
    series: Series, names: Sequence[str], since: str | None, until: str | None, step_ms: int | None, now_ms: int
) -> SeriesPage:
    """The answer to `GET /v1/admin/series`. `since` and `until` are positions in time: @ and a time, or a time from now, such as -1h."""
    unknown = next((name for name in names if series.find(name) is None), None)
    if unknown is not None:
        raise _not_found(series, unknown)
    figures = [series.figures.get(name) or _figure_of(name) for name in dict.fromkeys(names)]
    to_ms = min(_time_of(until or "now", now_ms, "to"), now_ms + 1)
    from_ms = _time_of(since or SINCE_DEFAULT, now_ms, "from")
    if from_ms >= to_ms:
        raise InputError(
            "the time ends before it begins, or has not begun",
            field="from",
            hint="give a time that is over, such as -1h",
        )
    found = series.read([each.name for each in figures], from_ms, to_ms, now_ms, step_ms)
    values = {
        name: tuple(None if isnan(value) else round(value, DIGITS) for value in column)
        for name, column in found.values.items()
    }
    return SeriesPage(found.step_ms, tuple(found.time_ms), values, tuple(map(figure_body, figures)))


def figure_body(figure: Figure) -> SeriesFigure:
    """A figure as the API tells it."""
    return SeriesFigure(figure.name, figure.unit, figure.help)


def _time_of(text: str, now_ms: int, field: str) -> int:
    found = parse_position(text, now_ms, field=field)
    if found.time_ms is None:
        raise InputError(
            f"{field} must be a time, and {text!r} is a place in a topic",
            field=field,
            hint="write -1h, now, or @ and a time",
        )
    return found.time_ms


def _not_found(series: Series, name: str) -> SeriesNotFoundError:
    of_group = title_of_group(name)
    if of_group is not None:
        text = f"no history of the lag of group {'/'.join(of_group)[:120]!r} is kept"
        return SeriesNotFoundError(
            text,
            field="names",
            hint=f"there is no such group, it has not been looked at yet, or {GROUPS_SHOWN_MAX} others do more",
        )
    of_topic = title_of_topic(name)
    if of_topic is not None:
        return SeriesNotFoundError(
            f"no history of topic {':'.join(of_topic)[:120]!r} is kept",
            field="names",
            hint=f"nothing came to it or was read since this server began to lead, or {TOPICS_SHOWN_MAX} others do more",
        )
    close = difflib.get_close_matches(name, series.figures, 1)
    hint = f"did you mean {close[0]}?" if close else "leave `names` out for a list of all that there are"
    return SeriesNotFoundError(f"there is no figure {name[:80]!r}", field="names", hint=hint)
