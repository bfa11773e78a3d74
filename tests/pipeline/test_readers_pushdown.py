"""Filters by time and id bound a range, and never leave out what they let through."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from basalt_spark.source.readers import EVERYTHING, IdBounds, bounds_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}

comparisons = st.sampled_from(list(COMPARISONS))
ids = st.binary(min_size=20, max_size=20) | st.just(bytes(20)) | st.just(b"\xff" * 20)
bounds = st.one_of(st.binary(max_size=24), ids, ids.map(lambda one: one[:10]), ids.map(lambda one: one + b"\0"))
micros = st.integers(0, 5_000)


def lies_within(message_id: bytes, found: IdBounds) -> bool:
    after, through = found.both(IdBounds(None, b"\xff" * 20))
    return through is not None and (after is None or message_id > after) and message_id <= through


@settings(deadline=None)
@given(ids, comparisons, bounds)
def test_ids_within_the_bounds_are_those_that_the_filter_lets_through(message_id, comparison, value):
    found = bounds_of([comparison(("id",), value)])
    assert lies_within(message_id, found) == COMPARISONS[comparison](message_id, value)


@settings(deadline=None)
@given(st.integers(0, 5), st.binary(min_size=12, max_size=12), comparisons, micros)
def test_times_within_the_bounds_are_those_that_the_filter_lets_through(time_ms, rest, comparison, value_us):
    found = bounds_of([comparison(("publish_time",), EPOCH + timedelta(microseconds=value_us))])
    let_through = COMPARISONS[comparison](time_ms * 1_000, value_us)
    assert lies_within(time_ms.to_bytes(8) + rest, found) == let_through


@settings(deadline=None)
@given(ids, bounds, bounds)
def test_several_filters_bound_together(message_id, low, high):
    found = bounds_of([GreaterThan(("id",), low), LessThanOrEqual(("id",), high)])
    assert lies_within(message_id, found) == (low < message_id <= high)


def test_other_filters_bound_nothing():
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    others = [
        EqualTo(("value",), b"x"),
        In(("id",), (b"x",)),
        Not(EqualTo(("id",), b"x")),
        GreaterThan(("publish_time",), moment.replace(tzinfo=None)),
        GreaterThan(("headers", "id"), b"x"),
        EqualTo(("id",), None),
    ]
    assert bounds_of(others) == EVERYTHING
