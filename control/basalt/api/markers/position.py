"""Position of a reader of messages and markers: a text that carries the bookkeeping. Format: docs/formats/markers.md.

A reader that starts again at it knows the same watermark and the same ended tasks, without reading anything twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from basalt.api.markers.marker import TASK_CHARS_MAX, TASKS_MAX
from basalt.api.markers.reconcile import NOTHING_KNOWN, MarkerState, TaskState
from basalt.errors import InputError

VERSION = 1
TEXT_CHARS_MAX = 1 << 20
_ID = re.compile(r"[0-9a-f]{40}")


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
        text = _Text(VERSION, self.generation, after, self.state.task_count, self.watermark_ms, tasks)
        return msgspec.json.encode(text).decode()


class _Text(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    v: int
    generation: int
    after: str | None
    task_count: int | None
    watermark_ms: int | None
    tasks: dict[str, tuple[int | None, bool, int]]


def parse_marked_position(text: str, field: str = "position") -> MarkedPosition:
    """The position that `str` of it wrote; `InputError` names what is wrong with any other text."""
    if len(text) > TEXT_CHARS_MAX:
        raise _refused(field, f"has {len(text)} characters")
    try:
        found = msgspec.json.decode(text.encode(), type=_Text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise _refused(field, f"does not decode ({error})") from None
    if found.v != VERSION:
        raise _refused(field, f"has version {found.v}; this Basalt reads version {VERSION}")
    if found.generation < 1 or (found.after is not None and _ID.fullmatch(found.after) is None):
        raise _refused(field, "names no place in a topic")
    if (found.task_count is None) != (not found.tasks) or found.task_count not in (None, *range(1, TASKS_MAX + 1)):
        raise _refused(field, f"says {found.task_count} tasks and tells of {len(found.tasks)}")
    tasks = {name: TaskState(*task) for name, task in found.tasks.items()}
    if any(not 0 < len(name) <= TASK_CHARS_MAX or task.published_ms < 0 for name, task in tasks.items()):
        raise _refused(field, "tells of a task that cannot be")
    after = None if found.after is None else bytes.fromhex(found.after)
    return MarkedPosition(found.generation, after, MarkerState(found.task_count, tasks), found.watermark_ms)


def _refused(field: str, what: str) -> InputError:
    return InputError(
        f"{field} {what}; it is none that reading with markers gives",
        field=field,
        hint="Give back the text exactly as it was.",
    )
