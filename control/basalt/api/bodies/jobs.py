"""Scheduled jobs, and what operators did by hand."""

from __future__ import annotations

from msgspec import Struct


class JobInfo(Struct, frozen=True, rename="camel"):
    """A job: its schedule, its last run, and when it runs next (null: not by itself, or it is running). Times: ms since 1970."""

    name: str
    help: str
    interval_ms: int
    window: str | None
    enabled: bool
    paused: bool
    running: bool
    last_started_ms: int | None
    last_outcome: str | None
    next_run_ms: int | None


class JobRun(Struct, frozen=True, rename="camel"):
    """One run of a job. `times`: runs in a row that failed for this reason; `detail` is the report or the error in words."""

    started_ms: int
    duration_ms: int
    outcome: str
    report: dict[str, int | str]
    error: str | None
    times: int
    detail: str


class AuditLine(Struct, frozen=True, rename="camel"):
    """One act of an operator. `outcome` is `unfinished` during the act, or if the server ended in the middle of it."""

    at_ms: int
    act: str
    what: str
    outcome: str
    reason: str
    name: str
    address: str
    agent: str
    request_id: str
