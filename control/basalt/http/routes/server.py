"""The calls about the server itself: health, metrics, settings, store, jobs, backups, audit; and all topics' metadata."""

from __future__ import annotations

import functools

import msgspec
from msgspec import structs

from basalt.access import resources
from basalt.access.needs import PUBLIC, needs
from basalt.access.resources import Resource
from basalt.api.bodies import operations as bodies
from basalt.api.bodies.operations import AuditLine, JobAct, JobInfo, JobRun
from basalt.api.bodies.pipelines import Pipelines
from basalt.api.bodies.topics import TOPIC_ORDERS, TopicDescription, TopicPage
from basalt.api.positions import UNIT_MS
from basalt.catalog.topics import topic_name
from basalt.errors import (
    BackupNotFoundError,
    ConflictError,
    InputError,
    InvalidNameError,
    InvalidSettingError,
    JobNotFoundError,
    SeriesNotFoundError,
    SettingNeedsStartError,
    TopicNotFoundError,
)
from basalt.http.asgi.requests import JSON
from basalt.http.asgi.responses import Response, json_response
from basalt.http.process_status import process_info
from basalt.http.routes.route_table import (
    ADMIN_PATH,
    AFTER,
    AS,
    CLUSTER,
    DRY_RUN,
    EXISTING,
    MS_MAX,
    REASON,
    TOPIC,
    Request,
    RouteTable,
    choice,
    flag,
    integer,
    query,
    text_query,
    words,
)
from basalt.operations.audit import Wanted
from basalt.operations.scheduler import RUNS_MAX, Run
from basalt.operations.series.series import NAMES_MAX, STEP_MS_MAX, figure_body, page_of, title_of_group, title_of_topic
from basalt.operations.topic_inspection import NAME, TopicQuery, after_of
from basalt.settings import effective
from basalt_engine import __version__
from basalt_engine.keys import NAME_EXPRESSION

AUDIT_DEFAULT, AUDIT_MAX = 50, 10_000
ALERTS_AGE_MS_MAX = 60_000
PIPELINE_TOPICS_MAX = 100  # of one answer: each is read up to where committed readers are, and may have 1,000 tasks
NAMES_CHARS_MAX = 6_000  # of the figures that one call asks for: the whole target has up to 8 KiB
TOPICS_MAX = 1_000  # of one page; some 300 KB of JSON, written in a millisecond or two

_ACT = (DRY_RUN, REASON, AS)
_JOB_PATH = ADMIN_PATH + "/jobs/{job}"
_JOB_ERRORS = (JobNotFoundError,)
_BACKUPS = ADMIN_PATH + "/backups"
_BACKUP = _BACKUPS + "/{backup}"
_BACKUP_ERRORS = (InvalidNameError, BackupNotFoundError)

route = RouteTable("server")
admin = "admin"


@route("GET", "/livez", PUBLIC)
async def live(request: Request) -> bodies.Alive:
    """Tell that the process answers."""
    return bodies.Alive(True)


@route(
    "GET",
    "/readyz",
    PUBLIC,
    query=(flag("leader", "whether the server must lead itself: one that passes calls on answers 503 then"),),
    answers={200: {JSON: bodies.Readiness}, 503: {JSON: bodies.Readiness}},
)
async def ready(request: Request) -> Response:
    """Check each part of the server."""
    readiness = await request.services.readiness()
    if request.flag("leader") and request.services.is_member:
        parts = tuple(structs.replace(part, ok=part.ok and part.name != "leader") for part in readiness.parts)
        readiness = structs.replace(readiness, ready=False, parts=parts)
    if not request.caller.has("observe", resources.CLUSTER):  # who asks may be anybody: names are enough
        readiness = structs.replace(
            readiness, parts=tuple(structs.replace(part, detail="") for part in readiness.parts)
        )
    return json_response(readiness, 200 if readiness else 503)


@route("GET", "/v1", PUBLIC)
async def about(request: Request) -> bodies.Version:
    """Name and version of the server."""
    return bodies.Version("basalt", __version__)


@route(
    "GET",
    "/metrics",
    needs("observe", CLUSTER),
    answer={b"text/plain": {"type": "string"}, b"application/openmetrics-text": {"type": "string"}},
)
async def scrape(request: Request) -> Response:
    """Metrics for Prometheus."""
    accept = request.headers.get(b"accept", b"").decode("latin-1")
    parts, content_type = await request.metrics.scrape(accept)
    return Response(200, parts, content_type.encode("ascii"))


