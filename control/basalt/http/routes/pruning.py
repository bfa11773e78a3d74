"""The calls about pruning: its status, what is in the way, run it; and the snapshot that region servers read."""

from __future__ import annotations

from basalt.access.needs import needs
from basalt.api.bodies import operations as bodies
from basalt.errors import ConflictError, InputError, NoRegionsError, NotFoundError, StoreError
from basalt.http.routes.route_table import (
    ADMIN_PATH,
    AS,
    CLUSTER,
    DRY_RUN,
    REASON,
    Request,
    RouteTable,
    choice,
    integer,
)
from basalt.pruning.rule import Cause
from basalt_engine.keys import MILLISECONDS_MAX
from basalt_engine.snapshot import POINTER_MAX

EXPLAINED_DEFAULT, EXPLAINED_MAX = 10, 1_000  # each costs a look at every file of every region
HISTORY_DEFAULT, HISTORY_MAX = 50, 10_000
INVALID_DEFAULT, INVALID_MAX = 100, 10_000  # writers of a page: some 1.5 MB of JSON at most
CAUSES = tuple(cause.value for cause in Cause)
_PRUNE = ADMIN_PATH + "/prune"

_OLDEST = bodies.CompactionRequest()

route = RouteTable("pruning")


@route("GET", _PRUNE, needs("observe", CLUSTER))
async def status(request: Request) -> bodies.PruneStatus:
    """The state of pruning."""
    return await request.services.prune_reports.status()


@route("POST", _PRUNE + "/run", needs("operate", CLUSTER), query=(DRY_RUN, REASON, AS))
async def run(request: Request) -> bodies.PruneRun:
    """Prune now."""
    return await request.services.prune_reports.run(request.act, dry_run=request.flag("dryRun"))


@route(
    "GET",
    _PRUNE + "/explain",
    needs("observe", CLUSTER),
    query=(
        integer("writePointer", 1, POINTER_MAX, "only of this one"),
        integer("limit", 1, EXPLAINED_MAX, "most writers to answer"),
    ),
    errors=(NotFoundError,),
)
async def explain(request: Request) -> list[bodies.ExplainedWriter]:
    """List the causes that keep writers on the invalid list."""
    limit = request.integer("limit") or EXPLAINED_DEFAULT
    return await request.services.prune_reports.explain(request.integer("writePointer"), limit)


@route(
    "GET",
    _PRUNE + "/invalid",
    needs("observe", CLUSTER),
    query=(
        integer("after", 0, POINTER_MAX, "the page behind this writer"),
        integer("limit", 1, INVALID_MAX, f"most writers to answer; {INVALID_DEFAULT} by default"),
        choice("cause", CAUSES, "only those that wait for this first"),
    ),
)
async def invalid(request: Request) -> bodies.InvalidList:
    """List the writers on the invalid list, oldest first."""
    after, limit = request.integer("after") or 0, request.integer("limit") or INVALID_DEFAULT
    return await request.services.prune_reports.invalid(after, limit, request.text("cause"))


@route(
    "GET",
    _PRUNE + "/regions",
    needs("observe", CLUSTER),
    query=(choice("show", ("all", "blocking", "idle"), "which; all when it is left out"),),
    errors=(NoRegionsError,),
)
async def regions(request: Request) -> list[bodies.RegionInfo]:
    """The regions, with what each holds back."""
    return await request.services.prune_reports.regions(request.text("show"))


@route("GET", _PRUNE + "/regions/{region}", needs("observe", CLUSTER), errors=(NoRegionsError, NotFoundError))
async def region(request: Request) -> bodies.RegionDetail:
    """A region, with its files."""
    return await request.services.prune_reports.region(request.path["region"])


@route(
    "POST",
    _PRUNE + "/compact",
    needs("operate", CLUSTER),
    query=(DRY_RUN, REASON, AS),
    errors=(NoRegionsError, NotFoundError, StoreError),
)
async def compact(request: Request, asked: bodies.CompactionRequest = _OLDEST) -> bodies.Compactions:
    """Ask for major compactions of regions, so that their files hold no writers back."""
    return await request.services.prune_reports.compact(asked.regions, request.act, dry_run=request.flag("dryRun"))


@route(
    "GET",
    _PRUNE + "/history",
    needs("observe", CLUSTER),
    query=(integer("limit", 1, HISTORY_MAX, "most entries to answer"),),
)
async def history(request: Request) -> list[bodies.PrunedWriters]:
    """List the writers that were pruned, newest first."""
    return await request.services.prune_reports.history(request.integer("limit") or HISTORY_DEFAULT)


@route("POST", _PRUNE + "/restore", needs("operate", CLUSTER), query=(DRY_RUN, REASON, AS), errors=(ConflictError,))
async def restore(request: Request, asked: bodies.RestoreRequest) -> bodies.RestoredWriters:
    """Make pruned writers invalid again, after a table was restored."""
    if not 0 <= asked.since_ms <= MILLISECONDS_MAX:
        raise InputError("sinceMs is not a time", field="sinceMs", hint="give milliseconds since 1970")
    dry_run = request.flag("dryRun")
    return await request.services.prune_reports.restore(asked.since_ms, request.act, dry_run=dry_run)


@route("POST", ADMIN_PATH + "/snapshot/publish", needs("operate", CLUSTER), errors=(NoRegionsError,))
async def publish(request: Request) -> bodies.PublishedSnapshot:
    """Publish the snapshot for the region servers now."""
    return await request.services.prune_reports.publish()
