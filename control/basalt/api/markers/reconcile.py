"""Rules for the markers of a topic together: its watermark, and whether it has ended. Pure; times are arguments.

The rules, in full: docs/formats/markers.md. A task's watermark never goes back; a topic's is the lowest of its tasks',
unknown until each expected task has spoken; a task that has ended holds nothing back; a topic has ended when every
expected task has. Only markers that a committed reader sees, in the order of the log, are given to `apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from basalt.api.markers.marker import TASK_CHARS_MAX, TASKS_MAX, Marker

_NO_TASKS: Mapping[str, TaskState] = MappingProxyType({})


class TaskState(NamedTuple):
    """Sum of a task's markers; the newest of them was published at `published_ms`."""

    watermark_ms: int | None = None
    ended: bool = False
    published_ms: int = 0


class MarkerState(NamedTuple):
    """State after some markers. `task_count` is None until the first one; tasks that never spoke are not listed."""

    task_count: int | None = None
    tasks: Mapping[str, TaskState] = _NO_TASKS

    def expecting(self, task_count: int | None) -> MarkerState:
        """The same where the topic itself says how many tasks there are (None: it does not)."""
        return self if task_count is None else self._replace(task_count=task_count)


NOTHING_KNOWN = MarkerState()


class Idle(NamedTuple):
    """When a reader leaves silent tasks out: after how long, and how many others must be active then."""

    timeout_ms: int
    quorum: int


class Refusal(NamedTuple):
    """Why a marker must not be emitted: the field at fault, what is wrong with it, what to do."""

    field: str
    what: str
    hint: str


def apply(state: MarkerState, marker: Marker, published_ms: int) -> MarkerState:
    """The state after one more marker. One that says nothing new, or comes from a task that has ended, changes little."""
    before = state.tasks.get(marker.task, TaskState())
    watermark_ms = before.watermark_ms
    if marker.event_time_ms is not None and not before.ended:
        watermark_ms = marker.event_time_ms if watermark_ms is None else max(watermark_ms, marker.event_time_ms)
    after = TaskState(watermark_ms, before.ended or marker.ends, max(before.published_ms, published_ms))
    # Of another count than before only a changed property of the topic can be the reason: `refusal` lets none else pass.
    return MarkerState(marker.task_count, {**state.tasks, marker.task: after})


def merged(state: MarkerState, later: MarkerState) -> MarkerState:
    """The state after `state` and then the markers that alone made `later`: as if each of them had been applied."""
    if not later.tasks:
        return state
    tasks = dict(state.tasks)
    for name, task in later.tasks.items():
        before = tasks.get(name, TaskState())
        marks = [
            mark for mark in (before.watermark_ms, None if before.ended else task.watermark_ms) if mark is not None
        ]
        published_ms = max(before.published_ms, task.published_ms)
        tasks[name] = TaskState(max(marks, default=None), before.ended or task.ended, published_ms)
    return MarkerState(later.task_count, tasks)


def malformed(marker: Marker) -> Refusal | None:
    """Why this can be no marker of any topic; None when it can."""
    if not 1 <= len(marker.task) <= TASK_CHARS_MAX or not marker.task.isprintable():
        return Refusal("task", "a task's name is text of 1 to 255 printable characters", "name the producing task")
    if not 1 <= marker.task_count <= TASKS_MAX:
        what = f"task {marker.task!r} says that there are {marker.task_count} tasks"
        return Refusal("taskCount", what, f"a topic has 1 to {TASKS_MAX} tasks")
    return None


def refusal(state: MarkerState, marker: Marker) -> Refusal | None:
    """Why this marker must not follow; None when it may. A repeated end, or a watermark that says less, may."""
    if state.task_count is not None and marker.task_count != state.task_count:
        what = f"task {marker.task!r} says that there are {marker.task_count} tasks, and the topic knows {state.task_count}"
        return Refusal("taskCount", what, "give the same number as before, or set the topic's property `tasks`")
    known = state.tasks.get(marker.task)
    if known is None and len(state.tasks) >= marker.task_count:
        what = f"task {marker.task!r} is one more than the {marker.task_count} that the topic expects and has heard"
        return Refusal("task", what, f"they are {', '.join(sorted(state.tasks)[:10])}")
    if known is not None and known.ended and not marker.ends:
        what = f"task {marker.task!r} has ended and cannot give a watermark any more"
        return Refusal("task", what, "a stream that ended is over: write the next one to another topic or generation")
    return None


def is_ended(state: MarkerState) -> bool:
    """Tell whether every expected task has ended."""
    ended = sum(task.ended for task in state.tasks.values())
    return state.task_count is not None and ended == len(state.tasks) >= state.task_count


def watermark_ms(state: MarkerState) -> int | None:
    """Up to where event time has come in every task that has not ended; None while that is unknown.

    Of a topic that has ended: the highest of its tasks', for nobody is left to hold it back.
    """
    if state.task_count is None or len(state.tasks) < state.task_count:
        return None
    return _lowest(task for task in state.tasks.values() if not task.ended) if not is_ended(state) else _highest(state)


def advanced(state: MarkerState, held_ms: int | None, idle: Idle | None = None, now_ms: int = 0) -> int | None:
    """The watermark of a reader that stands at `held_ms`: never lower than that, whatever came in between.

    With `idle`, where the plain minimum would not advance, tasks that were silent for so long are left out, provided that
    enough others are active.
    """
    plain = watermark_ms(state)
    if plain is not None and (held_ms is None or plain > held_ms):
        return plain
    if idle is None or is_ended(state):
        return held_ms
    active = [
        task
        for task in state.tasks.values()
        if not task.ended and task.watermark_ms is not None and now_ms - task.published_ms < idle.timeout_ms
    ]
    lenient = _lowest(active) if len(active) >= max(idle.quorum, 1) else None
    return held_ms if lenient is None or (held_ms is not None and lenient < held_ms) else lenient


def together(states: Iterable[MarkerState]) -> tuple[int | None, bool]:
    """The watermark of several topics, and whether all of them have ended: the lowest of those that have not."""
    several = list(states)
    running = [state for state in several if not is_ended(state)]
    known = [watermark_ms(state) for state in running or several]
    marks = [mark for mark in known if mark is not None]
    if running:
        return (min(marks) if len(marks) == len(running) else None), False
    return max(marks, default=None), bool(several)


def _lowest(tasks: Iterable[TaskState]) -> int | None:
    marks = [task.watermark_ms for task in tasks]
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None


def _highest(state: MarkerState) -> int | None:
    return max((task.watermark_ms for task in state.tasks.values() if task.watermark_ms is not None), default=None)
