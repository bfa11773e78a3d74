"""Reads up to an end: what is refused before any task runs."""

from __future__ import annotations

import json

import pytest

from basalt.errors import InputError
from basalt_spark import connection
from basalt_spark.option_table import FrameUse
from basalt_spark.options import read_options
from basalt_spark.source.readers import BasaltReader
from tests.pipeline.topics_in_memory import INSTANCE, ServerInMemory, TopicInMemory


def planned(topic: TopicInMemory, **given: str):
    options = read_options({"server": "http://memory:2", "topic": topic.name, **given}, FrameUse.BATCH)
    connection._clients[options.server] = ServerInMemory(topic)
    return BasaltReader(options).partitions()


def offset(topic: TopicInMemory, **changed) -> str:
    of_topic = {"gen": topic.generation, "id": topic.entries[0].id.hex()}
    return json.dumps({"v": 1, "instance": INSTANCE, "topics": {topic.name: of_topic}} | changed)


@pytest.fixture
def orders() -> TopicInMemory:
    topic = TopicInMemory()
    topic.publish(b"one", b"two")
    return topic


def test_a_read_goes_on_from_an_offset(orders):
    (part,) = planned(orders, startingOffsets=offset(orders))
    assert (part.after, part.through) == (orders.entries[0].id, orders.entries[1].id)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_of_another_installation_is_refused(orders, option):
    with pytest.raises(InputError, match=f"the offset of option {option} is of installation ffff") as refused:
        planned(orders, **{option: offset(orders, instance="f" * 16)})
    assert refused.value.field == option


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_of_another_generation_is_refused(orders, option):
    text = offset(orders)
    orders.generation = 2
    with pytest.raises(InputError, match=f"option {option} is of generation 1 of topic default:orders"):
        planned(orders, **{option: text})


def test_an_end_that_is_not_decided_yet_is_refused(orders):
    orders.held = 1
    with pytest.raises(InputError, match="what is behind may still change"):
        planned(orders, endingOffsets=json.dumps({"default:orders": orders.entries[1].id.hex()}))
