"""Markers: one and its payload, what a topic's markers mean together, and a reader's position among them. Pure.

payload := {"v":1,"task":text,"taskCount":number} for an end of stream, with "eventTimeMs":number for a watermark

A task's watermark never goes back; a topic's is the lowest of its tasks', unknown until each expected task has spoken; a
task that has ended holds nothing back; a topic has ended when every expected task has. Only markers that a committed
reader sees, in the order of the log, are given to `apply`. Formats and rules, in full: docs/formats/markers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from basalt.errors import CorruptionError, InputError

MARKER_VERSION = 1
KIND_WATERMARK = "watermark"
KIND_END_OF_STREAM = "end_of_stream"
MARKER_KINDS = (KIND_WATERMARK, KIND_END_OF_STREAM)
TASKS_MAX = 1_000  # a topic's bookkeeping is one small row, and one short text in a reader's position
TASK_CHARS_MAX = 255
NAMED_TASKS_MAX = 10  # in a message
POSITION_VERSION = 1
TEXT_CHARS_MAX = 1 << 20
_ID = re.compile(r"[0-9a-f]{40}")
_NO_TASKS: Mapping[str, TaskState] = MappingProxyType({})


class Marker(NamedTuple):
    """Statement of a task: its event time has come so far; or, without a time, it has ended."""

    task: str
    task_count: int
    event_time_ms: int | None = None

    @property
    def kind(self) -> str:
        """One of `MARKER_KINDS`."""
        return KIND_END_OF_STREAM if self.event_time_ms is None else KIND_WATERMARK

    @property
    def ends(self) -> bool:
        """True for an end of stream."""
        return self.event_time_ms is None


class _Payload(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    v: int
    task: str
    task_count: int
    event_time_ms: int | None = None


_PAYLOADS = msgspec.json.Decoder(_Payload)  # made here: threads that make it at the same time can crash the process


def encode_marker(marker: Marker) -> bytes:
    """The payload of the marker's message."""
    return msgspec.json.encode(_Payload(MARKER_VERSION, *marker))


def decode_marker(kind: str, payload: bytes | bytearray | memoryview) -> Marker:
    """The marker in the payload of a message of this kind; `CorruptionError` when it is none."""
    assert kind in MARKER_KINDS, kind
    try:
        found = _PAYLOADS.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"a {kind} marker does not decode: {error}") from None
    marker = Marker(found.task, found.task_count, found.event_time_ms)
    if found.v != MARKER_VERSION:
        raise CorruptionError(f"a {kind} marker has version {found.v}; this Basalt reads version {MARKER_VERSION}")
    if marker.kind != kind or not marker.task or not 1 <= marker.task_count <= TASKS_MAX:
        raise CorruptionError(f"a {kind} marker says {bytes(payload)[:80]!r}")
    return marker


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
    """The rule by which a reader leaves silent tasks out: after how long, and how many others must be active then."""

    timeout_ms: int
    quorum: int


class Refusal(NamedTuple):
    """The reason why a marker must not be emitted: the field at fault, its fault, and the next step."""

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
    """The reason why this can be no marker of any topic; None when it can."""
    if not 1 <= len(marker.task) <= TASK_CHARS_MAX or not marker.task.isprintable():
        return Refusal("task", "a task's name is text of 1 to 255 printable characters", "name the producing task")
    if not 1 <= marker.task_count <= TASKS_MAX:
        what = f"task {marker.task!r} says that there are {marker.task_count} tasks"
        return Refusal("taskCount", what, f"a topic has 1 to {TASKS_MAX} tasks")
    return None


def refusal(state: MarkerState, marker: Marker) -> Refusal | None:
    """The reason why this marker must not follow; None when it may. A repeated end, or a watermark that says less, may."""
    if state.task_count is not None and marker.task_count != state.task_count:
        what = f"task {marker.task!r} says that there are {marker.task_count} tasks, and the topic knows {state.task_count}"
        return Refusal("taskCount", what, "give the same number as before, or set the topic's property `tasks`")
    known = state.tasks.get(marker.task)
    if known is None and len(state.tasks) >= marker.task_count:
        what = f"task {marker.task!r} is one more than the {marker.task_count} that the topic expects and has heard"
        return Refusal("task", what, f"they are {', '.join(sorted(state.tasks)[:NAMED_TASKS_MAX])}")
    if known is not None and known.ended and not marker.ends:
        what = f"task {marker.task!r} has ended and cannot give a watermark any more"
        return Refusal("task", what, "a stream that ended is over: write the next one to another topic or generation")
    return None


