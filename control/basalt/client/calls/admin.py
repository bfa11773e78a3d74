"""Plans for operators: jobs, settings, the store, backups, readiness.

Routes: docs/reference/http-api.md.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct, ValidationError

from basalt.api.bodies import json
from basalt.api.bodies.operations import (
    AuditLine,
    Backup,
    BackupRequest,
    ExplainedWriter,
    JobInfo,
    JobRun,
    ManagerSnapshot,
    PrunedWriters,
    PruneRun,
    PruneStatus,
    PublishedSnapshot,
    Readiness,
    RegionDetail,
    RegionInfo,
    RestoredWriters,
    RestoreRequest,
    SettingInfo,
    StoreInfo,
    Version,
)
from basalt.api.bodies.topics import TopicDescription
from basalt.api.bodies.transactions import EndDescription, ForcedEnd, HangingList, InspectedList, TransactionDescription
from basalt.client.plans.calls import JSON, Answer, Call, Effect, Steps, ask, joined_path, json_of
from basalt.client.plans.scopes import ClientScope

T = TypeVar("T")


def namespaces(scope: ClientScope) -> Steps[list[str]]:
    """Every namespace that has a topic."""
    return (yield from ask(_get(list[str], "list namespaces", "namespaces")))


def topics(scope: ClientScope, *, namespace: str | None = None) -> Steps[list[TopicDescription]]:
    """Every topic with all its metadata, deleted ones too; of one namespace or of all."""
    query = () if namespace is None else (("namespace", namespace),)
    return (yield from ask(_get(list[TopicDescription], "describe topics", "topics", query=query)))


def jobs(scope: ClientScope) -> Steps[list[JobInfo]]:
    """The scheduled jobs, with when each ran and will run."""
    return (yield from ask(_get(list[JobInfo], "list jobs", "jobs")))


def run_job(scope: ClientScope, name: str) -> Steps[JobRun]:
    """Run a job now."""
    return (yield from ask(_post(JobRun, f"run job {name}", "jobs", name, "run")))


def pause_job(scope: ClientScope, name: str) -> Steps[JobInfo]:
    """Run a job no more until it is resumed."""
    return (yield from ask(_post(JobInfo, f"pause job {name}", "jobs", name, "pause", effect=Effect.REPEATABLE)))


def resume_job(scope: ClientScope, name: str) -> Steps[JobInfo]:
    """Let a paused job run again."""
    return (yield from ask(_post(JobInfo, f"resume job {name}", "jobs", name, "resume", effect=Effect.REPEATABLE)))


def job_history(scope: ClientScope, name: str, *, limit: int | None = None) -> Steps[list[JobRun]]:
    """The last runs of a job, newest first: when, how long, what it did or how it failed."""
    query = () if limit is None else (("limit", str(limit)),)
    return (yield from ask(_get(list[JobRun], f"show the history of job {name}", "jobs", name, "history", query=query)))


def settings(scope: ClientScope) -> Steps[list[SettingInfo]]:
    """The server's settings, each with where it came from; secrets are not shown."""
    return (yield from ask(_get(list[SettingInfo], "show settings", "settings")))


def store(scope: ClientScope) -> Steps[StoreInfo]:
    """The store's kind, size, tables and state."""
    return (yield from ask(_get(StoreInfo, "show the store", "store")))


def snapshot(scope: ClientScope) -> Steps[ManagerSnapshot]:
    """The manager's present snapshot: its pointers, and how long its lists are."""
    return (yield from ask(_get(ManagerSnapshot, "show the snapshot", "snapshot")))


def publish_snapshot(scope: ClientScope) -> Steps[PublishedSnapshot]:
    """Publish the snapshot for the region servers now."""
    return (
        yield from ask(
            _post(PublishedSnapshot, "publish the snapshot", "snapshot", "publish", effect=Effect.REPEATABLE)
        )
    )


def prune_status(scope: ClientScope) -> Steps[PruneStatus]:
    """The state of pruning: how long the invalid list is, and what is in the way."""
    return (yield from ask(_get(PruneStatus, "show how pruning stands", "prune")))


