"""Pipelines: event time and the end of the stream go from topic to topic, and whoever starts again finds them there."""

from __future__ import annotations

import json

import pytest

from basalt_spark.pipeline import Pipeline
from tests.spark.page_views import at_ms, create_topics, line, steps

pytestmark = pytest.mark.spark


def results(client, topic: str) -> list[tuple[str, str, int]]:
    """The counts in a topic: the end of the window, the page, and the number."""
    rows = [json.loads(message.payload) for message in client.topic(topic).read(isolation="committed")]
    return sorted((row["at"][:13], row["page"], row["views"]) for row in rows)


def publish_first_half(client, topic: str) -> None:
    first, second = client.topic(f"{topic}-lines-a"), client.topic(f"{topic}-lines-b")
    first.publish([line(10, 5, "/a"), line(11, 2, "/a"), "# a comment", line(10, 55, "/b")])  # out of time order
    first.watermark("web-a", at_ms(11, 30))
    second.publish([line(10, 7, "/a")])
    second.watermark("web-b", at_ms(10, 20))  # then it is silent for a while


def publish_second_half(client, topic: str) -> None:
    first, second = client.topic(f"{topic}-lines-a"), client.topic(f"{topic}-lines-b")
    second.publish([line(10, 21, "/b"), line(11, 59, "/b")])
    second.end("web-b")
    first.publish([line(11, 40, "/a")])
    first.end("web-a")


HOURS = [
    ("2015-05-17T10", "/a", 2),
    ("2015-05-17T10", "/b", 2),
    ("2015-05-17T11", "/a", 2),
    ("2015-05-17T11", "/b", 1),
]
DAYS = [("2015-05-17T23", "/a", 4), ("2015-05-17T23", "/b", 3)]


def test_three_steps_end_because_the_first_topics_did_and_a_silent_task_holds_every_window(
    spark, basalt, basalt_server, topic, tmp_path
):
    create_topics(basalt, topic)
    publish_first_half(basalt, topic)
    pipeline = Pipeline(steps(basalt_server.url, tmp_path, topic))
    for step in pipeline.steps:  # each as a job of its own, one after another
        step.run("available-now", spark=spark)
    assert results(basalt, f"{topic}-hours") == []  # 10 to 11 is not over: a task of two has said 10:20
    parsed = basalt.topic(f"{topic}-views").markers()
    assert (parsed.watermark_ms, parsed.task_count, parsed.ended) == (at_ms(10, 20), 2, False)

    publish_second_half(basalt, topic)
    pipeline.run("eos", spark=spark)
    assert results(basalt, f"{topic}-hours") == HOURS
    assert results(basalt, f"{topic}-days") == DAYS
    for name, tasks in (("views", 2), ("hours", 1), ("days", 1)):
        facts = basalt.topic(f"{topic}-{name}").markers()
        assert facts.ended
        assert [task.ended for task in facts.tasks] == [True] * tasks
