"""The options of `format("basalt")`: one table of them all, and how what a user gave is read by it.

A misspelt option that did nothing would be found in production. So an option that is not in the table, or not for this
use, is refused before any job runs, and the message names the nearest. docs/spark/source.md and docs/spark/sink.md
describe them; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Flag, auto
from typing import Any, NamedTuple

from basalt.errors import InputError
from basalt_spark.option_kinds import (
    BYTES,
    COUNT,
    DURATION,
    FLAG,
    NAMES,
    SERVERS,
    SESSION,
    TEXT,
    VERSION,
    Kind,
    choice,
)


class Use(Flag):
    """What a data frame is made for."""

    BATCH = auto()
    STREAM = auto()
    SINK = auto()
    READ = BATCH | STREAM
    ALL = READ | SINK


class Option(NamedTuple):
    """One option: how it is written, for what, and the value it has when it is not given (None: none)."""

    name: str
    kind: Kind
    use: Use
    doc: str
    default: Any = None


OPTIONS = (
    Option("server", SERVERS, Use.ALL, "the server's URL; several servers of one store with commas between them"),
    Option("namespace", TEXT, Use.ALL, "where topics without a namespace of their own lie", "default"),
    Option("tokenEnv", TEXT, Use.ALL, "environment variable whose value is sent as a bearer token"),
    Option("callTimeout", DURATION, Use.ALL, "how long a call may take, with its repetitions", 30_000),
    Option("topic", TEXT, Use.ALL, "the topic"),
    Option("topics", NAMES, Use.READ, "several topics"),
    Option("isolation", choice("committed", "uncommitted"), Use.READ, "whose messages are seen", "committed"),
    Option("startingOffsets", TEXT, Use.READ, "earliest, latest, or JSON", None),
    Option("startingTimestamp", TEXT, Use.READ, "from the first message published at or after this time"),
    Option("startingId", TEXT, Use.READ, "from this message on"),
    Option("startingInclusive", FLAG, Use.READ, "whether `startingId` itself is read", True),
    Option("endingOffsets", TEXT, Use.BATCH, "latest, or JSON"),
    Option("endingTimestamp", TEXT, Use.BATCH, "up to the last message published before this time"),
    Option("maxRowsPerTrigger", COUNT, Use.STREAM, "at most so many messages in a micro-batch"),
    Option("maxBytesPerTrigger", BYTES, Use.STREAM, "at most so many bytes of payload in a micro-batch"),
    Option("minRowsPerTrigger", COUNT, Use.STREAM, "wait until so many messages are there"),
    Option("maxTriggerDelay", DURATION, Use.STREAM, "how long to wait for them", 900_000),
    Option("minPartitions", COUNT, Use.READ, "at least so many tasks for a read, where there are enough messages", 1),
    Option("fetchBytes", BYTES, Use.READ, "how much one request of a task asks for", 4 * 1024**2),
    Option("failOnDataLoss", FLAG, Use.READ, "whether messages that are gone are an error", True),
    Option("control", choice("hide", "heartbeat", "rows"), Use.READ, "whether markers are seen as rows", "hide"),
    Option("watermarkIdleTimeout", DURATION, Use.STREAM, "leave out tasks that said nothing for so long"),
    Option("watermarkQuorum", COUNT, Use.STREAM, "how many others must be active then", 1),
    Option("endOnEos", FLAG, Use.STREAM, "whether the end of the stream ends the reading, and event time", False),
    Option("columns", NAMES, Use.READ, "the columns to read"),
    Option("pushdown", FLAG, Use.BATCH, "whether filters by time and id bound what is read", False),
    Option("txnAppId", SESSION, Use.SINK, "the name under which what was written is remembered"),
    Option("txnVersion", VERSION, Use.SINK, "which writing of that name this is; it is done once"),
    Option("txnTimeout", DURATION, Use.SINK, "when an abandoned transaction is ended", 3_600_000),
    Option(
        "emitWatermark", FLAG, Use.SINK, "whether the highest of column `watermark` is told with what is written", False
    ),
    Option("taskCount", COUNT, Use.SINK, "how many tasks write the topic, for the watermark", 1),
)

# What Spark itself adds to a sink's options.
SPARKS_OWN = frozenset({"checkpointlocation", "outputmode", "queryname"})

_BY_NAME = {option.name.lower(): option for option in OPTIONS}


def options_for(use: Use) -> Iterator[Option]:
    """The options that this use has."""
    return (option for option in OPTIONS if use & option.use)


def read_options_given(given: Mapping[str, str], use: Use) -> dict[str, Any]:
    """The value of every option of this use, by its name; those that were not given have their default.

    `InputError` names the first that is unknown, is for another use, or has a value that it may not have.
    """
    values: dict[str, Any] = {option.name: option.default for option in options_for(use)}
    for name, text in given.items():
        option = _known(name, use)
        if option is not None:
            values[option.name] = _value(option, text)
    if values["server"] is None:
        raise InputError(
            "option server is missing: give the server's URL, such as http://127.0.0.1:4780", field="server"
        )
    return values


def refuse_unknown(given: Mapping[str, str]) -> None:
    """`InputError` where an option is of no use at all."""
    for name in given:
        _known(name, Use.ALL)


def given_names(given: Mapping[str, str]) -> frozenset[str]:
    """The names of the options that were given, as the table writes them."""
    return frozenset(_BY_NAME[name.lower()].name for name in given if name.lower() in _BY_NAME)


def refuse_together(given: frozenset[str], *names: str) -> None:
    """`InputError` where more than one of these was given."""
    found = [name for name in names if name in given]
    if len(found) > 1:
        raise InputError(f"options {found[0]} and {found[1]} exclude each other: give one of them", field=found[1])


def at_most(option: str, value: int, bound: int) -> int:
    """The value; `InputError` where it is more than the bound."""
    if value > bound:
        raise InputError(f"option {option} is {value}; it must be {bound} or less", field=option)
    return value


def _known(name: str, use: Use) -> Option | None:
    option = _BY_NAME.get(name.lower())
    if option is not None and use & option.use:
        return option
    if use & Use.SINK and name.lower() in SPARKS_OWN:
        return None
    if option is not None:
        raise InputError(f"option {option.name} is for {_uses(option.use)}, not for {_uses(use)}", field=option.name)
    # Spark tells names in lower case only, so that is how they are compared.
    near = get_close_matches(name.lower(), [option.name.lower() for option in options_for(use)], n=1, cutoff=0.5)
    meant = f"did you mean {_BY_NAME[near[0]].name}?" if near else "docs/spark has the list"
    raise InputError(f"format basalt has no option {name!r}: {meant}", field=name)


def _value(option: Option, text: str) -> Any:
    try:
        return option.kind.read(text)
    except ValueError as error:
        raise InputError(
            f"option {option.name}: {text!r} {error}; it takes {option.kind.shown}", field=option.name
        ) from None


def _uses(use: Use) -> str:
    shown = {Use.BATCH: "batch reads", Use.STREAM: "streams", Use.SINK: "writing"}
    return " and ".join(text for one, text in shown.items() if one & use)
