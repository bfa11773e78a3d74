"""The properties of topics in one table: their names, values, defaults and effects.

From it follow what a server takes (`basalt.catalog.topics`), the client's arguments, the options of `basalt topic create`, what
`basalt topic show` tells, the OpenAPI document, and what `make reference` writes into docs/reference/http-api.md. A new one is a line of
`PROPERTIES` and of `TopicProperties`; what it does stands where it is read (`Topic.metadata.others`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict

from basalt.api.markers import TASKS_MAX
from basalt.errors import InvalidPropertyError

LABEL = "label."  # properties of a user's own begin so: none of Basalt ever will
GENERATION = "generation"  # read-only; an update may give it back
TTL_SECONDS_DEFAULT = 604_800  # seven days
TTL_SECONDS_MAX = 3_155_760_000  # a hundred years, which is for ever; in milliseconds it stays far from 2^63
FOREVER = "forever"
SPREAD_MAX = 256  # as many salts as one byte of a row key can tell apart; a store may have fewer
SIZE_MAX = 1 << 60
NAME_SHOWN_CHARS = 40

Json: TypeAlias = Mapping[str, Any]

_WHOLE = re.compile(r"[0-9]{1,10}")
_DURATION = re.compile(r"(?:[0-9]{1,10}[smhdw])+")
_DURATION_PART = re.compile(r"([0-9]+)([smhdw])")
_UNIT_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SIZE = re.compile(r"([0-9]{1,19})(B|KiB|MiB|GiB|TiB)?")
_UNIT_BYTES = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int
    METAVAR: ClassVar[str] = "N"

    def read(self, text: str) -> str | None:
        """The value in the form in which it is kept; None when it is none."""
        return str(int(text)) if _WHOLE.fullmatch(text) and self.low <= int(text) <= self.high else None

    def show(self, text: str) -> str:
        """The value as people say it."""
        return text

    @property
    def values(self) -> str:
        """The values that there are, for people."""
        return f"a whole number from {self.low} to {self.high}"

    @property
    def schema(self) -> Json:
        """The JSON that a server takes."""
        return {"anyOf": [{"type": "integer", "minimum": self.low, "maximum": self.high}, _text("[0-9]{1,10}")]}


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, text: str) -> str | None:
        return text if text in self.words else None

    def show(self, text: str) -> str:
        return text

    @property
    def values(self) -> str:
        return f"one of {', '.join(self.words)}"

    @property
    def schema(self) -> Json:
        return {"type": "string", "enum": list(self.words)}


class Duration:
    """A time in whole seconds, as a number or with units; kept as the number."""

    METAVAR = "DURATION"

    def read(self, text: str) -> str | None:
        if text == FOREVER:
            return str(TTL_SECONDS_MAX)
        if _DURATION.fullmatch(text):
            seconds = sum(int(count) * _UNIT_SECONDS[unit] for count, unit in _DURATION_PART.findall(text))
        elif _WHOLE.fullmatch(text):
            seconds = int(text)
        else:
            return None
        return str(seconds) if 1 <= seconds <= TTL_SECONDS_MAX else None

    def show(self, text: str) -> str:
        rest, parts = int(text), []
        if rest == TTL_SECONDS_MAX:
            return FOREVER
        for unit in "dhms":
            count, rest = divmod(rest, _UNIT_SECONDS[unit])
            parts += [f"{count}{unit}"] if count else []
        return "".join(parts)

    @property
    def values(self) -> str:
        return f"whole seconds from 1 to {TTL_SECONDS_MAX}, a duration such as 30s, 12h, 1d12h or 7d, or {FOREVER}"

    @property
    def schema(self) -> Json:
        text = _text(f"{FOREVER}|[0-9]{{1,10}}|([0-9]{{1,10}}[smhdw])+")
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": TTL_SECONDS_MAX}, text]}


class Size:
    """A number of bytes, as a number or with a unit; kept as the number."""

    METAVAR = "SIZE"

    def read(self, text: str) -> str | None:
        found = _SIZE.fullmatch(text)
        size_bytes = 0 if found is None else int(found[1]) * _UNIT_BYTES[found[2] or "B"]
        return str(size_bytes) if 1 <= size_bytes <= SIZE_MAX else None

    def show(self, text: str) -> str:
        size_bytes = int(text)
        unit = next(unit for unit, factor in _UNIT_BYTES.items() if size_bytes % factor == 0)
        return f"{size_bytes // _UNIT_BYTES[unit]} {unit}"

    @property
    def values(self) -> str:
        return "bytes, as a number or with KiB, MiB, GiB or TiB, such as 10GiB"

    @property
    def schema(self) -> Json:
        text = _text("[0-9]{1,19}(B|KiB|MiB|GiB|TiB)?")
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": SIZE_MAX}, text]}


def _text(pattern: str) -> Json:
    return {"type": "string", "pattern": f"^({pattern})$"}


@dataclass(frozen=True, slots=True)
class TopicProperty:
    """One property. `default` is what holds where none is given; None: then nothing does.

    `absent` says what that means. `also` are names that other systems have for it.
    """

    name: str
    kind: WholeNumber | Word | Duration | Size
    default: str | None
    effect: str
    absent: str = ""
    also: tuple[str, ...] = ()

    @property
    def argument(self) -> str:
        """Its name as an argument in Python."""
        return re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", self.name)

    @property
    def default_text(self) -> str:
        """Its default, for people."""
        return self.absent if self.default is None else self.kind.show(self.default)

    def read(self, text: str) -> str:
        """The value as it is kept; `InvalidPropertyError` says which there may be."""
        value = self.kind.read(text)
        if value is None:
            raise InvalidPropertyError(
                f"property {self.name} is {text[:NAME_SHOWN_CHARS]!r}", field=self.name, hint=f"give {self.kind.values}"
            )
        return value


PROPERTIES = (
    TopicProperty(
        "ttl", Duration(), str(TTL_SECONDS_DEFAULT), "how long messages are kept; a new one holds for old messages at once",
        also=("retention", "retention.ms", "max_age", "expiry"),
    ),
    TopicProperty(
        "retainBytes", Size(), None,
        "bytes of messages that the topic keeps at least: where it has more, the oldest blocks go, with the next run of the job retention",
        absent="no limit", also=("retention.bytes", "max_bytes", "max_size", "size_limit"),
    ),
    TopicProperty(
        "tasks", WholeNumber(1, TASKS_MAX), None, "how many tasks give markers in the topic", absent="as the markers say",
    ),
    TopicProperty(
        "spread", WholeNumber(1, SPREAD_MAX), "1", "salt buckets that the topic's rows are spread over",
        also=("buckets",),
    ),
    TopicProperty(
        "onInvalid", Word(("drop", "retain")), "drop", "what becomes of the rows of failed writers: gone, or kept till their TTL"
    ),
    TopicProperty(
        "compression", Word(("auto", "none", "zstd")), "auto", "how messages are packed that are published from then on: auto compresses what shrinks",
        also=("compression.type",),
    ),
)  # fmt: skip
BY_NAME: Mapping[str, TopicProperty] = {each.name: each for each in PROPERTIES}
_BY_ARGUMENT = {each.argument: each.name for each in PROPERTIES}


class TopicProperties(TypedDict, total=False):
    """The properties as arguments of the client; None is as if it were not given."""

    ttl: int | str | timedelta | None
    retain_bytes: int | str | None
    tasks: int | str | None
    spread: int | str | None
    on_invalid: Literal["drop", "retain"] | None
    compression: Literal["auto", "none", "zstd"] | None
    generation: int | str | None


def unknown_property(name: str) -> InvalidPropertyError:
    """The error that there is no such property, with the one that was meant, or the way out."""
    from difflib import get_close_matches  # only a mistake needs it

    shown = name[:NAME_SHOWN_CHARS]
    meant = {_squeezed(other): each.name for each in PROPERTIES for other in (each.name, *each.also)}
    near = get_close_matches(_squeezed(name), meant, 1, 0.7)
    what, own = f"{shown} is no property of topics", f"one of your own begins with {LABEL}, as in {LABEL}{shown}"
    if near:
        return InvalidPropertyError(f"{what}; did you mean {meant[near[0]]}?", field=shown, hint=own)
    return InvalidPropertyError(what, field=shown, hint=f"{own}; Basalt's are {', '.join(BY_NAME)}")


def properties_sent(arguments: Mapping[str, Any], labels: Mapping[str, str] | None) -> dict[str, str | int | None]:
    """The properties as a server takes them, of the client's arguments. What is unknown is left for the server to refuse."""
    given = {_BY_ARGUMENT.get(name, name): value for name, value in arguments.items() if value is not None}
    return {
        **{name: _seconds(name, value) if isinstance(value, timedelta) else value for name, value in given.items()},
        **{f"{LABEL}{name}": value for name, value in (labels or {}).items()},
    }


def _seconds(name: str, duration: timedelta) -> int:
    seconds = duration // timedelta(seconds=1)
    if timedelta(seconds=seconds) != duration:
        raise InvalidPropertyError(
            f"property {name} is {duration}, which is not whole seconds", field=name, hint="round it"
        )
    return seconds


def _squeezed(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())
