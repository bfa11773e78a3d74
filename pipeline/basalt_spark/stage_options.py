"""The options of a stage's two ends: what the user gives, and what a stage itself must say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from basalt.errors import InputError
from basalt_spark.columns import CONTROL, DEFAULT_COLUMNS, WATERMARK
from basalt_spark.options import Use
from basalt_spark.read_options import ReadOptions, read_options
from basalt_spark.topic_name import TopicName
from basalt_spark.write_options import WriteOptions, write_options

# What makes a source tell event time and its end, and a sink remember what it has. Not for the user to say.
OF_SOURCE = {"control": "heartbeat", "endOnEos": "true"}
OF_SINK = ("txnAppId", "txnVersion", "emitWatermark")


@dataclass(frozen=True, slots=True)
class StageSink:
    """Where a stage writes, as one of how many tasks."""

    options: WriteOptions
    topic: TopicName
    tasks: int
    tasks_given: bool


def source_options(stage: str, given: Mapping[str, str]) -> dict[str, str]:
    """The options of the stage's source; `InputError` names the one at fault."""
    _refuse(stage, "source", given, OF_SOURCE)
    options = {**given, **OF_SOURCE}
    if "columns" in {name.lower() for name in given}:
        _check_columns(stage, read_options(options, Use.STREAM))
    return options


def source_topics(stage: str, given: Mapping[str, str]) -> tuple[TopicName, ...]:
    """The topics that the stage reads."""
    return read_options(source_options(stage, given), Use.STREAM).topics


def stage_sink(stage: str, given: Mapping[str, str]) -> StageSink:
    """What the options of the stage's sink say; `InputError` names the one at fault."""
    _refuse(stage, "sink", given, OF_SINK)
    options = write_options({**given, "txnAppId": stage})
    if options.topic is None:
        raise InputError(
            f"the sink of stage {stage} names no topic: event time and the end of the stream are told there",
            field="topic",
        )
    given_tasks = "taskcount" in {name.lower() for name in given}
    return StageSink(options, options.topic, options.task_count, given_tasks)


def sink_options(stage: str, given: Mapping[str, str], tasks: int, *, emit: bool) -> dict[str, str]:
    """The options for Spark. With `emit` the sink tells the watermark, in the transaction of the rows."""
    kept = {name: value for name, value in given.items() if name.lower() != "taskcount"}
    told = {"emitWatermark": "true", "taskCount": str(tasks)} if emit else {}
    return {**kept, "txnAppId": stage, **told}


def _refuse(stage: str, end: str, given: Mapping[str, str], own: Mapping[str, str] | tuple[str, ...]) -> None:
    reserved = {name.lower(): name for name in own}
    for name in given:
        if name.lower() in reserved:
            raise InputError(
                f"option {reserved[name.lower()]} of the {end} of stage {stage} is the stage's own: leave it out",
                field=reserved[name.lower()],
            )


def _check_columns(stage: str, options: ReadOptions) -> None:
    for needed in (WATERMARK, CONTROL):
        if needed not in options.columns:
            raise InputError(
                f"option columns of stage {stage} leaves out {needed}, by which event time comes in; the default is"
                f" {','.join(DEFAULT_COLUMNS)}",
                field="columns",
            )
