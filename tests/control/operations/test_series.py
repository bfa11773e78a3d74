"""The history of figures: rings, what is made coarser, and which ring answers. No clock and no server."""

from __future__ import annotations

from math import isnan, nan

import pytest

from basalt.errors import InputError, SeriesNotFoundError
from basalt.operations.series import series as module
from basalt.operations.series.series import (
    DIGITS,
    GROUPS_SHOWN_MAX,
    MINUTE,
    POINTS_MAX,
    SECOND,
    STEP_MS_MAX,
    TOPICS_SHOWN_MAX,
    VALUES_MAX,
    Figure,
    Observation,
    Resolution,
    Ring,
    Series,
    page_of,
    quantile,
    title_of_group,
    title_of_topic,
)
from basalt.operations.series.table import FIGURES
from basalt_engine.clock import DURATION_BOUNDS_S, Durations

AT_MS = 1_700_000_040_500  # the middle of the first second of a minute
HOUR_MS = 3_600_000
TABLE = (
    Figure("calls_per_s", "1/s", "rate", "calls", ""),
    Figure("call_p50_s", "s", "p50", "call", ""),
    Figure("call_p99_s", "s", "p99", "call", ""),
    Figure("mean", "", "mean", "gauge", ""),
    Figure("most", "", "most", "gauge", ""),
    Figure("least", "", "least", "gauge", ""),
)


def known(values: list[float | None] | list[float]) -> list[float | None]:
    """Values that can be compared: a gap is None."""
    return [None if value is None or isnan(value) else value for value in values]


def seen(second: int, calls: float = 0, gauge: float | None = None, durations: Durations | None = None) -> Observation:
    return Observation(
        AT_MS + second * 1_000,
        second * 1_000.0,
        {"calls": calls},
        {"call": tuple((durations or Durations()).counts)},
        {} if gauge is None else {"gauge": gauge},
    )


def read(series: Series, name: str, from_s: int, to_s: int, now_s: int | None = None, step_ms: int | None = None):
    now_ms = AT_MS + (to_s if now_s is None else now_s) * 1_000
    stretch = series.read([name], AT_MS - 500 + from_s * 1_000, AT_MS - 500 + to_s * 1_000, now_ms, step_ms)
    return known(stretch.values[name])


# Rings.


def test_a_ring_keeps_its_newest_slots_and_what_it_does_not_know_is_a_gap():
    ring = Ring(Resolution(1_000, 4))
    assert known(ring.read("a", 0, 2)) == [None, None, None]
    for slot in range(10, 16):
        ring.put(slot, {"a": slot})
    assert known(ring.read("a", 10, 17)) == [None, None, 12, 13, 14, 15, None, None]
    assert known(ring.read("b", 14, 15)) == [None, None]
    assert (ring.oldest, ring.newest) == (12, 15)


def test_slots_that_were_left_out_are_gaps_also_where_the_ring_has_come_round():
    ring = Ring(Resolution(1_000, 4))
    for slot in (0, 1, 2, 3, 4, 6):
        ring.put(slot, {"a": slot})
    assert known(ring.read("a", 2, 6)) == [None, 3, 4, None, 6]
    ring.put(100, {"a": 7})
    assert known(ring.read("a", 5, 7)) == [None] * 3
    assert known(ring.read("a", 98, 100)) == [None, None, 7]


def test_a_column_that_comes_late_has_gaps_before_it():
    ring = Ring(Resolution(1_000, 4))
    for slot in range(7):
        ring.put(slot, {"a": slot} if slot < 5 else {"a": slot, "b": slot})
    assert known(ring.read("b", 3, 6)) == [None, None, 5, 6]
    assert known(ring.read("a", 3, 6)) == [3, 4, 5, 6]


def test_a_clock_that_is_set_back_takes_away_what_lies_behind_it():
    ring = Ring(Resolution(1_000, 8))
    for slot in range(20, 26):
        ring.put(slot, {"a": slot})
    ring.put(22, {"a": -1})
    assert known(ring.read("a", 20, 26)) == [20, 21, -1, None, None, None, None]
    ring.put(5, {"a": 5})  # by more than the ring has
    assert known(ring.read("a", 4, 24)) == [None, 5, *[None] * 19]


def test_a_clock_that_jumps_ahead_and_comes_back_leaves_nothing_of_the_future():
    ring = Ring(Resolution(1_000, 8))
    ring.put(20, {"a": 1})
    ring.put(1_000_000, {"a": 2})
    ring.put(21, {"a": 3})
    assert known(ring.read("a", 19, 22)) == [None, None, 3, None]
    assert ring.newest == 21


