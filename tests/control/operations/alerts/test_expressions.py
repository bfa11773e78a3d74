"""Expressions: the same value by the server's own reckoning as by Prometheus', which tests/deploy holds against it."""

from __future__ import annotations

import math

import pytest

from basalt.operations.alerts.expressions import (
    KEEP_EVERY_S,
    SAMPLES_MAX,
    Condition,
    Increase,
    Labels,
    Linear,
    Moment,
    Past,
    Quantile,
    Quotient,
    Series,
    Until,
    duration,
    quantile_of,
)

READ, WRITE = (("verb", "read"),), (("verb", "write"),)


def moment(now_s: float, past: Past | None = None, **readings: float | dict[Labels, float]) -> Moment:
    each = {name: value if isinstance(value, dict) else {(): value} for name, value in readings.items()}
    return Moment(now_s, now_s, each, past or Past({}))


def seen(window_s: int, *values: float | dict[Labels, float] | None, name: str = "calls_total") -> Past:
    """A past in which a series had these values, one every 15 s from 0 on; None: it was not there."""
    past = Past({name: window_s})
    for number, value in enumerate(values):
        now: dict[Labels, float] = {} if value is None else value if isinstance(value, dict) else {(): value}
        past.see(15.0 * number, {name: now})
    return past


def test_a_series_is_chosen_by_its_labels():
    states = {(("state", "open"),): 3.0, (("state", "aborting"),): 1.0}
    found = Series("live", {"state": "aborting"}).value(moment(0, live=states))
    assert found == {(("state", "aborting"),): 1.0}
    assert Series("live", {"state": "aborting"}).promql == 'live{state="aborting"}'
    assert Series("live").value(moment(0)) == {}
    either = Series("live", among={"state": ("open", "committing")})
    assert either.value(moment(0, live=states)) == {(("state", "open"),): 3.0}
    assert either.promql == 'live{state=~"open|committing"}'


def test_an_increase_is_that_of_its_window_alone():
    past = seen(60, 0, 10, 20, 20, 25, 30)
    assert Increase(Series("calls_total"), 60).value(moment(75, past)) == {(): 20.0}
    assert Increase(Series("calls_total"), 15).value(moment(75, past)) == {(): 5.0}


def test_a_counter_that_starts_anew_has_risen_by_what_it_is():
    assert Increase(Series("calls_total"), 300).value(moment(60, seen(300, 100, 110, 4, 6))) == {(): 16.0}


def test_a_series_that_has_gone_has_no_increase():
    assert Increase(Series("calls_total"), 300).value(moment(60, seen(300, 100, 110, None))) == {}


def test_increases_are_summed_up_over_the_labels_that_are_left_out():
    past = seen(300, {READ: 0.0, WRITE: 5.0}, {READ: 3.0, WRITE: 10.0})
    assert Increase(Series("calls_total"), 300).value(moment(15, past)) == {READ: 3.0, WRITE: 5.0}
    everything = Increase(Series("calls_total"), 300, without=("verb",))
    assert everything.value(moment(15, past)) == {(): 8.0}
    assert everything.promql == "sum without (verb) (increase(calls_total[5m]))"
    chosen = Increase(Series("calls_total", {"verb": "write"}), 300)
    assert chosen.value(moment(15, past)) == {(): 5.0}
    assert chosen.promql == 'sum without (verb) (increase(calls_total{verb="write"}[5m]))'


def test_so_many_samples_of_a_series_are_kept_and_no_more():
    past = Past({"calls_total": 1_000_000})
    for number in range(SAMPLES_MAX + 50):
        past.see(15.0 * number, {"calls_total": {(): float(number)}})
    assert past.increase("calls_total", 1_000_000, 15.0 * (SAMPLES_MAX + 49)) == {(): SAMPLES_MAX - 1}


