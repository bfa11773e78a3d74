"""`format("basalt")` writes data frames and streams once, as a whole, and nothing that it refuses."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

import basalt_spark
from tests.spark.sink_stream import expected, numbers, run, started, texts

pytestmark = pytest.mark.spark


@pytest.fixture
def written(basalt, basalt_server, topic):
    """A topic that is there, and the options that name it."""
    basalt.topics.create(topic)
    return {"server": basalt_server.url, "topic": topic}


def save(frame, options, **more):
    frame.write.format("basalt").mode("append").options(**options, **more).save()


def test_a_data_frame_is_published_in_the_order_of_its_partitions_with_all_that_a_message_has(spark, basalt, written):
    frame = spark.range(0, 6, 1, 3).selectExpr(
        "cast(id as string) as value",
        "if(id = 0, null, encode(concat('k', id), 'utf-8')) as key",
        "array(named_struct('name', 'half', 'value', encode(cast(id div 2 as string), 'utf-8'))) as headers",
        "timestamp_millis(1700000000000 + id) as event_time",
    )
    save(frame, written)
    topic = basalt.topic(written["topic"])
    page = topic.range(None, topic.stable_end().id, columns=("value", "key", "headers", "event_time"))
    rows = pa.ipc.open_stream(page.body).read_all().to_pylist()
    assert [row["value"] for row in rows] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [row["key"] for row in rows] == [None, b"k1", b"k2", b"k3", b"k4", b"k5"]
    assert rows[5]["headers"] == [{"name": "half", "value": b"2"}]
    assert rows[5]["event_time"] == datetime.fromtimestamp(1_700_000_000.005, UTC)
    assert basalt.transactions.list() == []


def test_a_version_of_a_name_is_written_once_and_what_has_no_name_each_time(spark, basalt, written):
    frame = spark.range(2).selectExpr("cast(id as string) as value").coalesce(1)
    named = {**written, "txnAppId": written["topic"], "txnVersion": "7"}
    save(frame, named)
    save(frame, named)
    assert texts(basalt, written["topic"]) == ["0", "1"]
    save(frame, written)
    assert texts(basalt, written["topic"]) == ["0", "1", "0", "1"]
    assert basalt.transactions.list() == []


def test_rows_go_to_the_topics_that_they_name(spark, basalt, basalt_server, topic):
    for name in (f"{topic}-0", f"{topic}-1"):
        basalt.topics.create(name)
    frame = spark.range(4).coalesce(1).selectExpr("cast(id as string) as value", f"concat('{topic}-', id % 2) as topic")
    save(frame, {"server": basalt_server.url})
    assert texts(basalt, f"{topic}-0") == ["0", "2"]
    assert texts(basalt, f"{topic}-1") == ["1", "3"]


def test_a_write_whose_rows_are_refused_publishes_nothing(spark, basalt, written):
    frame = spark.range(0, 4, 1, 2).selectExpr("if(id = 3, null, cast(id as string)) as value")
    with pytest.raises(PythonException, match="column value is null in 1 of 2 rows"):
        save(frame, written)
    assert texts(basalt, written["topic"]) == []
    assert basalt.transactions.list() == []


def test_what_cannot_be_written_is_refused_before_any_job(spark, basalt, written):
    frame = spark.range(1).selectExpr("cast(id as string) as value", "id")
    with pytest.raises(AnalysisException, match="format basalt does not write column 'id'"):
        save(frame, written)
    values = frame.select("value")
    with pytest.raises(AnalysisException, match="a topic cannot be overwritten"):
        values.write.format("basalt").mode("overwrite").options(**written).save()
    with pytest.raises(AnalysisException, match="did you mean txnAppId"):
        save(values, written, txnApId="etl")
    with pytest.raises(AnalysisException, match="format basalt has no option 'path'"):
        values.write.format("basalt").mode("append").options(**written).save("bills")
    assert basalt.transactions.list() == []


def test_a_topic_that_is_not_there_is_refused_before_any_job(spark, basalt, basalt_server, topic, tmp_path):
    absent = {"server": basalt_server.url, "topic": topic}
    values = spark.range(1).selectExpr("cast(id as string) as value")
    for more in ({}, {"txnAppId": "etl", "txnVersion": "1"}):
        with pytest.raises(AnalysisException) as refused:
            save(values, absent, **more)
        reason, _, traceback = str(refused.value).partition("Traceback (most recent call last)")
        assert f"topic default:{topic} does not exist" in reason
        assert traceback
    writer = numbers(spark).writeStream.format("basalt").options(**absent, txnAppId=topic)
    with pytest.raises(StreamingQueryException, match=f"topic default:{topic} does not exist"):
        run(writer, tmp_path / "checkpoint")
    assert basalt.transactions.list() == []


def test_the_highest_watermark_of_the_rows_is_told_behind_them(spark, basalt, written):
    frame = spark.range(0, 4, 1, 2).selectExpr(
        "cast(id as string) as value",
        "timestamp_millis(1000 * id) as watermark",
        "if(id = 3, 'heartbeat', null) as control",
    )
    save(frame, written, txnAppId="map-0", txnVersion="0", emitWatermark="true", taskCount="1")
    assert texts(basalt, written["topic"]) == ["0", "1", "2"]
    markers = basalt.topic(written["topic"]).markers()
    assert markers.watermark_ms == 3_000
    assert [told.task for told in markers.tasks] == ["map-0"]


def test_a_stream_with_a_new_checkpoint_is_refused_under_the_old_name(spark, basalt, written, tmp_path):
    writer = numbers(spark).writeStream.format("basalt").options(**written, txnAppId=written["topic"])
    run(writer, tmp_path / "checkpoint")
    assert texts(basalt, written["topic"]) == expected(1)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(
        StreamingQueryException, match=r"was written by counter owner 'query .*', this is counter owner 'query"
    ):
        run(writer, tmp_path / "checkpoint")
    assert texts(basalt, written["topic"]) == expected(1)


def counted(frame, batch_id, *, server, topic, fails):
    """Publishes what changed, and which batch it was, and tells the time. Runs in the stream's own thread."""
    with basalt_spark.batch_transaction(frame, batch_id, app_id=topic, server=server) as tx:
        tx.write(
            frame.selectExpr("concat(parity, '=', count) as value").coalesce(1).sortWithinPartitions("value"),
            topic=topic,
        )
        numbered = frame.sparkSession.range(1).selectExpr(f"'batch {batch_id}' as value", f"'{topic}-log' as topic")
        tx.write(numbered)
        tx.watermark(topic, 1_000 * batch_id)
    if fails:
        raise RuntimeError("the driver fails after the commit")