def test_a_ring_takes_memory_only_for_what_it_has_had():
    ring = Ring(Resolution(1_000, 10_000))
    ring.put(0, {"a": 1, "b": 2})
    assert ring.memory_bytes == 8
    ring.keep_only(["b"])
    assert (ring.memory_bytes, set(ring.names)) == (4, {"b"})


# What is made of what was seen.


def test_a_rate_is_the_difference_of_two_looks_and_the_first_look_has_none():
    series = Series(TABLE)
    for second, calls in enumerate((5, 15, 15, 45)):
        series.observe(seen(second, calls))
    assert read(series, "calls_per_s", 0, 4) == [None, 10, 0, 30]


def test_a_count_that_begins_anew_is_no_negative_rate():
    series = Series(TABLE)
    for second, calls in enumerate((5, 15, 2)):
        series.observe(seen(second, calls))
    assert read(series, "calls_per_s", 0, 3) == [None, 10, 0]


def test_a_coarser_rate_is_exact_over_its_slot_and_there_once_the_slot_is_over():
    series = Series(TABLE)
    for second in range(21):
        series.observe(seen(second, second * second))
    # From the look before the slot began (second 9) to the last one in it (second 19).
    assert read(series, "calls_per_s", 0, 30, now_s=700) == [9.0, (361 - 81) / 10, None]


def test_quantiles_are_of_the_durations_that_came_in_the_interval_not_of_all():
    series, durations = Series(TABLE), Durations()
    for _ in range(1_000):
        durations.add(5.0)
    series.observe(seen(0, durations=durations))
    for _ in range(100):
        durations.add(0.002)
    series.observe(seen(1, durations=durations))
    series.observe(seen(2, durations=durations))
    shown = read(series, "call_p50_s", 0, 3)
    assert shown == [None, pytest.approx(0.00175), None]
    assert read(series, "call_p99_s", 0, 2)[1] == pytest.approx(0.0025, rel=0.02)


@pytest.mark.parametrize(
    ("counts", "part", "expected"),
    [
        ({}, 0.5, None),
        ({0: 10}, 0.5, DURATION_BOUNDS_S[0] / 2),
        ({0: 1, 3: 99}, 0.99, pytest.approx(0.00494, rel=0.01)),
        ({len(DURATION_BOUNDS_S): 4}, 0.5, DURATION_BOUNDS_S[-1]),
        ({0: 1, len(DURATION_BOUNDS_S): 1}, 0.99, DURATION_BOUNDS_S[-1]),
    ],
)
def test_a_quantile_lies_in_the_bucket_where_so_large_a_part_is_reached(counts, part, expected):
    buckets = [counts.get(bucket, 0) for bucket in range(len(DURATION_BOUNDS_S) + 1)]
    assert known([quantile(buckets, None, part)]) == [expected]


def test_gauges_are_put_together_as_their_figure_says():
    series = Series(TABLE)
    for second in range(12):
        series.observe(seen(second, gauge=second))
    for name, expected in (("mean", 4.5), ("most", 9), ("least", 0)):
        assert read(series, name, 0, 10, now_s=700) == [expected]
        assert read(series, name, 0, 10, step_ms=10_000) == [expected]


def test_an_unknown_gauge_is_a_gap_and_not_a_zero():
    series = Series(TABLE)
    for second, gauge in enumerate((1, None, 3)):
        series.observe(seen(second, gauge=gauge))
    assert read(series, "most", 0, 3) == [1, None, 3]


