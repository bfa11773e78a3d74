"""The server's own log: its lines, for people or for machines, and where they go. docs/operations/running.md tells how to read it.

    2026-11-23 11:46:40,220 WARNING basalt.store: …                                       text
    {"time":"…+00:00","level":"warning","logger":"basalt.store","message":"…", …}         a JSON line

Standard error or a file gets the lines. The access log is `basalt.access`, among the others: `http.asgi.responses.log_access`.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from basalt.errors import InvalidSettingError
from basalt.operations.live_settings import set_levels
from basalt.redaction import without_passwords
from basalt.settings import LogSettings

REPEATED_S = 60  # a problem that goes on is told so often
PROBLEMS_MAX = 500  # that are told apart; the one that was told longest ago is forgotten first
# Each line of these is about something that happened once. Slow requests are told one by one: they come from many clients.
ONE_BY_ONE = frozenset(("basalt.access", "basalt.slow"))

Problem: TypeAlias = tuple[str, int, str, str]
_NUMBERS = re.compile(r"[0-9a-fA-F]{8,}|[0-9]+")  # ids in hex, too

TEXT_LINE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"  # of the log, for people


class TextLines(logging.Formatter):
    """Writes each record as a line for people, with no password of a URL in it: drivers and libraries quote them."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__(TEXT_LINE if number is None else TEXT_LINE.replace("%(name)s", f"[{number}] %(name)s"))

    def format(self, record: logging.LogRecord) -> str:
        return without_passwords(super().format(record))


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object, for machines; `fields` of a record become members of it."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self._of = {} if number is None else {"server": number}

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._of,
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            event |= fields
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return without_passwords(msgspec.json.encode(event, enc_hook=str).decode())


class Repetitions(logging.Filter):
    """Lets a warning or an error through once a minute; the line after that says how many there were in between.

    Two are the same when they differ in numbers at most, and came from the same place. A store that is away would otherwise fill
    the disk with one sentence, and hide the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: OrderedDict[Problem, _Seen] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.name in ONE_BY_ONE:
            return True
        problem = _problem_of(record)
        seen = self._seen.get(problem)
        if seen is not None and record.created - seen.told_s < REPEATED_S:
            seen.left_out += 1
            return False
        self._seen[problem] = _Seen(record.created)
        self._seen.move_to_end(problem)
        if len(self._seen) > PROBLEMS_MAX:
            self._seen.popitem(last=False)
        if seen is not None and seen.left_out:
            record.msg, record.args = (
                f"{record.getMessage()} ({seen.left_out} more like this since {_time(seen.told_s)})",
                (),
            )
            record.fields = {**getattr(record, "fields", {}), "repeated": seen.left_out}
        return True


@dataclass(slots=True)
class _Seen:
    told_s: float
    left_out: int = 0


def _problem_of(record: logging.LogRecord) -> Problem:
    """The words of a record without its numbers, and for an exception the line that raised it."""
    where = ""
    if record.exc_info and record.exc_info[2] is not None:
        last = traceback.extract_tb(record.exc_info[2], limit=-1)[0]
        where = f"{record.exc_info[0]} {last.filename}:{last.lineno}"
    return record.name, record.levelno, _NUMBERS.sub("#", record.getMessage()), where


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def set_up_logging(settings: LogSettings, number: int | None = None) -> None:
    """Log in the format, from the level and to the place that the settings name; `InvalidSettingError` for no such file.

    Each line says the number of this server among those of `--processes`, if it has one.
    """
    handler = logging.StreamHandler(sys.stderr) if settings.file is None else _file_handler(settings.file)
    terminal = settings.file is None and sys.stderr.isatty()
    text = settings.format == "text" or (settings.format == "auto" and terminal)
    handler.setFormatter(TextLines(number) if text else JsonLines(number))
    handler.addFilter(Repetitions())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "apscheduler"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    set_levels(settings.levels)


def _file_handler(file: str) -> logging.Handler:
    """Appends to the file. What moved it away, as logrotate does, needs not tell: each line looks for the file anew."""
    from logging.handlers import WatchedFileHandler  # which loads pickle, and more

    try:
        return WatchedFileHandler(file, encoding="utf-8")
    except OSError as error:
        raise InvalidSettingError(
            f"setting log.file: {file} cannot be written: {error.strerror}",
            field="log.file",
            hint="name a file in a directory that is there and that this user may write",
        ) from None
