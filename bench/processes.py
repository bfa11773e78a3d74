"""Servers under test: Basalt itself, and the same HTTP stack with nothing behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_S = 60
PROCESSOR_CLOCK = 2  # the scheduler's own count: nanoseconds, where /proc/PID/stat has ticks of 10 ms
# An installed package is compiled; without its byte code most of a start would be the compiler's.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True)
class Process:
    """A server that listens on 127.0.0.1."""

    port: int
    pid: int
    start_s: float  # from exec to ready

    def cpu_s(self) -> float:
        """Processor seconds that it has used so far, all threads."""
        return cpu_s_of(self.pid)

    def peak_mib(self) -> float:
        """The most resident memory that it has had, mapped files included."""
        return self._status_mib("VmHWM:")

    def resident_mib(self) -> float:
        """Resident memory, mapped files (the interpreter, libraries) included."""
        return self._status_mib("VmRSS:")

    def rss_mib(self) -> float:
        """Resident memory that is its own (mapped files are the page cache's)."""
        return self._status_mib("RssAnon:")

    def _status_mib(self, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1_024
        raise RuntimeError(f"process {self.pid} has no {name}")


def cpu_s_of(pid: int) -> float:
    """Processor seconds that this process has used so far, all threads."""
    return time.clock_gettime(~pid << 3 | PROCESSOR_CLOCK)  # what clock_getcpuclockid(3) answers for a process


@contextmanager
def basalt(
    data: Path, *settings: str, ticks: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """`basalt serve` on a data directory, with synced writes; with a ticker in its event loop that notes in the file `ticks`."""
    program = ["-m", "basalt.cli.main"] if ticks is None else ["-m", "bench.ticking_server", str(ticks)]
    arguments = [*program, "serve", "--data", str(data), "--port", "0", "--set", "log.level=warning"]
    for setting in settings:
        arguments += ["--set", setting]
    with _started(arguments, environment) as process:
        yield process


@contextmanager
def trivial() -> Iterator[Process]:
    """uvicorn with the same loop and parser, and an application that reads the body and answers 200."""
    with _started(["-m", "bench.trivial_server"]) as process:
        yield process


@contextmanager
def passing(role: str, place: str) -> Iterator[Process]:
    """A leader on this data directory, or a standby that passes calls on to the leader at this port."""
    with _started(["-m", "bench.passing_server", role, place]) as process:
        yield process


@contextmanager
def _started(arguments: list[str], environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        began = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, *arguments, "--port-file", str(port_file)], env={**ENVIRONMENT, **(environment or {})}
        )
        try:
            while not port_file.exists():
                if child.poll() is not None or time.monotonic() - began > READY_S:
                    raise RuntimeError(f"{' '.join(arguments)} did not start (exit status {child.poll()})")
                time.sleep(0.005)
            yield Process(int(port_file.read_text()), child.pid, time.monotonic() - began)
        finally:
            child.terminate()
            child.wait(20)
