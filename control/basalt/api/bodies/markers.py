"""Markers: watermarks and ends of streams. Rules: docs/formats/markers.md."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


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
