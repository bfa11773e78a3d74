"""Expressions over series, written once and read twice: as PromQL for Prometheus' rules, and by the server of its own series.

An expression's value is a *vector*: a number for each set of labels. The server evaluates with what its series are now and were up to an hour
ago, by the same names as they are scraped; so what it says would fire does fire in Prometheus, but for what that adds when it extrapolates.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]  # by name, sorted
Vector: TypeAlias = dict[Labels, float]
Readings: TypeAlias = Mapping[str, Mapping[Labels, float]]  # what a scrape has, by the name of each sample

HOUR_S = 3_600
KEEP_EVERY_S = (
    14  # a look that comes sooner takes the place of the last one: a page that asks every second pushes nothing out
)
SAMPLES_MAX = 300  # of one series that are kept: an hour's, and some
_UNITS = ((HOUR_S, "h"), (60, "m"), (1, "s"))


class Past:
    """The values of some series at the last looks. Only of those that an expression asks about over time."""

    def __init__(self, windows_s: Mapping[str, int]) -> None:
        self._windows_s = windows_s  # by the name of the series
        self._seen: defaultdict[str, dict[Labels, deque[tuple[float, float]]]] = defaultdict(dict)

    def see(self, at_s: float, readings: Readings) -> None:
        """Keep what a look has found. `at_s` is of a clock that never goes back."""
        for name, window_s in self._windows_s.items():
            kept = self._seen[name]
            now = readings.get(name, {})
            for labels in kept.keys() - now.keys():
                del kept[labels]
            for labels, value in now.items():
                samples = kept.setdefault(labels, deque(maxlen=SAMPLES_MAX))
                if len(samples) > 1 and at_s - samples[-2][0] < KEEP_EVERY_S:
                    samples.pop()
                samples.append((at_s, value))
                while samples[0][0] < at_s - window_s:
                    samples.popleft()

    def increase(self, name: str, window_s: int, at_s: float) -> Vector:
        """By how much each series has risen in this time; one that starts anew, as after a restart, has risen by what it is."""
        risen: Vector = {}
        for labels, samples in self._seen[name].items():
            values = [value for time_s, value in samples if time_s >= at_s - window_s]
            risen[labels] = sum(after - before if after >= before else after for before, after in pairwise(values))
        return risen


class Moment(NamedTuple):
    """A look at all series, and what they were before. `now_s` is of the calendar, `at_s` of a clock that never goes back."""

    now_s: float
    at_s: float
    readings: Readings
    past: Past


@dataclass(frozen=True, slots=True)
class Expression:
    """Something that has a value for each set of labels."""

    @property
    def promql(self) -> str:
        """The expression as Prometheus has it."""
        raise NotImplementedError

    def value(self, moment: Moment) -> Vector:
        """Its value for each set of labels that there is."""
        raise NotImplementedError

    def windows_s(self) -> Iterable[tuple[str, int]]:
        """The series that it asks about over time, and how long each."""
        return ()


@dataclass(frozen=True, slots=True)
class Series(Expression):
    """A series as it is, of those that have these labels, and of others one of the values in `among`."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    among: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def promql(self) -> str:
        chosen = [f'{name}="{value}"' for name, value in self.labels.items()]
        chosen += [f'{name}=~"{"|".join(values)}"' for name, values in self.among.items()]
        return f"{self.name}{{{', '.join(chosen)}}}" if chosen else self.name

    def value(self, moment: Moment) -> Vector:
        return self.chosen(moment.readings.get(self.name, {}))

    def chosen(self, series: Mapping[Labels, float]) -> Vector:
        """Those that have the labels."""
        return {labels: value for labels, value in series.items() if self._has(dict(labels))}

    def _has(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.labels.items()) and all(
            labels.get(name) in values for name, values in self.among.items()
        )


@dataclass(frozen=True, slots=True)
class Increase(Expression):
    """By how much a counter has risen, summed up over the labels that are chosen and those in `without`."""

    series: Series
    window_s: int
    without: tuple[str, ...] = ()

    @property
    def promql(self) -> str:
        risen = f"increase({self.series.promql}[{duration(self.window_s)}])"
        return f"sum without ({', '.join(self._left_out)}) ({risen})" if self._left_out else risen

    @property
    def _left_out(self) -> tuple[str, ...]:
        return (*self.series.labels, *self.without)

    def value(self, moment: Moment) -> Vector:
        sums: Vector = {}
        risen = moment.past.increase(self.series.name, self.window_s, moment.at_s)
        for labels, value in self.series.chosen(risen).items():
            left = tuple(pair for pair in labels if pair[0] not in self._left_out)
            sums[left] = sums.get(left, 0.0) + value
        return sums

    def windows_s(self) -> Iterable[tuple[str, int]]:
        return ((self.series.name, self.window_s),)


