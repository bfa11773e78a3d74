"""Since when a condition holds, and so whether its alert fires."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from basalt.operations.alerts.expressions import Condition, Increase, Series
from basalt.operations.alerts.rules import Alert
from basalt.operations.alerts.watch import AlertWatch, readings_of
from basalt_engine.clock import ManualClock

LAG = Alert("Lag", "warning", 60, "{group} is behind by {value}", "seconds", Condition(Series("basalt_lag"), 10))
DOWN = Alert("Down", "critical", 60, "{instance} is down", "count", elsewhere="up == 0")
NOTICE = Alert("Notice", "info", 0, "there are {value}", "count", Condition(Series("basalt_things"), 0))
FORCED = Alert("Forced", "info", 0, "{value}", "count", Condition(Increase(Series("basalt_ends_total"), 3_600), 0))


def lags(**groups: float) -> list[Metric]:
    family = GaugeMetricFamily("basalt_lag", "", labels=("group",))
    for group, seconds in groups.items():
        family.add_metric((group,), seconds)
    return [family]


def states(watch: AlertWatch, families: list[Metric], *, everything: bool = False) -> dict[str, str]:
    shown = watch.look(families, everything=everything)
    return {f"{each.name} {each.labels.get('group', '')}".strip(): each.state for each in shown.alerts}


def test_an_alert_waits_for_its_time_and_each_of_its_series_for_its_own():
    clock = ManualClock()
    watch = AlertWatch(clock, [LAG])
    assert states(watch, lags(a=11, b=5)) == {"Lag a": "pending"}
    clock.advance(30_000)
    assert states(watch, lags(a=12, b=11)) == {"Lag a": "pending", "Lag b": "pending"}
    clock.advance(30_000)
    assert states(watch, lags(a=13, b=11)) == {"Lag a": "firing", "Lag b": "pending"}


def test_what_was_over_for_one_look_waits_anew():
    clock = ManualClock()
    watch = AlertWatch(clock, [LAG])
    states(watch, lags(a=11))
    clock.advance(60_000)
    assert states(watch, lags(a=10)) == {}
    assert states(watch, lags(a=11)) == {"Lag a": "pending"}


def test_an_alert_tells_the_values_of_now_and_since_when_it_is_so():
    clock = ManualClock(1_000_000)
    watch = AlertWatch(clock, [LAG])
    watch.look(lags(a=11))
    clock.advance(90_000)
    shown = watch.look(lags(a=130))
    (alert,) = shown.alerts
    assert (alert.text, alert.value, alert.since_ms, alert.for_ms) == ("a is behind by 2 min", 130.0, 1_000_000, 60_000)
    assert (alert.expression, alert.runbook) == ("basalt_lag > 10", "docs/operations/runbook.md#lag")
    assert (shown.at_ms, shown.watched_ms) == (1_090_000, 1_000_000)


def test_a_clock_that_is_set_makes_no_alert_fire():
    clock = ManualClock()
    watch = AlertWatch(clock, [LAG])
    states(watch, lags(a=11))
    clock.step(clock.now_ms() + 86_400_000)
    assert states(watch, lags(a=11)) == {"Lag a": "pending"}


def test_the_most_urgent_come_first_and_the_quiet_ones_only_when_asked_for():
    watch = AlertWatch(ManualClock(), [NOTICE, DOWN, LAG])
    families = [*lags(a=11), GaugeMetricFamily("basalt_things", "", value=3)]
    assert list(states(watch, families)) == ["Notice", "Lag a"]  # the one fires, the other is about to
    everything = watch.look(lags(a=1), everything=True).alerts
    assert [(each.name, each.state) for each in everything] == [("Lag", "ok"), ("Notice", "ok"), ("Down", "elsewhere")]
    assert "Prometheus" in everything[-1].text


def test_what_happened_is_known_from_one_look_to_the_next():
    clock = ManualClock()
    watch = AlertWatch(clock, [FORCED])
    assert states(watch, [CounterMetricFamily("basalt_ends", "", value=7)]) == {}
    clock.advance(15_000)
    assert states(watch, [CounterMetricFamily("basalt_ends", "", value=8)]) == {"Forced": "firing"}
    clock.advance(3_601_000)
    assert states(watch, [CounterMetricFamily("basalt_ends", "", value=8)]) == {}


def test_series_are_known_by_the_names_and_labels_of_a_scrape():
    readings = readings_of([*lags(a=1), CounterMetricFamily("basalt_calls", "", value=2)])
    assert readings["basalt_lag"] == {(("group", "a"),): 1.0}
    assert readings["basalt_calls_total"] == {(): 2.0}
