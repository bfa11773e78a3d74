"""Messages of a topic: as operators look at them, its markers (docs/formats/markers.md), and its ranges.

A range is (after, through], the first id exclusive, the second inclusive. Up to the stable end it reads the same for ever,
but for the topic's TTL and truncation.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from basalt.api.bodies.json import HexMessageId
from basalt.api.markers import MarkerState, TaskState


class PeekedHeader(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A header of a record: its value as UTF-8 text, or in base64 where it is none."""

    name: str
    value: str | None = None
    value_base64: bytes | None = None


class PeekedMessage(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A message and what became of it: `state` is plain, committed, open, rolled back, invalid or expired.

    `payload` and `key` are there where they are UTF-8 text; else `payload_base64` and `key_base64` hold the bytes.
    """

    id: str
    state: str
    kind: str
    payload: str | None = None
    payload_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: tuple[PeekedHeader, ...] = ()
    event_time_ms: int | None = None
    ttl_ms: int | None = None
    write_pointer: int | None = None

    @property
    def content(self) -> bytes:
        """The payload's bytes."""
        return self.payload.encode() if self.payload is not None else self.payload_base64 or b""


class Holder(Struct, frozen=True, rename="camel"):
    """The transaction at which readers of committed messages stop, and where (an id in hex). All null: at none.

    `searched_to`: nothing was found up to this id, and there is more; ask again from there.
    """

    held_by: str | None = None
    at: str | None = None
    owner: str | None = None
    expires_ms: int | None = None
    searched_to: str | None = None


class MarkerRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A marker to emit. A watermark has an event time (ms since 1970), an end of stream has none."""

    task: str
    kind: Literal["watermark", "end_of_stream"]
    task_count: int = 1
    event_time_ms: int | None = None


class TaskInfo(Struct, frozen=True, rename="camel"):
    """Sum of one task's markers; the newest of them was published at `published_ms`."""

    task: str
    watermark_ms: int | None
    ended: bool
    published_ms: int


class MarkersInfo(Struct, frozen=True, rename="camel"):
    """Sum of a topic's markers for readers of committed messages that have come to `at` (an id in hex, for an exclusive start).

    `at` is null where nothing was published; `watermark_ms` and `task_count` are null while they are unknown.
    """

    watermark_ms: int | None
    ended: bool
    task_count: int | None
    tasks: tuple[TaskInfo, ...]
    at: str | None
    generation: int


class StableEnd(Struct, frozen=True):
    """The last id at or below which nothing can still appear or change who sees it; null: nothing is there yet."""

    id: HexMessageId | None
    generation: int


class Advance(Struct, frozen=True, rename="camel"):
    """A run of a topic behind an id, up to `through`: how many messages, and bytes of their payloads.

    `at_end`: there is nothing more up to the stable end, or the bound that was given. `expired`: messages behind `after`
    were lost to the topic's TTL. `tasks` and `task_count` are what the markers in this run say by themselves;
    `tasks_property` is the topic's own count of tasks.
    """

    through: HexMessageId | None
    messages: int
    bytes: int
    at_end: bool
    generation: int
    expired: bool
    task_count: int | None
    tasks_property: int | None
    tasks: tuple[TaskInfo, ...]

    @property
    def marker_state(self) -> MarkerState:
        """The markers of this run alone, to be merged (`reconcile.merged`) with what was known before it."""
        tasks = {each.task: TaskState(each.watermark_ms, each.ended, each.published_ms) for each in self.tasks}
        return MarkerState(self.task_count, tasks)


class Split(Struct, frozen=True):
    """A part of a range, and how many messages and bytes of payloads are in it; `after` null: from the oldest message."""

    after: HexMessageId | None
    through: HexMessageId
    messages: int
    bytes: int


class Splits(Struct, frozen=True):
    """The parts of a range, in the order of the log."""

    splits: list[Split]
    generation: int
