"""One line of a check: a level, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "error"]

NAMES_SHOWN_MAX = 3  # a cluster may have thousands of regions; the first few show where to look


class Finding(NamedTuple):
    """A warning is for what works, but not as it should; an error for what does not, or soon will not."""

    name: str
    level: Level
    detail: str
    hint: str = ""


def ok(name: str, detail: str) -> Finding:
    return Finding(name, "ok", detail)


def warning(name: str, detail: str, hint: str) -> Finding:
    return Finding(name, "warning", detail, hint)


def error(name: str, detail: str, hint: str) -> Finding:
    return Finding(name, "error", detail, hint)


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = sorted(names)
    more = len(listed) - NAMES_SHOWN_MAX
    return ", ".join(listed[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def seconds(duration_ms: float) -> str:
    """A duration for a sentence: 4 s, 3 min, 2 h."""
    for unit, size in (("h", 3_600_000), ("min", 60_000)):
        if abs(duration_ms) >= 2 * size:
            return f"{duration_ms / size:.0f} {unit}"
    return f"{duration_ms / 1_000:.3g} s"


def count(number: int, noun: str) -> str:
    """A number and what it counts: 1 region, 16 regions."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
