"""Where a read begins and ends, as options say it: by an id, a time, or the topic's own ends.

Each edge is a cut between two messages. It becomes an id such that everything up to it, inclusively, lies before the cut:
what a range begins after, or goes through. None lies before everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from basalt.api.positions import Position, PositionKind, parse_position
from basalt.errors import InputError
from basalt_spark.offset import ID_BYTES, Offset, parse_offset
from basalt_spark.topic_name import TopicName, topic_name

_BARE_TIME = re.compile(r"[0-9]{1,19}|[0-9]{4}-[0-9]{2}-.*")  # without the @ by which positions know a time


class Edge(NamedTuple):
    """A cut: before everything, behind everything that is decided, or behind the id `behind` (None: before everything)."""

    kind: Literal["earliest", "latest", "id"]
    behind: bytes | None = None

    def cut(self, stable_end: Callable[[], bytes | None]) -> bytes | None:
        """The id behind which the cut lies."""
        return stable_end() if self.kind == "latest" else self.behind


EARLIEST = Edge("earliest")
LATEST = Edge("latest")


class Edges(NamedTuple):
    """The edge of each topic; those that are not named have the default. `offset` is a whole one to go on from."""

    default: Edge
    by_topic: Mapping[TopicName, Edge] = {}
    offset: Offset | None = None

    def of(self, topic: TopicName) -> Edge:
        """The edge of this topic."""
        return self.by_topic.get(topic, self.default)


def before_id(message_id: bytes) -> bytes | None:
    """The greatest id that is less than this one; None where there is none."""
    number = int.from_bytes(message_id)
    return (number - 1).to_bytes(ID_BYTES) if number else None


def before_time(time_ms: int) -> bytes | None:
    """The greatest id of a message published before this time."""
    return before_id(time_ms.to_bytes(8) + bytes(ID_BYTES - 8))


def edge_at_time(text: str, now_ms: int, option: str) -> Edge:
    """The cut before the first message published at or after this time."""
    position = _position(text, now_ms, option)
    if position.kind is not PositionKind.TIME or position.time_ms is None:
        raise InputError(
            f"option {option}: {text!r} is no time: write 2026-01-31T10:00:00Z, milliseconds since 1970, or -1h",
            field=option,
        )
    return Edge("id", before_time(position.time_ms))


def edge_at_id(text: str, inclusive: bool, option: str) -> Edge:
    """The cut before (or, exclusively, behind) the message of this id."""
    message_id = _id(text, option)
    return Edge("id", before_id(message_id) if inclusive else message_id)


def edges_of(text: str, topics: tuple[TopicName, ...], namespace: str, option: str) -> Edges:
    """`earliest`, `latest`, or JSON: `{"orders": "latest", "shop:bills": ID}`, or an offset as a query's progress shows it.

    An id stands for what was read last: a start goes on behind it, an end includes it.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Edges(EARLIEST if word == "earliest" else LATEST)
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"option {option}: {text!r} is neither earliest, latest nor a JSON object", field=option)
    if isinstance(found.get("v"), int):  # a topic may be called so, too, and has no number
        return _edges_of_offset(parse_offset(found), topics, option)
    by_topic = {topic_name(name, namespace, option): _edge(value, name, option) for name, value in found.items()}
    _refuse_others(set(by_topic), topics, option)
    return Edges(EARLIEST, by_topic)


def _edges_of_offset(offset: Offset, topics: tuple[TopicName, ...], option: str) -> Edges:
    _refuse_others(set(offset.topics), topics, option)
    by_topic = {topic: Edge("id", reached.id) for topic, reached in offset.topics.items()}
    return Edges(EARLIEST, by_topic, offset)


def _refuse_others(named: set[TopicName], topics: tuple[TopicName, ...], option: str) -> None:
    if named != set(topics):
        what = f"names {_list(named)}, and what is read is {_list(set(topics))}: name each of them once"
        raise InputError(f"option {option} {what}", field=option)


def _edge(value: Any, name: str, option: str) -> Edge:
    if value in ("earliest", "latest"):
        return EARLIEST if value == "earliest" else LATEST
    if not isinstance(value, str):
        raise InputError(f"option {option}: that of {name} is neither earliest, latest nor an id", field=option)
    return Edge("id", _id(value, option))


def _id(text: str, option: str) -> bytes:
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * ID_BYTES}}}", text.strip()):
        raise InputError(
            f"option {option}: {text!r} is no message id, which is {2 * ID_BYTES} hex digits", field=option
        )
    return bytes.fromhex(text.strip())


def _position(text: str, now_ms: int, option: str) -> Position:
    plain = text.strip()
    return parse_position(f"@{plain}" if _BARE_TIME.fullmatch(plain) else plain, now_ms, field=f"option {option}")


def _list(topics: set[TopicName]) -> str:
    return ", ".join(sorted(map(str, topics))) or "no topic"
