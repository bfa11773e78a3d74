"""The kinds of a setting's values, and how each of their forms is read: pure rules, one class per kind of value.

A value comes as text (environment, flag, secret file) or as a TOML value. Sizes take KiB, MiB and GiB, durations ms, s, m,
h and d; a bare number is in the unit that the key's name ends with. docs/reference/settings.md is written from `describe`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import AddressValueError, IPv6Address, ip_address, ip_network
from typing import ClassVar

from basalt.redaction import address_without_password

SHOWN_CHARS_MAX = 60  # of what was given, in an error
_PRINCIPAL_NAME_CHARS_MAX = 255  # as basalt.access has it
KIB, MIB, GIB = 1024, 1024**2, 1024**3
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

_NUMBER = re.compile(r"(-?[0-9]{1,19})[ ]?([A-Za-z]*)")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}")
_ORIGIN = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_-][a-z0-9._-]{0,252})(?::([0-9]{1,5}))?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
# Headers that have a meaning of their own, in which nobody may look for a name.
_HEADERS_OF_HTTP = frozenset(
    ("authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host", "origin",
     "te", "transfer-encoding", "upgrade")
)  # fmt: skip
LOG_LEVELS = ("debug", "info", "warning", "error")
_SCHEME_PORTS = {"http": 80, "https": 443}
_REALM = re.compile(r"[A-Za-z0-9._-]{1,255}")
_SERVICE = re.compile(r"[A-Za-z0-9_-]{1,63}(/[A-Za-z0-9._-]{1,255}@[A-Za-z0-9._-]{1,255})?")
_KEY_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(?:/[^\s#\"\\]*)?")
_LOGGER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63}){0,7}")
_WINDOW = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_PATH_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KERBEROS_PRINCIPAL = re.compile(r"[^\s@/\\]{1,255}(/[^\s@/\\]{1,255})?(@[^\s@/\\]{1,255})?")
_PRINCIPAL_PART = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class SettingKind:
    """Reads, writes and describes the values of one key. `read` raises `ValueError` with the reason."""

    help: str

    def read(self, value: object) -> object:
        """The value of this text (of a flag, a variable, a secret file) or TOML value."""
        raise NotImplementedError

    def write(self, value: object) -> str:
        """The value as `read` takes it."""
        return "off" if value is None else str(value)

    def toml(self, value: object) -> str:
        """The value as a settings file has it."""
        return f'"{self.write(value)}"'

    def describe(self) -> str:
        """The values that there may be."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Text(SettingKind):
    """Kinds whose values are strings of some form, or "off" where there need be none."""

    FORM: ClassVar[str]
    OPTIONAL: ClassVar[bool] = True

    def read(self, value: object) -> object:
        if not isinstance(value, str):
            raise ValueError(f"is {_type_name(value)}, not {self.form()}")
        if value == "off" and self.OPTIONAL:
            return None
        found = self.parse(value)
        if found is None:
            raise ValueError(f"is not {self.form()}")
        return found

    def parse(self, text: str) -> object:
        """The value of this text; None when it has another form. `ValueError` says what else is wrong."""
        raise NotImplementedError

    def form(self) -> str:
        """The form in an error's words."""
        return self.describe()

    def describe(self) -> str:
        return f"{self.FORM}, off" if self.OPTIONAL else self.FORM


@dataclass(frozen=True, slots=True)
class Whole(SettingKind):
    """A whole number from `low` to `high`, both included, with the units that its key may be given in."""

    low: int
    high: int
    UNITS: ClassVar[Mapping[str, int]] = {}

    def read(self, value: object) -> int:
        number = self._number(value)
        if not self.low <= number <= self.high:
            raise ValueError(f"is out of range: {self.describe()}")
        return number

    def write(self, value: object) -> str:
        assert isinstance(value, int)
        unit = next((unit for unit, factor in self.UNITS.items() if value and value % factor == 0), "")
        return f"{value // self.UNITS.get(unit, 1)}{unit}"

    def toml(self, value: object) -> str:
        text = self.write(value)
        return text if text.isdecimal() else f'"{text}"'

    def describe(self) -> str:
        return f"{self.write(self.low)} to {self.write(self.high)}"

    def _number(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"is {_type_name(value)}, not a whole number")
        if isinstance(value, int):
            return value
        match = _NUMBER.fullmatch(value)
        unit_names = ", ".join(reversed([*self.UNITS]))
        if match is None:
            raise ValueError("is not a whole number" + (f" with a unit ({unit_names})" if self.UNITS else ""))
        if match[2] and match[2] not in self.UNITS:
            meant = next((unit for unit in self.UNITS if unit[:1].lower() == match[2][:1].lower()), None)
            hint = f"; did you mean {match[1]}{meant}?" if meant else ""
            known = f"; the units are {unit_names}{hint}" if self.UNITS else ", and takes none"
            raise ValueError(f"has the unit {match[2]!r}{known}")
        return int(match[1]) * self.UNITS.get(match[2], 1)


