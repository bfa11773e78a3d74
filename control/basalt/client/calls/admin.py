"""Plans for operators: jobs, settings, the store, backups, readiness. Routes: docs/reference/http-api.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from msgspec import ValidationError

from basalt.api.bodies import json
from basalt.api.bodies.cluster import (
    ClusterInfo,
    ClusterMembers,
    MemberDrain,
    ShardBalance,
    ShardMove,
    ShardMoveRequest,
)
from basalt.api.bodies.groups import GroupMode, ListedGroups
from basalt.api.bodies.operations import (
    AlertList,
    AuditLine,
    Backup,
    BackupPage,
    BackupRequest,
    ChangedSettings,
    CompactionRequest,
    Compactions,
    ExplainedWriter,
    InvalidList,
    JobAct,
    JobInfo,
    JobRun,
    MadeBackup,
    ManagerSnapshotInfo,
    ProcessInfo,
    PrunedWriters,
    PruneRun,
    PruneStatus,
    PublishedSnapshot,
    Readiness,
    RegionDetail,
    RegionInfo,
    RestoredWriters,
    RestoreRequest,
    SeriesPage,
    SettingInfo,
    StoreInfo,
    Version,
)
from basalt.api.bodies.owners import ClusterShards, ShardOwner, TopicExplanation
from basalt.api.bodies.pipelines import Pipelines
from basalt.api.bodies.tables import TablePage
from basalt.api.bodies.topics import TopicDescription, TopicPage
from basalt.api.bodies.transactions import (
    EndDescription,
    FailedWriters,
    ForcedEnd,
    HangingList,
    InspectedList,
    TransactionDescription,
)
from basalt.client.plans import (
    Answer,
    Call,
    ClientScope,
    Effect,
    Query,
    Steps,
    act_of,
    ask,
    get_json,
    joined_path,
    json_of,
    query_of,
    send_json,
)

T = TypeVar("T")
GroupSort: TypeAlias = Literal["name", "lag", "age"]

ADMIN = "/v1/admin"


def namespaces(scope: ClientScope) -> Steps[list[str]]:
    """Every namespace that has a topic."""
    return _get(list[str], "list namespaces", "namespaces")


def topics(
    scope: ClientScope, *, namespace: str | None = None, contains: str | None = None, deleted: bool = True
) -> Steps[list[TopicDescription]]:
    """Every topic with all its metadata, deleted ones too; of one namespace or of all. Asked for page by page."""
    found: list[TopicDescription] = []
    after: str | None = None
    while True:
        page = yield from topics_page(scope, namespace=namespace, contains=contains, deleted=deleted, after=after)
        found += page.topics
        after = page.next
        if after is None:
            return found


def topics_page(
    scope: ClientScope,
    *,
    namespace: str | None = None,
    contains: str | None = None,
    deleted: bool | None = None,
    sort: str | None = None,
    descending: bool | None = None,
    after: str | None = None,
    limit: int | None = None,
    figures: bool | None = None,
) -> Steps[TopicPage]:
    """A page of the topics whose namespace:name `contains` a text; the next one begins `after` its `next`.

    `sort`: name (the order of the store), created, updated, ttl, generation, messages, bytes, rate, oldest or newest. With `figures`
    each has those that need no reading.
    """
    query = query_of(
        namespace=namespace, contains=contains, deleted=deleted, sort=sort, descending=descending, after=after, limit=limit,
        figures=figures,
    )  # fmt: skip
    return _get(TopicPage, "list topics", "topics", query=query)


def tables(
    scope: ClientScope, *, namespace: str | None = None, after: str | None = None, limit: int | None = None
) -> Steps[TablePage]:
    """The tables of one namespace or of all; a page of them, of which the next one begins `after` its `next`."""
    return _get(TablePage, "list tables", "tables", query=query_of(namespace=namespace, after=after, limit=limit))


def groups(
    scope: ClientScope,
    *,
    namespace: str | None = None,
    topic: str | None = None,
    mode: GroupMode | None = None,
    paused: bool | None = None,
    contains: str | None = None,
    sort: GroupSort = "name",
    after: str | None = None,
    limit: int | None = None,
    count_ms: int | None = None,
) -> Steps[ListedGroups]:
    """The consumer groups of all topics, or of a `topic` ("namespace:topic"), with how far each is behind.

    Sorted by "name", "lag" (in messages) or "age" (of the oldest message), the worst first; a page of them, of which the next one begins
    `after` its `next`. The server counts for about `count_ms`.
    """
    query = query_of(
        namespace=namespace, topic=topic, mode=mode, paused=paused, contains=contains, sort=sort, after=after, limit=limit, countMs=count_ms
    )  # fmt: skip
    return _get(ListedGroups, "list consumer groups", "groups", query=query)


def pipelines(scope: ClientScope, *, after: str | None = None, limit: int | None = None) -> Steps[Pipelines]:
    """Pipelines as the server knows them: event time in topics that have markers, jobs that commit by name, who reads and writes what.

    Topics come a page at a time, of which the next one begins `after` its `next`.
    """
    return _get(Pipelines, "show pipelines", "pipelines", query=query_of(after=after, limit=limit))


def jobs(scope: ClientScope) -> Steps[list[JobInfo]]:
    """The scheduled jobs, with when each ran and will run."""
    return _get(list[JobInfo], "list jobs", "jobs")


def job(scope: ClientScope, name: str) -> Steps[JobInfo]:
    """One job: its schedule, its last run, and when it runs next."""
    return _get(JobInfo, f"show job {name}", "jobs", name)


def run_job(scope: ClientScope, name: str, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[JobAct]:
    """Run a job now; the answer's `run` tells how it ended."""
    query = act_of(reason, by, dry_run=dry_run)
    return _post(JobAct, f"run job {name}", "jobs", name, "run", query=query, effect=Effect.ONCE)


