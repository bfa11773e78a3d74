"""Topics followed by Spark's own engine: batches, restarts from a checkpoint, watermarks, the end of the stream."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import StreamingQueryException

from basalt.errors import TopicEndedError
from basalt_spark.offset import parse_offset

pytestmark = pytest.mark.spark


def stream(spark, server, topics: str, **options: str):
    name = "topics" if "," in topics else "topic"
    return spark.readStream.format("basalt").option("server", server.url).option(name, topics).options(**options).load()


class Query:
    """A query into memory that is run again and again on one checkpoint, as far as there is something to read."""

    def __init__(self, frame, folder) -> None:
        self.frame = frame
        self.checkpoint = str(folder)
        self.rows: list = []
        self.batches: list[list] = []
        self.progress: list[dict] = []

    def run(self, **trigger):
        """All that is there now, in as many batches as it takes."""

        def keep(batch, number):
            rows = batch.collect()
            self.batches.append(rows)
            self.rows += rows

        writer = self.frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        self.progress = [json.loads(progress.json) for progress in query.recentProgress]
        return self

    @property
    def offset(self):
        return parse_offset(self.progress[-1]["sources"][0]["endOffset"])

    @property
    def values(self) -> list[bytes]:
        return [bytes(row["value"]) for row in self.rows if row["control"] is None]


def moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).replace(tzinfo=None)


def several(start: int, stop: int) -> list[bytes]:
    return [b"%04d" % number for number in range(start, stop)]


def test_batches_are_limited_and_a_restart_goes_on_from_the_checkpoint(spark, basalt, basalt_server, topic, tmp_path):
    basalt.topics.create(topic)
    basalt.topic(topic).publish(several(0, 25))
    query = Query(stream(spark, basalt_server, topic, maxRowsPerTrigger="10"), tmp_path)
    query.run()
    assert [len(batch) for batch in query.batches] == [10, 10, 5]
    basalt.topic(topic).publish(several(25, 30))
    query.run()
    assert query.values == several(0, 30)
    first = query.rows[0]
    assert (first["topic"], first["key"], first["tx_id"], first["control"]) == (topic, None, None, None)
    (reached,) = query.offset.topics.values()
    assert bytes(query.rows[-1]["id"])[:10] == reached.id[:10]


def test_what_is_not_decided_yet_is_not_read_though_newer_messages_are_there(
    spark, basalt, basalt_server, topic, tmp_path
):
    basalt.topics.create(topic)
    basalt.topic(topic).publish(b"settled")
    begun = basalt.transactions.begin()
    basalt.topic(topic).publish(b"early", write_pointer=begun.write_pointer)
    basalt.topic(topic).publish(b"behind it")
    query = Query(stream(spark, basalt_server, topic), tmp_path)
    assert query.run().values == [b"settled"]
    basalt.transactions.commit(begun.id)
    assert query.run().values == [b"settled", b"early", b"behind it"]


def test_watermarks_come_with_rows_and_by_themselves_and_the_end_is_told_also_after_a_restart(
    spark, basalt, basalt_server, topic, tmp_path
):
    names = [f"{topic}-a", f"{topic}-b"]
    first, second = map(basalt.topic, names)
    for name in names:
        basalt.topics.create(name)
    query = Query(
        stream(spark, basalt_server, ",".join(names), control="heartbeat", endOnEos="true", minPartitions="2"), tmp_path
    )
    first.publish(b"one")
    first.watermark("map-0", 5_000)
    query.run()
    assert [(row["control"], row["watermark"]) for row in query.rows] == [(None, None)]
    second.watermark("map-0", 3_000)
    query.run()
    assert [(row["control"], row["watermark"]) for row in query.batches[-1]] == [("heartbeat", moment(3_000))]
    second.publish([b"two", b"three"])
    first.end("map-0")
    second.end("map-0")
    query.run()
    assert [
        (row["value"] and bytes(row["value"]), row["control"], row["watermark"].year) for row in query.batches[-2]
    ] == [
        (b"two", None, 9999),
        (b"three", None, 9999),
        (None, "heartbeat", 9999),
    ]
    assert [(row["control"], row["watermark"].year) for row in query.batches[-1]] == [("heartbeat", 9999)]
    assert query.offset.done
    with pytest.raises(TopicEndedError):
        first.publish(b"behind the end")
    query.run()
    assert query.offset.done
    assert len(query.values) == 3


def test_a_silent_task_is_left_out_after_the_idle_time_out_where_enough_others_are_active(
    spark, basalt, basalt_server, topic, tmp_path
):
    basalt.topics.create(topic)
    lines = basalt.topic(topic)
    kept: dict[str, list] = {"1": [], "2": []}

    def started(quorum: str):
        idle = {"watermarkIdleTimeout": "1s", "watermarkQuorum": quorum}
        frame = stream(spark, basalt_server, topic, control="heartbeat", **idle)
        writer = frame.writeStream.foreachBatch(lambda batch, _number: kept[quorum].extend(batch.collect()))
        return writer.option("checkpointLocation", str(tmp_path / quorum)).start()

    lines.publish(b"one")
    lines.watermark("silent", 1_000, 2)
    lines.watermark("active", 2_000, 2)
    queries = [started(quorum) for quorum in kept]
    try:
        later_ms = 2_000
        while not kept["1"] or kept["1"][-1]["watermark"] <= moment(2_000):
            later_ms += 1
            lines.watermark("active", later_ms, 2)
            assert all(query.isActive for query in queries)
        lines.publish(b"two")
        queries[1].processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert {row["control"] for row in kept["1"] if row["value"] is None} == {"heartbeat"}
    assert [bytes(row["value"]) for row in kept["2"] if row["control"] is None] == [b"one", b"two"]
    assert {row["watermark"] for row in kept["2"]} == {moment(1_000)}, "one of two is active, and the quorum is two"


def test_a_checkpoint_that_does_not_fit_any_more_is_refused_before_any_job(
    spark, basalt, basalt_server, topic, tmp_path
):
    basalt.topics.create(topic)
    basalt.topics.create(f"{topic}-b")
    basalt.topic(topic).publish(b"one")
    frame = stream(spark, basalt_server, topic)
    query = Query(frame, tmp_path).run()
    query.frame = stream(spark, basalt_server, f"{topic}-b")
    with pytest.raises(
        StreamingQueryException, match=f"the checkpoint is of topics default:{topic}, and the query reads"
    ):
        query.run()
    basalt.topics.delete(topic)
    query.frame = frame
    with pytest.raises(StreamingQueryException, match=rf"(?s)TopicNotFoundError.*{topic}"):
        query.run()
    basalt.topics.create(topic)
    with pytest.raises(StreamingQueryException, match=r"deleted and created again.*failOnDataLoss"):
        query.run()
    assert query.values == [b"one"]


def test_messages_that_expired_unread_are_an_error_unless_loss_is_allowed(
    spark, basalt, basalt_server, topic, tmp_path
):
    basalt.topics.create(topic, ttl=1)
    basalt.topic(topic).publish(b"one")
    start = basalt.topic(topic).stable_end().id
    basalt.topic(topic).publish(b"two")
    while not basalt.topic(topic).advance(start).expired:
        pass
    text = json.dumps(
        {
            "v": 1,
            "instance": basalt.admin.store().instance,
            "topics": {f"default:{topic}": {"gen": 1, "id": start.hex()}},
        }
    )
    query = Query(stream(spark, basalt_server, topic, startingOffsets=text), tmp_path)
    with pytest.raises(StreamingQueryException, match="have expired before they were read"):
        query.run()
    query.frame = stream(spark, basalt_server, topic, startingOffsets=text, failOnDataLoss="false")
    assert query.run().values == []


def test_a_group_shows_how_far_a_query_has_come(spark, basalt, basalt_server, topic, tmp_path):
    basalt.topics.create(topic)
    basalt.topic(topic).publish(several(0, 25))
    query = Query(stream(spark, basalt_server, topic, maxRowsPerTrigger="10", group="etl"), tmp_path)
    query.run()
    group = basalt.topic(topic).group("etl")
    assert group.get().options.mode == "tracked"
    figures = group.get().figures
    assert figures is not None
    assert figures.lag_messages in (0, 5)  # Spark says of a batch that it is done when it plans the next one


def test_a_group_that_takes_no_position_fails_no_query(spark, basalt, basalt_server, topic, tmp_path):
    basalt.topics.create(topic)
    basalt.topic(topic).publish(several(0, 5))
    basalt.topic(topic).group("etl").create(mode="shared")
    query = Query(stream(spark, basalt_server, topic, maxRowsPerTrigger="2", group="etl"), tmp_path)
    query.run()
    assert query.values == several(0, 5)
    assert basalt.topic(topic).group("etl").get().floor == bytes(20)
