"""What an option's value may look like. Each kind reads a text, and raises `ValueError` with what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SIZE_UNITS = {"": 1, "b": 1, "k": 1024, "kib": 1024, "m": 1024**2, "mib": 1024**2, "g": 1024**3, "gib": 1024**3}
DURATION_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
NUMBER_MAX = 2**63 - 1  # what fits Spark's and the server's whole numbers

NAME_CHARS_MAX = 255  # what a server takes as a session's name, and as a task's

_SERVER = re.compile(r"https?://[^\s/]\S*")
_QUANTITY = re.compile(r"([0-9]{1,19})\s*([a-zA-Z]*)")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """How the values of an option are read, and how documents and messages call them."""

    shown: str
    read: Callable[[str], Any]


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


def _servers(text: str) -> str:
    # An embedded store is of one process, and a job of Spark has many: each would have a server of its own.
    if not all(_SERVER.fullmatch(part.strip()) for part in text.split(",")):
        raise ValueError("is not that of an HTTP server")
    return text.strip()


def _session(text: str) -> str:
    name = text.strip()
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable() or "/" in name or name in (".", ".."):
        raise ValueError("is no name that a server remembers")
    return name


def _flag(text: str) -> bool:
    if text.strip().lower() not in _FLAGS:
        raise ValueError("is neither true nor false")
    return _FLAGS[text.strip().lower()]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ValueError("has an empty name between its commas")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"names {twice[0]} twice")
    return names


def _quantity(text: str, units: dict[str, int], unit_names: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    factor = None if match is None else units.get(match[2].lower())
    if match is None or factor is None:
        raise ValueError(f"is not a whole number with a unit of {unit_names}")
    if int(match[1]) * factor > NUMBER_MAX:
        raise ValueError("is too large")
    return int(match[1]) * factor


def _count(text: str) -> int:
    number = int(text) if re.fullmatch(r"\s*[0-9]{1,19}\s*", text) else 0
    if not 1 <= number <= NUMBER_MAX:
        raise ValueError("is not a whole number of at least 1")
    return number


def _version(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,19}\s*", text) or int(text) > NUMBER_MAX:
        raise ValueError("is not a whole number of at least 0")
    return int(text)


def _bytes(text: str) -> int:
    size = _quantity(text, SIZE_UNITS, "bytes, KiB, MiB or GiB")
    if size < 1:
        raise ValueError("is less than one byte")
    return size


def _duration_ms(text: str) -> int:
    if text.strip().isdecimal():
        raise ValueError("has no unit: write 250 ms, 10 seconds or 5 minutes")
    return _quantity(text, DURATION_UNITS, "ms, seconds, minutes, hours or days")


TEXT = Kind("text", _text)
SERVERS = Kind("http://HOST:PORT, several with commas between them", _servers)
SESSION = Kind(f"1 to {NAME_CHARS_MAX} printable characters without a slash", _session)
FLAG = Kind("true or false", _flag)
NAMES = Kind("names with commas between them", _names)
COUNT = Kind("whole number", _count)
VERSION = Kind("whole number", _version)
BYTES = Kind("bytes, such as 16 MiB", _bytes)
DURATION = Kind("duration, such as 10 seconds", _duration_ms)


def choice(*values: str) -> Kind:
    """One of a few words, in any case."""

    def read(text: str) -> str:
        if text.strip().lower() not in values:
            raise ValueError(f"is none of {', '.join(values)}")
        return text.strip().lower()

    return Kind(" or ".join(values), read)
