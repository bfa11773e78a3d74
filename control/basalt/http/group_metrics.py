"""The series of consumer groups in /metrics: the busiest groups have some each, all the others share one named `_other`.

A group is there from its making on, whether or not anybody works for it: one that nobody works for is what an alert is for. What it did is
counted since this server began to serve it, so counters only rise, and start at 0 with a group that comes to be shown.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from basalt.catalog.topics import title_of
from basalt.errors import BasaltError
from basalt.groups.figures import GroupTotals
from basalt.operations.groups.inspection import CLAIMED, DELAYED, PARKED, PENDING, GroupInspection
from basalt.transactions.rules.edits import ReturnReason
from basalt.transactions.rules.groups import GroupState
from basalt_engine.clock import Clock

GROUPS_SHOWN_MAX = 100  # series are what a metrics store pays for: some fifteen of each group
BUSIER = 2  # times as busy as the quietest that is shown: so that two like groups do not take turns
DECAY_MS = 10_000  # between two looks that forget half of what was busy: whoever asks more often must not make groups take turns
LOOKED_AT = 500  # groups without a pause: about a millisecond
LABELS = ("namespace", "topic", "group")
OTHER = ("_other", "_other", "_other")
UNACKNOWLEDGED = (CLAIMED, PENDING, DELAYED, PARKED)
RETURNED = "returned_"  # and the reason: what the counts are called by

_COUNTERS = (
    ("fetched", "Messages that the group was dealt"),
    ("acknowledged", "Messages that it acknowledged"),
    ("dead_lettered", "Messages that it moved to its dead-letter topic"),
    ("conflicts", "Acknowledgements that were refused, for another had the message"),
)
_GAUGES = (
    ("lag_messages", "Living messages that the group has not acknowledged"),
    ("lag_seconds", "Age of the oldest of them"),
    ("members", "Members that have been heard of within their lease"),
    ("spans", "Pieces in which the acknowledged part of the topic lies"),
)


class Counts(NamedTuple):
    """A group that is shown, and what it has counted since it is."""

    title: tuple[str, ...]
    counted: Counter[str]


class GroupSeries:
    """Chooses the groups that are shown, and keeps every series rising."""

    def __init__(self, shown_max: int = GROUPS_SHOWN_MAX) -> None:
        self._shown_max = shown_max
        self._shown: dict[int, Counter[str]] = {}
        self._seen: dict[int, Counter[str]] = {}
        self._recent: dict[int, int] = {}
        self.other: Counter[str] = Counter()
        self._decayed_ms = float("-inf")

    @property
    def shown(self) -> dict[int, Counter[str]]:
        """The counts of those that are shown, by the numbers of the groups."""
        return self._shown

    def look(self, groups: Iterable[tuple[int, GroupTotals | None]], now_ms: float) -> None:
        """Take in what each group has done since the last look; of those that are there now. `now_ms` is of a clock that never goes back."""
        there: set[int] = set()
        decays = now_ms - self._decayed_ms >= DECAY_MS
        for number, totals in groups:
            there.add(number)
            now = Counter[str]() if totals is None else flat(totals)
            before = self._seen.get(number, Counter())
            done = now - before if all(now[name] >= before[name] for name in before) else now  # else it began anew
            self._seen[number] = now
            busy = done["fetched"] + done["acknowledged"]
            self._recent[number] = self._recent.get(number, 0) // (2 if decays else 1) + busy
            counts = self._shown.get(number)
            if counts is None and len(self._shown) < self._shown_max:
                counts = self._shown[number] = Counter()
            (self.other if counts is None else counts).update(done)
        for gone in self._seen.keys() - there:
            del self._seen[gone], self._recent[gone]
            self._shown.pop(gone, None)
        if decays:
            self._decayed_ms = now_ms
            self._promote_busy()

    def _promote_busy(self) -> None:
        quiet = sorted(self._shown, key=self._recent.__getitem__)
        busy = sorted(self._recent.keys() - self._shown.keys(), key=self._recent.__getitem__, reverse=True)
        for leaving, coming in zip(quiet, busy, strict=False):
            if self._recent[coming] <= BUSIER * self._recent[leaving]:
                break
            del self._shown[leaving]
            self._shown[coming] = Counter()


def flat(totals: GroupTotals) -> Counter[str]:
    """The counts of a group by their names."""
    counts = Counter({name: getattr(totals, name) for name, _ in _COUNTERS})
    counts.update({f"{RETURNED}{reason}": count for reason, count in totals.returned.items()})
    return counts


class GroupMetrics:
    """Puts the series of all groups together."""

    def __init__(self, inspection: GroupInspection, clock: Clock) -> None:
        self._inspection = inspection
        self._clock = clock
        self._series = GroupSeries()

    async def families(self) -> AsyncIterator[Metric]:
        """Every series of groups; none of them while the transaction manager reads its log."""
        try:
            here = self._inspection.is_here  # each group is shown by the server that deals it
            states = {state.number: state for state in self._inspection.states() if here(state)}
        except BasaltError:
            return
        gauge = GaugeMetricFamily("basalt_groups", "Consumer groups")
        gauge.add_metric((), len(states))
        yield gauge
        totals = self._inspection.totals()
        self._series.look(((number, totals.get(number)) for number in states), self._clock.monotonic_ms())
        shown = {number: state for number, state in states.items() if number in self._series.shown}
        counts = [Counts(titled(state), self._series.shown[number]) for number, state in shown.items()]
        if self._series.other:
            counts.append(Counts(OTHER, self._series.other))
        for family in _counters(counts):
            yield family
        async for family in self._gauges(shown.values(), [s for n, s in states.items() if n not in shown]):
            yield family

    async def _gauges(self, shown: Iterable[GroupState], others: list[GroupState]) -> AsyncIterator[Metric]:
        gauges = {name: GaugeMetricFamily(f"basalt_group_{name}", text, labels=LABELS) for name, text in _GAUGES}
        text = "Messages that were dealt and are not acknowledged"
        unacknowledged = GaugeMetricFamily("basalt_group_unacknowledged", text, labels=(*LABELS, "state"))
        for state in shown:
            title = titled(state)
            try:
                live = await self._inspection.live_of(state)
                figures = await self._inspection.figures(live)
            except BasaltError:  # it was deleted meanwhile, or the store fails: the others are shown
                continue
            values = (figures.lag_messages, figures.lag_seconds, len(live.members), figures.spans)
            for family, value in zip(gauges.values(), values, strict=True):
                family.add_metric(title, value)
            for each in UNACKNOWLEDGED:
                unacknowledged.add_metric((*title, each), getattr(figures, each))
            await asyncio.sleep(0)
        if others:
            members = self._inspection.member_counts()
            gauges["members"].add_metric(OTHER, sum(members.get(state.number, 0) for state in others))
            spans = 0
            for number, state in enumerate(others, 1):
                spans += len(state.acknowledged)
                if number % LOOKED_AT == 0:
                    await asyncio.sleep(0)
            gauges["spans"].add_metric(OTHER, spans)
        for family in (*gauges.values(), unacknowledged):
            yield family


def titled(state: GroupState) -> tuple[str, ...]:
    """The labels of a group."""
    title = title_of(state.prefix)
    return title.namespace, title.name, state.name


def _counters(counts: list[Counts]) -> Iterator[Metric]:
    for name, text in _COUNTERS:
        family = CounterMetricFamily(f"basalt_group_{name}", text, labels=LABELS)
        for title, counted in counts:
            family.add_metric(title, counted[name])
        yield family
    returned = CounterMetricFamily(
        "basalt_group_returned", "Messages that came back unacknowledged", labels=(*LABELS, "reason")
    )
    for title, counted in counts:
        for reason in ReturnReason:
            word = reason.name.lower()
            if counted[RETURNED + word]:
                returned.add_metric((*title, word), counted[RETURNED + word])
    yield returned
