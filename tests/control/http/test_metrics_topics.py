"""Figures by topic: bounded, and never falling."""

from __future__ import annotations

from basalt.catalog.topics import TopicName
from basalt.http import metrics
from basalt.http.metrics import OTHER, TopicSeries


def title(name: str) -> TopicName:
    return TopicName("shop", name)


def shown(series: TopicSeries) -> dict[str, int]:
    return {name: counts.published_messages for (_, name), counts in series.series()}


def test_each_topic_has_a_series_while_there_is_room():
    series = TopicSeries(shown_max=2)
    series.published(title("a"), 3, 30)
    series.fetched(title("b"), 1, 10)
    assert {topic.name: (counts.published_bytes, counts.fetched_bytes) for topic, counts in series.series()} == {
        "a": (30, 0),
        "b": (0, 10),
    }


def test_topics_beyond_the_limit_share_one_series():
    series = TopicSeries(shown_max=1)
    series.published(title("a"), 100, 0)
    for name in ("b", "c"):
        series.published(title(name), 7, 0)
    assert shown(series) == {"a": 100, OTHER.name: 14}


def test_a_topic_that_is_much_busier_takes_a_quiet_ones_place_and_starts_at_zero():
    series = TopicSeries(shown_max=2)
    series.published(title("busy"), 100, 0)
    series.published(title("quiet"), 1, 0)
    series.published(title("new"), 50, 0)
    assert shown(series) == {"busy": 100, "new": 0, OTHER.name: 50}
    series.published(title("new"), 5, 0)
    series.published(title("quiet"), 1, 0)
    assert shown(series) == {"busy": 100, "new": 5, OTHER.name: 51}


def test_two_topics_alike_do_not_take_turns():
    series = TopicSeries(shown_max=1)
    for _ in range(3):
        series.published(title("first"), 10, 0)
        series.published(title("second"), 19, 0)
        assert "first" in shown(series)


def test_a_deleted_topic_makes_room():
    series = TopicSeries(shown_max=1)
    series.published(title("a"), 1, 0)
    series.forget(title("a"))
    series.published(title("b"), 2, 0)
    assert shown(series) == {"b": 2}


def test_more_topics_than_candidates_are_counted_together_and_none_of_them_is_lost(monkeypatch):
    monkeypatch.setattr(metrics, "CANDIDATES_MAX", 2)
    series = TopicSeries(shown_max=1)
    for name, count in (("shown", 1), ("b", 10), ("c", 20), ("late", 1_000)):
        series.published(TopicName("shop", name), count, 0)
    found = {title.name: counts.published_messages for title, counts in series.series()}
    assert found == {"c": 0, OTHER.name: 1_030}, "the busiest of two candidates; the third was never one"
