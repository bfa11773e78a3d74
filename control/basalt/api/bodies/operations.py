"""Bodies for operators: the server's health and settings, its jobs and their audit, pruning (docs/operations/pruning.md);
and the document that tells an error.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

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


class JobAct(Struct, frozen=True, rename="camel"):
    """An operator's act on a job, `run`, `pause` or `resume`, or what it would be. `paused` is as it is afterwards.

    `changed`: whether it changes anything. `run` is the run that was made; of a dry run, and of other acts, there is none.
    """

    name: str
    act: str
    help: str
    paused: bool
    changed: bool
    dry_run: bool
    run: JobRun | None = None


class AuditLine(Struct, frozen=True, rename="camel"):
    """One act of an operator. `outcome` is `unfinished` during the act, or if the server ended in the middle of it.

    `principal` was proved to make the call, by `credential` (its kind and id), and through the proxy `via`; `name` is what they said.
    `id` names the line: ids sort as times do, and the lines that come behind it are asked for by it.
    """

    at_ms: int
    act: str
    what: str
    outcome: str
    reason: str
    name: str
    address: str
    agent: str
    request_id: str
    principal: str
    credential: str
    via: str
    id: str = ""


class PublishedSnapshot(Struct, frozen=True, rename="camel"):
    """A snapshot as it was published for the region servers."""

    epoch: int
    sequence: int
    time_ms: int
    decided: int
    visibility_upper_bound: int
    lifetime_ms_max: int
    in_progress: int
    invalid: int


class PruneRun(Struct, frozen=True, rename="camel"):
    """A prune run. `waiting`: writers whose lifetime is not over; `held`: writers that something else is in the way of."""

    dry_run: bool
    invalid: int
    pruned: int
    waiting: int
    held: int
    regions: int
    compactions: tuple[str, ...]
    pointers: tuple[int, ...]


class PruneCause(Struct, frozen=True, rename="camel"):
    """One kind of thing in the way, the number of writers that it is the first obstacle of, and what frees them."""

    cause: str
    writers: int
    freed_by: str


class PruneHold(Struct, frozen=True, rename="camel"):
    """One thing in the way of one writer."""

    cause: str
    detail: str
    freed_by: str
    table: str | None
    region: str | None
    server: str | None
    file: str | None


class ExplainedWriter(Struct, frozen=True, rename="camel"):
    """An invalid writer, the earliest time (`ends_ms`) at which it may be pruned, and what is in its way now."""

    write_pointer: int
    began_ms: int
    ends_ms: int
    free: bool
    holds: tuple[PruneHold, ...]
    holds_left_out: int


class InvalidWriter(Struct, frozen=True, rename="camel"):
    """A writer on the invalid list: the first thing that is in its way, and what frees it; null: the next run prunes it."""

    write_pointer: int
    began_ms: int
    ends_ms: int
    cause: str | None
    freed_by: str | None


class InvalidList(Struct, frozen=True, rename="camel"):
    """A page of the invalid list, oldest first. `invalid`: all that are on it. The next page begins `after` its `next`, null at the end."""

    writers: tuple[InvalidWriter, ...]
    invalid: int
    next: int | None


class PruneStatus(Struct, frozen=True, rename="camel"):
    """The state of pruning. `regions` is null where the store has none."""

    invalid: int
    free: int
    causes: tuple[PruneCause, ...]
    oldest: ExplainedWriter | None
    lifetime_ms: int
    skew_ms: int
    restored: int
    fault: str | None
    regions: int | None
    reports: int | None
    last_run: PruneRun | None


JarState: TypeAlias = Literal["current", "older", "newer", "untold"]  # a coprocessor beside the server that answers


class RegionServerInfo(Struct, frozen=True, rename="camel"):
    """A region server as the last prune run or look at regions found it; its coprocessor is the oldest that its regions run."""

    name: str
    oldest_report_ms: int
    coprocessor: str | None
    coprocessor_state: JarState


class RegionInfo(Struct, frozen=True, rename="camel"):
    """A region. `held_back`: writers whose lifetime is over; `idle`: why its report vouches for nothing.

    `coprocessor`: the version that runs it, null where that is not told.
    """

    id: str
    table: str
    server: str
    start: str
    stop: str
    report_ms: int | None
    oldest_edit_ms: int | None
    files: int | None
    unknown_files: int | None
    held_back: int
    oldest_held: int | None
    idle: str | None
    coprocessor: str | None
    coprocessor_state: JarState


class RegionFile(Struct, frozen=True, rename="camel"):
    """A file of a region; it can hold rows of writers above `decided` (-1: of any) up to `newest`.

    `held_back`: the writers whose lifetime is over that it may hold.
    """

    name: str
    decided: int
    newest: int
    bytes: int
    modified_ms: int
    held_back: int


class RegionDetail(RegionInfo, frozen=True, rename="camel"):
    """A region with everything that its server reported of it."""

    name: str
    snapshot_epoch: int | None
    snapshot_sequence: int | None
    snapshot_time_ms: int | None
    store_files: tuple[RegionFile, ...]
    counters: dict[str, int]


class CompactionRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The regions to be compacted, by id. Left out: those that a prune run would ask for, whose files hold back the oldest writers."""

    regions: tuple[str, ...] | None = None


