"""The calls of operators: what is in the store, jobs, settings, backups. Lists are plain JSON arrays."""

from __future__ import annotations

import msgspec

from basalt.catalog.topics import Topic, check_name, topic_name
from basalt.errors import ConflictError, InvalidNameError, JobNotFoundError, TopicNotFoundError
from basalt.http.asgi.json_input import decode_json, read_no_members
from basalt.http.asgi.request_bodies import content_type, read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation, integer, words
from basalt.http.routes.prune_shapes import PublishedShown, published_shown
from basalt.http.routes.schemas import EMPTY_BODY
from basalt.operations.jobs.history import RUNS_MAX, Run
from basalt.operations.scheduler import JobStatus
from basalt.runtime.store_calls import StoreCalls
from basalt.settings import effective
from basalt_engine.table import TABLE_NAMES

ADMIN_PATH = "/v1/admin"
_FIRST_KEY, _BEHIND_KEYS = b"\0", b"\xff" * 64  # no key of ours starts with so many such bytes


class TopicShown(msgspec.Struct, rename="camel"):
    """All that is stored of a topic; of a deleted one the generation is the last that it had."""

    namespace: str
    name: str
    generation: int
    deleted: bool
    properties: dict[str, str]
    created_ms: int
    updated_ms: int


class JobShown(msgspec.Struct, rename="camel"):
    """A job: how it is scheduled, how it ran last, when it runs next (ms since 1970; null: not by itself)."""

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


class RunShown(msgspec.Struct, rename="camel"):
    """One run of a job. `times`: failures in a row for the same reason; `detail` tells report or error in words."""

    started_ms: int
    duration_ms: int
    outcome: str
    report: dict[str, int | str]
    error: str | None
    times: int
    detail: str


class SettingShown(msgspec.Struct):
    """A setting in force, and where it came from; the values of secrets are not shown."""

    key: str
    value: str
    origin: str


class TableShown(msgspec.Struct):
    """A table, and about how many bytes it takes."""

    name: str
    bytes: int


class StoreShown(msgspec.Struct, rename="camel"):
    """The store, and the installation that it belongs to."""

    kind: str
    atomic: bool
    instance: str
    started_ms: int
    tables: list[TableShown]


class SnapshotShown(msgspec.Struct, rename="camel"):
    """The manager's newest durable snapshot: pointers, and how long its lists are; and what region servers were told."""

    read_pointer: int
    write_pointer: int
    in_progress: int
    invalid: int
    oldest_in_progress: str | None
    published: PublishedShown | None


class BackupRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A backup's name: 1 to 255 of A-Z a-z 0-9 _ -"""

    name: str


class BackupShown(msgspec.Struct, rename="camel"):
    """A backup in the server's data directory."""

    name: str
    path: str
    created_ms: int
    files: int
    bytes: int


async def namespaces(request: Request) -> Answer:
    """The namespaces in which a topic exists."""
    return json_answer(await request.services.topics.namespaces())


async def topics(request: Request) -> Answer:
    """All topics with all their metadata, deleted ones too."""
    namespace = request.text("namespace")
    if namespace is not None:
        check_name(namespace, "namespace")
    service = request.services.topics
    shown = [_topic(service.at(title, stored)) for title, stored in await service.describe_all(namespace)]
    return json_answer(sorted(shown, key=lambda topic: (topic.namespace, topic.name)))


async def topic(request: Request) -> Answer:
    """One topic with all its metadata, also a deleted one."""
    service = request.services.topics
    title = topic_name(request.path["namespace"], request.path["topic"])
    return json_answer(_topic(service.at(title, await service.describe(title))))


async def jobs(request: Request) -> Answer:
    """The scheduled jobs."""
    return json_answer([_job(status) for status in await request.services.scheduler.jobs()])


async def run_job(request: Request) -> Answer:
    """Run a job now, and tell how it ended."""
    return json_answer(_run(await request.services.scheduler.run_now(await _job_name(request))))


async def pause_job(request: Request) -> Answer:
    """Let a job run no more by itself."""
    return json_answer(_job(await request.services.scheduler.pause(await _job_name(request))))


async def resume_job(request: Request) -> Answer:
    """Let a paused job run again."""
    return json_answer(_job(await request.services.scheduler.resume(await _job_name(request))))


async def job_history(request: Request) -> Answer:
    """The last runs of a job, newest first."""
    limit = request.integer("limit") or RUNS_MAX
    return json_answer([_run(run) for run in await request.services.scheduler.history(request.path["job"], limit)])


async def settings(request: Request) -> Answer:
    """The settings in force."""
    shown = effective(request.services.settings)
    return json_answer([SettingShown(setting.key, setting.value, setting.origin) for setting in shown])


