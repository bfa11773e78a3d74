"""The offset of a stream: its text is the same whenever it says the same, for Spark compares texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.api.markers import MarkerState, TaskState
from basalt.errors import InputError
from basalt_spark.connection import QualifiedTopic
from basalt_spark.offset import Offset, TopicOffset, offset_json, parse_offset
from tests.vector_lines import VECTORS

names = st.text("abcz-_09", min_size=1, max_size=4)
ids = st.none() | st.binary(min_size=20, max_size=20)
times = st.integers(0, 2**53)
tasks = st.dictionaries(st.text(min_size=1, max_size=4), st.builds(TaskState, st.none() | times, st.booleans(), times))
topic_offsets = st.builds(
    TopicOffset, st.integers(1, 2**31 - 1), ids, ids, st.builds(MarkerState, st.none() | st.integers(1, 1000), tasks)
)
offsets = st.builds(
    Offset,
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.dictionaries(st.builds(QualifiedTopic, names, names), topic_offsets, min_size=1, max_size=3),
    st.none() | times,
    st.booleans(),
    st.booleans(),
)


def text(offset: Offset) -> str:
    """The text that Spark compares and keeps: pyspark writes the members in the order in which they come."""
    return json.dumps(offset_json(offset))


def reversed_order(offset: Offset) -> Offset:
    topics = {
        name: TopicOffset(
            reached.generation,
            reached.id,
            reached.began,
            MarkerState(reached.markers.task_count, dict(reversed(list(reached.markers.tasks.items())))),
        )
        for name, reached in reversed(list(offset.topics.items()))
    }
    return Offset(offset.instance, topics, offset.watermark_ms, offset.done, offset.initial)


@settings(deadline=None)
@given(offsets)
def test_an_offset_comes_back_as_it_was(offset):
    assert parse_offset(json.loads(text(offset))) == offset


@settings(deadline=None)
@given(offsets)
def test_equal_offsets_are_equal_texts_in_whatever_order_they_were_made(offset):
    assert text(reversed_order(offset)) == text(offset)
    assert text(offset) == json.dumps(offset_json(offset), sort_keys=True)


def test_the_vectors_are_read_and_written():
    lines = [line.split("\t") for line in (VECTORS / "spark-offsets.tsv").read_text().splitlines() if line]
    assert lines
    for name, written in lines:
        assert text(parse_offset(json.loads(written))) == written, name


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"v": 1},
        {"v": 1, "topics": {"default:orders": {}}},
        {"v": 1, "topics": {"default:orders": {"gen": 1, "id": "00"}}},
        {"v": 1, "topics": {"default:orders": {"gen": 1, "id": "zz" * 20}}},
        {"v": 1, "topics": {"default:orders": {"gen": 1}}, "extra": 1},
        {"partition-0": {"index": 3}},
    ],
)
def test_what_is_no_offset_is_refused(members):
    with pytest.raises(InputError, match="holds no offset of format basalt"):
        parse_offset(members)