class CompactedRegion(Struct, frozen=True, rename="camel"):
    """A region whose files are written anew: how many, and how large they are."""

    id: str
    table: str
    server: str
    files: int
    bytes: int


class Compactions(Struct, frozen=True, rename="camel"):
    """The compactions that were asked for, or would be. HBase makes them soon, one after another."""

    regions: tuple[CompactedRegion, ...]
    dry_run: bool


class PrunedWriters(Struct, frozen=True, rename="camel"):
    """Writers that one run pruned, or a part of them where they were very many."""

    pruned_ms: int
    writers: int
    oldest: int
    newest: int


class RestoreRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The time (ms since 1970) of the copy that a table was restored from."""

    since_ms: int


class RestoredWriters(Struct, frozen=True, rename="camel"):
    """The number of writers that are invalid again; of a dry run, that would be."""

    restored: int
    dry_run: bool


class Problem(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A problem document (RFC 9457). `code` is stable; `field` is the part of the input at fault; `hint` says what to do next.

    `leader` is the URL of the server that leads, when this one does not; `owner` that of the one that owns the topic or table, when it was asked for
    another's, and `member` the run of that server. What never became a request has no `request_id`.
    """

    type: str = ""
    title: str = ""
    status: int = 0
    code: str
    detail: str = ""
    request_id: str | None = None
    field: str | None = None
    hint: str | None = None
    retry_after_ms: int | None = None
    leader: str | None = None
    owner: str | None = None
    member: str | None = None


class Alive(Struct, frozen=True):
    """The process answers; nothing else was looked at."""

    alive: bool


class ServerPart(Struct, frozen=True, rename="camel"):
    """One part of a server, whether it works, and how long it took to tell."""

    name: str
    ok: bool
    latency_ms: float = 0.0
    detail: str = ""


class Readiness(Struct, frozen=True):
    """Readiness of a server: can it do its work, and which part cannot?"""

    ready: bool
    parts: tuple[ServerPart, ...] = ()

    def __bool__(self) -> bool:
        return self.ready


class Version(Struct, frozen=True):
    """The name and version of the server."""

    name: str
    version: str


class SettingInfo(Struct, frozen=True):
    """A setting in force, where it came from, and whether it can change live; the values of secrets are not shown.

    `meaning` says what it is for, `default` what it is where nobody sets it, and `values` what it may be.
    """

    key: str
    value: str
    origin: str
    live: bool = False
    meaning: str = ""
    default: str = ""
    values: str = ""


class ChangedSetting(Struct, frozen=True):
    """A setting that was changed in a running server, and the section and line of a settings file that keep it so."""

    key: str
    before: str
    value: str
    section: str
    line: str


class ChangedSettings(Struct, frozen=True):
    """The settings that were changed, or would be, and until when that holds."""

    changed: tuple[ChangedSetting, ...]
    until: str = "the server stops"


class StoreTable(Struct, frozen=True):
    """A table of the store, and about how many bytes it takes."""

    name: str
    bytes: int


class StoreInfo(Struct, frozen=True, rename="camel"):
    """The store, and the installation that it belongs to. `gateways`: where this server gets to it, for one on other machines.

    The rows of topics and tables are spread over `buckets`. `region_servers`: those of HBase, once a prune run has read their reports.
    """

    kind: str
    atomic: bool
    instance: str
    started_ms: int
    tables: tuple[StoreTable, ...]
    buckets: int
    gateways: tuple[str, ...]
    region_servers: tuple[RegionServerInfo, ...]


