"""One line of an access log, in the Common or Combined Log Format that most web servers write:
`client ident user [day/month/year:hour:minute:second zone] "METHOD path protocol" status bytes …`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale
MONTHS = {name: number for number, name in enumerate(MONTH_NAMES, 1)}
LINE = re.compile(
    rb"(?P<client>\S+) \S+ \S+ "
    rb"\[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) [+-]\d{4}\] "
    rb'"[A-Z]+ (?P<path>\S+)[^"]*" \d{3} '
)


class NotAnAccessLineError(ValueError):
    """The line is in neither of the two formats."""


@dataclass(frozen=True, slots=True)
class PageView:
    """One request: the client, the path, and the hour (in the log's own zone)."""

    client: str
    hour: str
    path: str


def parse(line: bytes) -> PageView:
    """The page view of one line (without its line end); `NotAnAccessLineError` for any other line."""
    match = LINE.match(line)
    month = MONTHS.get(match["month"].decode()) if match else None
    if match is None or month is None:
        raise NotAnAccessLineError(f"not an access log line: {line[:80]!r}")
    hour = f"{match['year'].decode()}-{month:02}-{match['day'].decode()} {match['hour'].decode()}h"
    # Paths are bytes on the wire; surrogates keep two different ones different, whatever their encoding.
    return PageView(
        match["client"].decode(errors="surrogateescape"), hour, match["path"].decode(errors="surrogateescape")
    )


def clock_time(line: bytes) -> str:
    """The time as the clock showed it: `year-month-day hour:minute:second`. `NotAnAccessLineError` for any other line."""
    view = parse(line)
    match = LINE.match(line)
    assert match is not None, "it was parsed"
    return f"{view.hour[:13]}:{match['minute'].decode()}:{match['second'].decode()}"
