"""The options of reading, as values: the topics, and where the read begins and ends.

A read begins and ends at an edge: a cut between two messages. It becomes an id such that everything up to it,
inclusively, lies before the cut: a range begins after that id, or goes through it. None lies before everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from basalt.api.markers import Idle
from basalt.api.positions import Position, PositionKind, parse_position
from basalt.errors import InputError
from basalt_engine.clock import Clock, SystemClock
from basalt_spark.columns import CONTROL, DEFAULT_COLUMNS, chosen_columns
from basalt_spark.connection import Server, TopicName, topic_name
from basalt_spark.offset import ID_BYTES, Offset, before_id, before_time, parse_offset
from basalt_spark.options import Use, at_most, given_names, read_options_given, refuse_together

_BARE_TIME = re.compile(r"[0-9]{1,19}|[0-9]{4}-[0-9]{2}-.*")  # a time without the @ with which positions write it


class Edge(NamedTuple):
    """A cut: before everything, behind all that is decided, or behind the id `behind` (None: before everything)."""

    kind: Literal["earliest", "latest", "id"]
    behind: bytes | None = None

    def cut(self, stable_end: bytes | None) -> bytes | None:
        """The id behind which the cut lies."""
        return stable_end if self.kind == "latest" else self.behind


EARLIEST = Edge("earliest")
LATEST = Edge("latest")


class Edges(NamedTuple):
    """The edge of each topic; topics that are not named have the default. `offset`: a whole offset to go on from."""

    default: Edge
    by_topic: Mapping[TopicName, Edge] = {}
    offset: Offset | None = None

    def of(self, topic: TopicName) -> Edge:
        """The edge of this topic."""
        return self.by_topic.get(topic, self.default)


def edge_at_time(text: str, now_ms: int, option: str) -> Edge:
    """The cut before the first message published at or after this time."""
    position = _position(text, now_ms, option)
    if position.kind is not PositionKind.TIME or position.time_ms is None:
        raise InputError(
            f"option {option}: {text!r} is not a time: write 2026-01-31T10:00:00Z, milliseconds since 1970, or -1h",
            field=option,
        )
    return Edge("id", before_time(position.time_ms))


def edge_at_id(text: str, inclusive: bool, option: str) -> Edge:
    """The cut before (or, exclusively, behind) the message of this id."""
    message_id = _id(text, option)
    return Edge("id", before_id(message_id) if inclusive else message_id)


def edges_of(text: str, topics: tuple[TopicName, ...], namespace: str, option: str) -> Edges:
    """Parse `earliest`, `latest`, JSON as `{"orders": "latest", "shop:bills": ID}`, or an offset of a query's progress.

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
    if isinstance(found.get("v"), int):  # a topic may be called v, too, but its edge is no number
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
        raise InputError(f"option {option}: the value of {name} is neither earliest, latest nor an id", field=option)
    return Edge("id", _id(value, option))


def _id(text: str, option: str) -> bytes:
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * ID_BYTES}}}", text.strip()):
        raise InputError(
            f"option {option}: {text!r} is not a message id, which is {2 * ID_BYTES} hex digits", field=option
        )
    return bytes.fromhex(text.strip())


def _position(text: str, now_ms: int, option: str) -> Position:
    plain = text.strip()
    return parse_position(f"@{plain}" if _BARE_TIME.fullmatch(plain) else plain, now_ms, field=f"option {option}")


def _list(topics: set[TopicName]) -> str:
    return ", ".join(sorted(map(str, topics))) or "no topic"


FETCH_BYTES_MAX = 32 * 1024**2  # the most that a server sends in one answer
PARTITIONS_MAX = 10_000  # tasks of one read; more only cost


@dataclass(frozen=True, slots=True)
class Admission:
    """The most that a micro-batch takes in (None: all there is), and what it waits for."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int = 0
    delay_ms_max: int = 0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The topics, edges and limits of a read. It goes to every task, so it holds no connection and no secret."""

    server: Server
    topics: tuple[TopicName, ...]
    isolation: Literal["committed", "uncommitted"]
    start: Edges
    end: Edges
    admission: Admission
    partitions_min: int
    fetch_bytes: int
    fail_on_data_loss: bool
    control: Literal["hide", "heartbeat", "rows"]
    idle: Idle | None
    end_on_eos: bool
    columns: tuple[str, ...]
    pushdown: bool


