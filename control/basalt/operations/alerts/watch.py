"""Since when each alert's condition has been true, as the server sees it of its own series; and so which alerts would fire now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, get_args

from prometheus_client.metrics_core import Metric

from basalt.api.bodies.operations import Alert as AlertBody
from basalt.api.bodies.operations import AlertList
from basalt.operations.alerts.expressions import Labels, Moment, Past, Readings, Vector
from basalt.operations.alerts.rules import ALERTS, Alert, Severity, sentence, windows_s
from basalt_engine.clock import Clock

RUNBOOK = "docs/operations/runbook.md"  # as a path within Basalt's documentation, for each installation may publish it elsewhere

State: TypeAlias = Literal["firing", "pending", "ok", "elsewhere"]
_STATES, _SEVERITIES = get_args(State), get_args(Severity)  # the most urgent first


class AlertWatch:
    """Looks at a server's series every now and then, and remembers what its alerts need."""

    def __init__(self, clock: Clock, alerts: Sequence[Alert] = ALERTS) -> None:
        self._clock = clock
        self._alerts = alerts
        self._past = Past(windows_s(alerts))
        self._since: dict[tuple[str, Labels], tuple[float, int]] = {}  # by either clock
        self._watched_ms = clock.now_ms()

    def look(self, families: Iterable[Metric], *, everything: bool = False) -> AlertList:
        """Take in what the series are now: the alerts that fire or are about to; with `everything` the others, too."""
        now_ms, at_s = self._clock.now_ms(), self._clock.monotonic_ms() / 1_000
        readings = readings_of(families)
        self._past.see(at_s, readings)
        moment = Moment(now_ms / 1_000, at_s, readings, self._past)
        shown: list[AlertBody] = []
        for alert in self._alerts:
            found = {} if alert.condition is None else alert.condition.true_for(moment)
            self._forget_over(alert, found)
            shown += [self._true(alert, labels, value, now_ms, at_s) for labels, value in found.items()]
            if everything and not found:
                shown.append(_quiet(alert))
        shown.sort(key=lambda each: (_STATES.index(each.state), _SEVERITIES.index(each.severity)))
        return AlertList(now_ms, self._watched_ms, tuple(shown))

    def _forget_over(self, alert: Alert, found: Vector) -> None:
        """Forget the labels for which the condition is true no more."""
        for name, labels in [each for each in self._since if each[0] == alert.name and each[1] not in found]:
            del self._since[name, labels]

    def _true(self, alert: Alert, labels: Labels, value: float, now_ms: int, at_s: float) -> AlertBody:
        since_s, since_ms = self._since.setdefault((alert.name, labels), (at_s, now_ms))
        state: State = "firing" if at_s - since_s >= alert.for_s else "pending"
        return _body(alert, state, sentence(alert, dict(labels), value), dict(labels), value, since_ms)


def readings_of(families: Iterable[Metric]) -> Readings:
    """The values of series, by the names under which they are scraped."""
    readings: dict[str, dict[Labels, float]] = {}
    for family in families:
        for sample in family.samples:
            readings.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return readings


def _quiet(alert: Alert) -> AlertBody:
    text = "" if alert.condition is not None else "one server cannot tell: Prometheus does, which sees all of them"
    return _body(alert, "ok" if alert.condition is not None else "elsewhere", text, {}, None, None)


def _body(
    alert: Alert, state: State, text: str, labels: dict[str, str], value: float | None, since_ms: int | None
) -> AlertBody:
    runbook = f"{RUNBOOK}#{alert.section}"
    return AlertBody(
        alert.name, alert.severity, state, text, labels, value, since_ms, alert.for_s * 1_000, alert.promql, runbook
    )
