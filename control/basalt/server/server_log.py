"""The server's own log: its lines, for people or for machines, and where they go. docs/operations/running.md tells how to read it.

    2026-11-23 11:46:40,220 WARNING basalt.store: …                                       text
    {"time":"…+00:00","level":"warning","logger":"basalt.store","message":"…", …}         a JSON line

Standard error or a file gets the lines. The access log is `basalt.access`, among the others: `http.asgi.responses.log_access`.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from basalt.errors import InvalidSettingError
from basalt.redaction import without_passwords
from basalt.settings import LogSettings

TEXT_LINE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"  # of the log, for people


class TextLines(logging.Formatter):
    """Writes each record as a line for people, with no password of a URL in it: drivers and libraries quote them."""

    def __init__(self) -> None:
        super().__init__(TEXT_LINE)

    def format(self, record: logging.LogRecord) -> str:
        return without_passwords(super().format(record))


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object, for machines; `fields` of a record become members of it."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            event |= fields
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return without_passwords(msgspec.json.encode(event, enc_hook=str).decode())


def set_up_logging(settings: LogSettings) -> None:
    """Log in the format, from the level and to the place that the settings name; `InvalidSettingError` for no such file."""
    handler = logging.StreamHandler(sys.stderr) if settings.file is None else _file_handler(settings.file)
    terminal = settings.file is None and sys.stderr.isatty()
    text = settings.format == "text" or (settings.format == "auto" and terminal)
    handler.setFormatter(TextLines() if text else JsonLines())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "apscheduler"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


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
