"""The columns of the rows that a read gives, with their Spark and Arrow types."""

from __future__ import annotations

from difflib import get_close_matches

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from basalt.errors import InputError

TOPIC = "topic"
ID = "id"
WATERMARK = "watermark"
CONTROL = "control"

# 9999-12-31T23:59:59.999Z, the last moment of SQL: the watermark once all topics have ended. It closes every window.
END_OF_TIME_MS = 253_402_300_799_999

DEFAULT_COLUMNS = (TOPIC, ID, "publish_time", "key", "value", "tx_id", WATERMARK, CONTROL)
COLUMNS = (*DEFAULT_COLUMNS, "headers", "event_time", "sequence", "generation")
MADE_HERE = frozenset({TOPIC, WATERMARK, CONTROL})  # equal in all rows of a task, so the server does not send them

_HEADERS = ArrayType(StructType([StructField("name", StringType()), StructField("value", BinaryType())]))
_TYPES: dict[str, DataType] = {
    "topic": StringType(),
    "id": BinaryType(),
    "publish_time": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "tx_id": StringType(),
    "watermark": TimestampType(),
    "control": StringType(),
    "headers": _HEADERS,
    "event_time": TimestampType(),
    "sequence": LongType(),
    "generation": LongType(),
}


def chosen_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check the columns that option `columns` names; `InputError` names one that does not exist."""
    for name in names:
        if name not in COLUMNS:
            near = get_close_matches(name.lower(), COLUMNS, n=1, cutoff=0.5)
            meant = f"did you mean {near[0]}?" if near else f"they are {', '.join(COLUMNS)}"
            raise InputError(f"option columns: a row has no {name!r}: {meant}", field="columns")
    return names


def row_schema(columns: tuple[str, ...]) -> StructType:
    """The Spark schema of these columns. All may be null: a heartbeat has no message."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns; Spark compares it with that of the first record batch."""
    return to_arrow_schema(row_schema(columns), timezone="UTC")


def refuse_other_schema(schema: StructType, columns: tuple[str, ...]) -> None:
    """Raise `InputError` for a schema of the user's own that is not the schema of these columns."""
    expected = row_schema(columns)
    given = [(field.name, field.dataType) for field in schema.fields]
    if given != [(field.name, field.dataType) for field in expected.fields]:
        raise InputError(
            f"the schema given is {schema.simpleString()}, and rows have {expected.simpleString()}:"
            " leave .schema(…) out, and choose with option columns",
            field="schema",
        )