class Size(Whole):
    """A number of bytes."""

    UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}


class Duration(Whole):
    """A time in milliseconds."""

    UNITS = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}


class Limit(Whole):
    """A whole number that nothing may be above, or "off": there is no limit."""

    def read(self, value: object) -> int | None:  # type: ignore[override]  # as each kind may, and `Whole` does not
        return None if value == "off" else Whole.read(self, value)

    def write(self, value: object) -> str:
        return "off" if value is None else Whole.write(self, value)

    def describe(self) -> str:
        return f"{Whole.describe(self)}, off"


class SizeLimit(Limit):
    """The same of bytes."""

    UNITS = Size.UNITS


class DurationLimit(Limit):
    """The same of a time in milliseconds."""

    UNITS = Duration.UNITS


class Flag(SettingKind):
    """True or false, in those words."""

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
class Choice(_Text):
    """One of a few words."""

    choices: tuple[str, ...]
    OPTIONAL = False

    def parse(self, text: str) -> str | None:
        return text if text in self.choices else None

    def form(self) -> str:
        return f"one of {self.describe()}"

    def describe(self) -> str:
        return ", ".join(self.choices)


class FilePath(_Text):
    """The path of a file or directory; a relative one is taken from where the server is started."""

    FORM = "a path"

    def parse(self, text: str) -> str | None:
        return text if text and "\0" not in text else None


class Secret(_Text):
    """A secret. It has no form that could be written down: it is given as the path of a file that holds nothing else."""

    FORM = "the path of a file that only its owner can read, under this name with _file behind it"

    def parse(self, text: str) -> str | None:
        if not text or not text.isprintable():
            raise ValueError("is empty, or holds more than one line of printable text")
        return text


class Term(_Text):
    """A name that another system gives something: a URL, a word, any text that is compared whole."""

    FORM = "1 to 255 printable characters without spaces"

    def parse(self, text: str) -> str | None:
        return text if len(text) <= 255 and text.isprintable() and text and " " not in text else None


class RequiredTerm(Term):
    """The same where there must be one."""

    OPTIONAL = False


class KeySource(_Text):
    """The place of public keys. By plain HTTP anybody on the way could put in their own: so from this machine alone, by its address."""

    FORM = "https://…, http:// of a loopback address, or a path"

    def parse(self, text: str) -> str | None:
        if "://" not in text:
            return text if text and "\0" not in text else None
        match = _KEY_URL.fullmatch(text)
        if match is None or int(match[3] or 1) > 65_535 or not _is_host(match[2]):
            return None
        if match[1] == "http" and not _is_loopback(match[2]):
            raise ValueError("is not encrypted on its way, so anybody there could put in keys of their own")
        return text


class HeaderName(_Text):
    """The name of a header of HTTP."""

    FORM = "the name of a header"
    OPTIONAL = False

    def parse(self, text: str) -> str | None:
        return text if _HEADER_NAME.fullmatch(text) and text.lower() not in _HEADERS_OF_HTTP else None


class Moment(SettingKind):
    """A moment, in milliseconds since 1970; written as a date and time with a zone."""

    FORM = "a date and time with its zone, as 2026-11-28T09:00:00Z"

    def read(self, value: object) -> int | None:
        if value == "off":
            return None
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise ValueError(f"is not {self.FORM}")
        return int(value.timestamp() * 1_000)

    def write(self, value: object) -> str:
        if value is None:
            return "off"
        assert isinstance(value, int)
        return datetime.fromtimestamp(value / 1_000, UTC).isoformat().replace("+00:00", "Z")

    def describe(self) -> str:
        return f"{self.FORM}; off"


class Host(_Text):
    """A name or an address of this machine."""

    FORM = "a host name or address"
    OPTIONAL = False

    def parse(self, text: str) -> str | None:
        return text if _HOST.fullmatch(text) else None


class NamePrefix(_Text):
    """The start of a table's name."""

    FORM = "1 to 64 letters, digits, _ or -"
    OPTIONAL = False

    def parse(self, text: str) -> str | None:
        return text if _PREFIX.fullmatch(text) else None


