"""The options of a step: what is its own is refused, and what several steps say of a topic must agree."""

from __future__ import annotations

import pytest

from basalt.errors import InputError
from basalt_spark.connection import QualifiedTopic
from basalt_spark.pipeline import Pipeline, Step, sink_options, source_options, step_sink, tasks_of

SERVER = {"server": "http://127.0.0.1:1"}


def step(name: str, sink: str, **options: str) -> Step:
    return Step(name, {**SERVER, "topic": "in"}, lambda frame: frame, {**SERVER, "topic": sink, **options}, name)


def test_a_source_tells_heartbeats_and_its_end():
    assert source_options("s", {**SERVER, "topic": "in"}) == {
        **SERVER,
        "topic": "in",
        "control": "heartbeat",
        "endOnEos": "true",
    }


@pytest.mark.parametrize(("name", "value"), [("control", "hide"), ("ENDONEOS", "false")])
def test_what_a_step_says_to_its_source_is_not_for_the_user(name, value):
    with pytest.raises(InputError, match="of the source of step s is the step's own"):
        source_options("s", {**SERVER, "topic": "in", name: value})


@pytest.mark.parametrize("name", ["txnAppId", "txnversion", "emitWatermark"])
def test_what_a_step_says_to_its_sink_is_not_for_the_user(name):
    with pytest.raises(InputError, match="of the sink of step s is the step's own"):
        step_sink("s", {**SERVER, "topic": "out", name: "1"})


def test_columns_without_event_time_are_refused():
    with pytest.raises(InputError, match="option columns of step s leaves out watermark"):
        source_options("s", {**SERVER, "topic": "in", "columns": "value,control"})


def test_a_sink_names_its_topic():
    with pytest.raises(InputError, match="the sink of step s names no topic"):
        step_sink("s", SERVER)


def test_the_steps_name_is_what_its_batches_and_its_task_are_known_by():
    plain = sink_options("s", {**SERVER, "topic": "out", "taskCount": "2"}, 2, emit=False)
    assert plain == {**SERVER, "topic": "out", "txnAppId": "s"}
    told = sink_options("s", {**SERVER, "topic": "out"}, 2, emit=True)
    assert told == {**SERVER, "topic": "out", "txnAppId": "s", "emitWatermark": "true", "taskCount": "2"}


def test_as_many_tasks_write_a_topic_as_steps_do():
    tasks = tasks_of([step("a", "mid"), step("b", "mid"), step("c", "default:out")])
    assert tasks == {QualifiedTopic("default", "mid"): 2, QualifiedTopic("default", "out"): 1}


def test_others_may_write_it_too():
    assert tasks_of([step("a", "mid", taskCount="3"), step("b", "mid")]) == {QualifiedTopic("default", "mid"): 3}


def test_fewer_tasks_than_steps_are_refused():
    with pytest.raises(InputError, match="says that 1 tasks write topic default:mid, but 2 steps here do"):
        tasks_of([step("a", "mid", taskCount="1"), step("b", "mid")])


def test_two_counts_for_a_topic_are_refused():
    with pytest.raises(InputError, match="name 2 and 3 tasks"):
        tasks_of([step("a", "mid", taskCount="2"), step("b", "mid", taskCount="3")])


def test_a_name_that_two_steps_have_is_refused():
    with pytest.raises(InputError, match="2 steps have the name a"):
        Pipeline([step("a", "mid"), step("a", "out")])


def test_a_checkpoint_that_two_steps_have_is_refused(tmp_path):
    one = Step("one", SERVER, lambda frame: frame, {**SERVER, "topic": "mid"}, tmp_path / "c")
    two = Step("two", SERVER, lambda frame: frame, {**SERVER, "topic": "out"}, str(tmp_path / "c"))
    with pytest.raises(InputError, match="2 steps have the checkpoint"):
        Pipeline([one, two])


def test_an_empty_pipeline_is_refused():
    with pytest.raises(InputError, match="needs a step"):
        Pipeline([])


def test_an_end_that_is_none_is_refused_before_anything_starts():
    with pytest.raises(InputError, match="until is 'end'"):
        Pipeline([step("a", "mid")]).run("end")
