"""What is kept of jobs in the system table: kind `job` (how each is scheduled) and kind `job-runs` (its last runs).

Formats: docs/formats/system-table.md.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias, TypeVar

import msgspec

from basalt.errors import CorruptionError
from basalt.operations.jobs.job import Report
from basalt_engine.errors import BasaltError
from basalt_engine.system import SystemTable

DEFINITION_KIND = "job"
RUNS_KIND = "job-runs"
RUNS_MAX = 50  # of each job, the newest; some ten KiB
ERROR_CHARS_MAX = 1_000

Outcome: TypeAlias = Literal["ok", "failed", "stopped"]
T = TypeVar("T")


class Definition(msgspec.Struct, frozen=True):
    """How a job is scheduled: all of it from the settings, but `paused`, which an operator says at run time."""

    interval_ms: int
    window: str | None
    enabled: bool
    paused: bool


class Run(msgspec.Struct, frozen=True):
    """One run of a job; of failures in a row for the same reason the last one, and how many `times` they came."""

    started_ms: int
    duration_ms: int
    outcome: Outcome
    report: Report = {}
    error: str | None = None
    times: int = 1


class Runs(msgspec.Struct):
    """The body of a `job-runs` entry, oldest run first."""

    runs: list[Run]


def read_definition(system: SystemTable, name: str) -> Definition | None:
    """How the job was scheduled when that was last written."""
    return _read(system, DEFINITION_KIND, name, Definition)


def read_runs(system: SystemTable, name: str) -> deque[Run]:
    """The job's last runs, oldest first."""
    found = _read(system, RUNS_KIND, name, Runs)
    return deque([] if found is None else found.runs, maxlen=RUNS_MAX)


def write_runs(system: SystemTable, name: str, runs: deque[Run]) -> None:
    """Keep the job's last runs."""
    system.write(RUNS_KIND, name, msgspec.json.encode(Runs(list(runs))))


def write_definition(system: SystemTable, name: str, definition: Definition) -> None:
    """Keep how the job is scheduled."""
    system.write(DEFINITION_KIND, name, msgspec.json.encode(definition))


def add_run(runs: deque[Run], run: Run) -> Run:
    """Add a run at the end; one that failed as the last one did takes its place. The entry as it is kept."""
    last = runs[-1] if runs else None
    if last is not None and run.outcome == "failed" and (last.outcome, last.error) == (run.outcome, run.error):
        runs.pop()
        run = msgspec.structs.replace(run, times=last.times + 1)
    runs.append(run)
    return run


def error_text(error: Exception) -> str:
    """An error for the history: its code or class, and its message."""
    kind, text = (error.code, error.message) if isinstance(error, BasaltError) else (type(error).__name__, str(error))
    return f"{kind}: {text}"[:ERROR_CHARS_MAX]


def _read(system: SystemTable, kind: str, name: str, form: type[T]) -> T | None:
    body = system.get(kind, name)
    try:
        return None if body is None else msgspec.json.decode(body, type=form)
    except msgspec.DecodeError as error:
        raise CorruptionError(f"system entry {kind}:{name} is not what it should be: {error}") from None
