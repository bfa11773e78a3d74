"""Columns and options of a write that are wrong are refused by name before any job."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from basalt.errors import InputError
from basalt_spark.options import SinkColumns, refuse_overwrite, sink_columns, write_options
from basalt_spark.sink.writers import BasaltStreamWriter, BasaltWriter, BatchTransaction

SERVER = {"server": "http://127.0.0.1:1"}
TO_TOPIC = {**SERVER, "topic": "orders"}
TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "headers": ArrayType(StructType().add("name", "string").add("value", "binary")),
    "text_headers": ArrayType(StructType().add("name", "string").add("value", "string")),
    "headers_the_other_way_round": ArrayType(StructType().add("value", "binary").add("name", "string")),
    "strings": ArrayType(StringType()),
    "map": MapType(StringType(), BinaryType()),
}


def schema(text: str) -> StructType:
    """Columns as `name type, name type`; Spark's own parser of such texts needs a JVM."""
    return StructType([StructField(name, TYPES[kind]) for name, kind in (part.split() for part in text.split(", "))])


def columns(text: str, **options: str) -> SinkColumns:
    return sink_columns(schema(text), write_options({**SERVER, **options}))


def test_every_column_of_a_message_may_be_there_in_any_order():
    found = columns("event_time timestamp, headers headers, key binary, topic string, value string")
    assert found == SinkColumns(("value", "key", "headers", "event_time"), has_topic=True)
    assert columns("value binary", topic="orders") == SinkColumns(("value",))
    assert columns("value binary, headers text_headers", topic="orders") == SinkColumns(("value", "headers"))


def test_a_group_that_learns_how_far_was_read_needs_its_topic_and_the_ids():
    given = {"topic": "orders", "group": "billing", "groupTopic": "shop:clicks"}
    assert columns("value string, id binary", **given) == SinkColumns(("value",), has_id=True)
    assert columns("value string, id binary, control string", **given) == SinkColumns(
        ("value",), has_control=True, has_id=True
    )
    assert write_options({**SERVER, **given}).group == (("shop", "clicks"), "billing")
    assert write_options(TO_TOPIC).group is None
    for ddl, field in (("value string", "id"), ("value string, id string", "id"), ("value string, id bigint", "id")):
        with pytest.raises(InputError, match="column id") as refused:
            columns(ddl, **given)
        assert refused.value.field == field
    with pytest.raises(InputError, match="only with the option emitWatermark=true"):
        columns("value string, id binary, watermark timestamp", **given)


@pytest.mark.parametrize(("name", "missing"), [("group", "groupTopic"), ("groupTopic", "group")])
def test_a_group_of_no_topic_and_a_topic_of_no_group_are_refused(name, missing):
    with pytest.raises(InputError, match="give both") as refused:
        write_options({**TO_TOPIC, name: "billing"})
    assert refused.value.field == missing


