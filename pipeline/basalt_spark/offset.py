"""The offset of a stream, which Spark keeps in the query's checkpoint. Pure.

Spark compares two offsets as texts and takes any difference for news. So equal offsets must be equal texts: every
object is written with its members sorted, and no member depends on when or by whom it was written. Format:
docs/formats/spark-offset.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from basalt.api.markers import NOTHING_KNOWN, MarkerState, TaskState
from basalt.errors import InputError
from basalt_spark.connection import QualifiedTopic, topic_name

VERSION = 1
ID_BYTES = 20


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The place up to which one topic was read, and the state of its markers there.

    `began` is the place where the query started: the first batch is planned again from it, whatever `latest` is by
    then. Up to that place markers are read, and no messages.
    """

    generation: int
    id: bytes | None
    began: bytes | None
    markers: MarkerState = NOTHING_KNOWN

    @property
    def behind(self) -> bytes | None:
        """The id behind which all messages are still to be read as rows."""
        return max((place for place in (self.id, self.began) if place is not None), default=None)


@dataclass(frozen=True, slots=True)
class Offset:
    """The places up to which all topics were read, and the watermark of the rows up to them; `done`: nothing follows.

    `initial` marks the start of a query: nothing was read yet, and nothing is known of the tasks.
    """

    instance: str
    topics: Mapping[QualifiedTopic, TopicOffset]
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
    initial: bool | msgspec.UnsetType = msgspec.UNSET  # written only if it is true
    instance: str = ""
    watermark: int | None = None


def before_id(message_id: bytes) -> bytes | None:
    """The greatest id that is less than this one; None if there is none."""
    number = int.from_bytes(message_id)
    return (number - 1).to_bytes(ID_BYTES) if number else None


def before_time(time_ms: int) -> bytes | None:
    """The greatest id of a message published before this time."""
    return before_id(time_ms.to_bytes(8) + bytes(ID_BYTES - 8))


def offset_json(offset: Offset) -> dict[str, Any]:
    """Write an offset as JSON values, every object with its members sorted."""
    topics = {str(topic): _topic_text(reached) for topic, reached in offset.topics.items()}
    initial = offset.initial or msgspec.UNSET
    text = _OffsetText(VERSION, topics, offset.done, initial, offset.instance, offset.watermark_ms)
    members: dict[str, Any] = msgspec.to_builtins(text, order="sorted")
    return members


def parse_offset(members: Mapping[str, Any]) -> Offset:
    """Read the offset in a checkpoint; `InputError` for anything else, and for a later version."""
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
    return Offset(text.instance, topics, text.watermark, text.done, text.initial is True)


def _topic_text(reached: TopicOffset) -> _TopicText:
    tasks = sorted(reached.markers.tasks.items())
    return _TopicText(
        gen=reached.generation,
        at={name: task.published_ms for name, task in tasks},
        began=hex_of(reached.began),
        eos=[name for name, task in tasks if task.ended],
        id=hex_of(reached.id),
        n=reached.markers.task_count,
        wm={name: task.watermark_ms for name, task in tasks if task.watermark_ms is not None},
    )


def _topic_offset(text: _TopicText) -> TopicOffset:
    tasks = {
        name: TaskState(text.wm.get(name), name in text.eos, published_ms) for name, published_ms in text.at.items()
    }
    return TopicOffset(text.gen, _bytes(text.id), _bytes(text.began), MarkerState(text.n, tasks))


def hex_of(message_id: bytes | None) -> str | None:
    return None if message_id is None else message_id.hex()


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    message_id = bytes.fromhex(text)
    if len(message_id) != ID_BYTES:
        raise ValueError(f"{text!r} is not an id of {ID_BYTES} bytes")
    return message_id


def refuse_other_installation(offset: Offset, instance: str, what: str, field: str) -> None:
    """Raise `InputError` for an offset of another server's store. `what` is where the offset was given."""
    if offset.instance != instance:
        raise InputError(
            f"{what} is of installation {offset.instance}, and the server is of installation {instance}:"
            " their ids have nothing to do with each other; check option server, or give a new one",
            field=field,
        )
