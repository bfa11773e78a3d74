"""The options of a read and of a write, as values, and the columns that a data frame to write may have.

A read begins and ends at an edge: a cut between two messages. It becomes an id such that everything up to it,
inclusively, lies before the cut: a range begins after that id, or goes through it. None lies before everything.

An unknown column is refused by name before any job runs: a column that was silently left out would be missed in the
topic much later. docs/spark/sink.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
from pyspark.sql.types import StructType

from basalt.api.markers import Idle
from basalt.api.positions import PositionKind, parse_position
from basalt.errors import InputError
from basalt_engine.clock import Clock, SystemClock
from basalt_spark.columns import CONTROL, DEFAULT_COLUMNS, ID, TOPIC, WATERMARK, chosen_columns
from basalt_spark.connection import QualifiedTopic, Server, topic_name
from basalt_spark.offset import ID_BYTES, Offset, before_id, before_time, parse_offset
from basalt_spark.option_table import FrameUse, read_options_given

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
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


class Edges(NamedTuple):
    """The edge of each topic; topics that are not named have the default. `offset`: a whole offset to go on from."""

    default: Edge
    by_topic: Mapping[QualifiedTopic, Edge] = {}
    offset: Offset | None = None

    def of(self, topic: QualifiedTopic) -> Edge:
        return self.by_topic.get(topic, self.default)


def edge_at_time(text: str, now_ms: int, option: str) -> Edge:
    """The cut before the first message published at or after this time."""
    plain = text.strip()
    position = parse_position(f"@{plain}" if _BARE_TIME.fullmatch(plain) else plain, now_ms, field=f"option {option}")
    if position.kind is not PositionKind.TIME or position.time_ms is None:
        raise InputError(
            f"option {option}: {text!r} is not a time: write 2026-01-31T10:00:00Z, milliseconds since 1970, or -1h",
            field=option,
        )
    return Edge("id", before_time(position.time_ms))


def edges_of(text: str, topics: tuple[QualifiedTopic, ...], namespace: str, option: str) -> Edges:
    """Parse `earliest`, `latest`, JSON as `{"orders": "latest", "shop:bills": ID}`, or an offset of a query's progress.

    An id stands for what was read last: a start goes on behind it, an end includes it.
    """
    if text.strip().lower() in _WORDS:
        return Edges(_WORDS[text.strip().lower()])
    try:
        parsed = msgspec.json.decode(text)
    except msgspec.DecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InputError(f"option {option}: {text!r} is neither earliest, latest nor a JSON object", field=option)
    offset = None
    if isinstance(parsed.get("v"), int):  # a topic may be called v, too, but its edge is no number
        offset = parse_offset(parsed)
        by_topic = {topic: Edge("id", reached.id) for topic, reached in offset.topics.items()}
    else:
        by_topic = {topic_name(name, namespace, option): _edge(value, name, option) for name, value in parsed.items()}
    if set(by_topic) != set(topics):
        what = f"names {_list(by_topic)}, and what is read is {_list(topics)}: name each of them once"
        raise InputError(f"option {option} {what}", field=option)
    return Edges(EARLIEST, by_topic, offset)


def _list(topics: Iterable[QualifiedTopic]) -> str:
    return ", ".join(sorted(map(str, topics))) or "no topic"


def _edge(value: Any, name: str, option: str) -> Edge:
    if not isinstance(value, str):
        raise InputError(f"option {option}: the value of {name} is neither earliest, latest nor an id", field=option)
    return _WORDS.get(value) or Edge("id", _id(value, option))


def _id(text: str, option: str) -> bytes:
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * ID_BYTES}}}", text.strip()):
        raise InputError(
            f"option {option}: {text!r} is not a message id, which is {2 * ID_BYTES} hex digits", field=option
        )
    return bytes.fromhex(text.strip())


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
    topics: tuple[QualifiedTopic, ...]
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
    group: str | None


def read_options(given: Mapping[str, str], use: FrameUse, clock: Clock | None = None) -> ReadOptions:
    """Read the options that a user gave; `InputError` names the option at fault."""
    values = read_options_given(given, use)
    now_ms = (clock or SystemClock()).now_ms()
    topics = _topics(values)
    idle_ms = values["watermarkIdleTimeout"]
    options = ReadOptions(
        server=_server(values),
        topics=topics,
        isolation=values["isolation"],
        start=_start(values, topics, now_ms),
        end=_end(values, topics, now_ms),
        admission=_admission(values),
        partitions_min=values["minPartitions"],
        fetch_bytes=values["fetchBytes"],
        fail_on_data_loss=values["failOnDataLoss"],
        control=values["control"],
        idle=None if idle_ms is None else Idle(idle_ms, values["watermarkQuorum"]),
        end_on_eos=values["endOnEos"],
        columns=DEFAULT_COLUMNS if values["columns"] is None else chosen_columns(values["columns"]),
        pushdown=values["pushdown"],
        group=values["group"],
    )
    if options.control != "hide" and CONTROL not in options.columns:
        raise InputError(
            f"option control={options.control} needs the column {CONTROL}, which tells rows apart:"
            " add it to option columns",
            field="columns",
        )
    return options


def _server(values: Mapping[str, Any]) -> Server:
    server = Server(
        values["server"],
        values["namespace"],
        token_variable=values["tokenEnv"],
        timeout_ms=values["callTimeout"],
        token_file=values["tokenFile"],
        ca_file=values["caFile"],
        cert_file=values["certFile"],
        key_file=values["keyFile"],
    )
    for name in ("caFile", "certFile"):
        if values[name] is not None and not server.url.startswith("https:"):
            raise InputError(f"option {name} is for a server at https://, and option server is without it", field=name)
    return server


def _topics(values: Mapping[str, Any]) -> tuple[QualifiedTopic, ...]:
    option = "topics" if values["topic"] is None else "topic"
    names = values["topics"] if values["topic"] is None else (values["topic"],)
    if names is None:
        raise InputError("option topic is missing: give topic, or topics with commas between them", field="topic")
    topics = {topic_name(name, values["namespace"], option) for name in names}
    if len(topics) < len(names):
        raise InputError("option topics names a topic twice", field="topics")
    return tuple(sorted(topics))


def _start(values: Mapping[str, Any], topics: tuple[QualifiedTopic, ...], now_ms: int) -> Edges:
    if values["startingTimestamp"] is not None:
        return Edges(edge_at_time(values["startingTimestamp"], now_ms, "startingTimestamp"))
    if values["startingId"] is not None:
        if len(topics) > 1:
            raise InputError("option startingId is of one topic: give startingOffsets as JSON", field="startingId")
        message_id = _id(values["startingId"], "startingId")
        return Edges(Edge("id", before_id(message_id) if values["startingInclusive"] else message_id))
    if values["startingOffsets"] is None:
        return Edges(EARLIEST)
    return edges_of(values["startingOffsets"], topics, values["namespace"], "startingOffsets")


def _end(values: Mapping[str, Any], topics: tuple[QualifiedTopic, ...], now_ms: int) -> Edges:
    if values["endingTimestamp"] is not None:
        return Edges(edge_at_time(values["endingTimestamp"], now_ms, "endingTimestamp"))
    if values["endingOffsets"] is None:
        return Edges(LATEST)
    edges = edges_of(values["endingOffsets"], topics, values["namespace"], "endingOffsets")
    if edges == Edges(EARLIEST):
        raise InputError("option endingOffsets: a read cannot end at earliest", field="endingOffsets")
    return edges


def _admission(values: Mapping[str, Any]) -> Admission:
    rows_min, rows_max = values["minRowsPerTrigger"], values["maxRowsPerTrigger"]
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise InputError(
            f"option minRowsPerTrigger is {rows_min}, more than maxRowsPerTrigger, which is {rows_max}",
            field="minRowsPerTrigger",
        )
    return Admission(rows_max, values["maxBytesPerTrigger"], rows_min or 0, values["maxTriggerDelay"])


class GroupRead(NamedTuple):
    """A tracked group that learns with each commit how far its topic was read."""

    topic: QualifiedTopic
    name: str


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The topic of a write, and the name under which the server remembers it. `topic` is None if a column names it."""

    server: Server
    topic: QualifiedTopic | None
    app_id: str | None
    version: int | None
    timeout_ms: int
    emit_watermark: bool
    task_count: int
    group: GroupRead | None = None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Read the options that a user gave; `InputError` names the option at fault."""
    values = read_options_given(given, FrameUse.SINK)
    if values["txnVersion"] is not None and values["txnAppId"] is None:
        raise InputError(
            "option txnVersion needs txnAppId, the name that the version counts for: give both", field="txnVersion"
        )
    return WriteOptions(
        server=_server(values),
        topic=None if values["topic"] is None else topic_name(values["topic"], values["namespace"], "topic"),
        app_id=values["txnAppId"],
        version=values["txnVersion"],
        timeout_ms=values["txnTimeout"],
        emit_watermark=values["emitWatermark"],
        task_count=values["taskCount"],
        group=_group(values),
    )


def _group(values: Mapping[str, Any]) -> GroupRead | None:
    name, topic = values["group"], values["groupTopic"]
    if name is None and topic is None:
        return None
    if name is None or topic is None:
        missing = "groupTopic" if topic is None else "group"
        what = (
            "of writing needs groupTopic, the topic that was read" if topic is None else "has no meaning without group"
        )
        raise InputError(f"option {'group' if topic is None else 'groupTopic'} {what}: give both", field=missing)
    return GroupRead(topic_name(topic, values["namespace"], "groupTopic"), name)


MESSAGE_COLUMNS = ("value", "key", "headers", "event_time")  # the parts of a message
MARKER_COLUMNS = (WATERMARK, CONTROL)  # for the watermark, with the option emitWatermark
READ_COLUMNS = (ID, CONTROL)  # for the group that learns how far was read, with the option group

_TEXT_OR_BYTES = ("string", "binary")
_TYPES = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "headers": tuple(f"array<struct<name:string,value:{kind}>>" for kind in ("binary", "string")),
    "event_time": ("timestamp",),
    TOPIC: ("string",),
    WATERMARK: ("timestamp",),
    CONTROL: ("string",),
    ID: ("binary",),
}
_SHOWN = {"headers": "array<struct<name: string, value: binary>>"}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a data frame to write: those of a message, in their order, and which of the others it has."""

    message: tuple[str, ...]
    has_topic: bool = False
    has_watermark: bool = False
    has_control: bool = False
    has_id: bool = False