@pytest.mark.parametrize(
    ("ddl", "field", "says"),
    [
        ("value string, amount int", "amount", "format basalt does not write column"),
        ("value string, Key string", "Key", "format basalt does not write column"),
        ("value int", "value", "is of type int, and must be string or binary"),
        ("key string", "value", "is missing"),
        ("value string, key bigint", "key", "must be string or binary"),
        ("value string, event_time timestamp_ntz", "event_time", "must be timestamp: cast it"),
        ("value string, event_time bigint", "event_time", "must be timestamp"),
        ("value string, headers map", "headers", "must be array<struct<name: string, value: binary>>"),
        ("value string, headers headers_the_other_way_round", "headers", "must be array<struct"),
        ("value string, headers strings", "headers", "must be array<struct"),
        ("value string, watermark timestamp", "watermark", "only with the option emitWatermark=true"),
        ("value string, control string", "control", "only with the option emitWatermark=true"),
        ("value string, id binary", "id", "does not write column 'id'"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(ddl, field, says):
    with pytest.raises(InputError, match=says) as refused:
        columns(ddl, topic="orders")
    assert refused.value.field == field
    assert field in str(refused.value)


def test_a_column_that_is_there_twice_is_named():
    twice = schema("value string")
    twice.add("key", "string").add("key", "string")
    with pytest.raises(InputError, match="column key is there twice"):
        sink_columns(twice, write_options(TO_TOPIC))


def test_the_topic_is_named_once_by_option_or_by_column():
    with pytest.raises(InputError, match="exclude each other"):
        columns("value string, topic string", topic="orders")
    with pytest.raises(InputError, match="the topic is missing"):
        columns("value string")
    with pytest.raises(InputError, match="must be string"):
        columns("value string, topic binary")


def test_a_watermark_to_tell_needs_its_column_and_a_topic():
    assert columns(
        "value string, watermark timestamp, control string", topic="orders", emitWatermark="true"
    ) == SinkColumns(("value",), has_watermark=True, has_control=True)
    with pytest.raises(InputError, match="needs the column watermark"):
        columns("value string", topic="orders", emitWatermark="true")
    with pytest.raises(InputError, match="emitWatermark needs the option topic"):
        columns("value string, topic string, watermark timestamp", emitWatermark="true")
    with pytest.raises(InputError, match="must be timestamp"):
        columns("value string, watermark bigint", topic="orders", emitWatermark="true")


def test_overwriting_a_topic_is_refused():
    refuse_overwrite(False)
    for writer in (BasaltWriter, BasaltStreamWriter):
        with pytest.raises(InputError, match=r"cannot be overwritten.*foreachBatch"):
            writer(schema("value string"), True, {**TO_TOPIC, "txnAppId": "etl"})


def test_a_stream_needs_a_name_and_has_no_version_of_its_own():
    assert BasaltStreamWriter(schema("value string"), False, {**TO_TOPIC, "txnAppId": "etl"}).app_id == "etl"
    with pytest.raises(InputError, match="a stream needs the option txnAppId") as refused:
        BasaltStreamWriter(schema("value string"), False, TO_TOPIC)
    assert refused.value.field == "txnAppId"
    with pytest.raises(InputError, match="txnVersion is for batch writes"):
        BasaltStreamWriter(schema("value string"), False, {**TO_TOPIC, "txnAppId": "etl", "txnVersion": "1"})


def test_a_batch_write_with_a_name_needs_a_version_and_a_version_a_name():
    named = {**TO_TOPIC, "txnAppId": "etl", "txnVersion": "0"}
    assert BasaltWriter(schema("value string"), False, named).transaction is None
    with pytest.raises(InputError, match="txnAppId of a batch write needs txnVersion"):
        BasaltWriter(schema("value string"), False, {**TO_TOPIC, "txnAppId": "etl"})
    with pytest.raises(InputError, match="txnVersion needs txnAppId"):
        BasaltWriter(schema("value string"), False, {**TO_TOPIC, "txnVersion": "1"})
    with pytest.raises(InputError, match="emitWatermark needs txnAppId"):
        BasaltWriter(schema("value string, watermark timestamp"), False, {**TO_TOPIC, "emitWatermark": "true"})


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"txnAppId": "a" * 256}, "txnAppId", "1 to 255 printable characters without a slash"),
        ({"txnAppId": "a/b"}, "txnAppId", "1 to 255 printable characters without a slash"),
        ({"txnAppId": ".."}, "txnAppId", "1 to 255 printable characters without a slash"),
        ({"taskCount": "1001"}, "taskCount", "option taskCount is 1001; it must be 1000 or less"),
        ({"path": "bills"}, "path", "no option 'path'"),
    ],
)
def test_what_the_server_would_refuse_in_a_task_is_refused_before_any_job(given, field, says):
    with pytest.raises(InputError, match=re.escape(says)) as refused:
        write_options({**TO_TOPIC, **given})
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["emitWatermark", "taskcount", "group", "groupTopic"])
def test_a_transaction_for_a_batch_refuses_options_that_would_do_nothing(name):
    with pytest.raises(InputError, match=r"by tx\.(watermark|acknowledge)"):
        BatchTransaction(
            SimpleNamespace(sparkContext=None), {**TO_TOPIC, "txnAppId": "a", "txnVersion": "1", name: "1"}
        )


def test_a_session_of_spark_connect_is_told_that_it_has_no_transactions_for_a_batch():
    with pytest.raises(InputError, match="this one is of Spark Connect"):
        BatchTransaction(SimpleNamespace(), {**TO_TOPIC, "txnAppId": "a", "txnVersion": "1"})
