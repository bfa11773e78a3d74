"""The watermark of a stream's rows."""

from __future__ import annotations

from basalt.api.markers import Idle, MarkerState, TaskState
from basalt_spark.connection import QualifiedTopic
from basalt_spark.offset import Offset, TopicOffset
from basalt_spark.source.micro_batch import Seen, watermark_of

ORDERS = QualifiedTopic("default", "orders")


def spoke(mark: int | None, ended: bool = False, at_ms: int = 0) -> TaskState:
    return TaskState(mark, ended, at_ms)


def seen(*tasks: TaskState, count: int | None = None, now_ms: int = 0) -> Seen:
    named = {f"map-{number}": task for number, task in enumerate(tasks)}
    return Seen(MarkerState(len(tasks) if count is None else count, named), now_ms)


def offset(state: MarkerState, watermark_ms: int | None, done: bool = False) -> Offset:
    return Offset("i", {ORDERS: TopicOffset(1, None, None, state)}, watermark_ms, done)


def test_the_lowest_of_all_topics_counts_and_it_is_unknown_until_all_have_spoken():
    assert watermark_of([seen(spoke(5), spoke(7)), seen(spoke(6))], None, None) == (5, False)
    assert watermark_of([seen(spoke(5)), seen(spoke(6), count=2)], None, None) == (None, False)


def test_the_watermark_never_goes_back():
    assert watermark_of([seen(spoke(5))], 9, None) == (9, False)
    assert watermark_of([seen(spoke(5), count=2)], 9, None) == (9, False)
    assert watermark_of([seen(spoke(5, ended=True))], 9, None) == (9, True)


def test_a_topic_that_ended_holds_nothing_back_and_the_highest_counts_when_all_have():
    ended = seen(spoke(5, ended=True))
    assert watermark_of([ended, seen(spoke(8))], None, None) == (8, False)
    assert watermark_of([ended, seen(spoke(8, ended=True))], None, None) == (8, True)
    assert watermark_of([seen(spoke(None, ended=True))], None, None) == (None, True)


def test_a_silent_task_is_left_out_after_the_time_out_only():
    tasks = (spoke(5, at_ms=0), spoke(50, at_ms=900))
    idle = Idle(timeout_ms=500, quorum=1)
    assert watermark_of([seen(*tasks, now_ms=400)], 5, idle) == (5, False)
    assert watermark_of([seen(*tasks, now_ms=1_000)], 5, idle) == (50, False)
    assert watermark_of([seen(*tasks, now_ms=1_000)], 5, Idle(500, 2)) == (5, False)