class KerberosPrincipal(_Text):
    """The name of somebody in a realm of Kerberos."""

    FORM = "name@REALM, name/host@REALM"

    def parse(self, text: str) -> str | None:
        return text if _KERBEROS_PRINCIPAL.fullmatch(text) else None


class PrincipalPart(_Text):
    """The first part of a service's principal."""

    FORM = "1 to 64 letters, digits, _, . or -"
    OPTIONAL = False

    def parse(self, text: str) -> str | None:
        return text if _PRINCIPAL_PART.fullmatch(text) else None


class ServiceHost(_Text):
    """The host in a service's principal."""

    FORM = "a host name"

    def parse(self, text: str) -> str | None:
        return text if _HOST.fullmatch(text) else None


class Address(_Text):
    """The address of another server."""

    FORM = "host:port"

    def parse(self, text: str) -> str | None:
        match = _ADDRESS.fullmatch(text)
        if match is not None and not 1 <= int(match[2]) <= 65_535:
            raise ValueError("has a port that is not 1 to 65535")
        return text if match else None


class Ensemble(_Text):
    """The servers of one ZooKeeper, with the path below which all is meant."""

    FORM = "host:port, several with commas between them, /path behind the last"

    def parse(self, text: str) -> str | None:
        servers, slash, path = text.partition("/")
        matches = map(_ADDRESS.fullmatch, servers.split(","))
        if not all(match is not None and 1 <= int(match[2]) <= 65_535 for match in matches):
            return None
        return text if not slash or all(map(_PATH_PART.fullmatch, path.split("/"))) else None

    def describe(self) -> str:
        return f"{self.FORM}; off"


class Url(_Text):
    """The URL of an HTTP server."""

    FORM = "http://host:port, https://…"

    def parse(self, text: str) -> str | None:
        return text.rstrip("/") if _URL.fullmatch(text) else None


