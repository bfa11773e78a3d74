"""The calls about the server itself: health, metrics, settings, store, jobs, backups, audit; and all topics' metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import basalt
from basalt.api.bodies import json
from basalt.api.bodies.operations import (
    Alive,
    AuditLine,
    Backup,
    BackupRequest,
    JobInfo,
    JobRun,
    ManagerSnapshot,
    Readiness,
    SettingInfo,
    StoreInfo,
    Version,
)
from basalt.api.bodies.topics import TopicDescription
from basalt.catalog.catalog import check_name
from basalt.catalog.topics import Topic
from basalt.errors import ConflictError, InvalidNameError, JobNotFoundError
from basalt.http.asgi.request_bodies import read_json, read_no_members
from basalt.http.asgi.responses import JSON, Response, json_response
from basalt.http.routes.operations import Request, RouteTable, integer, words
from basalt.http.routes.schemas import EMPTY_BODY
from basalt.http.routes.topics import EXISTING, named_topic
from basalt.operations.scheduler import RUNS_MAX, Run
from basalt.settings import effective

ADMIN_PATH = "/v1/admin"
AUDIT_DEFAULT, AUDIT_MAX = 50, 10_000

route = RouteTable("server")
admin = "admin"


@route("GET", "/livez", answer=Alive)
async def live(request: Request) -> Response:
    """Whether the process answers."""
    return json_response(Alive(True))


@route("GET", "/readyz", answers={200: {JSON: Readiness}, 503: {JSON: Readiness}})
async def ready(request: Request) -> Response:
    """Whether every part works."""
    found = await request.services.readiness()
    return json_response(found, 200 if found else 503)


@route("GET", "/v1", answer=Version)
async def about(request: Request) -> Response:
    """Name and version of the server."""
    return json_response(Version("basalt", basalt.__version__))


@route(
    "GET", "/metrics", answer={b"text/plain": {"type": "string"}, b"application/openmetrics-text": {"type": "string"}}
)
async def scrape(request: Request) -> Response:
    """Metrics for Prometheus."""
    accept = request.headers.get(b"accept", b"").decode("latin-1")
    parts, content_type = await request.metrics.scrape(accept)
    return Response(200, parts, content_type.encode("ascii"))


@route("GET", ADMIN_PATH + "/namespaces", answer=list[str], tag=admin)
async def namespaces(request: Request) -> Response:
    """Namespaces in which a topic exists."""
    return json_response(await request.services.topics.catalog.namespaces())


@route(
    "GET",
    ADMIN_PATH + "/topics",
    query=(words("namespace", "^[A-Za-z0-9_-]{1,255}$", "only of this namespace"),),
    answer=list[TopicDescription],
    errors=(InvalidNameError,),
    tag=admin,
)
async def topics(request: Request) -> Response:
    """All topics with all their metadata, deleted ones too."""
    namespace = request.text("namespace")
    if namespace is not None:
        check_name(namespace, "namespace")
    catalog = request.services.topics.catalog
    found = [  # arrays of some topics each, in the order of the store
        json.encode([_topic(catalog.at(title, stored)) for title, stored in page])[1:-1]
        async for page in catalog.pages(namespace)
    ]
    return Response(200, chain([b"["], _between(b",", found), [b"]"]), JSON)


@route(
    "GET", ADMIN_PATH + "/namespaces/{namespace}/topics/{topic}", answer=TopicDescription, errors=EXISTING, tag=admin
)
async def topic(request: Request) -> Response:
    """A topic with all its metadata, also a deleted one."""
    catalog = request.services.topics.catalog
    title = named_topic(request)
    return json_response(_topic(catalog.at(title, await catalog.describe(title))))


@route("GET", ADMIN_PATH + "/jobs", answer=list[JobInfo], tag=admin)
async def jobs(request: Request) -> Response:
    """The scheduled jobs."""
    return json_response([JobInfo(*status) for status in await request.services.scheduler.jobs()])


_JOB_PATH = ADMIN_PATH + "/jobs/{job}"
_JOB_ERRORS = (JobNotFoundError,)


@route("POST", _JOB_PATH + "/run", body=EMPTY_BODY, answer=JobRun, errors=_JOB_ERRORS, tag=admin)
async def run_job(request: Request) -> Response:
    """Run a job now."""
    await read_no_members(request)
    return json_response(_run(await request.services.scheduler.run_now(request.path["job"])))


@route("POST", _JOB_PATH + "/pause", body=EMPTY_BODY, answer=JobInfo, errors=_JOB_ERRORS, tag=admin)
async def pause_job(request: Request) -> Response:
    """Let a job run no more by itself."""
    await read_no_members(request)
    return json_response(JobInfo(*await request.services.scheduler.pause(request.path["job"])))


@route("POST", _JOB_PATH + "/resume", body=EMPTY_BODY, answer=JobInfo, errors=_JOB_ERRORS, tag=admin)
async def resume_job(request: Request) -> Response:
    """Let a paused job run again."""
    await read_no_members(request)
    return json_response(JobInfo(*await request.services.scheduler.resume(request.path["job"])))


@route(
    "GET",
    _JOB_PATH + "/history",
    query=(integer("limit", 1, 1_000, "most runs to answer"),),
    answer=list[JobRun],
    errors=_JOB_ERRORS,
    tag=admin,
)
async def job_history(request: Request) -> Response:
    """A job's last runs, newest first."""
    limit = request.integer("limit") or RUNS_MAX
    return json_response([_run(run) for run in await request.services.scheduler.history(request.path["job"], limit)])


