"""Names of topics, as rows carry them."""

from __future__ import annotations

import pytest

from basalt.catalog.topics import TITLES_CACHED_MAX, TopicName, title_of, topic_name
from basalt_engine.errors import CorruptionError
from basalt_engine.keys import topic_prefix


def test_the_names_of_more_topics_than_are_at_hand_are_read_from_their_prefixes():
    titles = [topic_name("shop", f"t{number}") for number in range(TITLES_CACHED_MAX + 2)]
    for _ in range(2):
        assert [title_of(topic_prefix(*title)) for title in titles] == titles
    assert title_of.cache_info().currsize == TITLES_CACHED_MAX


@pytest.mark.parametrize(
    "prefix", [b"", b"shop", b"shop:", b"shop:orders", b"shop:orders:x", b":orders:", b"shop::", b"\xff:a:"]
)
def test_what_is_no_topic_prefix_is_corrupt_each_time(prefix: bytes):
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"^{prefix.hex()} is no topic prefix"):
            title_of(prefix)


def test_a_name_is_that_of_its_prefix():
    assert title_of(b"shop:orders:") == TopicName("shop", "orders")
