"""The pipeline: two parsers, each for the lines of one web server, write one topic; two steps count its hours.

lines-a ─ parse-a ─┐                ┌─ views ─── views-per-hour
                   ├─ page-views ───┤
lines-b ─ parse-b ─┘                └─ clients ─ clients-per-hour
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, functions

import basalt_spark
from basalt_spark import Step
from demo.spark.views import view_of

SERVERS = ("a", "b")
VIEWS_TOPIC, CLIENTS_TOPIC, PARSED_TOPIC = "views-per-hour", "clients-per-hour", "page-views"
TOPICS = (*(f"lines-{name}" for name in SERVERS), PARSED_TOPIC, VIEWS_TOPIC, CLIENTS_TOPIC)
ROWS_PER_BATCH = 1_000  # so that the demo has batches to kill
VIEW = "at timestamp, client string, path string"


def view(line: bytes | None) -> tuple[datetime, str, str] | None:
    """The columns of a line; null for a line that is no access line, and for what is no line."""
    found = None if line is None else view_of(bytes(line))
    return None if found is None else (found.at, found.client, found.path)


def parse(lines: DataFrame) -> DataFrame:
    """Lines to page views. It keeps nothing in mind, so the watermark goes on with the rows."""
    views = lines.withColumn("view", functions.udf(view, VIEW)("value")).where(
        basalt_spark.messages_where("view IS NOT NULL")
    )
    return views.select(
        functions.to_json("view").alias("value"), functions.col("view.path").alias("key"), "watermark", "control"
    )


def views_per_hour(views: DataFrame) -> DataFrame:
    """Count the views of each path in each hour."""
    hours = (
        _in_event_time(views).groupBy(functions.window("at", "1 hour"), "path").agg(functions.count("*").alias("views"))
    )
    return _results(hours, "path", "views")


def clients_per_hour(views: DataFrame) -> DataFrame:
    """Count the page views and the different clients of each hour."""
    clients = functions.size(functions.collect_set("client")).alias("clients")
    hours = (
        _in_event_time(views)
        .groupBy(functions.window("at", "1 hour"))
        .agg(functions.count("*").alias("views"), clients)
    )
    return _results(hours, "views", "clients")


def steps(url: str, folder: Path) -> list[Step]:
    """The four steps, with checkpoints in `folder`."""
    rows = {"maxRowsPerTrigger": str(ROWS_PER_BATCH)}
    parsers = [
        Step(
            name=f"parse-{name}",
            source={"server": url, "topic": f"lines-{name}", **rows},
            transform=parse,
            sink={"server": url, "topic": PARSED_TOPIC},
            checkpoint=folder / f"parse-{name}",
        )
        for name in SERVERS
    ]
    counters = [
        Step(
            name=name,
            source={"server": url, "topic": PARSED_TOPIC, **rows},
            transform=transform,
            sink={"server": url, "topic": topic},
            checkpoint=folder / name,
        )
        for name, transform, topic in (
            ("views", views_per_hour, VIEWS_TOPIC),
            ("clients", clients_per_hour, CLIENTS_TOPIC),
        )
    ]
    return [*parsers, *counters]


def _in_event_time(views: DataFrame) -> DataFrame:
    row = functions.from_json(functions.col("value").cast("string"), VIEW).alias("view")
    return basalt_spark.in_event_time(
        views.select(row, "watermark", "control").select("view.*", "watermark", "control"), "at"
    )


def _results(hours: DataFrame, *columns: str) -> DataFrame:
    hour = functions.date_format("window.start", "yyyy-MM-dd HH'h'").alias("hour")
    return hours.select(functions.to_json(functions.struct(hour, *columns)).alias("value"))