class ManagerSnapshotInfo(Struct, frozen=True, rename="camel"):
    """The transaction manager's snapshot: pointers, and how long its lists are; and what region servers were told.

    `oldest_in_progress` is the id of the oldest open transaction, which began at `oldest_began_ms`.
    """

    read_pointer: int
    write_pointer: int
    in_progress: int
    invalid: int
    oldest_in_progress: str | None
    oldest_began_ms: int | None
    published: PublishedSnapshot | None


class SeriesFigure(Struct, frozen=True):
    """A figure whose history is kept: its name, its unit ("" for a number of things), and what it says."""

    name: str
    unit: str
    help: str


class SeriesPage(Struct, frozen=True, rename="camel"):
    """Figures over a time: the beginnings of slots of `step_ms`, and by figure a value for each; null is a gap.

    `figures` are those that were asked for, or all that there are where none was.
    """

    step_ms: int
    time: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    figures: tuple[SeriesFigure, ...]


class BackupRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A backup's name: 1 to 255 of A-Z a-z 0-9 _ -"""

    name: str


class Backup(Struct, frozen=True, rename="camel"):
    """A backup. `bytes` are those of its files; those that the store still has as well take no space of their own."""

    name: str
    path: str
    created_ms: int
    files: int
    bytes: int


class MadeBackup(Backup, frozen=True, rename="camel"):
    """The backup that was made; or would be: then its time, files and bytes are 0."""

    dry_run: bool = False


class BackupPage(Struct, frozen=True, rename="camel"):
    """A page of a backup's verification: some of its files, or at last its rows, compared with what the store wrote.

    `next` is the `start` of the page behind it, and null in the last one.
    """

    name: str
    files: int
    bytes: int
    checked_files: int
    checked_bytes: int
    faults: tuple[str, ...]
    next: str | None


class Alert(Struct, frozen=True, rename="camel"):
    """An alert of this server, in words. `labels` tell which of several; `expression` is its condition in Prometheus' language.

    `state`: `firing`; `pending`, true since `since_ms`, but not yet for `for_ms`; `ok`, not true; `elsewhere`, only Prometheus can tell.
    `runbook` is the section of the runbook that says what to do.
    """

    name: str
    severity: Literal["critical", "warning", "info"]
    state: Literal["firing", "pending", "ok", "elsewhere"]
    text: str
    labels: dict[str, str]
    value: float | None
    since_ms: int | None
    for_ms: int
    expression: str
    runbook: str


class AlertList(Struct, frozen=True, rename="camel"):
    """The alerts at one time. What is asked over time is known since `watched_ms`, which is when the server began to serve."""

    at_ms: int
    watched_ms: int
    alerts: tuple[Alert, ...]


class ProcessQueue(Struct, frozen=True, rename="camel"):
    """Something that waits in the server: how many, their bytes, and the most there may be (null: not counted, or no limit of its own)."""

    name: str
    length: int | None
    length_max: int | None
    bytes: int | None
    bytes_max: int | None


class ProcessCache(Struct, frozen=True, rename="camel"):
    """Something that is kept in memory so that it need not be read, or made, again. Hits and misses since the start; null: not counted."""

    name: str
    entries: int | None
    entries_max: int | None
    bytes: int | None
    bytes_max: int | None
    hits: int | None
    misses: int | None


class ProcessThreads(Struct, frozen=True):
    """The threads of one name, which says what they are for."""

    name: str
    threads: int


class ProcessGateway(Struct, frozen=True, rename="camel"):
    """A pool of connections to HBase's gateway. `waits`: calls for which none was free at once; times are those of each try."""

    gateway: str
    pool: str
    lent: int
    idle: int
    connections_max: int
    waits: int
    calls: int
    refused: int
    lost: int
    mean_ms: float | None


class ProcessInfo(Struct, frozen=True, rename="camel"):
    """The server's process from within. `loop_lag_ms_max` is the worst of the last minute; null: where the system does not tell."""

    pid: int
    version: str
    python: str
    started_ms: int
    at_ms: int
    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    loop_lag_ms: float
    loop_lag_ms_max: float
    tasks: int
    connections: int
    connections_max: int
    queues: tuple[ProcessQueue, ...]
    caches: tuple[ProcessCache, ...]
    threads: tuple[ProcessThreads, ...]
    gateways: tuple[ProcessGateway, ...]
