"""The calls about pruning: how it stands, what is in the way, run it; and the snapshot that region servers read."""

from __future__ import annotations

import asyncio
from itertools import islice

from basalt.api.bodies.pruning import (
    ExplainedWriter,
    PrunedWriters,
    PruneRun,
    PruneStatus,
    PublishedSnapshot,
    RegionDetail,
    RegionInfo,
    RestoredWriters,
    RestoreRequest,
)
from basalt.errors import ConflictError, InputError, NotFoundError, UnavailableError
from basalt.http.asgi.json_input import decode_json, read_no_members
from basalt.http.asgi.request_bodies import content_type, read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.admin import ADMIN_PATH
from basalt.http.routes.authors import AS, REASON, author_of, reason_of
from basalt.http.routes.operations import Operation, choice, flag, integer
from basalt.http.routes.prune_shapes import (
    archived_shown,
    explained_shown,
    published_shown,
    region_detail_shown,
    regions_shown,
    run_shown,
    status_shown,
)
from basalt.http.routes.schemas import EMPTY_BODY
from basalt.pruning.prune import PruneResult
from basalt.pruning.rule import Certificates
from basalt.pruning.state import archived
from basalt.pruning.survey import Survey
from basalt.runtime.store_calls import StoreCalls
from basalt_engine.keys import MILLISECONDS_MAX
from basalt_engine.snapshot import POINTER_MAX

EXPLAINED_DEFAULT, EXPLAINED_MAX = 10, 1_000  # each costs a look at every file of every region
HISTORY_DEFAULT, HISTORY_MAX = 50, 10_000


async def status(request: Request) -> Answer:
    """How pruning stands."""
    pruner = request.services.pruner
    survey = await pruner.survey()
    return json_answer(await asyncio.to_thread(status_shown, survey, pruner.last))


async def run(request: Request) -> Answer:
    """Prune now."""
    await read_no_members(request)
    services = request.services
    if request.query.get("dryRun"):
        return json_answer(run_shown(await services.pruner.run(dry_run=True)))

    async def do() -> PruneResult:
        done = await services.scheduler.run_now("prune")  # so that it is in the job's history, and no two run at a time
        result = services.pruner.last
        if done.outcome != "ok" or result is None:
            raise UnavailableError(f"the prune run {done.outcome}: {done.error}", hint="see `basalt job history prune`")
        return result

    result = await services.audit.act(
        "prune", "the invalid list", author_of(request), reason_of(request), request.id, do,
        lambda result: f"{len(result.pruned)} writers forgotten",
    )  # fmt: skip
    return json_answer(run_shown(result))


async def explain(request: Request) -> Answer:
    """What is in the way of one writer, or of the oldest ones that something is in the way of."""
    survey = await request.services.pruner.survey()
    wanted = request.integer("writePointer")
    if wanted is not None and wanted not in survey.moment.view.invalid:
        raise NotFoundError(
            f"write pointer {wanted} is not in the invalid list",
            field="writePointer",
            hint="it was pruned, has not failed, or never was: see `basalt prune history` and `basalt tx show`",
        )
    limit = request.integer("limit") or EXPLAINED_DEFAULT
    return json_answer(await asyncio.to_thread(_explained, survey, wanted, limit))


async def regions(request: Request) -> Answer:
    """The regions, with what each holds back."""
    survey = await request.services.pruner.survey()
    shown = await asyncio.to_thread(regions_shown, _regions_of(survey), survey.invalid)
    which = request.query.get("show")
    if which == "blocking":
        shown = [region for region in shown if region.held_back]
    elif which == "idle":
        shown = [region for region in shown if region.idle is not None]
    return json_answer(shown)


async def region(request: Request) -> Answer:
    """One region with its files."""
    survey = await request.services.pruner.survey()
    return json_answer(region_detail_shown(_regions_of(survey), survey.invalid, request.path["region"]))


async def history(request: Request) -> Answer:
    """What was pruned, newest first."""
    services = request.services
    limit = request.integer("limit") or HISTORY_DEFAULT
    entries = await StoreCalls(services.store)(
        lambda: list(islice(archived(services.system, newest_first=True), limit))
    )
    return json_answer([archived_shown(entry) for entry in entries])


