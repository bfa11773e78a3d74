"""A server in the background: a process that `basalt serve` forks off and waits for, until it answers or has ended.

The child keeps the terminal until it answers, so that it says there why it does not start, and Ctrl-C reaches it. Then it
leaves: it has a session of its own, and what it writes goes to its log.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from basalt.errors import InvalidSettingError
from basalt.server.stop_signals import StopSignals
from basalt.settings import Settings


class Started(NamedTuple):
    """The server that answers: its process and its URL. Without a URL it has ended, with this exit code."""

    process: int
    url: str
    exit_code: int = 0


def with_log_file(settings: Settings) -> Settings:
    """The settings with a log file, for there will be no terminal: beside the data directory, unless they name one."""
    if settings.log.file is not None:
        return settings
    if settings.server.data is None:
        raise InvalidSettingError(
            "a server in the background needs a file for its log",
            field="log.file",
            hint="name one: --set log.file=FILE",
        )
    directory = Path(settings.server.data).absolute()
    return replace(settings, log=replace(settings.log, file=str(directory.with_name(f"{directory.name}.log"))))


def fork(signals: StopSignals, log_file: str) -> Started | Callable[[str], None]:
    """In the parent what became of the server; in the child what to call with its URL once it answers.

    Call it while the process has one thread. A signal to the parent goes on to the child, which says why it ends.
    """
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        return lambda url: _leave(url, tells, log_file)
    os.close(tells)
    signals.drain_by(lambda number: _pass_on(child, number))
    with os.fdopen(told, "rb") as answer:
        url = answer.read().decode()
    if url:
        return Started(child, url)
    return Started(child, "", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _pass_on(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.Signals(number))


def _leave(url: str, tells: int, log_file: str) -> None:
    os.setsid()
    leave_terminal(log_file)
    os.write(tells, url.encode())
    os.close(tells)


def leave_terminal(log_file: str) -> None:
    """Read nothing from now on, and write to the file."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    written = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, stream in ((nowhere, 0), (written, 1), (written, 2)):
        os.dup2(source, stream)
    os.close(nowhere)
    os.close(written)
