"""The calls of operators: what is in the store, jobs, settings, backups. Lists are plain JSON arrays."""

from __future__ import annotations

from basalt.api.bodies.jobs import JobInfo, JobRun
from basalt.api.bodies.server import Backup, BackupRequest, ManagerSnapshot, SettingInfo, StoreInfo, StoreTable
from basalt.api.bodies.topics import TopicDescription
from basalt.catalog.catalog import check_name
from basalt.catalog.topics import Topic, topic_name
from basalt.errors import ConflictError, InvalidNameError, JobNotFoundError, TopicNotFoundError
from basalt.http.asgi.json_input import decode_json, read_no_members
from basalt.http.asgi.request_bodies import content_type, read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation, integer, words
from basalt.http.routes.prune_shapes import published_shown
from basalt.http.routes.schemas import EMPTY_BODY
from basalt.operations.scheduler import RUNS_MAX, JobStatus, Run
from basalt.runtime.store_calls import StoreCalls
from basalt.settings import effective
from basalt_engine.table import TABLE_NAMES

ADMIN_PATH = "/v1/admin"
_FIRST_KEY, _BEHIND_KEYS = b"\0", b"\xff" * 64  # no key of ours starts with so many such bytes


async def namespaces(request: Request) -> Answer:
    """The namespaces in which a topic exists."""
    return json_answer(await request.services.topics.catalog.namespaces())


async def topics(request: Request) -> Answer:
    """All topics with all their metadata, deleted ones too."""
    namespace = request.text("namespace")
    if namespace is not None:
        check_name(namespace, "namespace")
    service = request.services.topics.catalog
    shown = [_topic(service.at(title, stored)) for title, stored in await service.describe_all(namespace)]
    return json_answer(sorted(shown, key=lambda topic: (topic.namespace, topic.name)))


async def topic(request: Request) -> Answer:
    """One topic with all its metadata, also a deleted one."""
    service = request.services.topics.catalog
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
    return json_answer([SettingInfo(setting.key, setting.value, setting.origin) for setting in shown])


async def store(request: Request) -> Answer:
    """The store and its tables."""
    services = request.services
    call = StoreCalls(services.store)
    tables = tuple(
        [
            StoreTable(name, await call(services.store.table(name).size_bytes, _FIRST_KEY, _BEHIND_KEYS))
            for name in TABLE_NAMES
        ]
    )
    kind, atomic = services.store.kind, services.store.atomic
    return json_answer(StoreInfo(kind, atomic, services.instance, services.started_ms, tables))


async def snapshot(request: Request) -> Answer:
    """The transaction manager's snapshot."""
    state = request.services.transactions.state  # refuses while it reads its log
    current = request.services.transactions.manager.current()
    oldest = state.oldest
    publisher = request.services.pruner.publisher
    published = None if publisher is None else publisher.latest
    return json_answer(
        ManagerSnapshot(
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
    return json_answer(Backup(**await request.services.backups.create(wanted.name)))


async def backups(request: Request) -> Answer:
    """The backups that there are."""
    return json_answer([Backup(**backup) for backup in await request.services.backups.list()])


async def _job_name(request: Request) -> str:
    await read_no_members(request)
    return request.path["job"]


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


def _job(status: JobStatus) -> JobInfo:
    return JobInfo(*status)


def _run(run: Run) -> JobRun:
    detail = run.error or ", ".join(f"{name} {value}" for name, value in run.report.items())
    return JobRun(run.started_ms, run.duration_ms, run.outcome, dict(run.report), run.error, run.times, detail)


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
        answers={200: {JSON: list[TopicDescription]}},
        errors=(InvalidNameError,),
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/namespaces/{namespace}/topics/{topic}",
        handler=topic,
        summary="A topic with all its metadata, also a deleted one",
        tag="admin",
        answers={200: {JSON: TopicDescription}},
        errors=(InvalidNameError, TopicNotFoundError),
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/jobs",
        handler=jobs,
        summary="The scheduled jobs",
        tag="admin",
        answers={200: {JSON: list[JobInfo]}},
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + _JOB + "/run",
        handler=run_job,
        summary="Run a job now",
        tag="admin",
        body=EMPTY_BODY,
        answers={200: {JSON: JobRun}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + _JOB + "/pause",
        handler=pause_job,
        summary="Let a job run no more by itself",
        tag="admin",
        body=EMPTY_BODY,
        answers={200: {JSON: JobInfo}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + _JOB + "/resume",
        handler=resume_job,
        summary="Let a paused job run again",
        tag="admin",
        body=EMPTY_BODY,
        answers={200: {JSON: JobInfo}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + _JOB + "/history",
        handler=job_history,
        summary="A job's last runs, newest first",
        tag="admin",
        query=(integer("limit", 1, 1_000, "most runs to answer"),),
        answers={200: {JSON: list[JobRun]}},
        errors=_JOB_ERRORS,
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/settings",
        handler=settings,
        summary="The settings in force, with where they came from",
        tag="admin",
        answers={200: {JSON: list[SettingInfo]}},
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/store",
        handler=store,
        summary="The store and its tables",
        tag="admin",
        answers={200: {JSON: StoreInfo}},
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/snapshot",
        handler=snapshot,
        summary="The transaction manager's snapshot",
        tag="admin",
        answers={200: {JSON: ManagerSnapshot}},
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + "/backup",
        handler=back_up,
        summary="Make a backup",
        tag="admin",
        body={JSON: BackupRequest},
        body_required=True,
        answers={200: {JSON: Backup}},
        errors=(InvalidNameError, ConflictError),
    ),
    Operation(
        method="GET",
        path=ADMIN_PATH + "/backup",
        handler=backups,
        summary="The backups that there are",
        tag="admin",
        answers={200: {JSON: list[Backup]}},
    ),
)
