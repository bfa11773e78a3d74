"""Topics read by Spark as they are now: order, columns, bounds, and what is refused before any job runs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as f

from basalt.api.bodies.messages import RecordIn

pytestmark = pytest.mark.spark


def read(spark, server, topic: str, **options: str):
    return spark.read.format("basalt").option("server", server.url).option("topic", topic).options(**options).load()


def values(frame) -> list[bytes]:
    return [bytes(row["value"]) for row in frame.collect()]


@pytest.fixture(scope="module")
def numbers(basalt) -> str:
    """A topic of 100 numbers that nobody writes to any more."""
    basalt.topics.create("numbers")
    for start in range(0, 100, 10):
        basalt.topic("numbers").publish([b"%d" % number for number in range(start, start + 10)])
    return "numbers"


def test_partitions_are_read_in_the_order_of_the_messages(spark, basalt_server, numbers):
    frame = read(spark, basalt_server, numbers, minPartitions="3", fetchBytes="64")
    assert frame.rdd.getNumPartitions() == 3
    assert values(frame) == [b"%d" % number for number in range(100)]


def test_all_columns_have_what_a_message_has(spark, basalt, basalt_server, topic):
    basalt.topics.create(topic)
    with basalt.transaction() as tx:
        tx.publish(topic, ["first"])
    record = RecordIn(b"second", key=b"k", headers=[("h", b"v")], event_time_ms=1_500)
    basalt.topic(topic).publish_records([record])
    columns = "topic,id,publish_time,key,value,tx_id,watermark,control,headers,event_time,sequence,generation"
    first, second = read(spark, basalt_server, topic, columns=columns).collect()
    assert list(first.asDict()) == columns.split(",")
    assert (bytes(first["value"]), first["headers"], first["event_time"]) == (b"first", [], None)
    assert len(first["tx_id"]) == 32
    assert (second["topic"], second["tx_id"], second["watermark"], second["control"]) == (topic, None, None, None)
    assert (bytes(second["key"]), bytes(second["value"]), second["generation"]) == (b"k", b"second", 1)
    assert [(header["name"], bytes(header["value"])) for header in second["headers"]] == [("h", b"v")]
    assert second["event_time"] == datetime(1970, 1, 1, 0, 0, 1, 500_000)
    message = next(iter(basalt.topic(topic).poll(start=bytes(second["id"]))))
    assert second["publish_time"] == datetime.fromtimestamp(message.published_ms / 1_000, UTC).replace(tzinfo=None)


def test_a_read_has_a_start_and_an_end(spark, basalt, basalt_server, numbers):
    ids = basalt.topic(numbers).poll().ids()
    bounds = {
        "startingId": ids[10].hex(),
        "startingInclusive": "false",
        "endingOffsets": f'{{"{numbers}": "{ids[12].hex()}"}}',
    }
    assert values(read(spark, basalt_server, numbers, **bounds)) == [b"11", b"12"]
    past = {"endingTimestamp": "2020-01-01T00:00:00Z", "columns": "watermark"}
    assert read(spark, basalt_server, numbers, **past).count() == 0
    assert read(spark, basalt_server, numbers, columns="topic,control").count() == 100


def test_filters_by_id_and_time_bound_what_is_read(spark, basalt, basalt_server, numbers):
    ids = basalt.topic(numbers).poll().ids()
    frame = read(spark, basalt_server, numbers, pushdown="true", minPartitions="50")
    wanted = frame.where((f.col("id") > f.lit(ids[10])) & (f.col("id") <= f.lit(ids[13])))
    now = f.lit(datetime(2020, 1, 1, tzinfo=UTC))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert wanted.rdd.getNumPartitions() <= 3
        assert values(wanted) == [b"11", b"12", b"13"]
        assert frame.where(f.col("publish_time") < now).count() == 0
        assert frame.where(f.col("publish_time") >= now).count() == 100
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert values(
        frame.sparkSession.read.format("basalt").options(server=basalt_server.url, topic=numbers).load().limit(1)
    )


def test_what_is_wrong_is_told_before_any_job(spark, basalt_server, numbers):
    with pytest.raises(AnalysisException, match="no option 'startingofset': did you mean startingOffsets"):
        read(spark, basalt_server, numbers, startingOfset="latest")
    with pytest.raises(AnalysisException, match="option maxRowsPerTrigger is for streams, not for batch reads"):
        read(spark, basalt_server, numbers, maxRowsPerTrigger="1").collect()
    with pytest.raises(PySparkException, match=r"(?s)TopicNotFoundError.*nowhere"):
        read(spark, basalt_server, "nowhere").collect()
    with pytest.raises(PySparkException, match="the schema given is struct<value:string>"):
        spark.read.format("basalt").options(server=basalt_server.url, topic=numbers).schema(
            "value string"
        ).load().collect()
    with pytest.raises(PySparkException, match="what is behind may still change"):
        read(spark, basalt_server, numbers, endingOffsets=f'{{"{numbers}": "{"ff" * 20}"}}').collect()
