"""The kinds of values that settings have, and the reading of each form: pure rules, one class per kind of value.

A value comes as text (environment, flag, secret file) or as a TOML value. Sizes take KiB, MiB and GiB, durations ms, s, m,
h and d; a bare number is in the unit that the key's name ends with. docs/reference/settings.md is written from `describe`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

KIB, MIB, GIB = 1024, 1024**2, 1024**3
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

_SIZE_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
_DURATION_UNITS = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
_NUMBER = re.compile(r"(-?[0-9]{1,19})[ ]?([A-Za-z]*)")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_WINDOW = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_PATH_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Kind(Protocol):
    """Reads, writes and describes the values of one key. `read` raises `ValueError` with the reason."""

    help: str

    def read(self, value: object) -> object: ...

    def write(self, value: object) -> str: ...

    def toml(self, value: object) -> str: ...

    def describe(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Quoted:
    """Kinds whose values are strings in TOML."""

    help: str

    def write(self, value: object) -> str:
        return "off" if value is None else str(value)

    def toml(self, value: object) -> str:
        return f'"{self.write(value)}"'


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`, both included, with the units that its key may be given in."""

    help: str
    low: int
    high: int

    def read(self, value: object) -> int:
        number = self._number(value)
        if not self.low <= number <= self.high:
            raise ValueError(f"is out of range: {self.describe()}")
        return number

    def write(self, value: object) -> str:
        assert isinstance(value, int)
        units = self.units()
        unit = next((unit for unit, factor in units.items() if value and value % factor == 0), "")
        return f"{value // units.get(unit, 1)}{unit}"

    def toml(self, value: object) -> str:
        text = self.write(value)
        return text if text.isdecimal() else f'"{text}"'

    def describe(self) -> str:
        return f"{self.write(self.low)} to {self.write(self.high)}"

    def units(self) -> dict[str, int]:
        return {}

    def _number(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"is {_type_name(value)}, not a whole number")
        if isinstance(value, int):
            return value
        match = _NUMBER.fullmatch(value)
        units = self.units()
        unit_names = ", ".join(reversed(units))
        if match is None:
            raise ValueError("is not a whole number" + (f" with a unit ({unit_names})" if units else ""))
        if match[2] and match[2] not in units:
            meant = next((unit for unit in units if unit[:1].lower() == match[2][:1].lower()), None)
            hint = f"; did you mean {match[1]}{meant}?" if meant else ""
            raise ValueError(
                f"has the unit {match[2]!r}; the units are {unit_names}{hint}"
                if units
                else f"has the unit {match[2]!r}, and takes none"
            )
        return int(match[1]) * units.get(match[2], 1)


@dataclass(frozen=True, slots=True)
class Size(Whole):
    """A number of bytes."""

    def units(self) -> dict[str, int]:
        return _SIZE_UNITS


@dataclass(frozen=True, slots=True)
class Duration(Whole):
    """A time in milliseconds."""

    def units(self) -> dict[str, int]:
        return _DURATION_UNITS


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false, in those words."""

    help: str

    def read(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        reason = "" if isinstance(value, str) else f" ({_type_name(value)})"
        raise ValueError(f"is neither true nor false{reason}")

    def write(self, value: object) -> str:
        return "true" if value else "false"

    def toml(self, value: object) -> str:
        return self.write(value)

    def describe(self) -> str:
        return "true, false"


@dataclass(frozen=True, slots=True)
class Choice(_Quoted):
    """One of a few words."""

    choices: tuple[str, ...]

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"is {_type_name(value)}, not one of {self.describe()}")
        if value not in self.choices:
            raise ValueError(f"is not one of {self.describe()}")
        return value

    def describe(self) -> str:
        return ", ".join(self.choices)


@dataclass(frozen=True, slots=True)
class NamePrefix(_Quoted):
    """The start of a table's name."""

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"is {_type_name(value)}, not a name")
        if not _PREFIX.fullmatch(value):
            raise ValueError(f"is not {self.describe()}")
        return value

    def describe(self) -> str:
        return "1 to 64 letters, digits, _ or -"