def closed(state: MarkerState) -> Refusal | None:
    """The reason why no message may follow these markers; None when one may.

    Whoever follows the topic stops at its end: what came behind it would be there for some readers, and not for others.
    """
    if not is_ended(state):
        return None
    count = len(state.tasks)
    what = f"it has ended: {_listed(state)} said that nothing more comes"
    hint = f"write to another topic, or say that one more task writes this one: set its property `tasks` to {count + 1}"
    return Refusal("topic", what, hint)


def _listed(state: MarkerState) -> str:
    names = sorted(state.tasks)
    shown = ", ".join(map(repr, names[:NAMED_TASKS_MAX]))
    more = len(names) - NAMED_TASKS_MAX
    return f"task{'s' if len(names) > 1 else ''} {shown}" + (f" and {more} more" if more > 0 else "")


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


def _lowest(tasks: Iterable[TaskState]) -> int | None:
    marks = [task.watermark_ms for task in tasks]
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None


def _highest(state: MarkerState) -> int | None:
    return max((task.watermark_ms for task in state.tasks.values() if task.watermark_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class MarkedPosition:
    """Go on after `after_id` (None: from the start) of this generation, with what was known there.

    `watermark_ms` is what its reader was told last; it may be ahead of the plain minimum, where silent tasks were left out.
    """

    generation: int
    after_id: bytes | None = None
    state: MarkerState = NOTHING_KNOWN
    watermark_ms: int | None = None

    def __str__(self) -> str:
        tasks = {
            name: (task.watermark_ms, task.ended, task.published_ms) for name, task in sorted(self.state.tasks.items())
        }
        after = None if self.after_id is None else self.after_id.hex()
        text = _Text(POSITION_VERSION, self.generation, after, self.state.task_count, self.watermark_ms, tasks)
        return msgspec.json.encode(text).decode()


class _Text(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    v: int
    generation: int
    after: str | None
    task_count: int | None
    watermark_ms: int | None
    tasks: dict[str, tuple[int | None, bool, int]]


_TEXTS = msgspec.json.Decoder(_Text)


def parse_marked_position(text: str) -> MarkedPosition:
    """The position that `str` of it wrote; `InputError` names what is wrong with any other text."""
    if len(text) > TEXT_CHARS_MAX:
        raise _refused(f"has {len(text)} characters")
    try:
        parsed = _TEXTS.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise _refused(f"does not decode ({error})") from None
    if parsed.v != POSITION_VERSION:
        raise _refused(f"has version {parsed.v}; this Basalt reads version {POSITION_VERSION}")
    if parsed.generation < 1 or (parsed.after is not None and _ID.fullmatch(parsed.after) is None):
        raise _refused("names no place in a topic")
    if (parsed.task_count is None) != (not parsed.tasks) or parsed.task_count not in (None, *range(1, TASKS_MAX + 1)):
        raise _refused(f"says {parsed.task_count} tasks and tells of {len(parsed.tasks)}")
    tasks = {name: TaskState(*task) for name, task in parsed.tasks.items()}
    if any(not 0 < len(name) <= TASK_CHARS_MAX or task.published_ms < 0 for name, task in tasks.items()):
        raise _refused("tells of a task that cannot be")
    after = None if parsed.after is None else bytes.fromhex(parsed.after)
    return MarkedPosition(parsed.generation, after, MarkerState(parsed.task_count, tasks), parsed.watermark_ms)


def _refused(what: str) -> InputError:
    return InputError(
        f"position {what}; it is none that reading with markers gives",
        field="position",
        hint="Give back the text exactly as it was.",
    )
