"""The options of reading, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from basalt.api.markers.reconcile import Idle
from basalt.errors import InputError
from basalt_engine.clock import Clock, SystemClock
from basalt_spark.columns import CONTROL, DEFAULT_COLUMNS, chosen_columns
from basalt_spark.connection import Server
from basalt_spark.options import Use, at_most, given_names, read_options_given, refuse_together
from basalt_spark.read_edges import EARLIEST, LATEST, Edges, edge_at_id, edge_at_time, edges_of
from basalt_spark.topic_name import TopicName, topic_name

FETCH_BYTES_MAX = 32 * 1024**2  # the most that a server answers at once
PARTITIONS_MAX = 10_000  # tasks of one read: more than that only costs


@dataclass(frozen=True, slots=True)
class Admission:
    """How much a micro-batch takes in (None: all there is), and what it waits for."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int = 0
    delay_ms_max: int = 0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is read, from where to where, and how. Holds no connection and no secret: it goes to every task."""

    server: Server
    topics: tuple[TopicName, ...]
    isolation: Literal["committed", "uncommitted"]
    start: Edges
    end: Edges
    admission: Admission
    partitions_min: int
    fetch_bytes: int
    fail_on_data_loss: bool
    control: Literal["hide", "heartbeat", "rows"]
    idle: Idle | None
    end_on_eos: bool
    columns: tuple[str, ...]
    pushdown: bool


def read_options(given: Mapping[str, str], use: Use, clock: Clock | None = None) -> ReadOptions:
    """What was asked for; `InputError` names the option at fault."""
    values = read_options_given(given, use)
    names = given_names(given)
    now_ms = (clock or SystemClock()).now_ms()
    topics = _topics(values, names)
    options = ReadOptions(
        server=Server(values["server"], values["namespace"], values["tokenEnv"], values["callTimeout"]),
        topics=topics,
        isolation=values["isolation"],
        start=_start(values, names, topics, now_ms),
        end=_end(values, names, topics, now_ms),
        admission=_admission(values, names),
        partitions_min=at_most("minPartitions", values["minPartitions"], PARTITIONS_MAX),
        fetch_bytes=at_most("fetchBytes", values["fetchBytes"], FETCH_BYTES_MAX),
        fail_on_data_loss=values["failOnDataLoss"],
        control=values.get("control", "hide"),
        idle=_idle(values, names),
        end_on_eos=values.get("endOnEos", False),
        columns=DEFAULT_COLUMNS if values["columns"] is None else chosen_columns(values["columns"]),
        pushdown=values.get("pushdown", False),
    )
    if options.control != "hide" and CONTROL not in options.columns:
        raise InputError(
            f"option control={options.control} needs the column {CONTROL} among option columns, by which rows are told apart",
            field="columns",
        )
    return options


def _topics(values: dict[str, Any], names: frozenset[str]) -> tuple[TopicName, ...]:
    refuse_together(names, "topic", "topics")
    namespace = values["namespace"]
    if values["topic"] is not None:
        return (topic_name(values["topic"], namespace, "topic"),)
    if values["topics"] is None:
        raise InputError("option topic is missing: give topic, or topics with commas between them", field="topic")
    topics = [topic_name(name, namespace, "topics") for name in values["topics"]]
    if len(set(topics)) < len(topics):
        raise InputError("option topics names a topic twice", field="topics")
    return tuple(sorted(topics))


def _start(values: dict[str, Any], names: frozenset[str], topics: tuple[TopicName, ...], now_ms: int) -> Edges:
    refuse_together(names, "startingOffsets", "startingTimestamp", "startingId")
    if values["startingTimestamp"] is not None:
        return Edges(edge_at_time(values["startingTimestamp"], now_ms, "startingTimestamp"))
    if values["startingId"] is not None:
        if len(topics) > 1:
            raise InputError("option startingId is of one topic: give startingOffsets as JSON", field="startingId")
        return Edges(edge_at_id(values["startingId"], values["startingInclusive"], "startingId"))
    if "startingInclusive" in names:
        raise InputError("option startingInclusive says nothing without startingId", field="startingInclusive")
    if values["startingOffsets"] is None:
        return Edges(EARLIEST)
    return edges_of(values["startingOffsets"], topics, values["namespace"], "startingOffsets")


def _end(values: dict[str, Any], names: frozenset[str], topics: tuple[TopicName, ...], now_ms: int) -> Edges:
    refuse_together(names, "endingOffsets", "endingTimestamp")
    if values.get("endingTimestamp") is not None:
        return Edges(edge_at_time(values["endingTimestamp"], now_ms, "endingTimestamp"))
    if values.get("endingOffsets") is None:
        return Edges(LATEST)
    edges = edges_of(values["endingOffsets"], topics, values["namespace"], "endingOffsets")
    if EARLIEST in (edges.default, *edges.by_topic.values()) and not edges.by_topic:
        raise InputError("option endingOffsets: a read cannot end at earliest", field="endingOffsets")
    return edges


def _admission(values: dict[str, Any], names: frozenset[str]) -> Admission:
    rows_min, rows_max = values.get("minRowsPerTrigger"), values.get("maxRowsPerTrigger")
    if rows_min is None and "maxTriggerDelay" in names:
        raise InputError("option maxTriggerDelay says nothing without minRowsPerTrigger", field="maxTriggerDelay")
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise InputError(
            f"option minRowsPerTrigger is {rows_min}, more than maxRowsPerTrigger, which is {rows_max}",
            field="minRowsPerTrigger",
        )
    return Admission(rows_max, values.get("maxBytesPerTrigger"), rows_min or 0, values.get("maxTriggerDelay", 0))


def _idle(values: dict[str, Any], names: frozenset[str]) -> Idle | None:
    timeout_ms = values.get("watermarkIdleTimeout")
    if timeout_ms is not None:
        return Idle(timeout_ms, values["watermarkQuorum"])
    if "watermarkQuorum" in names:
        raise InputError("option watermarkQuorum says nothing without watermarkIdleTimeout", field="watermarkQuorum")
    return None
