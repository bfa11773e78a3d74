"""How a server logs: one line an event on standard error, JSON for machines and text on a terminal."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from basalt.settings.tree import LogSettings


class JsonLines(logging.Formatter):
    """Each record as one JSON object; `fields` of a record become members of it."""

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
        return msgspec.json.encode(event, enc_hook=str).decode()


class Text(logging.Formatter):
    """Each record as a line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


def set_up_logging(settings: LogSettings) -> None:
    """Log to standard error in the format and from the level that the settings name."""
    handler = logging.StreamHandler(sys.stderr)
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    handler.setFormatter(Text() if text else JsonLines())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "apscheduler"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