def test_a_minute_in_which_nothing_was_seen_is_a_gap_in_the_ring_of_minutes():
    series = Series(TABLE)
    for second in (0, 30, 59, 200, 250, 310):
        series.observe(seen(second, gauge=second))
    assert read(series, "most", 0, 300, now_s=8 * HOUR_MS // 1_000) == [59, None, None, 200, 250]


# Which ring answers.


@pytest.mark.parametrize(
    ("ago_ms", "asked_ms", "expected_ms"),
    [
        (60_000, None, 1_000),
        (SECOND.span_ms, None, 1_000),
        (SECOND.span_ms + 1, None, 10_000),
        (6 * HOUR_MS, None, 20_000),  # 2,160 slots would be more than fit
        (6 * HOUR_MS + 1, None, 60_000),
        (8 * 24 * HOUR_MS, None, 360_000),
        (80 * 24 * HOUR_MS, None, 360_000),  # no further back than there is
        (60_000, 2_500, 3_000),
        (60_000, 1, 1_000),
        (HOUR_MS, 60_000, 60_000),
        (24 * HOUR_MS, 300_000, 300_000),
    ],
)
def test_the_finest_ring_that_reaches_back_so_far_answers_in_slots_that_fit(ago_ms, asked_ms, expected_ms):
    now_ms = AT_MS + 17
    found = Series(TABLE).read(["mean"], now_ms - ago_ms, now_ms, now_ms, asked_ms)
    assert found.step_ms == expected_ms
    assert len(found.time_ms) == len(found.values["mean"]) <= POINTS_MAX
    assert all(at_ms % expected_ms == 0 for at_ms in found.time_ms)
    assert found.time_ms[-1] < now_ms


def test_many_figures_have_fewer_points_each():
    series = Series(FIGURES)
    names = list(series.figures)
    found = series.read(names, AT_MS - 24 * HOUR_MS, AT_MS, AT_MS, None)
    assert sum(map(len, found.values.values())) <= VALUES_MAX
    assert found.step_ms == 120_000


def test_the_same_call_a_moment_later_has_the_same_slots():
    series = Series(TABLE)
    for second in range(40):
        series.observe(seen(second, gauge=second))
    first = series.read(["most"], AT_MS, AT_MS + 30_000, AT_MS + 30_000, 5_000)
    later = series.read(["most"], AT_MS + 1_000, AT_MS + 31_000, AT_MS + 31_000, 5_000)
    assert first.time_ms[1:] == later.time_ms[: len(first.time_ms) - 1] or first.time_ms == later.time_ms
    assert known(first.values["most"])[-1] is not None


@pytest.mark.parametrize(
    ("since", "until"), [("start", "now"), ("now", "now"), ("-1m", "-2m"), ("+1m", "+2m"), ("00" * 20, "now")]
)
def test_a_time_that_is_none_or_lies_ahead_is_refused(since, until):
    with pytest.raises(InputError) as raised:
        page_of(Series(TABLE), ["mean"], since, until, None, AT_MS)
    assert raised.value.hint


def test_a_time_long_ago_costs_no_more_than_there_is():
    page = page_of(Series(TABLE), ["mean"], "@0", "now", STEP_MS_MAX, AT_MS)
    assert len(page.time) == MINUTE.span_ms // STEP_MS_MAX
    assert page_of(Series(TABLE), ["mean"], "@0", "@1", None, AT_MS).time == ()


def test_what_a_new_server_does_not_know_by_the_second_the_minutes_of_the_last_one_tell():
    series, minute = Series(TABLE), AT_MS // 60_000
    for slot, value in ((minute - 3, 7), (minute - 2, 8)):
        series.minutes[0].put(slot, {"most": value})
    for second in range(2):
        series.observe(seen(second, gauge=second))
    assert read(series, "most", -180, 2) == [7] * 60 + [8] * 60 + [None] * 60 + [0, 1]
    assert read(series, "most", -180, 2, step_ms=60_000) == [7, 8, None, 1]
    assert read(Series(TABLE), "most", -2, 2) == [None] * 4


def test_an_answer_has_nulls_for_gaps_and_as_many_digits_as_mean_something():
    series = Series(TABLE)
    series.observe(seen(0, gauge=0.1))
    page = page_of(series, ["mean"], f"@{AT_MS - 1_500}", None, None, AT_MS)
    assert (page.step_ms, page.values) == (1_000, {"mean": (None, round(0.1, DIGITS))})
    assert [figure.name for figure in page.figures] == ["mean"]


def test_an_unknown_name_is_told_with_the_nearest_one():
    with pytest.raises(SeriesNotFoundError) as raised:
        page_of(Series(TABLE), ["mean", "meen"], None, None, None, AT_MS)
    assert (raised.value.field, raised.value.hint) == ("names", "did you mean mean?")
    with pytest.raises(SeriesNotFoundError, match="shop/orders/gone"):
        page_of(Series(TABLE), ["lag_seconds:shop:orders/gone"], None, None, None, AT_MS)


def test_a_server_that_stops_keeps_the_minute_that_goes_on_as_far_as_it_came():
    series = Series(TABLE)
    for second in range(90):  # the first minute ends with second 59
        series.observe(seen(second, calls=2.0 * second, gauge=second))
    ring, _ = series.minutes
    over = ring.newest
    series.finish()
    assert (over, ring.newest) == (AT_MS // 60_000, AT_MS // 60_000 + 1)
    assert known(ring.read("calls_per_s", ring.newest, ring.newest)) == [pytest.approx(2.0)]
    assert known(ring.read("most", ring.newest, ring.newest)) == [89]
    assert known(ring.read("most", over, over)) == [59]


def test_a_server_that_stops_before_it_has_looked_at_itself_keeps_nothing():
    series = Series(TABLE)
    series.finish()
    assert [ring.newest for ring in series.minutes] == [None, None]


def test_the_rates_of_a_topic_are_kept_by_second_and_a_minute_has_their_mean():
    series, topic = Series(TABLE), "shop:orders"
    for second in range(61):
        series.topics.observe(AT_MS + second * 1_000, {topic: (second, 2)}, [topic])
    now_ms = AT_MS + 60_000
    names = [f"published_per_s:{topic}", f"fetched_per_s:{topic}"]
    found = series.read(names, now_ms - 1_000, now_ms, now_ms, None)
    assert [known(found.values[name]) for name in names] == [[60], [2]]
    found = series.read(names, AT_MS - 500, now_ms, now_ms + HOUR_MS, None)
    assert (found.step_ms, known(found.values[names[0]])[0]) == (60_000, 29.5)
    assert [each.unit for each in series.known()[-2:]] == ["1/s", "1/s"]
    series.topics.observe(now_ms + 1_000, {}, [])
    assert series.find(names[0]) is None


def test_a_figure_of_a_topic_that_is_not_followed_says_whose_are():
    with pytest.raises(SeriesNotFoundError, match="topic 'shop:gone'") as refused:
        page_of(Series(TABLE), ["published_per_s:shop:gone"], None, None, None, AT_MS)
    assert f"{TOPICS_SHOWN_MAX} others do more" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("published_per_s:shop:orders", ("shop", "orders")),
        ("fetched_per_s:shop:orders", ("shop", "orders")),
        ("published_per_s:shop", None),
        ("open", None),
        ("lag_messages:shop:orders/billing", None),
    ],
)
def test_the_topic_is_read_from_the_name_of_its_figure(name, expected):
    assert title_of_topic(name) == expected


