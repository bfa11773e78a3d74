"""Topics share what a micro-batch may take in, evenly and always alike."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from basalt_spark.connection import QualifiedTopic
from basalt_spark.source.micro_batch import BatchBudget

A, B, C = (QualifiedTopic("default", name) for name in "abc")


def test_each_topic_gets_the_same_and_the_rest_goes_to_those_furthest_behind():
    shares = BatchBudget(8, None).shares([(A, b"3"), (B, b"1"), (C, b"2")])
    assert shares == [(B, BatchBudget(3, None)), (C, BatchBudget(3, None)), (A, BatchBudget(2, None))]


def test_of_less_than_one_for_each_those_get_it_that_are_furthest_behind():
    assert BatchBudget(1, None).shares([(A, b"3"), (B, None), (C, b"2")]) == [(B, BatchBudget(1, None))]


def test_without_a_limit_all_take_what_there_is():
    assert BatchBudget(None, None).shares([(B, None), (A, None)]) == [
        (A, BatchBudget(None, None)),
        (B, BatchBudget(None, None)),
    ]
    assert not BatchBudget(None, None).spent


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.permutations([(A, b"1"), (B, None), (C, b"1")]))
def test_shares_are_all_of_it_whatever_order_topics_come_in(rows, size, waiting):
    shares = BatchBudget(rows, size).shares(waiting)
    assert shares == BatchBudget(rows, size).shares(sorted(waiting))
    assert sum(share.rows for _, share in shares) <= rows
    assert all(share.rows and share.bytes for _, share in shares)
    assert shares
