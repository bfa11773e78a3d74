"""The markers of a step in its topic while its query runs: a query of a script, and a topic that only remembers."""

from __future__ import annotations

from threading import Event

import pytest

from basalt.api.bodies.ranges import MarkersInfo, TaskInfo
from basalt_spark.pipeline import RunningStep, StepStateError
from tests.pipeline.test_event_time_progress import offset, report

ELEVEN, TWELVE, NEVER = "2015-05-17T11:00:00.000Z", "2015-05-17T12:00:00.000Z", "9999-12-31T23:59:59.999Z"
ELEVEN_MS = 1_431_860_400_000
HOUR_MS = 3_600_000


class FakeTopic:
    """Markers in the order in which they were said."""

    def __init__(self) -> None:
        self.said: list[tuple] = []

    def watermark(self, task, event_time_ms, task_count):
        self.said.append((task, event_time_ms, task_count))

    def end(self, task, task_count):
        self.said.append((task, "end", task_count))

    def markers(self) -> MarkersInfo:
        tasks = {}
        for task, what, _ in self.said:
            known = tasks.get(task, TaskInfo(task, None, False, 0))
            tasks[task] = TaskInfo(task, known.watermark_ms if what == "end" else what, what == "end", 0)
        return MarkersInfo(None, False, None, list(tasks.values()), None, 1)


class ScriptedQuery:
    """Each look at it finds the next report; behind the last one the query has ended."""

    def __init__(self, *reports) -> None:
        self.left = list(reports)
        self.lastProgress = None
        self.stopped = False

    def awaitTermination(self, seconds):
        if not self.left:
            return True
        self.lastProgress = self.left.pop(0)
        return False

    def stop(self):
        self.stopped = True


@pytest.fixture
def topic() -> FakeTopic:
    return FakeTopic()


def run(topic: FakeTopic, query: ScriptedQuery, in_transaction: bool = False, until: str | None = "eos") -> None:
    RunningStep("s", query, topic, 2, in_transaction, until).follow(Event())


def state(watermark: str, done: bool = False, batch: int = 1, dropped: int = 0):
    return report(offset(done), watermark=watermark, dropped=dropped, batch=batch)


def test_a_step_with_state_tells_its_watermark_behind_the_batch_and_each_once(topic):
    run(topic, ScriptedQuery(state(ELEVEN), state(ELEVEN), state(TWELVE), report(offset(False))))
    assert topic.said == [("s", ELEVEN_MS - 1, 2), ("s", ELEVEN_MS + HOUR_MS - 1, 2)]


def test_a_step_without_state_leaves_its_watermark_to_the_sink(topic):
    run(topic, ScriptedQuery(report(offset(False), watermark=ELEVEN, rows=1)), True)
    assert topic.said == []


def test_it_ends_its_topic_once_and_stops(topic):
    query = ScriptedQuery(state(ELEVEN), state(NEVER, done=True), report(offset(True)))
    run(topic, query)
    assert topic.said == [("s", ELEVEN_MS - 1, 2), ("s", "end", 2)]
    assert query.stopped
    assert query.left


def test_without_until_it_goes_on_behind_the_end_and_says_it_once(topic):
    query = ScriptedQuery(state(NEVER, done=True), report(offset(True)), report(offset(True)))
    run(topic, query, until=None)
    assert topic.said == [("s", "end", 2)]
    assert not query.left


def test_started_again_behind_the_end_it_says_nothing_more(topic):
    topic.end("s", 2)
    run(topic, ScriptedQuery(report(offset(True))))
    assert topic.said == [("s", "end", 2)]


def test_killed_before_it_said_the_end_it_says_it_the_next_time(topic):
    topic.watermark("s", ELEVEN_MS, 2)
    run(topic, ScriptedQuery(report(offset(True))))
    assert topic.said[1:] == [("s", "end", 2)]


def test_started_again_it_says_no_watermark_below_what_it_said(topic):
    topic.watermark("s", ELEVEN_MS, 2)
    run(topic, ScriptedQuery(state(ELEVEN)))
    assert topic.said == [("s", ELEVEN_MS, 2)]


def test_another_tasks_end_is_not_its_own(topic):
    topic.end("other", 2)
    run(topic, ScriptedQuery(state(NEVER, done=True)))
    assert topic.said[1:] == [("s", "end", 2)]


def test_what_the_last_batch_of_a_query_for_what_is_there_now_tells_is_told_when_it_has_ended(topic):
    query = ScriptedQuery()
    query.lastProgress = state(TWELVE)
    run(topic, query, until="available-now")
    assert topic.said == [("s", ELEVEN_MS + HOUR_MS - 1, 2)]


def test_a_state_that_the_end_of_time_did_not_reach_is_an_error_and_no_end(topic):
    with pytest.raises(StepStateError, match="its state is at watermark"):
        run(topic, ScriptedQuery(state(ELEVEN, done=True)))
    assert topic.said == []


def test_a_step_without_state_must_keep_the_watermark(topic):
    with pytest.raises(StepStateError, match="leaves out the columns watermark and control"):
        run(topic, ScriptedQuery(report(offset(True), rows=1)))
    assert topic.said == []


def test_a_state_whose_results_have_a_watermark_column_is_an_error(topic):
    with pytest.raises(StepStateError, match="keeps state and the column watermark"):
        run(topic, ScriptedQuery(state(ELEVEN)), True)


def test_rows_dropped_as_late_are_logged_once_for_each_batch(topic, caplog):
    run(topic, ScriptedQuery(state(ELEVEN, dropped=3), state(ELEVEN, dropped=3), state(ELEVEN, dropped=1, batch=2)))
    assert [record.args[1:] for record in caplog.records] == [(1, 3), (2, 1)]


def test_a_step_that_is_told_to_stop_stops(topic):
    stop = Event()
    stop.set()
    query = ScriptedQuery(state(ELEVEN), state(TWELVE))
    RunningStep("s", query, topic, 2, False, "eos").follow(stop)
    assert query.stopped
    assert topic.said == []
