"""A pipeline: steps in one Spark session, each a query from topics to a topic with a checkpoint of its own.

    Step(
        name="parse",
        source={"server": url, "topic": "lines"},
        transform=parse,  # DataFrame -> DataFrame
        sink={"server": url, "topic": "views"},
        checkpoint="/var/lib/parse",
    ).run(until="eos")

A step hands on event time and the end of the stream. Only topics join the steps: a step ends because the end of the
steps before it is in its topic. So it makes no difference whether they run here together, one after another, or each as
a job of its own. The state of a step is in its checkpoint and in its topic, nowhere else: it may be killed anywhere and
run again, in the same session or on another machine. docs/spark/pipelines.md

One process speaks for a step, the driver of its query, in the name of one task. It publishes watermarks and the end
only of what is published already, and publishing them again changes nothing; so it needs no memory beyond the topic's
own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Literal, TypeAlias

from basalt.errors import InputError
from basalt_spark.columns import CONTROL, DEFAULT_COLUMNS, WATERMARK
from basalt_spark.connection import QualifiedTopic, topic_of
from basalt_spark.event_time import SETTINGS, QueryProgress, read_progress
from basalt_spark.option_table import FrameUse
from basalt_spark.options import WriteOptions, read_options, write_options

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from basalt.client import Topic

log = logging.getLogger(__name__)

Until: TypeAlias = Literal["eos", "available-now"] | None
UNTIL = ("eos", "available-now", None)

LOOK_S = 0.1  # between two looks at the query's progress

# The step sets these itself: its source must carry event time and the end, its sink must remember what it has.
OF_SOURCE = {"control": "heartbeat", "endOnEos": "true"}
OF_SINK = ("txnAppId", "txnVersion", "emitWatermark")

# A query of a Python source asks its server for news with each trigger. Spark's own pause is 10 ms: a fifth of a core.
INTERVAL_MS = 100

# A query copies the session's settings when it starts, so two queries must not start at once.
_starting = Lock()


@dataclass(frozen=True)
class Step:
    """One query.

    `name` is its task's name in the topic it writes; `source` and `sink` are options of `format("basalt")`. A transform
    without state keeps the columns `watermark` and `control`: then the watermark is published in the transaction of its
    rows. A transform with state takes them in by `basalt_spark.in_event_time`.
    """

    name: str
    source: Mapping[str, str]
    transform: Callable[[DataFrame], DataFrame]
    sink: Mapping[str, str]
    checkpoint: str | Path
    interval_ms: int = INTERVAL_MS

    def run(self, until: Until = None, *, spark: SparkSession | None = None) -> None:
        """Run the query until its topics have ended and all is written ("eos"), to their present ends, or for ever.

        A step that has ended before ends at once. Raises the query's error.
        """
        self.start(spark or active_session(), until).follow(Event())

    def start(self, spark: SparkSession, until: Until = None, tasks: int | None = None) -> RunningStep:
        """Start the query.

        `tasks` is the number of tasks that write the topic, if the sink's options do not give it.
        """
        check_until(until)
        sink = step_sink(self.name, self.sink)
        count = sink.tasks if sink.tasks_given or tasks is None else tasks
        frame = self._frame(spark)
        in_transaction = WATERMARK in frame.columns
        options = sink_options(self.name, self.sink, count, emit=in_transaction)
        topic = topic_of(sink.options.server, sink.topic)
        query = self._query(spark, frame, options, until)  # last: nobody would stop it if something after it failed
        return RunningStep(self.name, query, topic, count, in_transaction, until)

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
    """Raise `InputError` for a value that is not in `UNTIL`."""
    if until not in UNTIL:
        raise InputError(f"until is {until!r}, and must be 'eos', 'available-now' or None", field="until")


@dataclass(frozen=True, slots=True)
class StepSink:
    """The topic that a step writes, and the number of tasks that write it; `tasks_given`: an option gave it."""

    options: WriteOptions
    topic: QualifiedTopic
    tasks: int
    tasks_given: bool


def source_options(step: str, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a step's source for Spark; `InputError` names the one at fault."""
    _refuse(step, "source", given, OF_SOURCE)
    options = {**given, **OF_SOURCE}
    if "columns" in {name.lower() for name in given}:
        columns = read_options(options, FrameUse.STREAM).columns
        for needed in (WATERMARK, CONTROL):
            if needed not in columns:
                raise InputError(
                    f"option columns of step {step} leaves out {needed}, which carries event time; add it. The default"
                    f" is {','.join(DEFAULT_COLUMNS)}",
                    field="columns",
                )
    return options


