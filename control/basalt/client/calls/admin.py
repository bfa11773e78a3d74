"""Plans for operators: jobs, settings, the store, backups, readiness. Answers are plain JSON values.

Routes: docs/reference/http-api.md.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from basalt.client.plans.calls import JSON, Answer, Call, Effect, Steps, ask, joined_path
from basalt.client.plans.scopes import ClientScope

JsonObject: TypeAlias = dict[str, Any]


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """One part of a server, and whether it works."""

    name: str
    ok: bool
    latency_ms: float | None = None
    detail: str = ""


class Readiness(msgspec.Struct, frozen=True):
    """Whether a server can do its work, and which part cannot."""

    ready: bool
    parts: tuple[Part, ...] = ()

    def __bool__(self) -> bool:
        return self.ready


class Version(msgspec.Struct, frozen=True):
    """Who answers, and which version of it."""

    name: str
    version: str


def namespaces(scope: ClientScope) -> Steps[Any]:
    """Every namespace that has a topic."""
    return (yield from ask(_get("list namespaces", "namespaces")))


def topics(scope: ClientScope, *, namespace: str | None = None) -> Steps[Any]:
    """Every topic with all its metadata, deleted ones too; of one namespace or of all."""
    query = () if namespace is None else (("namespace", namespace),)
    return (yield from ask(_get("describe topics", "topics", query=query)))


def jobs(scope: ClientScope) -> Steps[Any]:
    """The scheduled jobs, with when each ran and will run."""
    return (yield from ask(_get("list jobs", "jobs")))


def run_job(scope: ClientScope, name: str) -> Steps[Any]:
    """Run a job now."""
    return (yield from ask(_post(f"run job {name}", "jobs", name, "run")))


def pause_job(scope: ClientScope, name: str) -> Steps[Any]:
    """Run a job no more until it is resumed."""
    return (yield from ask(_post(f"pause job {name}", "jobs", name, "pause", effect=Effect.REPEATABLE)))


def resume_job(scope: ClientScope, name: str) -> Steps[Any]:
    """Let a paused job run again."""
    return (yield from ask(_post(f"resume job {name}", "jobs", name, "resume", effect=Effect.REPEATABLE)))


def job_history(scope: ClientScope, name: str, *, limit: int | None = None) -> Steps[Any]:
    """The last runs of a job, newest first: when, how long, what it did or how it failed."""
    query = () if limit is None else (("limit", str(limit)),)
    return (yield from ask(_get(f"show the history of job {name}", "jobs", name, "history", query=query)))


def settings(scope: ClientScope) -> Steps[Any]:
    """The server's settings, each with where it came from; secrets are not shown."""
    return (yield from ask(_get("show settings", "settings")))


def store(scope: ClientScope) -> Steps[Any]:
    """The store's kind, size, tables and state."""
    return (yield from ask(_get("show the store", "store")))


def snapshot(scope: ClientScope) -> Steps[Any]:
    """The manager's present snapshot: its pointers, and how long its lists are."""
    return (yield from ask(_get("show the snapshot", "snapshot")))


def publish_snapshot(scope: ClientScope) -> Steps[Any]:
    """Publish the snapshot for the region servers now."""
    return (yield from ask(_post("publish the snapshot", "snapshot", "publish", effect=Effect.REPEATABLE)))


def prune_status(scope: ClientScope) -> Steps[Any]:
    """How pruning stands: how long the invalid list is, and what is in the way."""
    return (yield from ask(_get("show how pruning stands", "prune")))


