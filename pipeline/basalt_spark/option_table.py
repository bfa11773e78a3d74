"""The options of `format("basalt")`: one table of them all, the kinds of values, and the reading of what a user gave.

A misspelt option that did nothing would be found in production. So an option that is not in the table, or not for this
use, is refused before any job runs, and the error names the nearest one. docs/spark/source.md and docs/spark/sink.md
describe the options; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Flag, auto
from functools import partial
from typing import Any, NamedTuple

from basalt.api.markers import TASKS_MAX
from basalt.errors import InputError
from basalt.redaction import address_without_password

SIZE_UNITS = {"": 1, "b": 1, "k": 1024, "kib": 1024, "m": 1024**2, "mib": 1024**2, "g": 1024**3, "gib": 1024**3}
DURATION_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
NUMBER_MAX = 2**63 - 1  # the largest whole number of Spark and of the server

NAME_CHARS_MAX = 255  # of a session's or a task's name on a server
FETCH_BYTES_MAX = 32 * 1024**2  # the most that a server sends in one answer
PARTITIONS_MAX = 10_000  # tasks of one read; more only cost

_SERVER = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")  # options are in plans and pages of Spark: no password
_QUANTITY = re.compile(r"([0-9]{1,19})\s*([a-zA-Z]*)")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of values: its name in documents and errors, and its parser, which raises `ValueError` with the fault."""

    shown: str
    read: Callable[[str], Any]


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


def _file(text: str) -> str:
    path = _text(text)
    if not path.startswith("/"):
        # An executor's folder is another one; and what is no path may be a secret, which nobody wants in a plan.
        raise ValueError("is no path that begins with a slash")
    return path


def _servers(text: str) -> str:
    # An embedded store belongs to one process. A job of Spark has many, each of which would start a server of its own.
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


def _whole_number(text: str, least: int) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,19}\s*", text) or not least <= int(text) <= NUMBER_MAX:
        raise ValueError(f"is not a whole number of at least {least}")
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


TEXT = ValueKind("text", _text)
FILE = ValueKind("the path of a file on the driver and on every executor", _file)
SERVERS = ValueKind("http://HOST:PORT, several with commas between them", _servers)
SESSION = ValueKind(f"1 to {NAME_CHARS_MAX} printable characters without a slash", _session)
FLAG = ValueKind("true or false", _flag)
NAMES = ValueKind("names with commas between them", _names)
COUNT = ValueKind("whole number", partial(_whole_number, least=1))
VERSION = ValueKind("whole number", partial(_whole_number, least=0))
BYTES = ValueKind("bytes, such as 16 MiB", _bytes)
DURATION = ValueKind("duration, such as 10 seconds", _duration_ms)


def choice(*values: str) -> ValueKind:
    """The kind of an option that takes one of a few words, in any case."""

    def read(text: str) -> str:
        if text.strip().lower() not in values:
            raise ValueError(f"is none of {', '.join(values)}")
        return text.strip().lower()

    return ValueKind(" or ".join(values), read)


class FrameUse(Flag):
    """The use of a data frame: to read, to follow, or to write."""

    BATCH = auto()
    STREAM = auto()
    SINK = auto()
    READ = BATCH | STREAM
    ALL = READ | SINK


class Option(NamedTuple):
    """One option: its name, the kind of its values, its uses, the value if it is not given, and the highest one."""

    name: str
    kind: ValueKind
    use: FrameUse
    default: Any = None
    highest: int | None = None


