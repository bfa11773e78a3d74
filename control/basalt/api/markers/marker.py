"""One marker and its payload. Format: docs/formats/markers.md.

payload := {"v":1,"task":text,"taskCount":number} for an end of stream, with "eventTimeMs":number for a watermark
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from basalt.errors import CorruptionError

VERSION = 1
KIND_WATERMARK = "watermark"
KIND_END_OF_STREAM = "end_of_stream"
MARKER_KINDS = (KIND_WATERMARK, KIND_END_OF_STREAM)
TASKS_MAX = 1_000  # a topic's bookkeeping is one small row, and one short text in a reader's position
TASK_CHARS_MAX = 255


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


def encode_marker(marker: Marker) -> bytes:
    """The payload of the marker's message."""
    return msgspec.json.encode(_Payload(VERSION, *marker))


def decode_marker(kind: str, payload: bytes | bytearray | memoryview) -> Marker:
    """The marker in the payload of a message of this kind; `CorruptionError` when it is none."""
    assert kind in MARKER_KINDS, kind
    try:
        found = msgspec.json.decode(payload, type=_Payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"a {kind} marker does not decode: {error}") from None
    marker = Marker(found.task, found.task_count, found.event_time_ms)
    if found.v != VERSION:
        raise CorruptionError(f"a {kind} marker has version {found.v}; this Basalt reads version {VERSION}")
    if marker.kind != kind or not marker.task or not 1 <= marker.task_count <= TASKS_MAX:
        raise CorruptionError(f"a {kind} marker says {bytes(payload)[:80]!r}")
    return marker
