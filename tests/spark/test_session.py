"""The session that the tests on Spark share is the one that they rely on."""

from __future__ import annotations

import os

import pytest
from pyspark import TaskContext

pytestmark = pytest.mark.spark


def attempts(rows):
    context = TaskContext.get()
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")
    return [(context.partitionId(), context.attemptNumber(), os.getpid()) for _ in rows]


def test_a_task_that_fails_is_tried_again_and_workers_find_what_a_test_module_defines(spark):
    ran = spark.sparkContext.parallelize([1, 2], 2).mapPartitions(attempts).collect()
    assert [(partition, attempt) for partition, attempt, _ in ran] == [(0, 1), (1, 1)]
    assert os.getpid() not in {process for *_, process in ran}


def test_a_client_publishes_to_the_server_of_the_module(basalt, topic):
    basalt.topics.create(topic)
    basalt.topic(topic).publish("one")
    assert [message.text for message in basalt.topic(topic).read()] == ["one"]
