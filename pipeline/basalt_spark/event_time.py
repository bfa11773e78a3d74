"""What a stream tells of event time: the watermark of its rows, and rows that are no messages. Pure.

A batch's rows are a function of its two offsets alone, for Spark may plan a batch again after a restart and must get the
same rows. So the watermark is kept in the offset, also where a clock had its part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from basalt.api.markers.reconcile import NOTHING_KNOWN, Idle, MarkerState, TaskState, advanced, is_ended, watermark_ms
from basalt_spark.offset import Offset
from basalt_spark.record_batches import ControlRow
from basalt_spark.topic_name import TopicName

# 9999-12-31T23:59:59.999Z, the last moment of SQL: behind it no window is open.
END_OF_TIME_MS = 253_402_300_799_999


class Seen(NamedTuple):
    """What was read of a topic's markers, and the time up to which it was read: now, or when its last message was published.

    A reader that lags behind must not take a task for silent whose next marker it has not come to yet.
    """

    markers: MarkerState
    now_ms: int


def watermark_of(seen: Iterable[Seen], held_ms: int | None, idle: Idle | None) -> tuple[int | None, bool]:
    """The watermark of all topics together, never lower than the one held; and whether all of them have ended."""
    topics = list(seen)
    running = [topic for topic in topics if not is_ended(topic.markers)]
    marks = [advanced(topic.markers, held_ms, idle, topic.now_ms) for topic in running]
    if not running:
        highest = [mark for topic in topics if (mark := watermark_ms(topic.markers)) is not None]
        marks = [max(highest, default=None)]
    known = [mark for mark in marks if mark is not None]
    if not known or len(known) < len(marks):
        return held_ms, not running
    return (min(known) if held_ms is None else max(held_ms, min(known))), not running


def control_rows(start: Offset, end: Offset, control: Literal["hide", "heartbeat", "rows"]) -> tuple[ControlRow, ...]:
    """The rows of a batch that are no messages, in order: what tasks said, then a heartbeat where event time moved."""
    if control == "hide":
        return ()
    told = tuple(_told(start, end)) if control == "rows" else ()
    if (start.watermark_ms, start.done) == (end.watermark_ms, end.done):
        return told
    return (*told, ControlRow("heartbeat"))


def _told(start: Offset, end: Offset) -> Iterator[ControlRow]:
    for name, reached in sorted(end.topics.items()):
        before = start.topics[name].markers if name in start.topics else NOTHING_KNOWN
        for task, state in sorted(reached.markers.tasks.items()):
            yield from _told_by(name, task, before.tasks.get(task, TaskState()), state)


def _told_by(name: TopicName, task: str, before: TaskState, after: TaskState) -> Iterator[ControlRow]:
    if after.watermark_ms != before.watermark_ms:
        yield ControlRow("watermark", name.topic, task.encode(), after.watermark_ms)
    if after.ended and not before.ended:
        yield ControlRow("end", name.topic, task.encode())