def read_options(given: Mapping[str, str], use: Use, clock: Clock | None = None) -> ReadOptions:
    """Read the options that a user gave; `InputError` names the option at fault."""
    values = read_options_given(given, use)
    names = given_names(given)
    now_ms = (clock or SystemClock()).now_ms()
    topics = _topics(values, names)
    options = ReadOptions(
        server=Server(values["server"], values["namespace"], values["tokenEnv"], values["callTimeout"]),
        topics=topics,
        isolation=values["isolation"],
        start=_start(values, names, topics, now_ms),
        end=_end(values, names, topics, now_ms),
        admission=_admission(values, names),
        partitions_min=at_most("minPartitions", values["minPartitions"], PARTITIONS_MAX),
        fetch_bytes=at_most("fetchBytes", values["fetchBytes"], FETCH_BYTES_MAX),
        fail_on_data_loss=values["failOnDataLoss"],
        control=values.get("control", "hide"),
        idle=_idle(values, names),
        end_on_eos=values.get("endOnEos", False),
        columns=DEFAULT_COLUMNS if values["columns"] is None else chosen_columns(values["columns"]),
        pushdown=values.get("pushdown", False),
    )
    if options.control != "hide" and CONTROL not in options.columns:
        raise InputError(
            f"option control={options.control} needs the column {CONTROL}, which tells rows apart:"
            " add it to option columns",
            field="columns",
        )
    return options


def _topics(values: dict[str, Any], names: frozenset[str]) -> tuple[TopicName, ...]:
    refuse_together(names, "topic", "topics")
    namespace = values["namespace"]
    if values["topic"] is not None:
        return (topic_name(values["topic"], namespace, "topic"),)
    if values["topics"] is None:
        raise InputError("option topic is missing: give topic, or topics with commas between them", field="topic")
    topics = [topic_name(name, namespace, "topics") for name in values["topics"]]
    if len(set(topics)) < len(topics):
        raise InputError("option topics names a topic twice", field="topics")
    return tuple(sorted(topics))


def _start(values: dict[str, Any], names: frozenset[str], topics: tuple[TopicName, ...], now_ms: int) -> Edges:
    refuse_together(names, "startingOffsets", "startingTimestamp", "startingId")
    if values["startingTimestamp"] is not None:
        return Edges(edge_at_time(values["startingTimestamp"], now_ms, "startingTimestamp"))
    if values["startingId"] is not None:
        if len(topics) > 1:
            raise InputError("option startingId is of one topic: give startingOffsets as JSON", field="startingId")
        return Edges(edge_at_id(values["startingId"], values["startingInclusive"], "startingId"))
    if "startingInclusive" in names:
        raise InputError(
            "option startingInclusive has no meaning without startingId: give both, or neither",
            field="startingInclusive",
        )
    if values["startingOffsets"] is None:
        return Edges(EARLIEST)
    return edges_of(values["startingOffsets"], topics, values["namespace"], "startingOffsets")


def _end(values: dict[str, Any], names: frozenset[str], topics: tuple[TopicName, ...], now_ms: int) -> Edges:
    refuse_together(names, "endingOffsets", "endingTimestamp")
    if values.get("endingTimestamp") is not None:
        return Edges(edge_at_time(values["endingTimestamp"], now_ms, "endingTimestamp"))
    if values.get("endingOffsets") is None:
        return Edges(LATEST)
    edges = edges_of(values["endingOffsets"], topics, values["namespace"], "endingOffsets")
    if EARLIEST in (edges.default, *edges.by_topic.values()) and not edges.by_topic:
        raise InputError("option endingOffsets: a read cannot end at earliest", field="endingOffsets")
    return edges


def _admission(values: dict[str, Any], names: frozenset[str]) -> Admission:
    rows_min, rows_max = values.get("minRowsPerTrigger"), values.get("maxRowsPerTrigger")
    if rows_min is None and "maxTriggerDelay" in names:
        raise InputError(
            "option maxTriggerDelay has no meaning without minRowsPerTrigger: give both, or neither",
            field="maxTriggerDelay",
        )
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise InputError(
            f"option minRowsPerTrigger is {rows_min}, more than maxRowsPerTrigger, which is {rows_max}",
            field="minRowsPerTrigger",
        )
    return Admission(rows_max, values.get("maxBytesPerTrigger"), rows_min or 0, values.get("maxTriggerDelay", 0))


def _idle(values: dict[str, Any], names: frozenset[str]) -> Idle | None:
    timeout_ms = values.get("watermarkIdleTimeout")
    if timeout_ms is not None:
        return Idle(timeout_ms, values["watermarkQuorum"])
    if "watermarkQuorum" in names:
        raise InputError(
            "option watermarkQuorum has no meaning without watermarkIdleTimeout: give both, or neither",
            field="watermarkQuorum",
        )
    return None
