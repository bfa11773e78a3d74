"""One line of the log as the pipeline sees it: when, who, and what, in texts that any system can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from demo.access_log import NotAnAccessLineError, clock_time, parse

HOUR_FORMAT = "%Y-%m-%d %Hh"


@dataclass(frozen=True, slots=True)
class View:
    """A page view. `at` is what the web server's clock showed, taken as UTC: hours are counted as that server saw them."""

    at: datetime
    client: str
    path: str

    @property
    def hour(self) -> str:
        return f"{self.at:{HOUR_FORMAT}}"

    @property
    def at_ms(self) -> int:
        """The time in milliseconds."""
        return int(self.at.timestamp()) * 1_000


def view_of(line: bytes) -> View | None:
    """The page view of a line; None where it is no access line. Bytes that are no UTF-8 are written as \\xNN."""
    try:
        view = parse(line)
        at = datetime.strptime(clock_time(line), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except (NotAnAccessLineError, ValueError):
        return None
    return View(at, _shown(view.client), _shown(view.path))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines that are published together, and what is true behind them: no line at or before `watermark_ms` follows.

    None where no line with a time follows at all.
    """

    lines: Sequence[bytes]
    watermark_ms: int | None


def chunks_of(lines: Sequence[bytes], size: int) -> list[Chunk]:
    """A log in chunks. It is out of time order, so a watermark is what the rest of the log allows, not the highest time seen."""
    chunks: list[Chunk] = []
    earliest_ms: int | None = None
    for start in reversed(range(0, len(lines), size)):
        part = lines[start : start + size]
        chunks.append(Chunk(part, None if earliest_ms is None else earliest_ms - 1))
        times = [view.at_ms for view in views_of(part)]
        if earliest_ms is not None:
            times.append(earliest_ms)
        earliest_ms = min(times, default=None)
    return chunks[::-1]


def views_of(lines: Iterable[bytes]) -> list[View]:
    """The page views of all these lines."""
    return [view for view in map(view_of, lines) if view is not None]


def _shown(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
