"""A pipeline: several stages in one Spark session, each a query with a checkpoint of its own.

Only topics join the stages. A stage ends because the end of the stages before it is in its topic, so it makes no
difference whether they run here together, one after another, or each as a job of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from basalt.errors import InputError
from basalt_spark.connection import TopicName
from basalt_spark.pipeline.stage import Stage, Until, active_session, check_until, stage_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from basalt_spark.pipeline.stage import RunningStage


class Pipeline:
    """Stages that run together.

    `InputError` if two have the same name or checkpoint, or do not agree on a topic's tasks.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages: Sequence[Stage] = tuple(stages)
        if not self.stages:
            raise InputError("a pipeline needs a stage", field="stages")
        _refuse_twins("name", (stage.name for stage in self.stages))
        _refuse_twins("checkpoint", (str(Path(stage.checkpoint)) for stage in self.stages))
        self._tasks = tasks_of(self.stages)

    def run(self, until: Until = "eos", *, spark: SparkSession | None = None) -> None:
        """Run all stages; return when each has ended as `Stage.run` says. If one fails, stop all and raise its error.

        After that, or after a kill, run the pipeline again: each stage goes on from its checkpoint.
        """
        check_until(until)
        session = spark or active_session()
        stop = Event()
        running: list[RunningStage] = []
        try:
            for stage in self.stages:
                running.append(stage.start(session, until, self._tasks[stage_sink(stage.name, stage.sink).topic]))
                running[-1].wait_until_it_reads()
            _all([one.follow for one in running], stop)
        finally:
            for one in running:
                one.query.stop()


def tasks_of(stages: Sequence[Stage]) -> dict[TopicName, int]:
    """The number of tasks that write each topic: of the stages that do, or the number in the sinks' options."""
    sinks = [(stage, stage_sink(stage.name, stage.sink)) for stage in stages]
    tasks = dict(Counter(sink.topic for _, sink in sinks))
    given: dict[TopicName, tuple[str, int]] = {}
    for stage, sink in sinks:
        if not sink.tasks_given:
            continue
        first, count = given.setdefault(sink.topic, (stage.name, sink.tasks))
        if count != sink.tasks:
            raise InputError(
                f"stages {first} and {stage.name} write topic {sink.topic} and name {count} and {sink.tasks} tasks:"
                " all of a topic's tasks must name the same count",
                field="taskCount",
            )
    for topic, (stage_name, count) in given.items():
        if count < tasks[topic]:
            raise InputError(
                f"stage {stage_name} says that {count} tasks write topic {topic}, but {tasks[topic]} stages here do",
                field="taskCount",
            )
        tasks[topic] = count
    return tasks


def _all(runs: Sequence[Callable[[Event], None]], stop: Event) -> None:
    """Run each in a thread of its own; when one fails, or this thread is interrupted, `stop` is set for the others."""
    with ThreadPoolExecutor(len(runs), thread_name_prefix="stage") as threads:
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
            raise InputError(f"{count} stages have the {what} {value}: give each its own", field=what)