@route("GET", ADMIN_PATH + "/namespaces", needs(filters="observe topic"), tag=admin)
async def namespaces(request: Request) -> list[str]:
    """Namespaces in which a topic exists."""
    caller, catalog = request.caller, request.services.topics.catalog
    return [
        namespace
        for namespace in await catalog.namespaces()
        if caller.may("observe", Resource("namespace", (namespace,)))
        or any(caller.may("observe", resources.topic(namespace, name)) for name in await catalog.list(namespace))
    ]


@route(
    "GET",
    ADMIN_PATH + "/topics",
    needs(filters="observe topic"),
    query=(
        words("namespace", f"^{NAME_EXPRESSION}$", "only of this namespace"),
        text_query("contains", "only those with this in namespace:topic, in any case"),
        flag("deleted", "deleted ones too"),
        choice("sort", TOPIC_ORDERS, "in which order: by name unless it is given, as the store has them"),
        flag("descending", "the other way round"),
        AFTER,
        integer("limit", 1, TOPICS_MAX, f"most to answer; {TOPICS_MAX:,} when it is left out"),
        flag("figures", "with the figures of each, as many as are read in about a quarter of a second"),
    ),
    errors=(InvalidNameError, TopicNotFoundError),
    tag=admin,
)
async def topics(request: Request) -> TopicPage:
    """The topics of all namespaces with all their metadata, a page at a time."""
    may = request.caller.may
    query = TopicQuery(
        limit=request.integer("limit") or TOPICS_MAX,
        namespace=request.text("namespace"),
        contains=request.text("contains") or "",
        deleted=request.flag("deleted"),
        sort=request.text("sort") or NAME,
        descending=request.flag("descending"),
        after=after_of(request.text("after")),
        figures=request.flag("figures"),
    )
    return await request.services.topic_inspection.page(query, lambda title: may("observe", resources.topic(*title)))


@route(
    "GET", ADMIN_PATH + "/namespaces/{namespace}/topics/{topic}", needs("observe", TOPIC), errors=EXISTING, tag=admin
)
async def topic(request: Request) -> TopicDescription:
    """A topic with all its metadata, also a deleted one."""
    title, services = request.topic, request.services
    return services.topic_inspection.described(title, await services.topics.catalog.describe(title))


@route("GET", ADMIN_PATH + "/jobs", needs("observe", CLUSTER), tag=admin)
async def jobs(request: Request) -> list[JobInfo]:
    """The scheduled jobs."""
    return await request.services.scheduler.jobs()


@route("GET", _JOB_PATH, needs("observe", CLUSTER), errors=_JOB_ERRORS, tag=admin)
async def job(request: Request) -> JobInfo:
    """A scheduled job."""
    return await request.services.scheduler.job(request.path["job"])


@route("POST", _JOB_PATH + "/run", needs("operate", CLUSTER), query=_ACT, errors=_JOB_ERRORS, tag=admin)
async def run_job(request: Request) -> JobAct:
    """Run a job now."""
    scheduler, audit, name = request.services.scheduler, request.services.audit, request.path["job"]
    found = await scheduler.job(name)
    if request.flag("dryRun"):
        return JobAct(name, "run", found.help, found.paused, True, True)
    do = functools.partial(scheduler.run_now, name)
    run = await audit.act("run job", f"job {name}", *request.act, do, lambda run: run.error or run.outcome)
    return JobAct(name, "run", found.help, found.paused, True, False, _run(run))


@route("POST", _JOB_PATH + "/pause", needs("operate", CLUSTER), query=_ACT, errors=_JOB_ERRORS, tag=admin)
async def pause_job(request: Request) -> JobAct:
    """Let a job run no more by itself."""
    return await _set_paused(request, "pause")


@route("POST", _JOB_PATH + "/resume", needs("operate", CLUSTER), query=_ACT, errors=_JOB_ERRORS, tag=admin)
async def resume_job(request: Request) -> JobAct:
    """Let a paused job run again."""
    return await _set_paused(request, "resume")


@route(
    "GET",
    _JOB_PATH + "/history",
    needs("observe", CLUSTER),
    query=(integer("limit", 1, 1_000, "most runs to answer"),),
    errors=_JOB_ERRORS,
    tag=admin,
)
async def job_history(request: Request) -> list[JobRun]:
    """A job's last runs, newest first."""
    limit = request.integer("limit") or RUNS_MAX
    return [_run(run) for run in await request.services.scheduler.history(request.path["job"], limit)]