def test_whoever_looks_every_second_pushes_nothing_out_of_memory():
    past = Past({"calls_total": 3_600})
    for second in range(3_600):
        past.see(float(second), {"calls_total": {(): 1.0 if second > 10 else 0.0}})
        assert past.increase("calls_total", 3_600, second) == {(): 1.0 if second > 10 else 0.0}
    assert SAMPLES_MAX * KEEP_EVERY_S > 3_600


def test_a_time_is_told_by_the_calendar_and_a_share_by_its_parts():
    assert Until(Series("ends")).value(moment(100, ends=160)) == {(): 60.0}
    free = Quotient(Series("free"), Series("size"))
    assert free.value(moment(0, free=5, size=20)) == {(): 0.25}
    assert free.value(moment(0, free=5, size=0)) == {}
    assert free.promql == "free / size"


def test_a_condition_is_true_for_each_of_the_labels_for_which_it_is():
    above = Condition(Series("lag"), 10)
    assert above.true_for(moment(0, lag={READ: 11.0, WRITE: 10.0})) == {READ: 11.0}
    assert above.promql == "lag > 10"
    below = Condition(Series("lag"), 10, below=True)
    assert below.true_for(moment(0, lag={READ: 11.0, WRITE: 9.0})) == {WRITE: 9.0}
    assert below.promql == "lag < 10"


def test_a_bound_may_be_a_share_of_something_else_that_has_the_same_labels():
    condition = Condition(Series("late"), Linear(5, 0.5, Series("begun")))
    assert condition.promql == "late > 5 + 0.5 * begun"
    assert condition.true_for(moment(0, late=16, begun=20)) == {(): 16.0}
    assert condition.true_for(moment(0, late=15, begun=20)) == {}
    assert condition.true_for(moment(0, late=16)) == {}


def test_a_condition_names_the_series_that_it_must_know_the_past_of():
    condition = Condition(Increase(Series("a_total"), 300), Linear(0, 2, Increase(Series("b_total"), 60)))
    assert condition.windows_s() == {"a_total": 300, "b_total": 60}
    assert Condition(Quantile(0.5, "took", 60), 1).windows_s() == {"took_bucket": 60}
    assert Condition(Series("now"), 1).windows_s() == {}


def test_a_quantile_is_reckoned_from_what_a_histogram_counted_in_the_window():
    buckets = [{(("le", "1.0"),): 100.0 + low, (("le", "2.0"),): 100.0 + low + high, (("le", "+Inf"),): 100.0 + low + high} for low, high in ((0.0, 0.0), (5.0, 5.0))]  # fmt: skip
    past = seen(300, *buckets, name="took_bucket")
    assert Quantile(0.75, "took", 300).value(moment(15, past)) == {(): 1.5}
    assert Quantile(0.75, "took", 300).promql == "histogram_quantile(0.75, rate(took_bucket[5m]))"


@pytest.mark.parametrize(
    ("quantile", "buckets", "expected"),
    [
        (0.5, [(1.0, 10.0), (math.inf, 10.0)], 0.5),
        (0.99, [(1.0, 50.0), (2.0, 100.0), (math.inf, 100.0)], 1.98),
        (
            0.99,
            [(1.0, 0.0), (2.0, 0.0), (math.inf, 10.0)],
            2.0,
        ),  # beyond the last bound: that one, as Prometheus has it
    ],
)
def test_a_quantile_lies_within_its_bucket(quantile: float, buckets: list[tuple[float, float]], expected: float):
    assert quantile_of(quantile, buckets) == pytest.approx(expected)


def test_nothing_counted_has_no_quantile_and_is_above_nothing():
    assert math.isnan(quantile_of(0.5, [(1.0, 0.0), (math.inf, 0.0)]))
    assert math.isnan(quantile_of(0.5, []))


def test_times_are_written_in_the_largest_unit_that_they_fill():
    assert [duration(seconds) for seconds in (15, 60, 90, 3_600, 86_400)] == ["15s", "1m", "90s", "1h", "24h"]
