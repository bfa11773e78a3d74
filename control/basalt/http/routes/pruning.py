"""The calls about pruning: its status, what is in the way, run it; and the snapshot that region servers read."""

from __future__ import annotations

from basalt.api.bodies.operations import (
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
from basalt.errors import ConflictError, InputError, NotFoundError
from basalt.http.asgi.request_bodies import read_json, read_no_members
from basalt.http.asgi.responses import Response, json_response
from basalt.http.routes.operations import AS, DRY_RUN, REASON, Request, RouteTable, act_by, choice, integer
from basalt.http.routes.schemas import EMPTY_BODY
from basalt.http.routes.server import ADMIN_PATH
from basalt_engine.keys import MILLISECONDS_MAX
from basalt_engine.snapshot import POINTER_MAX

EXPLAINED_DEFAULT, EXPLAINED_MAX = 10, 1_000  # each costs a look at every file of every region
HISTORY_DEFAULT, HISTORY_MAX = 50, 10_000
_PRUNE = ADMIN_PATH + "/prune"

route = RouteTable("pruning")


@route("GET", _PRUNE, answer=PruneStatus)
async def status(request: Request) -> Response:
    """The state of pruning."""
    return json_response(await request.services.prune_reports.status())


@route("POST", _PRUNE + "/run", query=(DRY_RUN, REASON, AS), body=EMPTY_BODY, answer=PruneRun)
async def run(request: Request) -> Response:
    """Prune now."""
    await read_no_members(request)
    dry_run = request.flag("dryRun", False)
    return json_response(await request.services.prune_reports.run(act_by(request), dry_run=dry_run))


@route(
    "GET",
    _PRUNE + "/explain",
    query=(
        integer("writePointer", 1, POINTER_MAX, "only of this one"),
        integer("limit", 1, EXPLAINED_MAX, "most writers to answer"),
    ),
    answer=list[ExplainedWriter],
    errors=(NotFoundError,),
)
async def explain(request: Request) -> Response:
    """What is in the way of invalid writers."""
    limit = request.integer("limit") or EXPLAINED_DEFAULT
    return json_response(await request.services.prune_reports.explain(request.integer("writePointer"), limit))


@route(
    "GET",
    _PRUNE + "/regions",
    query=(choice("show", ("all", "blocking", "idle"), "which; all when it is left out"),),
    answer=list[RegionInfo],
    errors=(ConflictError,),
)
async def regions(request: Request) -> Response:
    """The regions, with what each holds back."""
    return json_response(await request.services.prune_reports.regions(request.text("show")))


@route("GET", _PRUNE + "/regions/{region}", answer=RegionDetail, errors=(ConflictError, NotFoundError))
async def region(request: Request) -> Response:
    """A region, with its files."""
    return json_response(await request.services.prune_reports.region(request.path["region"]))


@route(
    "GET",
    _PRUNE + "/history",
    query=(integer("limit", 1, HISTORY_MAX, "most entries to answer"),),
    answer=list[PrunedWriters],
)
async def history(request: Request) -> Response:
    """What was pruned, newest first."""
    return json_response(await request.services.prune_reports.history(request.integer("limit") or HISTORY_DEFAULT))


@route(
    "POST",
    _PRUNE + "/restore",
    query=(DRY_RUN, REASON, AS),
    body=RestoreRequest,
    answer=RestoredWriters,
    errors=(ConflictError,),
)
async def restore(request: Request) -> Response:
    """Make pruned writers invalid again, after a table was restored."""
    wanted = await read_json(request, RestoreRequest)
    if not 0 <= wanted.since_ms <= MILLISECONDS_MAX:
        raise InputError("sinceMs is not a time", field="sinceMs", hint="give milliseconds since 1970")
    dry_run = request.flag("dryRun", False)
    return json_response(
        await request.services.prune_reports.restore(wanted.since_ms, act_by(request), dry_run=dry_run)
    )


@route("POST", ADMIN_PATH + "/snapshot/publish", body=EMPTY_BODY, answer=PublishedSnapshot, errors=(ConflictError,))
async def publish(request: Request) -> Response:
    """Publish the snapshot for the region servers now."""
    await read_no_members(request)
    return json_response(await request.services.prune_reports.publish())
