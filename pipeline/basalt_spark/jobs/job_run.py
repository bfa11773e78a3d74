"""One run of a job: its Spark session, its tasks, and its report."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from basalt.errors import InputError

PARTS_MAX = 10_000  # tasks of one job; each is some bytes in the driver and some ten milliseconds of Spark's own work
LOOK_S = 0.2  # between two looks at Spark's progress

LOCAL = "local[*,4]"  # all cores of this machine, and three more attempts at a task that fails
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # the command has a bar of its own
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}

Part = TypeVar("Part")
Made = TypeVar("Made")

Advance: TypeAlias = Callable[[int], None]  # moves the progress bar by so many parts
Fact: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobReport:
    """The result of a job.

    `facts` come first; `faults` are sentences on what is wrong; `tables` are named lists of rows.
    """

    job: str
    job_id: str
    facts: Fact
    faults: Sequence[str] = ()
    tables: Mapping[str, Sequence[Fact]] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        return "fault" if self.faults else "ok"

    @property
    def exit_code(self) -> int:
        return 1 if self.faults else 0

    def with_facts(self, **more: Any) -> JobReport:
        return replace(self, facts={**self.facts, **more})

    def row(self) -> dict[str, Any]:
        """The whole report, for programs."""
        head = {"job": self.job, "job_id": self.job_id, "outcome": self.outcome}
        return {**head, **self.facts, "faults": list(self.faults), **{k: list(v) for k, v in self.tables.items()}}


@contextmanager
def spark_session(name: str, master: str | None) -> Iterator[Any]:
    """Open a session for the block: that of `spark-submit`, or one on `master`, Spark's own master or this machine."""
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: offline jobs run on Spark", field="spark",
            hint="pip install 'basalt-mq[spark]', and a Java of version 17 or later",
        ) from None  # fmt: skip
    # By default workers are `python3` of the PATH, which need not be the Python that has Basalt.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = master or SparkConf().get("spark.master") or LOCAL
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.master(chosen).appName(f"basalt {name}")
    for setting, value in (_LOCAL_SETTINGS if chosen.startswith("local") else {}).items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


class Runner:
    """Spreads the parts of a job over a Spark session's executors: one task for each, one small answer back from each.

    Spark repeats a task that fails, as it is set; each part is answered once all the same, because `collect` takes one
    result of each task.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self, parts: Sequence[Part], work: Callable[[Part], Made], advance: Advance) -> list[Made]:
        """Call `work` for each part; the results are in the order of the parts. `advance` is called as tasks end."""
        if not parts:
            return []
        context = self._spark.sparkContext
        spread = context.parallelize(list(parts), min(len(parts), PARTS_MAX))
        with _watched(context, len(parts), advance):
            found: list[Made] = spread.mapPartitions(lambda some: map(work, some)).collect()
        return found


@contextmanager
def _watched(context: Any, parts: int, advance: Advance) -> Iterator[None]:
    """Report the tasks that end while the block runs to `advance`, and at its end all the rest."""
    group, done, reported = f"basalt-{uuid.uuid4().hex}", threading.Event(), 0

    def report(ended: int) -> None:
        nonlocal reported
        if ended > reported:
            advance(ended - reported)
            reported = ended

    def watch() -> None:
        tracker = context.statusTracker()
        while not done.wait(LOOK_S):
            jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
            stages = filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds))
            report(min(sum(stage.numCompletedTasks for stage in stages), parts))

    thread = threading.Thread(target=watch, name="basalt-job-progress", daemon=True)
    context.setJobGroup(group, "basalt spark", interruptOnCancel=True)
    thread.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        done.set()
        thread.join()
    report(parts)
