"""Runs a function over parts of some work with Spark: one task for each part, one small answer back from each.

The bar moves as tasks end. A task that fails is tried again as Spark is set; a part is answered once all the same, for
`collect` takes one result of each task.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

PARTS_MAX = 10_000  # tasks of one job; each is some bytes in the driver and some ten milliseconds of Spark's own work
LOOK_S = 0.2  # between two looks at how far Spark has come

Part = TypeVar("Part")
Made = TypeVar("Made")

Advance = Callable[[int], None]


class Runner(Protocol):
    """What a job needs of whoever spreads its work."""

    def __call__(self, parts: Sequence[Part], work: Callable[[Part], Made], advance: Advance) -> list[Made]:
        """What `work` makes of each part, in the order of the parts."""
        ...


class SparkRunner:
    """Spreads work over a Spark session's executors."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self, parts: Sequence[Part], work: Callable[[Part], Made], advance: Advance) -> list[Made]:
        """See `Runner`."""
        if not parts:
            return []
        context = self._spark.sparkContext
        spread = context.parallelize(list(parts), min(len(parts), PARTS_MAX))
        with _watched(context, len(parts), advance):
            found: list[Made] = spread.mapPartitions(_each(work)).collect()
        return found


def in_this_process(parts: Sequence[Part], work: Callable[[Part], Made], advance: Advance) -> list[Made]:
    """A runner without Spark, for what is small and for tests."""
    made = []
    for part in parts:
        made.append(work(part))
        advance(1)
    return made


def _each(work: Callable[[Part], Made]) -> Callable[[Iterator[Part]], Iterator[Made]]:
    def task(parts: Iterator[Part]) -> Iterator[Made]:
        return map(work, parts)

    return task


class _watched:  # noqa: N801 - used like a function, in a `with` block
    """Tells `advance` of the tasks that end while the block runs, and at its end of all the rest."""

    def __init__(self, context: Any, parts: int, advance: Advance) -> None:
        self._context, self._parts, self._advance = context, parts, advance
        self._group = f"basalt-{uuid.uuid4().hex}"
        self._told = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="basalt-job-progress", daemon=True)

    def __enter__(self) -> None:
        self._context.setJobGroup(self._group, "basalt jobs", interruptOnCancel=True)
        self._thread.start()

    def __exit__(self, raised: type[BaseException] | None, *_rest: object) -> None:
        self._done.set()
        self._thread.join()
        if raised is None:
            self._tell(self._parts)
        else:
            self._context.cancelJobGroup(self._group)

    def _look(self) -> None:
        tracker = self._context.statusTracker()
        while not self._done.wait(LOOK_S):
            ended = 0
            for job in tracker.getJobIdsForGroup(self._group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    found = tracker.getStageInfo(stage)
                    ended += found.numCompletedTasks if found is not None else 0
            self._tell(min(ended, self._parts))

    def _tell(self, ended: int) -> None:
        if ended > self._told:
            self._advance(ended - self._told)
            self._told = ended
