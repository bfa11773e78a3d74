"""Which columns a data frame that is written may have. What is not known is refused by name, before any job runs.

A column that was silently left out would be found missing in the topic, much later. docs/spark/sink.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType, TimestampType

from basalt.errors import InputError
from basalt_spark.write_options import WriteOptions

MESSAGE_COLUMNS = ("value", "key", "headers", "event_time")  # what a message is made of
MARKER_COLUMNS = ("watermark", "control")  # what is told beside messages, with the option emitWatermark
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
    """Which of the columns that may be there are there: those of a message, in their order, and the others."""

    message: tuple[str, ...]
    has_topic: bool = False
    has_watermark: bool = False
    has_control: bool = False


def sink_columns(schema: StructType, options: WriteOptions) -> SinkColumns:
    """The columns that are written; `InputError` names the first that must not be there, or is missing."""
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
        raise InputError(f"column value ({_TEXT_OR_BYTES}) is missing: it is what is published", field="value")
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
    """`InputError` for mode overwrite, and for output mode complete, which arrives as the same."""
    if overwrite:
        raise InputError(
            "a topic cannot be overwritten: write with mode('append'), and a stream with outputMode('append'); for results"
            " that change, publish each of them in foreachBatch (basalt_spark.batch_transaction)",
            field="mode",
        )


def _check_topic(has_column: bool, options: WriteOptions) -> None:
    if options.topic is not None and has_column:
        what = f"the option topic ({options.topic.topic}) and a column topic exclude each other"
        raise InputError(f"{what}: drop the column, or leave the option out", field="topic")
    if options.topic is None and options.emit_watermark:
        raise InputError(
            "option emitWatermark needs the option topic: it is where the watermark is told", field="topic"
        )
    if options.topic is None and not has_column:
        raise InputError("where to write is missing: give the option topic, or a column topic (string)", field="topic")


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
        f"column {name!r} is none that format basalt writes ({', '.join(known)}): drop it, or make it part of value",
        field=name,
    )
