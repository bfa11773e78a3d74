"""Where a stream stands: the offset that Spark keeps in its checkpoint. Pure.

Spark compares two offsets as texts and takes any difference for news. So equal offsets must be equal texts: every object
is written with its members sorted, and nothing in it depends on when or by whom it was written.
Format: docs/formats/spark-offset.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from basalt.api.markers.reconcile import NOTHING_KNOWN, MarkerState, TaskState
from basalt.errors import InputError
from basalt_spark.topic_name import TopicName, topic_name

VERSION = 1
ID_BYTES = 20


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """How far one topic was read, and what its markers said up to there.

    `began` is where the query started in it: the first batch is planned again from there, whatever `latest` is by then.
    Where that is yet to come, markers are read up to it, and no messages.
    """

    generation: int
    id: bytes | None
    began: bytes | None
    markers: MarkerState = NOTHING_KNOWN

    @property
    def behind(self) -> bytes | None:
        """The messages behind this are rows that are still to be read."""
        return max((place for place in (self.id, self.began) if place is not None), default=None)


@dataclass(frozen=True, slots=True)
class Offset:
    """How far all topics were read. `watermark_ms` is what the rows up to here were given, `done` whether nothing follows.

    `initial` marks the start of a query, which is no state: nothing was read, and nothing is known of the tasks.
    """

    instance: str
    topics: Mapping[TopicName, TopicOffset]
    watermark_ms: int | None = None
    done: bool = False
    initial: bool = False


class _TopicText(msgspec.Struct, forbid_unknown_fields=True):
    gen: int
    at: dict[str, int] = {}
    began: str | None = msgspec.field(default=None, name="from")
    eos: list[str] = []
    id: str | None = None
    n: int | None = None
    wm: dict[str, int] = {}


class _OffsetText(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    topics: dict[str, _TopicText]
    done: bool = False
    initial: bool = False
    instance: str = ""
    watermark: int | None = None


def offset_json(offset: Offset) -> dict[str, Any]:
    """The offset as JSON values, every object in order."""
    topics = {str(topic): _topic_json(reached) for topic, reached in offset.topics.items()}
    members: dict[str, Any] = {
        "done": offset.done,
        "instance": offset.instance,
        "topics": dict(sorted(topics.items())),
        "v": VERSION,
        "watermark": offset.watermark_ms,
    }
    if offset.initial:
        members["initial"] = True
    return dict(sorted(members.items()))


def parse_offset(members: Mapping[str, Any]) -> Offset:
    """The offset in a checkpoint; `InputError` where it is none, or of a later version."""
    version = members.get("v")
    if isinstance(version, int) and version > VERSION:
        raise InputError(f"the offset is of version {version}, and this is version {VERSION}: use a newer basalt_spark")
    try:
        text = msgspec.convert(dict(members), _OffsetText)
        topics = {topic_name(name, "default", "offset"): _topic_offset(of) for name, of in text.topics.items()}
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(
            f"the checkpoint holds no offset of format basalt ({error}): it belongs to another source; give a new one"
        ) from None
    return Offset(text.instance, topics, text.watermark, text.done, text.initial)


def moved(offset: Offset, topic: TopicName, reached: TopicOffset) -> Offset:
    """The same offset with this topic read further."""
    return replace(offset, topics={**offset.topics, topic: reached}, initial=False)


def _topic_json(reached: TopicOffset) -> dict[str, Any]:
    tasks = sorted(reached.markers.tasks.items())
    return {
        "at": {name: task.published_ms for name, task in tasks},
        "eos": [name for name, task in tasks if task.ended],
        "from": _hex(reached.began),
        "gen": reached.generation,
        "id": _hex(reached.id),
        "n": reached.markers.task_count,
        "wm": {name: task.watermark_ms for name, task in tasks if task.watermark_ms is not None},
    }


def _topic_offset(text: _TopicText) -> TopicOffset:
    tasks = {
        name: TaskState(text.wm.get(name), name in text.eos, published_ms) for name, published_ms in text.at.items()
    }
    return TopicOffset(text.gen, _bytes(text.id), _bytes(text.began), MarkerState(text.n, tasks))


def _hex(message_id: bytes | None) -> str | None:
    return None if message_id is None else message_id.hex()


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    message_id = bytes.fromhex(text)
    if len(message_id) != ID_BYTES:
        raise ValueError(f"{text!r} is not an id of {ID_BYTES} bytes")
    return message_id