def step_sink(step: str, given: Mapping[str, str]) -> StepSink:
    """Read the options of a step's sink; `InputError` names the one at fault."""
    _refuse(step, "sink", given, OF_SINK)
    options = write_options({**given, "txnAppId": step})
    if options.topic is None:
        raise InputError(
            f"the sink of step {step} names no topic, in which to publish event time and the end of the stream:"
            " give the option topic",
            field="topic",
        )
    given_tasks = "taskcount" in {name.lower() for name in given}
    return StepSink(options, options.topic, options.task_count, given_tasks)


def sink_options(step: str, given: Mapping[str, str], tasks: int, *, emit: bool) -> dict[str, str]:
    """The options of a step's sink for Spark.

    With `emit` the sink publishes the watermark in the transaction of the rows.
    """
    kept = {name: value for name, value in given.items() if name.lower() != "taskcount"}
    emitted = {"emitWatermark": "true", "taskCount": str(tasks)} if emit else {}
    return {**kept, "txnAppId": step, **emitted}


def _refuse(step: str, end: str, given: Mapping[str, str], own: Mapping[str, str] | tuple[str, ...]) -> None:
    reserved = {name.lower(): name for name in own}
    for name in given:
        if name.lower() in reserved:
            raise InputError(
                f"option {reserved[name.lower()]} of the {end} of step {step} is the step's own: leave it out",
                field=reserved[name.lower()],
            )


class StepStateError(RuntimeError):
    """A step's transform treats event time wrongly: its results would never come, or never be known to be complete."""


class RunningStep:
    """A query, and the task that speaks for it.

    `in_transaction`: the sink publishes the watermark together with the rows, for a step without state. Otherwise the
    driver publishes it after each batch, because no column holds the watermark of a state.
    """

    def __init__(
        self, name: str, query: StreamingQuery, topic: Topic, tasks: int, in_transaction: bool, until: str | None
    ) -> None:
        self.name = name
        self.query = query
        self._topic = topic
        self._tasks = tasks
        self._in_transaction = in_transaction
        self._until = until
        self._promised_ms: int | None = None
        self._ended = False
        self._dropped: dict[int, int] = {}

    def wait_until_it_reads(self) -> None:
        """Wait until Spark has started the query's sources. Raises their error.

        Each source is a Python process, which Spark gives ten seconds to start; several at once on few cores are late.
        """
        while self.query.status["message"].startswith("Initializing"):
            if self.query.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # it takes parts of a second, too
                return

    def follow(self, stop: Event) -> None:
        """Wait until the query ends as was asked for, or `stop` is set. Raises the query's error."""
        try:
            for task in self._topic.markers().tasks:
                if task.task == self.name:  # what this task published in earlier runs
                    self._promised_ms, self._ended = task.watermark_ms, task.ended
            while not self.query.awaitTermination(LOOK_S):  # type: ignore[arg-type]
                if stop.is_set() or (self._publish_progress() and self._until == "eos"):
                    return
            self._publish_progress()
        finally:
            self.query.stop()

    def _publish_progress(self) -> bool:
        """Publish what the newest progress allows; True when all is read, written and published."""
        report = self.query.lastProgress
        if report is None:
            return False
        progress = read_progress(report)
        self._check(progress)
        if progress.done:
            self._end()
        elif not self._in_transaction:
            self._promise(progress.promise_ms)
        return progress.done

    def _check(self, progress: QueryProgress) -> None:
        """Raise `StepStateError` if this batch shows that the transform treats event time wrongly."""
        if progress.dropped and progress.batch not in self._dropped:
            self._dropped = {progress.batch: progress.dropped}
            what = "step %s: batch %s dropped %s rows as late: a watermark of its topics has promised too much"
            log.warning(what, self.name, progress.batch, progress.dropped)
        if progress.stateful and self._in_transaction:
            raise StepStateError(
                f"step {self.name} keeps state and the column watermark:"
                " take event time in by basalt_spark.in_event_time, and leave the column out of the results,"
                " which are not of the watermark at which their rows came"
            )
        if progress.done and progress.stateful and not progress.closed:
            raise StepStateError(
                f"step {self.name} has read its topics to the end, but its state is at watermark"
                f" {progress.watermark_ms}:"
                " take event time in by basalt_spark.in_event_time, and filter nothing out before that"
            )
        if progress.done and progress.ran and not progress.stateful and not self._in_transaction:
            raise StepStateError(
                f"step {self.name} keeps no state, and its transform leaves out the columns watermark and control:"
                " keep them, so that event time goes on to its topic"
            )

    def _promise(self, promise_ms: int | None) -> None:
        if self._ended or promise_ms is None or (self._promised_ms is not None and promise_ms <= self._promised_ms):
            return
        self._topic.watermark(self.name, promise_ms, self._tasks)
        self._promised_ms = promise_ms

    def _end(self) -> None:
        if not self._ended:
            self._topic.end(self.name, self._tasks)
            self._ended = True
            log.info("step %s has ended topic %s", self.name, self._topic)