async def restore(request: Request) -> Answer:
    """Make writers invalid again that were pruned since the time of a copy."""
    content_type(request, (JSON,))
    wanted = decode_json(await read_body(request), RestoreRequest)
    if not 0 <= wanted.since_ms <= MILLISECONDS_MAX:
        raise InputError("sinceMs is not a time", field="sinceMs", hint="give milliseconds since 1970")
    services = request.services
    if request.query.get("dryRun"):
        return json_answer(RestoredWriters(await services.pruner.restore(wanted.since_ms, dry_run=True), dry_run=True))
    count = await services.audit.act(
        "restore", f"writers pruned since {wanted.since_ms} ms", author_of(request), reason_of(request), request.id,
        lambda: services.pruner.restore(wanted.since_ms), lambda count: f"{count} writers invalid again",
    )  # fmt: skip
    services.ranges.forget_all()  # it goes by who had failed
    return json_answer(RestoredWriters(count, dry_run=False))


async def publish(request: Request) -> Answer:
    """Publish the snapshot for the region servers now."""
    await read_no_members(request)
    publisher = request.services.pruner.publisher
    if publisher is None:
        raise ConflictError(
            f"the store {request.services.store.kind} has no region servers to publish a snapshot for",
            hint="retention goes by the manager's own snapshot here",
        )
    published = await publisher.publish()
    assert published is not None, "only an unchanged one is left out"
    return json_answer(published_shown(published))


def _explained(survey: Survey, wanted: int | None, limit: int) -> list[ExplainedWriter]:
    held = (pointer for pointer in survey.invalid if not survey.certificate.may_go(pointer))
    return [explained_shown(survey, pointer) for pointer in ([wanted] if wanted is not None else islice(held, limit))]


def _regions_of(survey: Survey) -> Certificates:
    if survey.regions is None:
        raise ConflictError("this store has no regions", hint="`basalt prune explain` tells what is in the way here")
    return survey.regions


_PRUNE = ADMIN_PATH + "/prune"
_DRY_RUN = flag("dryRun", "tell what would be done, and do nothing")

OPERATIONS = (
    Operation(
        method="GET",
        path=_PRUNE,
        handler=status,
        summary="How pruning stands",
        tag="pruning",
        answers={200: {JSON: PruneStatus}},
    ),
    Operation(
        method="POST",
        path=_PRUNE + "/run",
        handler=run,
        summary="Prune now",
        tag="pruning",
        query=(_DRY_RUN, REASON, AS),
        body=EMPTY_BODY,
        answers={200: {JSON: PruneRun}},
    ),
    Operation(
        method="GET",
        path=_PRUNE + "/explain",
        handler=explain,
        summary="What is in the way of invalid writers",
        tag="pruning",
        query=(
            integer("writePointer", 1, POINTER_MAX, "only of this one"),
            integer("limit", 1, EXPLAINED_MAX, "most writers to answer"),
        ),
        answers={200: {JSON: list[ExplainedWriter]}},
        errors=(NotFoundError,),
    ),
    Operation(
        method="GET",
        path=_PRUNE + "/regions",
        handler=regions,
        summary="The regions, with what each holds back",
        tag="pruning",
        query=(choice("show", ("all", "blocking", "idle"), "which; all when it is left out"),),
        answers={200: {JSON: list[RegionInfo]}},
        errors=(ConflictError,),
    ),
    Operation(
        method="GET",
        path=_PRUNE + "/regions/{region}",
        handler=region,
        summary="A region, with its files",
        tag="pruning",
        answers={200: {JSON: RegionDetail}},
        errors=(ConflictError, NotFoundError),
    ),
    Operation(
        method="GET",
        path=_PRUNE + "/history",
        handler=history,
        summary="What was pruned, newest first",
        tag="pruning",
        query=(integer("limit", 1, HISTORY_MAX, "most entries to answer"),),
        answers={200: {JSON: list[PrunedWriters]}},
    ),
    Operation(
        method="POST",
        path=_PRUNE + "/restore",
        handler=restore,
        summary="Make pruned writers invalid again, after a table was restored",
        tag="pruning",
        query=(_DRY_RUN, REASON, AS),
        body={JSON: RestoreRequest},
        body_required=True,
        answers={200: {JSON: RestoredWriters}},
        errors=(ConflictError,),
    ),
    Operation(
        method="POST",
        path=ADMIN_PATH + "/snapshot/publish",
        handler=publish,
        summary="Publish the snapshot for the region servers now",
        tag="pruning",
        body=EMPTY_BODY,
        answers={200: {JSON: PublishedSnapshot}},
        errors=(ConflictError,),
    ),
)