def pause_job(scope: ClientScope, name: str, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[JobAct]:
    """Run a job no more until it is resumed."""
    return _post(JobAct, f"pause job {name}", "jobs", name, "pause", query=act_of(reason, by, dry_run=dry_run))


def resume_job(
    scope: ClientScope, name: str, *, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[JobAct]:
    """Let a paused job run again."""
    return _post(JobAct, f"resume job {name}", "jobs", name, "resume", query=act_of(reason, by, dry_run=dry_run))


def job_history(scope: ClientScope, name: str, *, limit: int | None = None) -> Steps[list[JobRun]]:
    """The last runs of a job, newest first: when, how long, what it did or how it failed."""
    what = f"show the history of job {name}"
    return _get(list[JobRun], what, "jobs", name, "history", query=query_of(limit=limit))


def settings(scope: ClientScope) -> Steps[list[SettingInfo]]:
    """The server's settings, each with where it came from; secrets are not shown."""
    return _get(list[SettingInfo], "show settings", "settings")


def set_settings(
    scope: ClientScope,
    settings: Mapping[str, str | int | bool],
    *,
    dry_run: bool = False,
    reason: str = "",
    by: str = "",
) -> Steps[ChangedSettings]:
    """Change settings of the running server until it stops, all of them or none: `{"log.level": "debug"}`.

    `SettingNeedsStartError` for one that is read only when the server starts.
    """
    query, parse = act_of(reason, by, dry_run=dry_run), json_of(ChangedSettings)
    return send_json("PATCH", "change settings", ADMIN + "/settings", parse, body=dict(settings), query=query)


def metrics(scope: ClientScope) -> Steps[str]:
    """Every series of the server, in Prometheus' text format: docs/reference/metrics.md."""
    return ask(
        Call(
            "read the metrics", "GET", "/metrics", lambda answer: answer.body.decode(), Effect.NONE, accept="text/plain"
        )
    )


def alerts(scope: ClientScope, *, everything: bool = False, age_ms: int | None = None) -> Steps[AlertList]:
    """The alerts that would fire now, in words, and those that will if it stays so; with `everything` those in order, too.

    Each names the section of docs/operations/runbook.md that says what to do. A look of the server's that is no older than `age_ms` will do.
    """
    return _get(AlertList, "list alerts", "alerts", query=query_of(all=everything or None, ageMs=age_ms))


def process(scope: ClientScope) -> Steps[ProcessInfo]:
    """The server's process from within: the lag of its event loop, its queues, caches, connections and threads."""
    return _get(ProcessInfo, "show the process", "process")


def series(
    scope: ClientScope,
    names: Sequence[str] = (),
    *,
    since: str | None = None,
    until: str | None = None,
    step_ms: int | None = None,
) -> Steps[SeriesPage]:
    """The history of figures: over the last 10 minutes, or `since` a time such as -1h. Without names the figures that there are."""
    asked = {"names": ",".join(names) or None, "from": since, "to": until, "step": step_ms and f"{step_ms}ms"}
    return _get(SeriesPage, "read the series", "series", query=query_of(**asked))


def store(scope: ClientScope) -> Steps[StoreInfo]:
    """The store's kind, size, tables and state."""
    return _get(StoreInfo, "show the store", "store")


def cluster(scope: ClientScope) -> Steps[ClusterInfo]:
    """The server that leads: its lease, its epoch, its terms, and when its certificate ends."""
    return _get(ClusterInfo, "show the cluster", "cluster")


def cluster_members(scope: ClientScope) -> Steps[ClusterMembers]:
    """The servers that share the store, as the one that leads knows them: the leader, its standbys, and those that died of late."""
    return get_json(ClusterMembers, "list the members of the cluster", "/v1/cluster")


def move_shards(
    scope: ClientScope, to: str, *, topic: str | None = None, shards: Sequence[int] = (), dry_run: bool = False,
    reason: str = "", by: str = "",
) -> Steps[ShardMove]:  # fmt: skip
    """Move the shard of a topic, or `shards`, to the member of this instance; calls to their topics wait meanwhile."""
    asked = ShardMoveRequest(to, None if topic is None else scope.namespace, topic, tuple(shards))
    query = act_of(reason, by, dry_run=dry_run)
    return _post(ShardMove, "move shards", "cluster", "moves", body=asked, query=query)


def drain_member(
    scope: ClientScope, member: str, *, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[MemberDrain]:
    """Give a server no topics any more; those that it has move away in the background. `member`: its name or its instance."""
    query = act_of(reason, by, dry_run=dry_run)
    return _post(MemberDrain, f"drain the server {member}", "cluster", "members", member, "drain", query=query)


def undrain_member(
    scope: ClientScope, member: str, *, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[MemberDrain]:
    """Let a server that was drained have topics again."""
    query = act_of(reason, by, dry_run=dry_run)
    return _post(MemberDrain, f"take the server {member} back", "cluster", "members", member, "undrain", query=query)


def balance_shards(scope: ClientScope, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[ShardBalance]:
    """Move some shards at once from servers that have more than their share; none where all are near it."""
    query = act_of(reason, by, dry_run=dry_run)
    return _post(ShardBalance, "even out shards", "cluster", "balance", query=query)


def cluster_shards(scope: ClientScope) -> Steps[ClusterShards]:
    """The map of owners: all shards in ranges, how many each server has, and whether some are without an owner."""
    return _get(ClusterShards, "show who owns which shards", "cluster", "shards")


def topic_owner(scope: ClientScope, topic: str, *, namespace: str | None = None) -> Steps[ShardOwner]:
    """The server that owns the shard of a topic; also of one that there is not."""
    names = (namespace or scope.namespace, topic)
    return get_json(ShardOwner, f"ask who owns topic {':'.join(names)}", joined_path("v1", "cluster", "owners", *names))


def table_owner(scope: ClientScope, table: str, *, namespace: str | None = None) -> Steps[ShardOwner]:
    """The server that owns the shard of a transactional table; also of one that there is not."""
    of = namespace or scope.namespace
    path = joined_path("v1", "cluster", "owners", of, "tables", table)
    return get_json(ShardOwner, f"ask who owns table {of}:{table}", path)


def explain_topic(scope: ClientScope, topic: str, *, namespace: str | None = None) -> Steps[TopicExplanation]:
    """The place of a topic: its shard, owner, buckets and regions, and why calls to it would wait or be refused now."""
    of = namespace or scope.namespace
    return _get(TopicExplanation, f"explain topic {of}:{topic}", "namespaces", of, "topics", topic, "explain")


def snapshot(scope: ClientScope) -> Steps[ManagerSnapshotInfo]:
    """The manager's present snapshot: its pointers, and how long its lists are."""
    return _get(ManagerSnapshotInfo, "show the snapshot", "snapshot")


def publish_snapshot(scope: ClientScope) -> Steps[PublishedSnapshot]:
    """Publish the snapshot for the region servers now."""
    return _post(PublishedSnapshot, "publish the snapshot", "snapshot", "publish")


def prune_status(scope: ClientScope) -> Steps[PruneStatus]:
    """The state of pruning: how long the invalid list is, and what is in the way."""
    return _get(PruneStatus, "show how pruning stands", "prune")


def prune(scope: ClientScope, *, dry_run: bool = False, reason: str = "", by: str = "") -> Steps[PruneRun]:
    """Forget the failed writers that have no row left; or only tell which."""
    return _post(PruneRun, "prune", "prune", "run", query=act_of(reason, by, dry_run=dry_run))


def prune_explain(
    scope: ClientScope, write_pointer: int | None = None, *, limit: int | None = None
) -> Steps[list[ExplainedWriter]]:
    """The obstacles to pruning one failed writer, or by default the oldest writers that have any."""
    query = query_of(writePointer=write_pointer, limit=limit)
    return _get(list[ExplainedWriter], "explain what holds pruning back", "prune", "explain", query=query)


def prune_invalid(
    scope: ClientScope, *, after: int | None = None, limit: int | None = None, cause: str | None = None
) -> Steps[InvalidList]:
    """The failed writers, oldest first; a page of them, of which the next one begins `after` its `next`.

    With a `cause`, only those that wait for it first: docs/operations/pruning.md has the causes.
    """
    query = query_of(after=after, limit=limit, cause=cause)
    return _get(InvalidList, "list failed writers", "prune", "invalid", query=query)


def prune_compact(
    scope: ClientScope, *regions: str, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[Compactions]:
    """Ask for major compactions of these regions; of those whose files hold back the oldest writers, where none are named."""
    query, body = act_of(reason, by, dry_run=dry_run), CompactionRequest(regions or None)
    return _post(Compactions, "compact regions", "prune", "compact", query=query, body=body)


def prune_regions(scope: ClientScope, *, show: str | None = None) -> Steps[list[RegionInfo]]:
    """The regions with what each holds back: all, or those "blocking", or "idle"."""
    return _get(list[RegionInfo], "list regions", "prune", "regions", query=query_of(show=show))


def prune_region(scope: ClientScope, region: str) -> Steps[RegionDetail]:
    """A region with its files."""
    return _get(RegionDetail, f"show region {region}", "prune", "regions", region)


def prune_history(scope: ClientScope, *, limit: int | None = None) -> Steps[list[PrunedWriters]]:
    """The writers that were pruned, run by run, newest first."""
    return _get(list[PrunedWriters], "show what was pruned", "prune", "history", query=query_of(limit=limit))


def prune_restore(
    scope: ClientScope, since_ms: int, *, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[RestoredWriters]:
    """Make writers invalid again that were pruned since the time of a copy that a table was restored from."""
    query, body = act_of(reason, by, dry_run=dry_run), RestoreRequest(since_ms)
    return _post(RestoredWriters, "restore pruned writers", "prune", "restore", query=query, body=body)


def transactions(
    scope: ClientScope,
    *,
    state: str | None = None,
    owner: str | None = None,
    principal: str | None = None,
    older_than_ms: int | None = None,
    topic: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> Steps[InspectedList]:
    """The transactions that have not ended, oldest first; of a state, an owner, a principal, an age, or a topic ("namespace:topic").

    With a `limit` the answer is a page, and the next one begins `after` its `next`.
    """
    query = query_of(
        state=state, owner=owner, principal=principal, olderThanMs=older_than_ms, topic=topic, after=after, limit=limit
    )  # fmt: skip
    return _get(InspectedList, "list transactions", "transactions", query=query)


def hanging_transactions(
    scope: ClientScope,
    *,
    state: str | None = None,
    owner: str | None = None,
    principal: str | None = None,
    older_than_ms: int | None = None,
    topic: str | None = None,
    limit: int | None = None,
    rows: int | None = None,
) -> Steps[HangingList]:
    """The transactions that hold readers back, or are open for long (half of their time-out), worst first.

    `rows` are the most that the server reads to tell what they hold back.
    """
    query = query_of(
        state=state, owner=owner, principal=principal, olderThanMs=older_than_ms, topic=topic, limit=limit, rows=rows
    )  # fmt: skip
    return _get(HangingList, "find hanging transactions", "transactions", "hanging", query=query)


def invalid_transactions(
    scope: ClientScope, *, after: int | None = None, limit: int | None = None
) -> Steps[FailedWriters]:
    """The invalid list: failed writers whose writes are hidden until they are pruned. A page, of which the next one begins `after` its `next`."""
    return _get(
        FailedWriters, "list invalid transactions", "transactions", "invalid", query=query_of(after=after, limit=limit)
    )


def describe_transaction(scope: ClientScope, transaction: str) -> Steps[TransactionDescription | EndDescription]:
    """Everything that is known of a transaction: what it holds back, what it waits for, what happens next; or how it ended."""
    what, path = f"describe transaction {transaction}", ADMIN + joined_path("transactions", transaction)
    return ask(Call(what, "GET", path, _description, Effect.NONE))


def abort_transaction(
    scope: ClientScope, transaction: str, *, reason: str = "", by: str = "", force: bool = False, dry_run: bool = False
) -> Steps[ForcedEnd]:
    """Abort somebody else's transaction; the audit keeps who did it and why.

    `ExternalWritesError` where it has writes that only its client can undo, unless `force` says that they are undone.
    """
    query = act_of(reason, by, dry_run=dry_run, force=force)
    return _post(ForcedEnd, f"abort transaction {transaction}", "transactions", transaction, "abort", query=query)


def invalidate_transaction(
    scope: ClientScope, transaction: str, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Steps[ForcedEnd]:
    """Hide for good what somebody else's transaction wrote; the audit keeps who did it and why."""
    what, query = f"invalidate transaction {transaction}", act_of(reason, by, dry_run=dry_run)
    return _post(ForcedEnd, what, "transactions", transaction, "invalidate", query=query)


def audit(
    scope: ClientScope, *, from_ms: int | None = None, to_ms: int | None = None, act: str | None = None,
    principal: str | None = None, target: str | None = None, after: str | None = None, limit: int | None = None,
) -> Steps[list[AuditLine]]:  # fmt: skip
    """The acts of operators, newest first: what they did, who, why, and how it ended.

    `from_ms` and `to_ms` (not included) bound the time, in ms since 1970; `target` is text in the name of what was acted on. `after` is the id
    of the last line of one answer, for the next.
    """
    query = query_of(
        **{"from": from_ms}, to=to_ms, act=act, principal=principal, target=target, after=after, limit=limit
    )
    return _get(list[AuditLine], "read the audit", "audit", query=query)


def backup(
    scope: ClientScope, name: str, *, dry_run: bool = False, reason: str = "", by: str = ""
) -> Steps[MadeBackup]:
    """Make a consistent copy of the store, under this name, where the server keeps its backups."""
    query, body = act_of(reason, by, dry_run=dry_run), BackupRequest(name)
    return _post(MadeBackup, f"back up to {name}", "backups", body=body, query=query, effect=Effect.ONCE)


def backups(scope: ClientScope) -> Steps[list[Backup]]:
    """The backups that the server keeps, the oldest first."""
    return _get(list[Backup], "list backups", "backups")


def verify_backup(scope: ClientScope, name: str, *, start: str | None = None) -> Steps[BackupPage]:
    """Compare some of a backup's files with what the store wrote; go on with `start` = the answer's `next`, until it has none."""
    return _post(BackupPage, f"verify backup {name}", "backups", name, "verify", query=query_of(start=start))


def delete_backup(scope: ClientScope, name: str, *, reason: str = "", by: str = "") -> Steps[Backup]:
    """Delete a backup, and tell what it was. The audit keeps who did it and why."""
    what, path = f"delete backup {name}", ADMIN + joined_path("backups", name)
    return ask(Call(what, "DELETE", path, json_of(Backup), Effect.ONCE, act_of(reason, by)))


def ready(scope: ClientScope) -> Steps[Readiness]:
    """The server's readiness, part by part. Not ready is an answer, not an exception."""
    return ask(Call("ask for readiness", "GET", "/readyz", json_of(Readiness), Effect.NONE, accepted=(503,)))


def live(scope: ClientScope) -> Steps[bool]:
    """True: the server's process answers."""
    return ask(Call("ask for life", "GET", "/livez", lambda _answer: True, Effect.NONE))


def version(scope: ClientScope) -> Steps[Version]:
    """The server's name and version."""
    return get_json(Version, "ask for the version", "/v1")


def _get(kind: type[T], what: str, *parts: str, query: Query = ()) -> Steps[T]:
    return get_json(kind, what, ADMIN + joined_path(*parts), query)


def _post(
    kind: type[T], what: str, *parts: str, body: object = None, query: Query = (), effect: Effect = Effect.REPEATABLE
) -> Steps[T]:
    return send_json("POST", what, ADMIN + joined_path(*parts), json_of(kind), effect, body, query=query)


def _description(answer: Answer) -> TransactionDescription | EndDescription:
    try:
        return json.decode(answer.body, EndDescription)
    except ValidationError:  # it has not ended
        return json.decode(answer.body, TransactionDescription)