def sink_columns(schema: StructType, options: WriteOptions) -> SinkColumns:
    """Check the columns of a data frame; `InputError` names the first that is wrong or missing."""
    names = schema.fieldNames()
    beside = (MARKER_COLUMNS if options.emit_watermark else ()) + (READ_COLUMNS if options.group else ())
    known = tuple(dict.fromkeys((*MESSAGE_COLUMNS, TOPIC, *beside)))
    for field in schema.fields:
        if field.name not in known:
            raise _unknown(field.name, known)
        if names.count(field.name) > 1:
            raise InputError(f"column {field.name} is there twice: rename or drop one", field=field.name)
        if re.sub(r" collate \w+", "", field.dataType.simpleString()) not in _TYPES[field.name]:
            what, expected = field.dataType.simpleString(), _SHOWN.get(field.name) or " or ".join(_TYPES[field.name])
            raise InputError(
                f"column {field.name} is of type {what}, and must be {expected}: cast it", field=field.name
            )
    if "value" not in names:
        raise InputError("column value (string or binary) is missing: it is the payload of a message", field="value")
    _check_topic(TOPIC in names, options)
    if options.emit_watermark and "watermark" not in names:
        what = "option emitWatermark needs the column watermark (timestamp), as a source of format basalt gives it"
        raise InputError(f"{what}: keep it in the data frame, or leave the option out", field="watermark")
    if options.group is not None and ID not in names:
        what = "option group needs the column id (binary), as a source of format basalt gives it"
        raise InputError(f"{what}: keep it in the data frame, or leave the option out", field=ID)
    return SinkColumns(
        tuple(name for name in MESSAGE_COLUMNS if name in names),
        has_topic=TOPIC in names,
        has_watermark="watermark" in names,
        has_control="control" in names,
        has_id=ID in names,
    )