@route("GET", ADMIN_PATH + "/settings", needs("inspect", CLUSTER), tag=admin)
async def settings(request: Request) -> list[bodies.SettingInfo]:
    """The settings in force, with where they came from."""
    return msgspec.convert(effective(request.services.settings), list[bodies.SettingInfo], from_attributes=True)


@route(
    "PATCH",
    ADMIN_PATH + "/settings",
    needs("operate", CLUSTER),
    query=(REASON, AS, DRY_RUN),
    errors=(InvalidSettingError, SettingNeedsStartError),
    tag=admin,
)
async def change_settings(request: Request, asked: dict[str, str | int | bool]) -> bodies.ChangedSettings:
    """Change settings until the server stops.

    All of them or none. A value is written as in the settings file.
    """
    return await request.services.change_settings(asked, request.act, dry_run=request.flag("dryRun"))


@route("GET", ADMIN_PATH + "/store", needs("observe", CLUSTER), tag=admin)
async def store(request: Request) -> bodies.StoreInfo:
    """The store and its tables."""
    return await request.services.store_info()


def is_names(text: str) -> bool:
    """Tell whether a text is names with commas between, and not too many."""
    names = text.split(",")
    return len(text) <= NAMES_CHARS_MAX and len(names) <= NAMES_MAX and all(names) and text.isprintable()


@route(
    "GET",
    ADMIN_PATH + "/alerts",
    needs("observe", CLUSTER),
    query=(
        flag("all", "also those that do not fire, and those that only Prometheus can tell"),
        integer("ageMs", 0, ALERTS_AGE_MS_MAX, "a look that is no older will do, unless all are asked for; 0, a new one, when it is left out"),
    ),
    tag=admin,
)  # fmt: skip
async def alerts(request: Request) -> bodies.AlertList:
    """The alerts that would fire now, in words; and those that will if it stays so."""
    return await request.metrics.alerts(everything=request.flag("all"), age_ms_max=request.integer("ageMs") or 0)


@route("GET", ADMIN_PATH + "/process", needs("observe", CLUSTER), tag=admin)
async def process(request: Request) -> bodies.ProcessInfo:
    """The server's process from within: its event loop, queues, caches, connections and threads."""
    return process_info(request.services, request.bodies)


@route(
    "GET",
    ADMIN_PATH + "/series",
    needs(in_body=("observe cluster", "observe group", "observe topic"), filters="observe group"),
    query=(
        query(
            "names", {"type": "string", "maxLength": NAMES_CHARS_MAX}, "figures, with commas between; without them the list of all",
            is_names, f"be up to {NAMES_MAX} names with commas between",
        ),
        text_query("from", "begin at this time: -1h (before now), or @ and a time; 10 minutes ago by default"),
        text_query("to", "end before this time; now by default"),
        words("step", "^[0-9]{1,9}(ms|s|m|h|d)$", "length of a slot, such as 10s; by default as fine as it is kept, of at most 2,000"),
    ),
    errors=(SeriesNotFoundError,),
    tag=admin,
)  # fmt: skip
async def series(request: Request) -> bodies.SeriesPage:
    """The history of the server's figures, of the lag of consumer groups, and of the rates of busy topics."""
    caller, kept, asked = request.caller, request.services.series, request.text("names")
    if asked is None:
        figures = [each for each in kept.known() if caller.may("observe", _observed(each.name))]
        return bodies.SeriesPage(0, (), {}, tuple(map(figure_body, figures)))
    names = asked.split(",")
    for name in names:
        caller.must("observe", _observed(name))
    step = request.text("step")
    step_ms = None if step is None else _step_ms(step)
    return page_of(kept, names, request.text("from"), request.text("to"), step_ms, request.services.clock.now_ms())


@route("GET", ADMIN_PATH + "/snapshot", needs("observe", CLUSTER), tag=admin)
async def snapshot(request: Request) -> bodies.ManagerSnapshotInfo:
    """The transaction manager's snapshot."""
    return request.services.manager_snapshot()


@route(
    "GET", ADMIN_PATH + "/pipelines", needs(filters="observe topic"),
    query=(
        words("after", f"^{NAME_EXPRESSION}:{NAME_EXPRESSION}$", "the topics behind this one: `next` of the page before"),
        integer("limit", 1, PIPELINE_TOPICS_MAX, f"most topics to answer; {PIPELINE_TOPICS_MAX:,} when it is left out"),
    ),
    errors=(InvalidNameError,), tag=admin,
)  # fmt: skip
async def pipelines(request: Request) -> Pipelines:
    """Pipelines as the server knows them: event time in topics, jobs that commit by name, who reads and writes what."""
    after, may = request.text("after"), request.caller.may
    behind = None if after is None else topic_name(*after.split(":"))
    await request.services.transactions.manager.ensure_known()
    return await request.services.pipelines.show(
        lambda kind, names: may("observe", Resource(kind, tuple(names))), request.sees, behind,
        request.integer("limit") or PIPELINE_TOPICS_MAX,
    )  # fmt: skip


