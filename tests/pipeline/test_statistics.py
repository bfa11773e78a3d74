"""Statistics of a topic, day by day."""

from __future__ import annotations

from basalt_spark.jobs.statistics import DayCounts, by_days
from tests.pipeline.test_archive import DAY_US, rows


def test_days_are_counted_with_what_a_message_has():
    found = by_days([rows([1, 2, DAY_US]), rows([DAY_US + 1], first=3, value_bytes=200)])
    assert [(day, counts.messages) for day, counts in found.items()] == [("1970-01-01", 2), ("1970-01-02", 2)]
    second = found["1970-01-02"]
    assert (second.keyed, second.with_headers, second.in_transactions) == (1, 1, 1)
    assert (second.first_us, second.last_us, second.event_first_us) == (DAY_US, DAY_US + 1, 2_000)
    assert (second.largest, second.value_bytes, second.sizes[:2]) == (200, 205, (1, 1))
    assert DayCounts().merged(second) == second