@dataclass(frozen=True, slots=True)
class Quantile(Expression):
    """A quantile of what a histogram has counted in a time."""

    quantile: float
    histogram: str
    window_s: int

    @property
    def promql(self) -> str:
        return f"histogram_quantile({self.quantile}, rate({self._buckets}[{duration(self.window_s)}]))"

    @property
    def _buckets(self) -> str:
        return f"{self.histogram}_bucket"

    def value(self, moment: Moment) -> Vector:
        counts: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
        for labels, risen in moment.past.increase(self._buckets, self.window_s, moment.at_s).items():
            rest = tuple(pair for pair in labels if pair[0] != "le")
            counts[rest].append((float(dict(labels)["le"]), risen))
        return {labels: quantile_of(self.quantile, sorted(buckets)) for labels, buckets in counts.items()}

    def windows_s(self) -> Iterable[tuple[str, int]]:
        return ((self._buckets, self.window_s),)


@dataclass(frozen=True, slots=True)
class Until(Expression):
    """The seconds from now to the time that a series tells."""

    series: Series

    @property
    def promql(self) -> str:
        return f"{self.series.promql} - time()"

    def value(self, moment: Moment) -> Vector:
        return {labels: value - moment.now_s for labels, value in self.series.value(moment).items()}


@dataclass(frozen=True, slots=True)
class Quotient(Expression):
    """One series by another that has the same labels."""

    dividend: Series
    divisor: Series

    @property
    def promql(self) -> str:
        return f"{self.dividend.promql} / {self.divisor.promql}"

    def value(self, moment: Moment) -> Vector:
        divisors = self.divisor.value(moment)
        dividends = self.dividend.value(moment)
        return {labels: value / divisors[labels] for labels, value in dividends.items() if divisors.get(labels)}


@dataclass(frozen=True, slots=True)
class Linear(Expression):
    """`base + factor * inner`: so many in any case, and a share of something beside it."""

    base: float
    factor: float
    inner: Expression

    @property
    def promql(self) -> str:
        return f"{self.base:g} + {self.factor:g} * {self.inner.promql}"

    def value(self, moment: Moment) -> Vector:
        return {labels: self.base + self.factor * value for labels, value in self.inner.value(moment).items()}

    def windows_s(self) -> Iterable[tuple[str, int]]:
        return self.inner.windows_s()


@dataclass(frozen=True, slots=True)
class Condition:
    """Something is above a bound, or below it: the labels for which that is true, each with the value that is compared."""

    left: Expression
    bound: float | Expression
    below: bool = False

    @property
    def promql(self) -> str:
        """The condition as Prometheus has it."""
        bound = self.bound.promql if isinstance(self.bound, Expression) else f"{self.bound:.10g}"
        return f"{self.left.promql} {'<' if self.below else '>'} {bound}"

    def true_for(self, moment: Moment) -> Vector:
        """The labels for which it is true now."""
        bounds = self.bound.value(moment) if isinstance(self.bound, Expression) else None
        found: Vector = {}
        for labels, value in self.left.value(moment).items():
            bound = self.bound if bounds is None else bounds.get(labels)
            if isinstance(bound, float | int) and (value < bound if self.below else value > bound):
                found[labels] = value
        return found

    def windows_s(self) -> dict[str, int]:
        """The series that it asks about over time, and the longest of the times."""
        windows: dict[str, int] = {}
        sides = [self.left, *([self.bound] if isinstance(self.bound, Expression) else [])]
        for name, window_s in (each for side in sides for each in side.windows_s()):
            windows[name] = max(window_s, windows.get(name, 0))
        return windows


def quantile_of(quantile: float, buckets: list[tuple[float, float]]) -> float:
    """A quantile by cumulative buckets that ascend, reckoned as Prometheus does; NaN where nothing was counted."""
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return math.nan
    rank = quantile * total
    index = min(bisect_left([count for _, count in buckets], rank), len(buckets) - 1)
    bound, count = buckets[index]
    if math.isinf(bound):
        return buckets[index - 1][0] if index else math.nan
    start, before = buckets[index - 1] if index else (0.0, 0.0)
    return start + (bound - start) * (rank - before) / (count - before)


def duration(seconds: int) -> str:
    """A time as Prometheus writes it."""
    unit_s, unit = next(each for each in _UNITS if seconds % each[0] == 0)
    return f"{seconds // unit_s}{unit}"