# Groups.


def test_the_lag_of_a_group_in_the_minute_in_which_a_server_stops_is_kept():
    series, group = Series(TABLE), "shop:orders/billing"
    for second in (0, 30, 61):
        series.groups.observe(AT_MS + second * 1_000, {group: (second, 1)}, [group])
    series.finish()
    _, ring = series.minutes
    assert known(ring.read(f"lag_messages:{group}", ring.newest - 1, ring.newest)) == [30, 61]


def test_the_lag_of_a_group_is_kept_by_second_and_minute():
    series, group = Series(TABLE), "shop:orders/billing"
    for second in range(121):
        series.groups.observe(AT_MS + second * 1_000, {group: (second, second / 10)}, [group])
    now_ms = AT_MS + 120_000
    messages, seconds = f"lag_messages:{group}", f"lag_seconds:{group}"
    found = series.read([messages, seconds], now_ms - 2_000, now_ms, now_ms, None)
    assert (found.values[messages], known(found.values[seconds])[0]) == ([119, 120], pytest.approx(11.9))
    found = series.read([messages], AT_MS - 500, now_ms, now_ms + HOUR_MS, None)
    assert (found.step_ms, known(found.values[messages])) == (60_000, [59, 119, None])


def test_a_group_that_is_not_shown_any_more_leaves_no_column():
    series = Series(TABLE)
    series.groups.observe(AT_MS, {"a:b/c": (1, 1), "a:b/d": (1, 1)}, ["a:b/c", "a:b/d"])
    series.groups.observe(AT_MS + 1_000, {"a:b/d": (1, 1)}, ["a:b/d"])
    names = [figure.name for figure in series.known()][len(TABLE) :]
    assert names == ["lag_messages:a:b/d", "lag_seconds:a:b/d"]
    assert series.find("lag_messages:a:b/c") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lag_messages:shop:orders/billing", ("shop", "orders", "billing")),
        ("lag_seconds:shop:a.b/c", ("shop", "a.b", "c")),
        ("open", None),
        ("lag_messages", None),
        ("lag_messages:shop", None),
        ("other:shop:orders/billing", None),
    ],
)
def test_the_group_is_read_from_the_name_of_its_figure(name, expected):
    assert title_of_group(name) == expected


# What it costs.


def test_all_figures_and_two_hundred_groups_take_some_six_megabytes():
    series = Series(FIGURES)
    groups = [
        f"{kind}:shop:orders/{number}" for number in range(GROUPS_SHOWN_MAX) for kind in ("lag_messages", "lag_seconds")
    ]
    for rings, names in ((series.rings, list(series.figures)), (series.groups.rings, groups)):
        for ring in rings:
            for slot in (0, ring.slots // 2, ring.slots + 10):
                ring.put(slot, dict.fromkeys(names, 1.0))
    assert len(FIGURES) <= module.NAMES_MAX
    assert 5_500_000 < series.memory_bytes < 6_500_000


def test_every_figure_has_a_name_of_its_own_and_says_what_it_is():
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        assert figure.help[0].isupper()
        assert figure.name.endswith(
            {"1/s": "_per_s", "B/s": "_per_s", "s": "_s", "B": "_bytes", "%": "_percent"}.get(figure.unit, "")
        )
        assert nan != figure.name
