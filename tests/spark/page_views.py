"""A pipeline of three steps that the tests run whole and in pieces: lines, page views, views per hour, views per day."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from basalt_spark.event_time import in_event_time, messages_where
from basalt_spark.pipeline import Step

DAY_MS = int(datetime(2015, 5, 17, tzinfo=UTC).timestamp() * 1_000)
MINUTE_MS = 60_000


def at_ms(hour: int, minute: int) -> int:
    """A time of the day that the lines are of."""
    return DAY_MS + (hour * 60 + minute) * MINUTE_MS


def line(hour: int, minute: int, page: str) -> str:
    """A line of the log."""
    return f"{datetime.fromtimestamp(at_ms(hour, minute) / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ} {page}"


def parse(frame: DataFrame) -> DataFrame:
    """Lines to page views; a comment is none. Keeps no state."""
    parts = F.split(F.col("value").cast("string"), " ")
    view = F.struct(F.get(parts, F.lit(0)).alias("at"), F.get(parts, F.lit(1)).alias("page"))
    views = frame.where(messages_where("cast(value as string) not like '#%'"))
    return views.select(F.to_json(view).alias("value"), "watermark", "control")


def per_hour(frame: DataFrame) -> DataFrame:
    """Views of a page in each hour; the result's event time is the last millisecond of the hour."""
    return counted(frame, "1 hour", F.count("*"))


def per_day(frame: DataFrame) -> DataFrame:
    """The same by day, from what the hours gave."""
    return counted(frame, "1 day", F.sum("views"))


def counted(frame: DataFrame, length: str, views) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), "at timestamp, page string, views bigint").alias("row")
    rows = in_event_time(frame.select(row, "watermark", "control").select("row.*", "watermark", "control"), "at")
    counts = rows.groupBy(F.window("at", length), "page").agg(views.alias("views"))
    last = (F.col("window.end") - F.expr("interval 1 millisecond")).alias("at")
    return counts.select(F.to_json(F.struct(last, "page", "views")).alias("value"))


def steps(url: str, folder: Path, topic: str, **changes) -> list[Step]:
    """Two parsers, which write one topic, and two steps that count."""
    server = {"server": url}

    def step(name, source, transform, sink, **tasks):
        return Step(
            f"{topic}-{name}",
            {**server, "topic": f"{topic}-{source}"},
            changes.get(name.replace("-", "_"), transform),
            {**server, "topic": f"{topic}-{sink}", **tasks},
            folder / name,
        )

    return [
        step("parse-a", "lines-a", parse, "views", taskCount="2"),
        step("parse-b", "lines-b", parse, "views", taskCount="2"),
        step("hours", "views", per_hour, "hours"),
        step("days", "hours", per_day, "days"),
    ]


def create_topics(client, topic: str) -> None:
    for name in ("lines-a", "lines-b", "views", "hours", "days"):
        client.topics.create(f"{topic}-{name}")