def test_results_that_change_are_published_once_by_a_transaction_for_each_batch(spark, basalt, written, tmp_path):
    topic = written["topic"]
    basalt.topics.create(f"{topic}-log")
    counts = numbers(spark).selectExpr("if(value % 2 = 0, 'even', 'odd') as parity").groupBy("parity").count()
    checkpoint = tmp_path / "checkpoint"

    def writer(*, fails):
        each = partial(counted, server=written["server"], topic=topic, fails=fails)
        return counts.writeStream.outputMode("update").foreachBatch(each)

    with pytest.raises(StreamingQueryException, match="the driver fails after the commit"):
        run(writer(fails=True), checkpoint)
    assert texts(basalt, topic) == ["even=5", "odd=5"]
    run(writer(fails=False), checkpoint)  # what was done is left out, its state is kept; then the next batch
    assert texts(basalt, topic) == ["even=5", "odd=5", "even=10", "odd=10"]
    assert texts(basalt, f"{topic}-log") == ["batch 0", "batch 1"]
    assert basalt.topic(topic).markers().watermark_ms == 1_000
    assert basalt.sessions.get(topic).version == 1


@pytest.fixture
def clicks(basalt, topic):
    """A topic to read, with ten messages."""
    basalt.topics.create(f"{topic}-clicks")
    basalt.topic(f"{topic}-clicks").publish([str(number) for number in range(10)])
    return f"{topic}-clicks"


def read_of(spark, server: str, clicks: str):
    return spark.readStream.format("basalt").options(server=server, topic=clicks).load()


def lag_of(basalt, clicks: str, group: str = "billing") -> int:
    return basalt.topic(clicks).group(group).get().figures.lag_messages


def test_a_group_of_the_querys_own_learns_with_each_batch_what_is_published(spark, basalt, written, clicks, tmp_path):
    frame = read_of(spark, written["server"], clicks).where("int(string(value)) % 2 = 1").select("value", "id")
    told = {"group": "billing", "groupTopic": clicks, "txnAppId": written["topic"]}
    writer = frame.writeStream.format("basalt").options(**written, **told)
    run(writer, tmp_path / "checkpoint")
    assert (texts(basalt, written["topic"]), lag_of(basalt, clicks)) == (["1", "3", "5", "7", "9"], 0)
    assert basalt.topic(clicks).group("billing").get().options.mode == "tracked"
    basalt.topic(clicks).publish(["10", "11", "12"])
    assert lag_of(basalt, clicks) == 3
    run(writer, tmp_path / "checkpoint")
    assert texts(basalt, written["topic"])[-1] == "11"
    assert lag_of(basalt, clicks) == 1, "what a filter took out behind the last row is acknowledged with the next"
    assert basalt.transactions.list() == []


def test_a_group_that_deals_messages_to_members_is_refused_before_any_job(spark, basalt, written, clicks, tmp_path):
    basalt.topic(clicks).group("workers").create(mode="keyed")
    frame = read_of(spark, written["server"], clicks).select("value", "id")
    told = {"group": "workers", "groupTopic": clicks, "txnAppId": written["topic"]}
    with pytest.raises(StreamingQueryException, match="is of mode keyed"):
        run(frame.writeStream.format("basalt").options(**written, **told), tmp_path / "checkpoint")
    assert lag_of(basalt, clicks, "workers") == 10
    assert texts(basalt, written["topic"]) == []


def test_a_block_acknowledges_what_its_batch_has_read_in_the_same_decision(spark, basalt, written, clicks, tmp_path):
    basalt.topic(clicks).group("billing").create(mode="tracked")
    server, topic = written["server"], written["topic"]

    def publish(frame, batch_id):
        with basalt_spark.batch_transaction(frame, batch_id, app_id=topic, server=server) as tx:
            tx.write(frame.select("value"), topic=topic)
            tx.acknowledge(clicks, group="billing", up_to=frame.agg({"id": "max"}).first()[0])

    run(read_of(spark, server, clicks).writeStream.foreachBatch(publish), tmp_path / "checkpoint")
    assert (len(texts(basalt, topic)), lag_of(basalt, clicks)) == (10, 0)


def test_output_mode_update_is_refused_for_the_sink(spark, written, tmp_path):
    counts = numbers(spark).groupBy("value").count().select("value")
    writer = counts.writeStream.format("basalt").outputMode("update").options(**written, txnAppId="etl")
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        started(writer, tmp_path / "checkpoint").awaitTermination()
