"""A stage: a query from topics to a topic that hands on event time and the end of the stream.

    Stage(
        name="parse",
        source={"server": url, "topic": "lines"},
        transform=parse,  # DataFrame -> DataFrame
        sink={"server": url, "topic": "views"},
        checkpoint="/var/lib/parse",
    ).run(until="eos")

What a stage has done is in its checkpoint and in its topic, nowhere else. So it may be killed anywhere and run again, by
itself or in a `Pipeline`, in the same session or on another machine. docs/spark/pipelines.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Literal, TypeAlias

from basalt.errors import InputError
from basalt_spark.columns import WATERMARK
from basalt_spark.connection import client_of
from basalt_spark.running_stage import RunningStage, Told
from basalt_spark.stage_options import StageSink, sink_options, source_options, stage_sink
from basalt_spark.watermarks import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Until: TypeAlias = Literal["eos", "available-now"] | None
UNTIL = ("eos", "available-now", None)

# A query of a Python source asks its server for news with each trigger. Spark's own pause is 10 ms: a fifth of a core.
INTERVAL_MS = 100

# A query copies the session's settings when it starts, so two that start at once must not meet in between.
_starting = Lock()


@dataclass(frozen=True)
class Stage:
    """One query. `name` is its task's name in the topic it writes; `source` and `sink` are options of `format("basalt")`.

    A transform without state keeps the columns `watermark` and `control`: then what it says of event time is in the
    transaction of its rows. One with state takes them in by `watermarks.in_event_time`.
    """

    name: str
    source: Mapping[str, str]
    transform: Callable[[DataFrame], DataFrame]
    sink: Mapping[str, str]
    checkpoint: str | Path
    interval_ms: int = INTERVAL_MS

    def run(self, until: Until = None, *, spark: SparkSession | None = None) -> None:
        """Run the query until its topics have ended and all is written ("eos"), or up to where they end now, or for ever.

        Where it has ended before, it ends at once. Raises what the query fails with.
        """
        self.start(spark or active_session(), until).follow(Event())

    def start(self, spark: SparkSession, until: Until = None, tasks: int | None = None) -> RunningStage:
        """Start the query. `tasks` is how many write the topic, where the sink's options do not say."""
        check_until(until)
        sink = self.sink_given()
        count = sink.tasks if sink.tasks_given or tasks is None else tasks
        frame = self._frame(spark)
        told = Told.IN_TRANSACTION if WATERMARK in frame.columns else Told.AFTER_BATCH
        options = sink_options(self.name, self.sink, count, emit=told is Told.IN_TRANSACTION)
        topic = client_of(sink.options.server).topic(sink.topic.topic, namespace=sink.topic.namespace)
        query = self._query(spark, frame, options, until)  # last: nobody would stop it if something failed behind it
        return RunningStage(self.name, query, topic, count, told, until)

    def sink_given(self) -> StageSink:
        """Where it writes; `InputError` where its options are wrong."""
        return stage_sink(self.name, self.sink)

    def _frame(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("basalt").options(**source_options(self.name, self.source))
        return self.transform(reader.load())

    def _query(self, spark: SparkSession, frame: DataFrame, options: Mapping[str, str], until: Until) -> StreamingQuery:
        writer = frame.writeStream.format("basalt").options(**options).queryName(self.name).outputMode("append")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if until == "available-now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.interval_ms} milliseconds")
        with _starting:
            before = {name: spark.conf.get(name, None) for name in SETTINGS}
            try:
                for name, setting in SETTINGS.items():
                    spark.conf.set(name, setting)
                return writer.start()
            finally:
                for name, value in before.items():
                    spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def active_session() -> SparkSession:
    """The session of this thread, or of this program. `InputError` when there is none."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        raise InputError(
            "there is no Spark session: make one first (SparkSession.builder.getOrCreate())", field="spark"
        )
    return session


def check_until(until: Until) -> None:
    """`InputError` for anything that is none of `UNTIL`."""
    if until not in UNTIL:
        raise InputError(f"until is {until!r}, and must be 'eos', 'available-now' or None", field="until")
