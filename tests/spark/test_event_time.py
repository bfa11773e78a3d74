"""In-band event time in operators that keep state: timers fire, and rows are late, by what the tasks said and nothing else."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from basalt_spark.event_time import in_event_time
from basalt_spark.pipeline import Pipeline, Step
from tests.spark.page_views import at_ms, line

pytestmark = pytest.mark.spark

QUIET_MS = 30 * 60_000


class Visits(StatefulProcessor):
    """Counts the views of a page until nobody has looked at it for half an hour."""

    def init(self, handle) -> None:
        self.handle = handle
        self.state = handle.getValueState("visit", "views bigint, ends bigint")

    def handleInputRows(self, key, rows, timerValues):
        views, ends = self.state.get() if self.state.exists() else (0, 0)
        for row in rows:
            views, ends = views + 1, max(ends, int(row["at"].timestamp() * 1_000) + QUIET_MS)
            self.handle.registerTimer(ends)
        self.state.update((views, ends))
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        views, ends = self.state.get() if self.state.exists() else (0, 0)
        if ends == expiredTimerInfo.getExpiryTimeInMs():
            self.state.clear()
            yield Row(page=key[0], views=views, ends=ends)

    def close(self) -> None:
        pass


def visits(frame):
    """Lines to visits, by timers in event time."""
    parts = F.split(F.col("value").cast("string"), " ")
    at, page = F.get(parts, F.lit(0)).cast("timestamp").alias("at"), F.get(parts, F.lit(1)).alias("page")
    rows = in_event_time(frame.select(at, page, "watermark", "control"), "at")
    ended = rows.groupBy("page").transformWithState(
        Visits(), "page string, views bigint, ends bigint", outputMode="Append", timeMode="EventTime"
    )
    return ended.select(F.to_json(F.struct("page", "views", "ends")).alias("value"))


def ended_visits(client, topic: str) -> list[tuple[str, int, int]]:
    rows = [json.loads(message.payload) for message in client.topic(topic).read(isolation="committed")]
    return [(row["page"], row["views"], row["ends"]) for row in rows]


def test_timers_fire_at_the_watermark_of_all_tasks_also_after_a_restart_and_no_row_is_late(
    spark, basalt, basalt_server, topic, tmp_path, rocksdb_state
):
    basalt.topics.create(topic)
    basalt.topics.create(f"{topic}-visits")
    server = {"server": basalt_server.url}
    step = Step(
        topic, {**server, "topic": topic}, visits, {**server, "topic": f"{topic}-visits"}, tmp_path / "checkpoint"
    )
    lines = basalt.topic(topic)
    lines.publish([line(10, 0, "/a"), line(10, 20, "/b")])
    lines.watermark("web-a", at_ms(11, 0), 2)
    step.run("available-now", spark=spark)
    assert ended_visits(basalt, f"{topic}-visits") == []  # one of two tasks has not spoken

    lines.watermark("web-b", at_ms(10, 31), 2)
    step.run("available-now", spark=spark)
    assert ended_visits(basalt, f"{topic}-visits") == [("/a", 1, at_ms(10, 30))]
    assert basalt.topic(f"{topic}-visits").markers().watermark_ms == at_ms(10, 31) - 1

    # The watermark stands still while rows come: none of them is late, however often that is looked at.
    for minute in (40, 45):
        lines.publish([line(10, minute, "/b")])
        step.run("available-now", spark=spark)
    lines.end("web-a", 2)
    lines.end("web-b", 2)
    Pipeline([step]).run("eos", spark=spark)
    assert ended_visits(basalt, f"{topic}-visits") == [("/a", 1, at_ms(10, 30)), ("/b", 3, at_ms(11, 15))]
    assert basalt.topic(f"{topic}-visits").markers().ended


ROCKSDB_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Its store wants Hadoop's own local file system, and the session of the tests has the raw one.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@pytest.fixture
def rocksdb_state(spark):
    """transformWithState keeps its state in RocksDB only."""
    before = {name: spark.conf.get(name, None) for name in ROCKSDB_STATE}
    for name, value in ROCKSDB_STATE.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)
