"""The calls by which owners are asked for figures, as bytes. How lists use them: tests/control/server/test_failover_topics.py."""

from __future__ import annotations

import msgspec
import pytest

from basalt.catalog.topics import TopicName
from basalt.messaging.topic_stats import TopicSums
from basalt.operations.figures_elsewhere import FIGURES, TOPICS_ASKED_MAX, FiguresOf, Told, ToldFigures
from tests.vector_lines import lines


def test_question_and_answer_are_as_the_format_says():
    frames = {name: frame for name, frame, _ in lines("links")}
    assert FIGURES.question.decode(frames["figures"][7:]) == FiguresOf((TopicName("shop", "orders"),), True)
    told = Told(TopicSums(3, 12, True, 1_700_000_000_000, 1_700_000_000_123, 0.05))
    assert FIGURES.answer.decode(frames["told_figures"][7:]) == ToldFigures((told,))


def test_no_more_topics_are_asked_for_than_a_page_of_a_list_has():
    asked = FiguresOf((TopicName("shop", "orders"),) * (TOPICS_ASKED_MAX + 1), False)
    with pytest.raises(msgspec.ValidationError, match="length"):
        FIGURES.question.decode(msgspec.msgpack.encode(asked))
