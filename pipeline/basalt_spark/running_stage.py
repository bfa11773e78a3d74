"""A stage whose query runs: what it says in its topic of event time and of its end, and when.

One process speaks for a stage, the driver of its query, in the name of one task. What it says is true of what is
published already, and saying it again changes nothing; so it needs no memory beyond the topic's own.
"""

from __future__ import annotations

import logging
from enum import Enum, auto
from threading import Event
from typing import TYPE_CHECKING

from basalt_spark.stage_progress import Progress, read_progress

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from basalt.client import Topic

LOOK_S = 0.1  # so long after a batch its watermark is told, at most

log = logging.getLogger(__name__)


class Told(Enum):
    """When a stage's watermark is told."""

    IN_TRANSACTION = auto()  # by the sink, together with the rows: of a stage without state
    AFTER_BATCH = auto()  # by the driver: the watermark of a state is in no column


class StageStateError(RuntimeError):
    """What a stage's transform does with event time is wrong: its results would never come, or never be known to be whole."""


class RunningStage:
    """A query, and the task that speaks for it."""

    def __init__(
        self, name: str, query: StreamingQuery, topic: Topic, tasks: int, told: Told, until: str | None
    ) -> None:
        self.name = name
        self.query = query
        self._topic = topic
        self._tasks = tasks
        self._told = told
        self._until = until
        self._promised_ms: int | None = None
        self._ended = False
        self._dropped: dict[int, int] = {}

    def wait_until_it_reads(self) -> None:
        """Until Spark has started what it reads with. Raises what that fails with.

        Each source is a Python process, to which Spark gives ten seconds to come; several at once on few cores are late.
        """
        while self.query.status["message"].startswith("Initializing"):
            if self.query.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # it takes parts of a second, too
                return

    def follow(self, stop: Event) -> None:
        """Until the query ends as was asked for, or `stop` is set. Raises what it fails with."""
        try:
            self._recall()
            while not self.query.awaitTermination(LOOK_S):  # type: ignore[arg-type]
                if stop.is_set() or (self._look() and self._until == "eos"):
                    return
            self._look()
        finally:
            self.query.stop()

    def _recall(self) -> None:
        """What this task has said, in runs before this one."""
        for task in self._topic.markers().tasks:
            if task.task == self.name:
                self._promised_ms, self._ended = task.watermark_ms, task.ended

    def _look(self) -> bool:
        """Tell what the newest progress allows to tell; whether all is read, written and told."""
        report = self.query.lastProgress
        if report is None:
            return False
        progress = read_progress(report)
        self._check(progress)
        if progress.done:
            self._end()
        elif self._told is Told.AFTER_BATCH:
            self._promise(progress.promise_ms)
        return progress.done

    def _check(self, progress: Progress) -> None:
        """That the transform and the end agree, as far as this batch shows it."""
        if progress.dropped and progress.batch not in self._dropped:
            self._dropped = {progress.batch: progress.dropped}
            log.warning(
                "stage %s: batch %s dropped %s rows as late: a watermark of its topics has promised too much",
                self.name,
                progress.batch,
                progress.dropped,
            )
        if progress.stateful and self._told is Told.IN_TRANSACTION:
            raise StageStateError(
                f"stage {self.name} keeps state and the column watermark: take event time in by watermarks.in_event_time,"
                " and leave the column out of the results, which are not of the watermark at which their rows came"
            )
        if progress.done and progress.stateful and not progress.closed:
            raise StageStateError(
                f"stage {self.name} has read its topics to the end, but its state is at watermark {progress.watermark_ms}:"
                " take event time in by watermarks.in_event_time, and filter nothing out before that"
            )
        if progress.done and progress.ran and not progress.stateful and self._told is Told.AFTER_BATCH:
            raise StageStateError(
                f"stage {self.name} keeps no state, and its transform leaves out the columns watermark and control:"
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
            log.info("stage %s has ended topic %s", self.name, self._topic)