async def store(request: Request) -> Answer:
    """The store and its tables."""
    services = request.services
    call = StoreCalls(services.store)
    tables = [
        TableShown(name, await call(services.store.table(name).size_bytes, _FIRST_KEY, _BEHIND_KEYS))
        for name in TABLE_NAMES
    ]
    kind, atomic = services.store.kind, services.store.atomic
    return json_answer(StoreShown(kind, atomic, services.instance, services.started_ms, tables))


async def snapshot(request: Request) -> Answer:
    """The transaction manager's snapshot."""
    state = request.services.transactions.state  # refuses while it reads its log
    current = request.services.transactions.manager.current()
    oldest = state.oldest
    publisher = request.services.pruner.publisher
    published = None if publisher is None else publisher.latest
    return json_answer(
        SnapshotShown(
            read_pointer=current.read_pointer,
            write_pointer=state.last_pointer,
            in_progress=len(current.in_progress),
            invalid=len(current.invalid),
            oldest_in_progress=None if oldest is None else request.services.ids.text(oldest.id),
            published=None if published is None else published_shown(published),
        )
    )


async def back_up(request: Request) -> Answer:
    """Make a backup."""
    content_type(request, (JSON,))
    wanted = decode_json(await read_body(request), BackupRequest)
    return json_answer(BackupShown(**await request.services.backups.create(wanted.name)))


async def backups(request: Request) -> Answer:
    """The backups that there are."""
    return json_answer([BackupShown(**backup) for backup in await request.services.backups.list()])


async def _job_name(request: Request) -> str:
    await read_no_members(request)
    return request.path["job"]


def _topic(topic: Topic) -> TopicShown:
    stored = topic.metadata
    return TopicShown(
        namespace=topic.title.namespace,
        name=topic.title.name,
        generation=abs(stored.generation),
        deleted=stored.generation < 0,
        properties=topic.properties,
        created_ms=stored.created_ms,
        updated_ms=stored.updated_ms,
    )


def _job(status: JobStatus) -> JobShown:
    return JobShown(*status)


def _run(run: Run) -> RunShown:
    detail = run.error or ", ".join(f"{name} {value}" for name, value in run.report.items())
    return RunShown(run.started_ms, run.duration_ms, run.outcome, run.report, run.error, run.times, detail)


_JOB = "/jobs/{job}"
_JOB_ERRORS = (JobNotFoundError,)

OPERATIONS = (
    Operation(
        method="GET",
        path=ADMIN_PATH + "/namespaces",
        handler=namespaces,
        summary="Namespaces in which a topic exists",
        tag="admin",
        answers={200: {JSON: list[str]}},
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/topics",
        handler=topics,
        summary="All topics with all their metadata, deleted ones too",
        tag="admin",
        query=(words("namespace", "^[A-Za-z0-9_-]{1,255}$", "only of this namespace"),),
        answers={200: {JSON: list[TopicShown]}},
        errors=(InvalidNameError,),
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/namespaces/{namespace}/topics/{topic}",
        handler=topic,
        summary="A topic with all its metadata, also a deleted one",
        tag="admin",
        answers={200: {JSON: TopicShown}},
        errors=(InvalidNameError, TopicNotFoundError),
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/jobs",
        handler=jobs,
        summary="The scheduled jobs",
        tag="admin",
        answers={200: {JSON: list[JobShown]}},
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + _JOB + "/run",
        handler=run_job,
        summary="Run a job now",
        tag="admin",
        body=EMPTY_BODY,
        answers={200: {JSON: RunShown}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + _JOB + "/pause",
        handler=pause_job,
        summary="Let a job run no more by itself",
        tag="admin",
        body=EMPTY_BODY,
        answers={200: {JSON: JobShown}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + _JOB + "/resume",
        handler=resume_job,
        summary="Let a paused job run again",
        tag="admin",
        body=EMPTY_BODY,
        answers={200: {JSON: JobShown}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + _JOB + "/history",
        handler=job_history,
        summary="A job's last runs, newest first",
        tag="admin",
        query=(integer("limit", 1, 1_000, "most runs to answer"),),
        answers={200: {JSON: list[RunShown]}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/settings",
        handler=settings,
        summary="The settings in force, with where they came from",
        tag="admin",
        answers={200: {JSON: list[SettingShown]}},
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/store",
        handler=store,
        summary="The store and its tables",
        tag="admin",
        answers={200: {JSON: StoreShown}},
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/snapshot",
        handler=snapshot,
        summary="The transaction manager's snapshot",
        tag="admin",
        answers={200: {JSON: SnapshotShown}},
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + "/backup",
        handler=back_up,
        summary="Make a backup",
        tag="admin",
        body={JSON: BackupRequest},
        body_required=True,
        answers={200: {JSON: BackupShown}},
        errors=(InvalidNameError, ConflictError),
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/backup",
        handler=backups,
        summary="The backups that there are",
        tag="admin",
        answers={200: {JSON: list[BackupShown]}},
    ),
)
