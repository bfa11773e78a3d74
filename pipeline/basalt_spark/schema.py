"""The types of a row's columns, for Spark and for Arrow."""

from __future__ import annotations

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


def row_schema(columns: tuple[str, ...]) -> StructType:
    """The columns of a row as Spark knows them. All may be null: a heartbeat has no message."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The same as Arrow knows them; Spark compares it with that of the first record batch."""
    return to_arrow_schema(row_schema(columns), timezone="UTC")


def refuse_other_schema(schema: StructType, columns: tuple[str, ...]) -> None:
    """`InputError` where a user gave a schema of their own that is not the one of these columns."""
    expected = row_schema(columns)
    given = [(field.name, field.dataType) for field in schema.fields]
    if given != [(field.name, field.dataType) for field in expected.fields]:
        raise InputError(
            f"the schema given is {schema.simpleString()}, and rows have {expected.simpleString()}:"
            " leave .schema(…) out, and choose with option columns",
            field="schema",
        )
