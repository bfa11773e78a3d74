"""Which topics are in a list. Orders, pages and figures: tests/control/http/test_server_topics.py."""

from __future__ import annotations

import pytest

from basalt.catalog.topics import topic_name
from basalt.errors import InvalidNameError
from basalt.operations.topic_inspection import TopicQuery, after_of
from basalt_engine.metadata import TopicMetadata
from basalt_engine.retention import OnInvalid

ORDERS = topic_name("shop", "Orders")


def stored(generation: int) -> TopicMetadata:
    return TopicMetadata(generation, 1_000, OnInvalid.DROP, 1, 1, 0, 0, {}, created_by="")


@pytest.mark.parametrize(
    ("query", "generation", "is_taken"),
    [
        (TopicQuery(1), 1, True),
        (TopicQuery(1), -1, False),
        (TopicQuery(1, deleted=True), -1, True),
        (TopicQuery(1, contains="P:or"), 1, True),
        (TopicQuery(1, contains="stock"), 1, False),
    ],
)
def test_a_list_takes_topics_by_what_is_asked_of_it(query, generation, is_taken):
    assert query.takes(ORDERS, stored(generation)) == is_taken


def test_a_page_begins_behind_a_topic_by_name():
    assert after_of(None) is None
    assert after_of("shop:Orders") == ORDERS
    for nonsense in ("shop", "shop:", ":x", "a:b:c"):
        with pytest.raises(InvalidNameError):
            after_of(nonsense)