def prune(scope: ClientScope, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[Any]:
    """Forget the failed writers that have no row left; or only tell which."""
    query = act(reason, by, dry_run)
    return (yield from ask(_post("prune", "prune", "run", query=query, effect=Effect.REPEATABLE)))


def prune_explain(scope: ClientScope, write_pointer: int | None = None, *, limit: int | None = None) -> Steps[Any]:
    """What is in the way of one failed writer, or of the oldest that something is in the way of."""
    given = (("writePointer", write_pointer), ("limit", limit))
    query = tuple((name, str(value)) for name, value in given if value is not None)
    return (yield from ask(_get("explain what holds pruning back", "prune", "explain", query=query)))


def prune_regions(scope: ClientScope, *, show: str | None = None) -> Steps[Any]:
    """The regions with what each holds back: all, or those "blocking", or "idle"."""
    query = () if show is None else (("show", show),)
    return (yield from ask(_get("list regions", "prune", "regions", query=query)))


def prune_region(scope: ClientScope, region: str) -> Steps[Any]:
    """A region with its files."""
    return (yield from ask(_get(f"show region {region}", "prune", "regions", region)))


def prune_history(scope: ClientScope, *, limit: int | None = None) -> Steps[Any]:
    """What was pruned, newest first."""
    query = () if limit is None else (("limit", str(limit)),)
    return (yield from ask(_get("show what was pruned", "prune", "history", query=query)))


def prune_restore(
    scope: ClientScope, since_ms: int, *, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[Any]:
    """Make writers invalid again that were pruned since the time of a copy that a table was restored from."""
    query = act(reason, by, dry_run)
    body = {"sinceMs": since_ms}
    return (
        yield from ask(
            _post("restore pruned writers", "prune", "restore", body=body, query=query, effect=Effect.REPEATABLE)
        )
    )


def transactions(
    scope: ClientScope,
    *,
    state: str | None = None,
    owner: str | None = None,
    older_than_ms: int | None = None,
    topic: str | None = None,
) -> Steps[Any]:
    """The transactions that have not ended, oldest first; of a state, an owner, an age, or a topic ("namespace:topic")."""
    query = _filters(state, owner, older_than_ms, topic)
    return (yield from ask(_get("list transactions", "transactions", query=query)))


def hanging_transactions(
    scope: ClientScope,
    *,
    state: str | None = None,
    owner: str | None = None,
    older_than_ms: int | None = None,
    topic: str | None = None,
) -> Steps[Any]:
    """The transactions that hold readers back, or are open for long (half of their time-out), worst first."""
    query = _filters(state, owner, older_than_ms, topic)
    return (yield from ask(_get("find hanging transactions", "transactions", "hanging", query=query)))


def describe_transaction(scope: ClientScope, transaction: str) -> Steps[Any]:
    """All there is to know of a transaction: what it holds back, what it waits for, what happens next."""
    return (yield from ask(_get(f"describe transaction {transaction}", "transactions", transaction)))


def abort_transaction(
    scope: ClientScope, transaction: str, *, reason: str = "", by: str = "", force: bool = False, dry_run: bool = False
) -> Steps[Any]:
    """Abort somebody else's transaction; the audit keeps who did it and why.

    `OutsideWritesError` where it has writes that only its client can undo, unless `force` says that they are undone.
    """
    query = (*act(reason, by, dry_run), *((("force", "true"),) if force else ()))
    what = f"abort transaction {transaction}"
    return (yield from ask(_post(what, "transactions", transaction, "abort", query=query, effect=Effect.REPEATABLE)))


def invalidate_transaction(
    scope: ClientScope, transaction: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[Any]:
    """Hide for good what somebody else's transaction wrote; the audit keeps who did it and why."""
    query = act(reason, by, dry_run)
    what = f"invalidate transaction {transaction}"
    return (
        yield from ask(_post(what, "transactions", transaction, "invalidate", query=query, effect=Effect.REPEATABLE))
    )


def audit(scope: ClientScope, *, limit: int | None = None) -> Steps[Any]:
    """What operators did by hand, newest first: what, who, why, and how it ended."""
    query = () if limit is None else (("limit", str(limit)),)
    return (yield from ask(_get("read the audit", "audit", query=query)))


def backup(scope: ClientScope, name: str) -> Steps[Any]:
    """Make a consistent copy of the store, under this name, where the server keeps its backups."""
    return (yield from ask(_post(f"back up to {name}", "backup", body={"name": name})))


def ready(scope: ClientScope) -> Steps[Readiness]:
    """Whether the server can do its work, part by part. Not ready is an answer, not an exception."""
    return (yield from ask(Call("ask for readiness", "GET", "/readyz", _readiness, Effect.NONE, accepted=(503,))))


def live(scope: ClientScope) -> Steps[bool]:
    """True: the server's process answers."""
    return (yield from ask(Call("ask for life", "GET", "/livez", lambda _answer: True, Effect.NONE)))


def version(scope: ClientScope) -> Steps[Version]:
    """The server's name and version."""
    return (yield from ask(Call("ask for the version", "GET", "/v1", _version, Effect.NONE)))


def act(reason: str, by: str, dry_run: bool = False) -> tuple[tuple[str, str], ...]:
    """The parameters of an operator's act."""
    given = (("reason", reason), ("as", by), ("dryRun", "true" if dry_run else ""))
    return tuple((name, value) for name, value in given if value)


def _filters(
    state: str | None, owner: str | None, older_than_ms: int | None, topic: str | None
) -> tuple[tuple[str, str], ...]:
    given = (("state", state), ("owner", owner), ("olderThanMs", older_than_ms), ("topic", topic))
    return tuple((name, str(value)) for name, value in given if value is not None)


def _get(what: str, *parts: str, query: tuple[tuple[str, str], ...] = ()) -> Call[Any]:
    return Call(what, "GET", joined_path("v1", "admin", *parts), _json, Effect.NONE, query=query)


def _post(
    what: str,
    *parts: str,
    body: JsonObject | None = None,
    query: tuple[tuple[str, str], ...] = (),
    effect: Effect = Effect.ONCE,
) -> Call[Any]:
    encoded = b"" if body is None else msgspec.json.encode(body)
    path = joined_path("v1", "admin", *parts)
    return Call(what, "POST", path, _json, effect, body=encoded, content_type=JSON if encoded else None, query=query)


def _json(answer: Answer) -> Any:
    return msgspec.json.decode(answer.body) if answer.body else None


def _readiness(answer: Answer) -> Readiness:
    return msgspec.json.decode(answer.body, type=Readiness)


def _version(answer: Answer) -> Version:
    return msgspec.json.decode(answer.body, type=Version)
