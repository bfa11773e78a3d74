"""Measures what Basalt takes before it does anything: the command line, the import, a server's start, and a server that idles.

Wall time, processor time and memory are the least of several runs: whatever else the machine does only adds to them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from bench import processes
from bench.figures import Figure

HELP_S_MAX = 0.1  # the limits that the README of this folder promises
IMPORT_MS_MAX = 20.0
START_S_MAX = 0.6
IDLE_MB_MAX = 65.0
IDLE_CPU_PERCENT_MAX = 0.3
SETTLING_S = 3  # after its start a server runs each job for the first time


class Cost(NamedTuple):
    """Seconds of wall time and of processor time."""

    wall_s: float
    cpu_s: float


def commands(folder: Path, quick: bool) -> Iterator[Figure]:
    """`basalt --help` and `import basalt`, in new processes, next to a Python that does nothing."""
    bare, helped, imported = _least(
        5 if quick else 25, ["-c", "pass"], ["-m", "basalt.cli.main", "--help"], ["-c", "import basalt"]
    )
    yield _within("basalt --help", helped.wall_s, "s", HELP_S_MAX)
    yield _beside("basalt --help, CPU", helped.cpu_s * 1e3, "ms", "ms of python -c pass", bare.cpu_s * 1e3, 8)
    import_ms = (imported.wall_s - bare.wall_s) * 1e3
    yield _within("import basalt, beyond python -c pass", import_ms, "ms", IMPORT_MS_MAX)
    yield _beside("import basalt, CPU", imported.cpu_s * 1e3, "ms", "ms of python -c pass", bare.cpu_s * 1e3, 3)


def cold_start(folder: Path, quick: bool) -> Iterator[Figure]:
    """From exec to ready on a new data directory, next to uvicorn with an application that does nothing."""
    ours, theirs = [], []
    for number in range(3 if quick else 10):
        with processes.basalt(folder / f"data-{number}") as server:
            ours.append(Cost(server.start_s, server.cpu_s()))
        with processes.trivial() as server:
            theirs.append(Cost(server.start_s, server.cpu_s()))
    wall_s, cpu_s = (min(column) for column in zip(*ours, strict=True))
    bare_cpu_s = min(cost.cpu_s for cost in theirs)
    yield _within("cold start of a server", wall_s, "s", START_S_MAX)
    yield _beside("cold start of a server, CPU", cpu_s, "s", "s of a trivial server", bare_cpu_s, 5)


def idle(folder: Path, quick: bool) -> Iterator[Figure]:
    """Memory and processor time of a server that nobody calls, next to the same HTTP stack without Basalt."""
    seconds = 10 if quick else 60
    mb, percent = _idling(processes.basalt(folder / "data"), seconds)
    bare_mb, bare_percent = _idling(processes.trivial(), seconds)
    yield _within("memory of an idle server", mb, "MB", IDLE_MB_MAX)
    yield _beside("memory of an idle server", mb, "MB", "MB of a trivial server", bare_mb, 2.5)
    yield _within(
        "CPU of an idle server", percent, "%", IDLE_CPU_PERCENT_MAX, note=f"trivial server: {bare_percent:.2f} %"
    )


def _least(rounds: int, *programs: list[str]) -> list[Cost]:
    """The least that each program of Python took; they run in turns, so that all meet the same machine."""
    costs: list[list[Cost]] = [[] for _ in programs]
    for _ in range(rounds):
        for arguments, found in zip(programs, costs, strict=True):
            found.append(_run(arguments))
    return [Cost(*map(min, zip(*found, strict=True))) for found in costs]


def _run(arguments: list[str]) -> Cost:
    began_s = time.monotonic()
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=processes.ENVIRONMENT)
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.monotonic() - began_s
    child.returncode = os.waitstatus_to_exitcode(status)  # Popen must not wait for a process that is gone
    if child.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {child.returncode}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime)


def _idling(started: AbstractContextManager[processes.Process], seconds: float) -> tuple[float, float]:
    """Memory in MB, mapped files included, and the processor's percent."""
    with started as server:
        time.sleep(SETTLING_S)
        before_s, began_s = server.cpu_s(), time.monotonic()
        time.sleep(seconds)
        percent = 100 * (server.cpu_s() - before_s) / (time.monotonic() - began_s)
        return server.resident_mib() * 2**20 / 1e6, percent


def _within(name: str, value: float, unit: str, limit: float, note: str = "") -> Figure:
    return Figure(name, value, unit, f"{unit} at most", limit, 1.0, at_most=True, note=note)


def _beside(name: str, value: float, unit: str, yardstick: str, yardstick_value: float, ratio: float) -> Figure:
    return Figure(name, value, unit, yardstick, yardstick_value, ratio, at_most=True)