def prune(scope: ClientScope, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[PruneRun]:
    """Forget the failed writers that have no row left; or only tell which."""
    query = act(reason, by, dry_run)
    return (yield from ask(_post(PruneRun, "prune", "prune", "run", query=query, effect=Effect.REPEATABLE)))


def prune_explain(
    scope: ClientScope, write_pointer: int | None = None, *, limit: int | None = None
) -> Steps[list[ExplainedWriter]]:
    """The obstacles to pruning one failed writer, or by default the oldest writers that have any."""
    given = (("writePointer", write_pointer), ("limit", limit))
    query = tuple((name, str(value)) for name, value in given if value is not None)
    return (
        yield from ask(_get(list[ExplainedWriter], "explain what holds pruning back", "prune", "explain", query=query))
    )


def prune_regions(scope: ClientScope, *, show: str | None = None) -> Steps[list[RegionInfo]]:
    """The regions with what each holds back: all, or those "blocking", or "idle"."""
    query = () if show is None else (("show", show),)
    return (yield from ask(_get(list[RegionInfo], "list regions", "prune", "regions", query=query)))


def prune_region(scope: ClientScope, region: str) -> Steps[RegionDetail]:
    """A region with its files."""
    return (yield from ask(_get(RegionDetail, f"show region {region}", "prune", "regions", region)))


def prune_history(scope: ClientScope, *, limit: int | None = None) -> Steps[list[PrunedWriters]]:
    """The writers that were pruned, run by run, newest first."""
    query = () if limit is None else (("limit", str(limit)),)
    return (yield from ask(_get(list[PrunedWriters], "show what was pruned", "prune", "history", query=query)))


def prune_restore(
    scope: ClientScope, since_ms: int, *, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[RestoredWriters]:
    """Make writers invalid again that were pruned since the time of a copy that a table was restored from."""
    query = act(reason, by, dry_run)
    body = RestoreRequest(since_ms)
    return (
        yield from ask(
            _post(
                RestoredWriters,
                "restore pruned writers",
                "prune",
                "restore",
                body=body,
                query=query,
                effect=Effect.REPEATABLE,
            )
        )
    )


def transactions(
    scope: ClientScope,
    *,
    state: str | None = None,
    owner: str | None = None,
    older_than_ms: int | None = None,
    topic: str | None = None,
) -> Steps[InspectedList]:
    """The transactions that have not ended, oldest first; of a state, an owner, an age, or a topic ("namespace:topic")."""
    query = _filters(state, owner, older_than_ms, topic)
    return (yield from ask(_get(InspectedList, "list transactions", "transactions", query=query)))


def hanging_transactions(
    scope: ClientScope,
    *,
    state: str | None = None,
    owner: str | None = None,
    older_than_ms: int | None = None,
    topic: str | None = None,
) -> Steps[HangingList]:
    """The transactions that hold readers back, or are open for long (half of their time-out), worst first."""
    query = _filters(state, owner, older_than_ms, topic)
    return (yield from ask(_get(HangingList, "find hanging transactions", "transactions", "hanging", query=query)))


def describe_transaction(scope: ClientScope, transaction: str) -> Steps[TransactionDescription | EndDescription]:
    """Everything that is known of a transaction: what it holds back, what it waits for, what happens next; or how it ended."""
    path = joined_path("v1", "admin", "transactions", transaction)
    return (yield from ask(Call(f"describe transaction {transaction}", "GET", path, _description, Effect.NONE)))


def abort_transaction(
    scope: ClientScope, transaction: str, *, reason: str = "", by: str = "", force: bool = False, dry_run: bool = False
) -> Steps[ForcedEnd]:
    """Abort somebody else's transaction; the audit keeps who did it and why.

    `OutsideWritesError` where it has writes that only its client can undo, unless `force` says that they are undone.
    """
    query = (*act(reason, by, dry_run), *((("force", "true"),) if force else ()))
    what = f"abort transaction {transaction}"
    return (
        yield from ask(
            _post(ForcedEnd, what, "transactions", transaction, "abort", query=query, effect=Effect.REPEATABLE)
        )
    )


def invalidate_transaction(
    scope: ClientScope, transaction: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[ForcedEnd]:
    """Hide for good what somebody else's transaction wrote; the audit keeps who did it and why."""
    query = act(reason, by, dry_run)
    what = f"invalidate transaction {transaction}"
    return (
        yield from ask(
            _post(ForcedEnd, what, "transactions", transaction, "invalidate", query=query, effect=Effect.REPEATABLE)
        )
    )


def audit(scope: ClientScope, *, limit: int | None = None) -> Steps[list[AuditLine]]:
    """The acts of operators, newest first: what they did, who, why, and how it ended."""
    query = () if limit is None else (("limit", str(limit)),)
    return (yield from ask(_get(list[AuditLine], "read the audit", "audit", query=query)))


def backup(scope: ClientScope, name: str) -> Steps[Backup]:
    """Make a consistent copy of the store, under this name, where the server keeps its backups."""
    return (yield from ask(_post(Backup, f"back up to {name}", "backup", body=BackupRequest(name))))


def ready(scope: ClientScope) -> Steps[Readiness]:
    """The server's readiness, part by part. Not ready is an answer, not an exception."""
    return (
        yield from ask(Call("ask for readiness", "GET", "/readyz", json_of(Readiness), Effect.NONE, accepted=(503,)))
    )


def live(scope: ClientScope) -> Steps[bool]:
    """True: the server's process answers."""
    return (yield from ask(Call("ask for life", "GET", "/livez", lambda _answer: True, Effect.NONE)))


def version(scope: ClientScope) -> Steps[Version]:
    """The server's name and version."""
    return (yield from ask(Call("ask for the version", "GET", "/v1", json_of(Version), Effect.NONE)))


def act(reason: str, by: str, dry_run: bool = False) -> tuple[tuple[str, str], ...]:
    """The parameters of an operator's act."""
    given = (("reason", reason), ("as", by), ("dryRun", "true" if dry_run else ""))
    return tuple((name, value) for name, value in given if value)


def _filters(
    state: str | None, owner: str | None, older_than_ms: int | None, topic: str | None
) -> tuple[tuple[str, str], ...]:
    given = (("state", state), ("owner", owner), ("olderThanMs", older_than_ms), ("topic", topic))
    return tuple((name, str(value)) for name, value in given if value is not None)


def _get(kind: type[T], what: str, *parts: str, query: tuple[tuple[str, str], ...] = ()) -> Call[T]:
    return Call(what, "GET", joined_path("v1", "admin", *parts), json_of(kind), Effect.NONE, query=query)


def _post(
    kind: type[T],
    what: str,
    *parts: str,
    body: Struct | None = None,
    query: tuple[tuple[str, str], ...] = (),
    effect: Effect = Effect.ONCE,
) -> Call[T]:
    encoded = b"" if body is None else json.encode(body)
    path = joined_path("v1", "admin", *parts)
    media_type = JSON if encoded else None
    return Call(what, "POST", path, json_of(kind), effect, body=encoded, content_type=media_type, query=query)


def _description(answer: Answer) -> TransactionDescription | EndDescription:
    try:
        return json.decode(answer.body, EndDescription)
    except ValidationError:  # it has not ended
        return json.decode(answer.body, TransactionDescription)