class _Several(SettingKind):
    """Kinds whose values are several strings of some form; "off" where there are none."""

    FORM: ClassVar[str]
    NONE: ClassVar[str] = "off"

    def read(self, value: object) -> tuple[str, ...]:
        if value == self.NONE:
            return ()
        given = value.split(",") if isinstance(value, str) else value
        if not isinstance(given, list):
            raise ValueError(f"is {_type_name(value)}, not {self.FORM}")
        found: dict[str, None] = {}
        for each in given:
            if not isinstance(each, str):
                raise ValueError(f"has {_type_name(each)} in it, not {self.FORM}")
            found[self.parse(each.strip())] = None
        return tuple(found)

    def parse(self, text: str) -> str:
        """The value of one; `ValueError` says what is wrong with it."""
        raise NotImplementedError

    def write(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(value) or self.NONE

    def toml(self, value: object) -> str:
        assert isinstance(value, tuple)
        return f"[{', '.join(f'{chr(34)}{each}{chr(34)}' for each in value)}]"

    def describe(self) -> str:
        return f"{self.FORM}, several with commas between them; off"


@dataclass(frozen=True, slots=True)
class Words(_Several):
    """Some of a few words; `[]` where nothing is said, which is not the same as any of them."""

    words: tuple[str, ...]
    FORM = "a word"
    NONE = "[]"

    def parse(self, text: str) -> str:
        if text not in self.words:
            raise ValueError(f"has {_quoted(text)} in it, which this version does not know")
        return text

    def describe(self) -> str:
        return f"a list of these words: {', '.join(self.words)}"


class HostNames(_Several):
    """Names of this server as they stand in a URL, without a port; compared whole, and in any case."""

    FORM = "a host name"

    def parse(self, text: str) -> str:
        if _HOST_NAME.fullmatch(text) is None:
            raise ValueError(f"has {_quoted(text)} in it, which is not {self.FORM}: it has no scheme, port or *")
        return text.lower().removesuffix(".")


class LogLevels(_Several):
    """Levels of loggers: `basalt.store=debug`."""

    FORM = "a logger and its level, such as basalt.store=debug"

    def parse(self, text: str) -> str:
        name, _, level = text.partition("=")
        if _LOGGER.fullmatch(name) is None:
            raise ValueError(f"has {_quoted(text)} in it, which is not {self.FORM}")
        if level not in LOG_LEVELS:
            raise ValueError(f"has {_quoted(text)} in it: the level is one of {', '.join(LOG_LEVELS)}")
        return text


@dataclass(frozen=True, slots=True)
class Networks(_Several):
    """Networks of addresses, each with the length of its prefix; an address alone is a network of one."""

    FORM = "a network such as 10.0.0.0/8"

    def parse(self, text: str) -> str:
        try:
            return str(ip_network(text))
        except ValueError:
            raise ValueError(
                f"has {_quoted(text)} in it, which is not {self.FORM}, with zeros behind its prefix"
            ) from None


class ThriftPrincipal(_Text):
    """The principal as which the clients of the Thrift face are judged."""

    FORM = "thrift:NAME"

    def parse(self, text: str) -> str | None:
        kind, _, name = text.partition(":")
        is_name = 0 < len(name) <= _PRINCIPAL_NAME_CHARS_MAX and name.isprintable() and name == name.strip(" ")
        return text if kind == "thrift" and is_name else None


class Principals(_Several):
    """Principals and groups as `kind:name`. What may stand there is for `basalt.access` to say, when the server starts."""

    FORM = "KIND:NAME"

    def parse(self, text: str) -> str:
        kind, _, name = text.partition(":")
        if not kind or not name:
            raise ValueError(f"has {_quoted(text)} in it, which is not {self.FORM}")
        return text


class Origins(_Several):
    """Origins of web pages as browsers write them, in lower case and without a port that is the scheme's own."""

    FORM = "http://host:port or https://…"

    def parse(self, text: str) -> str:
        match = _ORIGIN.fullmatch(text.lower())
        if match is None or int(match[3] or 0) > 65_535 or not _is_host(match[2]):
            raise ValueError(f"has {_quoted(text)} in it, which is not {self.FORM}: it has no path, user or *")
        scheme, host, port = match[1], match[2], int(match[3] or _SCHEME_PORTS[match[1]])
        return f"{scheme}://{host}" if port == _SCHEME_PORTS[scheme] else f"{scheme}://{host}:{port}"


class Realms(_Several):
    """Realms of Kerberos; a capital letter is another one than a small one."""

    FORM = "a realm such as EXAMPLE.ORG"

    def parse(self, text: str) -> str:
        if _REALM.fullmatch(text) is None:
            raise ValueError(f"has {_quoted(text)} in it, which is not {self.FORM}")
        return text


class ServiceName(_Text):
    """The service that tickets of Kerberos are for."""

    FORM = "HTTP, or a whole principal HTTP/host.name@REALM"
    OPTIONAL = False

    def parse(self, text: str) -> str | None:
        return text if _SERVICE.fullmatch(text) else None


class Port(SettingKind):
    """A TCP port to listen on (0: any free one), or "off"."""

    def read(self, value: object) -> int | None:
        if value == "off":
            return None
        try:
            return Whole("", 0, 65_535).read(value)
        except ValueError:
            raise ValueError(f"is not {self.describe()}") from None

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
        """True when the moment (milliseconds since 1970) lies in the window on its day."""
        minute = time_ms // MINUTE_MS % (24 * 60)
        if self.start_minute < self.stop_minute:
            return self.start_minute <= minute < self.stop_minute
        return minute >= self.start_minute or minute < self.stop_minute

    def __str__(self) -> str:
        start, stop = divmod(self.start_minute, 60), divmod(self.stop_minute, 60)
        return f"{start[0]:02}:{start[1]:02}-{stop[0]:02}:{stop[1]:02}"


class Window(_Text):
    """A `DayWindow`; "off": at any time."""

    FORM = "HH:MM-HH:MM (UTC)"

    def parse(self, text: str) -> DayWindow | None:
        match = _WINDOW.fullmatch(text)
        if match is None:
            return None
        start_hour, start_minute, stop_hour, stop_minute = map(int, match.groups())
        if max(start_hour, stop_hour) > 23 or max(start_minute, stop_minute) > 59:
            raise ValueError("has a time of day that no clock shows")
        window = DayWindow(start_hour * 60 + start_minute, stop_hour * 60 + stop_minute)
        if window.start_minute == window.stop_minute:
            raise ValueError('is empty; write "off" for the whole day')
        return window


def _is_host(text: str) -> bool:
    try:
        return not text.startswith("[") or bool(IPv6Address(text[1:-1]))
    except AddressValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name is looked up, and not always here


def _quoted(text: str) -> str:
    return repr(address_without_password(text)[:SHOWN_CHARS_MAX])


def _type_name(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a fraction", str: "text", list: "a list", dict: "a table"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a date or time")
