"""One Java process of a standalone HBase, found by what its command line says.

Each carries its directory and its role as a Java option. So it is found and stopped by whoever comes later, also when its
starter was killed at any moment; and no number in a file can ever lead to a process that merely has the same number now.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

# The region server flushes and closes its regions, which takes a second or two; then it may wait 20 s more for a ZooKeeper that
# has ended before it. What a SIGKILL cuts short is in the write-ahead log.
STOP_TIMEOUT_S = 8.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.05
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Role:
    """One process: its name, its main class with arguments, and the memory that it may take."""

    name: str
    main: tuple[str, ...]
    heap_mb: int


@dataclass(frozen=True, slots=True)
class JavaProcess:
    """The process of one role in one directory, whether it runs or not."""

    directory: Path
    role: str

    @property
    def log(self) -> Path:
        """The file of its output; each start adds to it."""
        return self.directory / "logs" / f"{self.role}.log"

    @property
    def pid(self) -> int | None:
        """Its process id, None when it does not run."""
        wanted = set(self._marks())
        return next((pid for pid, words in _command_lines() if wanted <= words), None)

    def spawn(self, java: Path, options: Sequence[str], arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start it, as the leader of a process group of its own: a Ctrl-C at the starter's terminal is not for it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [str(java), *self._marks(), *options, *arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # A process that has just become java has no command line for a moment.
        while self.pid is None and process.poll() is None:
            time.sleep(POLL_S)
        return process

    def _marks(self) -> tuple[str, str]:
        return f"-Dbasalt.hbase.directory={self.directory}", f"-Dbasalt.hbase.role={self.role}"


def stop_all(processes: Sequence[JavaProcess]) -> None:
    """SIGTERM to all of them at once, SIGKILL to those that do not end in time."""
    _signal_and_wait(processes, signal.SIGTERM, STOP_TIMEOUT_S)
    _signal_and_wait(processes, signal.SIGKILL, KILL_TIMEOUT_S)


def _signal_and_wait(processes: Sequence[JavaProcess], number: signal.Signals, timeout_s: float) -> None:
    running = {process: pid for process in processes if (pid := process.pid) is not None}
    with ExitStack() as open_ends:
        ends = [end for pid in running.values() if (end := _end_of(pid, open_ends)) is not None]
        for pid in running.values():
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                pass  # it has just ended
        give_up_s = time.monotonic() + timeout_s
        # A process that ends loses its command line before it closes its ports, which the next start wants.
        while any(process.pid is not None for process in running) or not all(map(_is_ready, ends)):
            if time.monotonic() >= give_up_s:
                return
            time.sleep(POLL_S)


def _end_of(pid: int, open_ends: ExitStack) -> int | None:
    """A descriptor that becomes readable when the process has ended; None where the system has no such thing (macOS)."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    open_ends.callback(os.close, end)
    return end


def _is_ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _command_lines() -> Iterator[tuple[int, set[str]]]:
    """(process id, words of the command line) of every process that runs; an ended one has no command line any more."""
    if PROC.is_dir():
        for entry in PROC.iterdir():
            if entry.name.isdigit():
                try:
                    yield int(entry.name), set(os.fsdecode((entry / "cmdline").read_bytes()).split("\0"))
                except OSError:
                    pass  # it has just ended
        return
    # No /proc, as on macOS. A directory with a blank in its name cannot be told from two words there.
    listed = subprocess.run(["ps", "-Aww", "-o", "pid=,command="], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        yield int(pid), set(command.split())