def refuse_overwrite(overwrite: bool) -> None:
    """Raise `InputError` for mode overwrite, and for output mode complete, which Spark passes as the same."""
    if overwrite:
        raise InputError(
            "a topic cannot be overwritten: write with mode('append'), and a stream with outputMode('append');"
            " for results that change, publish each of them in foreachBatch (basalt_spark.batch_transaction)",
            field="mode",
        )


def _check_topic(has_column: bool, options: WriteOptions) -> None:
    if options.topic is not None and has_column:
        what = f"the option topic ({options.topic.topic}) and a column topic exclude each other"
        raise InputError(f"{what}: drop the column, or leave the option out", field="topic")
    if options.topic is None and options.emit_watermark:
        raise InputError("option emitWatermark needs the option topic: the watermark is published there", field="topic")
    if options.topic is None and not has_column:
        raise InputError("the topic is missing: give the option topic, or a column topic (string)", field="topic")


def _unknown(name: str, known: Iterable[str]) -> InputError:
    if name in MARKER_COLUMNS:
        return InputError(f"column {name} is written only with the option emitWatermark=true: drop it", field=name)
    if name == ID:
        what = "format basalt does not write column 'id', by which the group of option group learns how far was read"
        return InputError(f"{what}: give the option, or drop the column", field=name)
    return InputError(
        f"format basalt does not write column {name!r}, but {', '.join(known)}: drop it, or make it part of value",
        field=name,
    )