@route("POST", _BACKUPS, needs("operate", CLUSTER), query=_ACT, errors=(InvalidNameError, ConflictError), tag=admin)
async def back_up(request: Request, asked: bodies.BackupRequest) -> bodies.MadeBackup:
    """Make a backup."""
    backups, audit, name = request.services.backups, request.services.audit, asked.name
    if request.flag("dryRun"):
        return await backups.plan(name)
    made = await audit.act("back up", f"backup {name}", *request.act, lambda: backups.create(name))
    return bodies.MadeBackup(**structs.asdict(made))


@route("GET", _BACKUPS, needs("observe", CLUSTER), tag=admin)
async def backups(request: Request) -> list[bodies.Backup]:
    """The backups that there are."""
    return await request.services.backups.list()


@route(
    "POST",
    _BACKUP + "/verify",
    needs("operate", CLUSTER),
    query=(words("start", "^(rows|[0-9]{6,20}\\.(sst|blob))$", "the file to begin with; the first if it is left out"),),
    errors=_BACKUP_ERRORS,
    tag=admin,
)
async def verify_backup(request: Request) -> bodies.BackupPage:
    """Compare a page of a backup's files with what the store wrote."""
    return await request.services.backups.verify(request.path["backup"], request.text("start"))


@route("DELETE", _BACKUP, needs("operate", CLUSTER), query=(REASON, AS), errors=_BACKUP_ERRORS, tag=admin)
async def delete_backup(request: Request) -> bodies.Backup:
    """Delete a backup."""
    services, name = request.services, request.path["backup"]
    return await services.audit.act(
        "delete backup", f"backup {name}", *request.act, lambda: services.backups.delete(name)
    )


@route(
    "GET",
    ADMIN_PATH + "/audit",
    needs("inspect", CLUSTER),
    query=(
        integer("from", 0, MS_MAX, "only acts at this time (ms since 1970) or later"),
        integer("to", 0, MS_MAX, "only acts before this time"),
        text_query("act", "only this act, such as `grant`"),
        text_query("principal", "only those of this principal"),
        text_query("target", "only those about something with this text in its name, in any case"),
        words("after", "^[0-9]{19}:[0-9a-f]{16}$", "only those that come behind the act of this id, which are older"),
        integer("limit", 1, AUDIT_MAX, f"most acts to answer; {AUDIT_DEFAULT} by default"),
    ),
    tag=admin,
)
async def audit(request: Request) -> list[AuditLine]:
    """List the acts of operators, newest first."""
    text = {name: request.text(name) or "" for name in ("act", "principal", "target", "after")}
    wanted = Wanted(request.integer("from") or 0, request.integer("to"), **text)
    found = await request.services.audit.find(wanted, request.integer("limit") or AUDIT_DEFAULT)
    return [AuditLine(id=name, **structs.asdict(line)) for name, line in found]


def _observed(name: str) -> Resource:
    """The resource that a figure tells of: a group, a topic, or the whole server."""
    group, topic = title_of_group(name), title_of_topic(name)
    if group is not None:
        return resources.group(*group)
    return resources.CLUSTER if topic is None else resources.topic(*topic)


def _step_ms(text: str) -> int:
    digits = text.rstrip("dhms")
    step_ms = int(digits) * UNIT_MS[text[len(digits) :]]
    if not 0 < step_ms <= STEP_MS_MAX:
        raise InputError("a slot has up to a day, and not no time", field="step", hint="write 10s, 5m or 1h")
    return step_ms


async def _set_paused(request: Request, act: str) -> JobAct:
    scheduler, audit, name = request.services.scheduler, request.services.audit, request.path["job"]
    found, paused = await scheduler.job(name), act == "pause"
    if not request.flag("dryRun"):
        do = functools.partial(scheduler.pause if paused else scheduler.resume, name)
        await audit.act(f"{act} job", f"job {name}", *request.act, do)
    return JobAct(name, act, found.help, paused, found.paused != paused, request.flag("dryRun"))


def _run(run: Run) -> JobRun:
    detail = run.error or ", ".join(f"{name} {value}" for name, value in run.report.items())
    return JobRun(run.started_ms, run.duration_ms, run.outcome, dict(run.report), run.error, run.times, detail)