OPTIONS = (
    Option("server", SERVERS, FrameUse.ALL),
    Option("namespace", TEXT, FrameUse.ALL, "default"),
    Option("tokenEnv", TEXT, FrameUse.ALL),
    Option("tokenFile", FILE, FrameUse.ALL),
    Option("caFile", FILE, FrameUse.ALL),
    Option("certFile", FILE, FrameUse.ALL),
    Option("keyFile", FILE, FrameUse.ALL),
    Option("callTimeout", DURATION, FrameUse.ALL, 30_000),
    Option("topic", TEXT, FrameUse.ALL),
    Option("topics", NAMES, FrameUse.READ),
    Option("isolation", choice("committed", "uncommitted"), FrameUse.READ, "committed"),
    Option("startingOffsets", TEXT, FrameUse.READ),
    Option("startingTimestamp", TEXT, FrameUse.READ),
    Option("startingId", TEXT, FrameUse.READ),
    Option("startingInclusive", FLAG, FrameUse.READ, True),
    Option("endingOffsets", TEXT, FrameUse.BATCH),
    Option("endingTimestamp", TEXT, FrameUse.BATCH),
    Option("maxRowsPerTrigger", COUNT, FrameUse.STREAM),
    Option("maxBytesPerTrigger", BYTES, FrameUse.STREAM),
    Option("minRowsPerTrigger", COUNT, FrameUse.STREAM),
    Option("maxTriggerDelay", DURATION, FrameUse.STREAM, 900_000),
    Option("minPartitions", COUNT, FrameUse.READ, 1, PARTITIONS_MAX),
    Option("fetchBytes", BYTES, FrameUse.READ, 4 * 1024**2, FETCH_BYTES_MAX),
    Option("failOnDataLoss", FLAG, FrameUse.READ, True),
    Option("control", choice("hide", "heartbeat", "rows"), FrameUse.READ, "hide"),
    Option("watermarkIdleTimeout", DURATION, FrameUse.STREAM),
    Option("watermarkQuorum", COUNT, FrameUse.STREAM, 1),
    Option("endOnEos", FLAG, FrameUse.STREAM, False),
    Option("group", SESSION, FrameUse.STREAM | FrameUse.SINK),
    Option("groupTopic", TEXT, FrameUse.SINK),
    Option("columns", NAMES, FrameUse.READ),
    Option("pushdown", FLAG, FrameUse.BATCH, False),
    Option("txnAppId", SESSION, FrameUse.SINK),
    Option("txnVersion", VERSION, FrameUse.SINK),
    Option("txnTimeout", DURATION, FrameUse.SINK, 3_600_000),
    Option("emitWatermark", FLAG, FrameUse.SINK, False),
    Option("taskCount", COUNT, FrameUse.SINK, 1, TASKS_MAX),
)

# At most one option of each group may be given.
EXCLUDING = (
    ("topic", "topics"),
    ("tokenEnv", "tokenFile"),
    ("startingOffsets", "startingTimestamp", "startingId"),
    ("endingOffsets", "endingTimestamp"),
)

# Options that change the meaning of another one, and do nothing without it.
NEEDING = {
    "keyFile": "certFile",
    "startingInclusive": "startingId",
    "maxTriggerDelay": "minRowsPerTrigger",
    "watermarkQuorum": "watermarkIdleTimeout",
}

# Spark itself adds these to a sink's options.
SPARKS_OWN = frozenset({"checkpointlocation", "outputmode", "queryname"})

_BY_NAME = {option.name.lower(): option for option in OPTIONS}


def read_options_given(given: Mapping[str, str], use: FrameUse) -> dict[str, Any]:
    """The value of every option, by its name; the default for those that were not given.

    `InputError` names the first option that is unknown, is for another use, has a wrong value, or does not go together
    with the others.
    """
    named = {option.name: _value(option, text) for name, text in given.items() if (option := _option_for(name, use))}
    for group in EXCLUDING:
        together = [name for name in group if name in named]
        if len(together) > 1:
            what = f"options {together[0]} and {together[1]} exclude each other"
            raise InputError(f"{what}: give one of them", field=together[1])
    for name, other in NEEDING.items():
        if name in named and other not in named:
            what = f"option {name} has no meaning without {other}"
            raise InputError(f"{what}: give both, or neither", field=name)
    if "server" not in named:
        raise InputError(
            "option server is missing: give the server's URL, such as http://127.0.0.1:4780", field="server"
        )
    return {option.name: option.default for option in OPTIONS} | named


def refuse_unknown(given: Mapping[str, str]) -> None:
    """Raise `InputError` for an option that no use has."""
    for name in given:
        _option_for(name, FrameUse.ALL)


def _option_for(name: str, use: FrameUse) -> Option | None:
    option = _BY_NAME.get(name.lower())
    if option is not None and use & option.use:
        return option
    if use & FrameUse.SINK and name.lower() in SPARKS_OWN:
        return None
    if option is not None:
        raise InputError(f"option {option.name} is for {_uses(option.use)}, not for {_uses(use)}", field=option.name)
    # Spark passes names in lower case only.
    near = get_close_matches(
        name.lower(), [option.name.lower() for option in OPTIONS if use & option.use], n=1, cutoff=0.5
    )
    meant = f"did you mean {_BY_NAME[near[0]].name}?" if near else "docs/spark has the list"
    raise InputError(f"format basalt has no option {name!r}: {meant}", field=name)


def _value(option: Option, text: str) -> Any:
    name = option.name
    try:
        value = option.kind.read(text)
    except ValueError as error:
        shown = "what is given" if option.kind is FILE else repr(address_without_password(text))
        raise InputError(f"option {name}: {shown} {error}; it takes {option.kind.shown}", field=name) from None
    if option.highest is not None and value > option.highest:
        raise InputError(f"option {name} is {value}; it must be {option.highest} or less", field=name)
    return value


def _uses(use: FrameUse) -> str:
    shown = {FrameUse.BATCH: "batch reads", FrameUse.STREAM: "streams", FrameUse.SINK: "writing"}
    return " and ".join(text for one, text in shown.items() if one & use)
