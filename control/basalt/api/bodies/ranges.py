"""Ranges of a topic: (after, through], the first id exclusive, the second inclusive.

Up to the stable end a range reads the same for ever, but for the topic's TTL and truncation.
"""

from __future__ import annotations

from msgspec import Struct

from basalt.api.bodies.json import MessageId
from basalt.api.bodies.markers import TaskInfo
from basalt.api.markers.reconcile import MarkerState, TaskState


class StableEnd(Struct, frozen=True):
    """The last id at or below which nothing can still appear or change who sees it; null: nothing is there yet."""

    id: MessageId | None
    generation: int


class Advance(Struct, frozen=True, rename="camel"):
    """A run of a topic behind an id, up to `through`: how many messages, and bytes of their payloads.

    `at_end`: there is nothing more up to the stable end, or the bound that was given. `expired`: messages behind `after`
    were lost to the topic's TTL. `tasks` and `task_count` are what the markers in this run say by themselves;
    `tasks_property` is the topic's own count of tasks.
    """

    through: MessageId | None
    messages: int
    bytes: int
    at_end: bool
    generation: int
    expired: bool
    task_count: int | None
    tasks_property: int | None
    tasks: tuple[TaskInfo, ...]

    @property
    def said(self) -> MarkerState:
        """The markers of this run alone, to be merged (`reconcile.merged`) with what was known before it."""
        tasks = {each.task: TaskState(each.watermark_ms, each.ended, each.published_ms) for each in self.tasks}
        return MarkerState(self.task_count, tasks)


class Split(Struct, frozen=True):
    """A part of a range, and how many messages and bytes of payloads are in it; `after` null: from the oldest message."""

    after: MessageId | None
    through: MessageId
    messages: int
    bytes: int


class Splits(Struct, frozen=True):
    """The parts of a range, in the order of the log."""

    splits: list[Split]
    generation: int