class Pipeline:
    """Steps that run together.

    `InputError` if two have the same name or checkpoint, or do not agree on a topic's tasks.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps: Sequence[Step] = tuple(steps)
        if not self.steps:
            raise InputError("a pipeline needs a step", field="steps")
        _refuse_twins("name", (step.name for step in self.steps))
        _refuse_twins("checkpoint", (str(Path(step.checkpoint)) for step in self.steps))
        self._tasks = tasks_of(self.steps)

    def run(self, until: Until = "eos", *, spark: SparkSession | None = None) -> None:
        """Run all steps; return when each has ended as `Step.run` says. If one fails, stop all and raise its error.

        After that, or after a kill, run the pipeline again: each step goes on from its checkpoint.
        """
        check_until(until)
        session = spark or active_session()
        stop = Event()
        running: list[RunningStep] = []
        try:
            for step in self.steps:
                running.append(step.start(session, until, self._tasks[step_sink(step.name, step.sink).topic]))
                running[-1].wait_until_it_reads()
            _all([one.follow for one in running], stop)
        finally:
            for one in running:
                one.query.stop()


def tasks_of(steps: Sequence[Step]) -> dict[QualifiedTopic, int]:
    """The number of tasks that write each topic: of the steps that do, or the number in the sinks' options."""
    sinks = [(step, step_sink(step.name, step.sink)) for step in steps]
    tasks = dict(Counter(sink.topic for _, sink in sinks))
    given: dict[QualifiedTopic, tuple[str, int]] = {}
    for step, sink in sinks:
        if not sink.tasks_given:
            continue
        first, count = given.setdefault(sink.topic, (step.name, sink.tasks))
        if count != sink.tasks:
            raise InputError(
                f"steps {first} and {step.name} write topic {sink.topic} and name {count} and {sink.tasks} tasks:"
                " all of a topic's tasks must name the same count",
                field="taskCount",
            )
    for topic, (step_name, count) in given.items():
        if count < tasks[topic]:
            raise InputError(
                f"step {step_name} says that {count} tasks write topic {topic}, but {tasks[topic]} steps here do",
                field="taskCount",
            )
        tasks[topic] = count
    return tasks


def _all(runs: Sequence[Callable[[Event], None]], stop: Event) -> None:
    """Run each in a thread of its own; when one fails, or this thread is interrupted, `stop` is set for the others."""
    with ThreadPoolExecutor(len(runs), thread_name_prefix="step") as threads:
        followed: list[Future[None]] = [threads.submit(run, stop) for run in runs]
        try:
            done, _ = wait(followed, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    # Raise the first error: it has stopped the others, which may have failed for that reason.
    for one in (*done, *followed):
        one.result()


def _refuse_twins(what: str, values: Iterable[str]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise InputError(f"{count} steps have the {what} {value}: give each its own", field=what)
