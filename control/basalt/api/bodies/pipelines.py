"""Pipelines as the server knows them: how far event time has come in each topic, the jobs that commit by name, and who reads and writes what.

Times are milliseconds since 1970 by the server's clock. Route: docs/reference/http-api.md#for-operators.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

StepKind: TypeAlias = Literal["session", "owner", "group", "unnamed"]


class TaskProgress(Struct, frozen=True, rename="camel"):
    """A producing task: its watermark, whether it has ended, and when it spoke last. `delay_ms`: how far its event time lies behind now."""

    task: str
    watermark_ms: int | None
    delay_ms: int | None
    ended: bool
    published_ms: int


class TopicProgress(Struct, frozen=True, rename="camel"):
    """A topic that has markers: its watermark is the lowest of its tasks', null until each of `task_count` has spoken."""

    namespace: str
    topic: str
    generation: int
    watermark_ms: int | None
    delay_ms: int | None
    ended: bool
    task_count: int | None
    tasks: tuple[TaskProgress, ...]


class SinkProgress(Struct, frozen=True, rename="camel"):
    """A job that commits by name: its session, the run that holds it, and the last version of its work.

    `counter_owner` is who counts the versions, such as a query. `committed_ms` is null where the outcome of that transaction is not remembered.
    """

    session: str
    run: str
    counter_owner: str | None
    version: int | None
    committed_by: str | None
    committed_ms: int | None
    used_ms: int
    open: tuple[str, ...]


class StepPart(Struct, frozen=True):
    """A topic, or a table, that a step writes; a topic that it reads by a group."""

    namespace: str
    name: str
    group: str | None = None


class Step(Struct, frozen=True, rename="camel"):
    """Those who committed under one name: what they read (by groups, in the same decision), what they wrote, and how often and when last.

    `level`: 0 reads nothing that is known; others come behind those whose topics they read. `name` is of a session, an owner, or a group.
    """

    kind: StepKind
    name: str
    principal: str
    level: int
    reads: tuple[StepPart, ...]
    writes: tuple[StepPart, ...]
    tables: tuple[StepPart, ...]
    transactions: int
    last_ms: int


class Pipelines(Struct, frozen=True, rename="camel"):
    """All that is known of pipelines. `steps` are told from what was committed since `since_ms`; `next`: the `after` of the following topics."""

    topics: tuple[TopicProgress, ...]
    sinks: tuple[SinkProgress, ...]
    steps: tuple[Step, ...]
    since_ms: int
    next: str | None = None
    sinks_left_out: int = 0