@route("GET", ADMIN_PATH + "/settings", answer=list[SettingInfo], tag=admin)
async def settings(request: Request) -> Response:
    """The settings in force, with where they came from."""
    return json_response(
        [SettingInfo(each.key, each.value, each.origin) for each in effective(request.services.settings)]
    )


@route("GET", ADMIN_PATH + "/store", answer=StoreInfo, tag=admin)
async def store(request: Request) -> Response:
    """The store and its tables."""
    return json_response(await request.services.store_info())


@route("GET", ADMIN_PATH + "/snapshot", answer=ManagerSnapshot, tag=admin)
async def snapshot(request: Request) -> Response:
    """The transaction manager's snapshot."""
    return json_response(request.services.manager_snapshot())


@route(
    "POST",
    ADMIN_PATH + "/backup",
    body=BackupRequest,
    answer=Backup,
    errors=(InvalidNameError, ConflictError),
    tag=admin,
)
async def back_up(request: Request) -> Response:
    """Make a backup."""
    wanted = await read_json(request, BackupRequest)
    return json_response(Backup(**await request.services.backups.create(wanted.name)))


@route("GET", ADMIN_PATH + "/backup", answer=list[Backup], tag=admin)
async def backups(request: Request) -> Response:
    """The backups that there are."""
    return json_response([Backup(**backup) for backup in await request.services.backups.list()])


@route(
    "GET",
    ADMIN_PATH + "/audit",
    query=(integer("limit", 1, AUDIT_MAX, f"most acts to answer; {AUDIT_DEFAULT} by default"),),
    answer=list[AuditLine],
    tag=admin,
)
async def audit(request: Request) -> Response:
    """What operators did by hand, newest first."""
    found = await request.services.audit.newest(request.integer("limit") or AUDIT_DEFAULT)
    return json_response(
        [
            AuditLine(
                at_ms=line.at_ms,
                act=line.act,
                what=line.what,
                outcome=line.outcome,
                reason=line.reason,
                name=line.name,
                address=line.address,
                agent=line.agent,
                request_id=line.request_id,
            )
            for line in found
        ]
    )


def _between(separator: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts as they are sent one by one: others go in between."""
    for number, part in enumerate(parts):
        yield separator + part if number else part


def _topic(topic: Topic) -> TopicDescription:
    stored = topic.metadata
    return TopicDescription(
        namespace=topic.title.namespace,
        name=topic.title.name,
        generation=abs(stored.generation),
        deleted=stored.generation < 0,
        properties=topic.properties,
        created_ms=stored.created_ms,
        updated_ms=stored.updated_ms,
    )


def _run(run: Run) -> JobRun:
    detail = run.error or ", ".join(f"{name} {value}" for name, value in run.report.items())
    return JobRun(run.started_ms, run.duration_ms, run.outcome, dict(run.report), run.error, run.times, detail)
