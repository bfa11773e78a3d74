"""The options of writing, as values, and the columns that a data frame to write may have.

An unknown column is refused by name before any job runs: a column that was silently left out would be missed in the
topic much later. docs/spark/sink.md has both tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType, TimestampType

from basalt.api.markers import TASKS_MAX
from basalt.errors import InputError
from basalt_spark.connection import Server, TopicName, topic_name
from basalt_spark.options import Use, at_most, read_options_given


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The topic of a write, and the name under which the server remembers it. `topic` is None if a column names it."""

    server: Server
    topic: TopicName | None
    app_id: str | None
    version: int | None
    timeout_ms: int
    emit_watermark: bool
    task_count: int

    @property
    def namespace(self) -> str:
        """The namespace of topics that are named without one."""
        return self.server.namespace


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Read the options that a user gave; `InputError` names the option at fault."""
    values = read_options_given(given, Use.SINK)
    namespace = values["namespace"]
    if values["txnVersion"] is not None and values["txnAppId"] is None:
        raise InputError(
            "option txnVersion needs txnAppId, the name that the version counts for: give both", field="txnVersion"
        )
    return WriteOptions(
        server=Server(values["server"], namespace, values["tokenEnv"], values["callTimeout"]),
        topic=None if values["topic"] is None else topic_name(values["topic"], namespace, "topic"),
        app_id=values["txnAppId"],
        version=values["txnVersion"],
        timeout_ms=values["txnTimeout"],
        emit_watermark=values["emitWatermark"],
        task_count=at_most("taskCount", values["taskCount"], TASKS_MAX),
    )


MESSAGE_COLUMNS = ("value", "key", "headers", "event_time")  # the parts of a message
MARKER_COLUMNS = ("watermark", "control")  # for the watermark, with the option emitWatermark
TOPIC_COLUMN = "topic"

_TEXT_OR_BYTES = "string or binary"
_EXPECTED = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "headers": "array<struct<name: string, value: binary>>",
    "event_time": "timestamp",
    "topic": "string",
    "watermark": "timestamp",
    "control": "string",
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a data frame to write: those of a message, in their order, and which of the others it has."""

    message: tuple[str, ...]
    has_topic: bool = False
    has_watermark: bool = False
    has_control: bool = False


def sink_columns(schema: StructType, options: WriteOptions) -> SinkColumns:
    """Check the columns of a data frame; `InputError` names the first that is wrong or missing."""
    names = schema.fieldNames()
    known = (*MESSAGE_COLUMNS, TOPIC_COLUMN, *(MARKER_COLUMNS if options.emit_watermark else ()))
    for field in schema.fields:
        if field.name not in known:
            raise _unknown(field.name, known)
        if names.count(field.name) > 1:
            raise InputError(f"column {field.name} is there twice: rename or drop one", field=field.name)
        if not _fits(field.name, field.dataType):
            what = (
                f"column {field.name} is of type {field.dataType.simpleString()}, and must be {_EXPECTED[field.name]}"
            )
            raise InputError(f"{what}: cast it", field=field.name)
    if "value" not in names:
        raise InputError(f"column value ({_TEXT_OR_BYTES}) is missing: it is the payload of a message", field="value")
    _check_topic(TOPIC_COLUMN in names, options)
    if options.emit_watermark and "watermark" not in names:
        what = "option emitWatermark needs the column watermark (timestamp), as a source of format basalt gives it"
        raise InputError(f"{what}: keep it in the data frame, or leave the option out", field="watermark")
    return SinkColumns(
        tuple(name for name in MESSAGE_COLUMNS if name in names),
        has_topic=TOPIC_COLUMN in names,
        has_watermark="watermark" in names,
        has_control="control" in names,
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


def _fits(name: str, kind: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(kind, StringType | BinaryType)
    if name in ("topic", "control"):
        return isinstance(kind, StringType)
    if name in ("event_time", "watermark"):
        return isinstance(kind, TimestampType)
    return _are_headers(kind)


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    parts = {field.name: field.dataType for field in kind.elementType.fields}
    return (
        list(parts) == ["name", "value"]
        and isinstance(parts["name"], StringType)
        and isinstance(parts["value"], StringType | BinaryType)
    )


def _unknown(name: str, known: Iterable[str]) -> InputError:
    if name in MARKER_COLUMNS:
        return InputError(f"column {name} is written only with the option emitWatermark=true: drop it", field=name)
    return InputError(
        f"format basalt does not write column {name!r}, but {', '.join(known)}: drop it, or make it part of value",
        field=name,
    )