@dataclass(frozen=True, slots=True)
class Address(_Quoted):
    """The address at which another server listens, or "off", which reads as None."""

    def read(self, value: object) -> str | None:
        if not isinstance(value, str):
            raise ValueError(f"is {_type_name(value)}, not {self.describe()}")
        if value == "off":
            return None
        match = _ADDRESS.fullmatch(value)
        if match is None:
            raise ValueError(f"is not {self.describe()}")
        if not 1 <= int(match[2]) <= 65_535:
            raise ValueError("has a port that is not 1 to 65535")
        return value

    def describe(self) -> str:
        return "host:port, off"


@dataclass(frozen=True, slots=True)
class Ensemble(_Quoted):
    """The servers of one ZooKeeper, with the path below which all is meant; or "off"."""

    def read(self, value: object) -> str | None:
        if not isinstance(value, str):
            raise ValueError(f"is {_type_name(value)}, not {self.describe()}")
        if value == "off":
            return None
        servers, slash, path = value.partition("/")
        for server in servers.split(","):
            match = _ADDRESS.fullmatch(server)
            if match is None or not 1 <= int(match[2]) <= 65_535:
                raise ValueError(f"is not {self.describe()}")
        if slash and not all(_PATH_PART.fullmatch(part) for part in path.split("/")):
            raise ValueError(f"is not {self.describe()}")
        return value

    def describe(self) -> str:
        return "host:port, several with commas between them, /path behind the last; off"


@dataclass(frozen=True, slots=True)
class Url(_Quoted):
    """The URL of an HTTP server, or "off"."""

    def read(self, value: object) -> str | None:
        if not isinstance(value, str):
            raise ValueError(f"is {_type_name(value)}, not {self.describe()}")
        if value == "off":
            return None
        if _URL.fullmatch(value) is None:
            raise ValueError(f"is not {self.describe()}")
        return value.rstrip("/")

    def describe(self) -> str:
        return "http://host:port, https://…, off"


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port to listen on (0: any free one), or "off"."""

    help: str

    def read(self, value: object) -> int | None:
        if value == "off":
            return None
        try:
            return Whole("", 0, 65_535).read(value)
        except ValueError:
            raise ValueError(f"is not {self.describe()}") from None

    def write(self, value: object) -> str:
        return "off" if value is None else str(value)

    def toml(self, value: object) -> str:
        return '"off"' if value is None else str(value)

    def describe(self) -> str:
        return "0 to 65535, off"


@dataclass(frozen=True, slots=True)
class DayWindow:
    """A time of day in UTC, from `start_minute` up to `stop_minute` (minutes since midnight); it may span midnight."""

    start_minute: int
    stop_minute: int

    def contains(self, time_ms: int) -> bool:
        """True when the moment (milliseconds since 1970) lies in the window, in UTC; a window may go over midnight."""
        minute = time_ms // MINUTE_MS % (24 * 60)
        if self.start_minute < self.stop_minute:
            return self.start_minute <= minute < self.stop_minute
        return minute >= self.start_minute or minute < self.stop_minute

    def __str__(self) -> str:
        start, stop = divmod(self.start_minute, 60), divmod(self.stop_minute, 60)
        return f"{start[0]:02}:{start[1]:02}-{stop[0]:02}:{stop[1]:02}"


@dataclass(frozen=True, slots=True)
class Window(_Quoted):
    """A `DayWindow`, or "off": at any time."""

    def read(self, value: object) -> DayWindow | None:
        if not isinstance(value, str):
            raise ValueError(f"is {_type_name(value)}, not {self.describe()}")
        if value == "off":
            return None
        match = _WINDOW.fullmatch(value)
        if match is None:
            raise ValueError(f"is not {self.describe()}")
        start_hour, start_minute, stop_hour, stop_minute = (int(part) for part in match.groups())
        if max(start_hour, stop_hour) > 23 or max(start_minute, stop_minute) > 59:
            raise ValueError("has a time of day that no clock shows")
        window = DayWindow(start_hour * 60 + start_minute, stop_hour * 60 + stop_minute)
        if window.start_minute == window.stop_minute:
            raise ValueError('is empty; write "off" for the whole day')
        return window

    def describe(self) -> str:
        return "HH:MM-HH:MM (UTC), off"


def _type_name(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a fraction", str: "text", list: "a list", dict: "a table"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a date or time")
