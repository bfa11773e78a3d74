"""The Spark job as a process of its own, and its Python workers: started, killed without mercy, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TASKS = ["pyspark.daemon", "pyspark.worker"]  # the daemon that forks what runs tasks; others plan and commit
STOP_S = 60.0  # a bound for a hang: an interrupted job stops its queries


class JobFailedError(RuntimeError):
    """The job ended by itself, and not well; the message holds the end of its log."""


class JobProcess:
    """`demo.spark.job` on one folder of checkpoints."""

    def __init__(self, url: str, folder: Path) -> None:
        self.log = folder / "spark.log"
        self.workers_killed = 0
        self._command = [sys.executable, "-m", "demo.spark.job", url, str(folder / "checkpoints")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting for anything. What ran before is over: its JVM ends when nobody holds its input."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ended(self) -> bool:
        """True when it ended as it should; `JobFailedError` when it ended otherwise."""
        assert self._process is not None, "it was started"
        code = self._process.poll()
        if code:
            tail = self.log.read_bytes()[-3_000:].decode(errors="replace")
            raise JobFailedError(f"the Spark job ended with exit code {code}:\n{tail}")
        return code == 0

    def kill(self) -> None:
        """SIGKILL of the driver, in the midst of whatever it does. Its JVM follows it; wait for that."""
        assert self._process is not None, "it was started"
        java = [process for process in self._descendants() if _command(process).startswith("java")]
        self._process.kill()
        self._process.wait()
        until_s = time.monotonic() + STOP_S
        while any(_is_alive(process) for process in java) and time.monotonic() < until_s:
            time.sleep(0.05)

    def kill_worker(self) -> bool:
        """SIGKILL of one Python worker that runs tasks; False when there is none just now."""
        daemons = [process for process in self._descendants() if _command(process).split()[-2:] == TASKS]
        workers = [process for process in daemons if _parent(process) in daemons]
        for worker in workers[:1]:
            os.kill(worker, signal.SIGKILL)
            self.workers_killed += 1
        return bool(workers)

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _descendants(self) -> list[int]:
        assert self._process is not None, "it was started"
        parents = {process: _parent(process) for process in _processes()}
        found = [self._process.pid]
        for ancestor in found:  # it grows while it is gone through
            found += [process for process, parent in parents.items() if parent == ancestor]
        return found[1:]


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _parent(process: int) -> int | None:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _command(process: int) -> str:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join([Path(words[0].decode()).name, *(word.decode(errors="replace") for word in words[1:])])


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
