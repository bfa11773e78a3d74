"""The options of writing, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from basalt.api.markers.marker import TASKS_MAX
from basalt.errors import InputError
from basalt_spark.connection import Server
from basalt_spark.options import Use, at_most, read_options_given
from basalt_spark.topic_name import TopicName, topic_name


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write, and under which name it is remembered. `topic` is None where a column names it."""

    server: Server
    topic: TopicName | None
    app_id: str | None
    version: int | None
    timeout_ms: int
    emit_watermark: bool
    task_count: int

    @property
    def namespace(self) -> str:
        """Where topics without a namespace of their own lie."""
        return self.server.namespace


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """What was asked for; `InputError` names the option at fault."""
    values = read_options_given(given, Use.SINK)
    namespace = values["namespace"]
    if values["txnVersion"] is not None and values["txnAppId"] is None:
        raise InputError("option txnVersion needs txnAppId: a version is one of a name", field="txnVersion")
    return WriteOptions(
        server=Server(values["server"], namespace, values["tokenEnv"], values["callTimeout"]),
        topic=None if values["topic"] is None else topic_name(values["topic"], namespace, "topic"),
        app_id=values["txnAppId"],
        version=values["txnVersion"],
        timeout_ms=values["txnTimeout"],
        emit_watermark=values["emitWatermark"],
        task_count=at_most("taskCount", values["taskCount"], TASKS_MAX),
    )
