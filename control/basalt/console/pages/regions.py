"""The regions of a store on HBase: what each certifies, what it holds back, its files; compactions by hand."""

from __future__ import annotations

from urllib.parse import quote

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.operations import (
    CompactionRequest,
    Compactions,
    ManagerSnapshotInfo,
    RegionDetail,
    RegionInfo,
)
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, integer

PAGE_ROWS = 200  # the call answers all, which costs no more
SKIPPED_MAX = 1_000_000  # regions before a page: more than HBase has
LIST_PATH = f"{CONSOLE_PATH}/regions"
REGIONS = "/v1/admin/prune/regions"
COMPACT = "/v1/admin/prune/compact"
SHOWN = {"": "all", "blocking": "that hold writers back", "idle": "whose report vouches for nothing"}
MEANINGS = {"no_regions": "no_regions"}
EFFECT = "Has HBase write all files of a region anew, soon: what failed writers left in them goes, and what they hold back is free."

route = RouteTable("console")


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(*PAGE_QUERY, text_query("show", "which: blocking or idle; all without it"), integer("skip", 0, SKIPPED_MAX, "regions before the page")),
)  # fmt: skip
async def regions(request: Request) -> Response:
    """List the regions, those first that hold back the oldest writers."""
    visit, show, skip = Visit(request), request.text("show") or "", request.integer("skip") or 0
    call = Call("GET", REGIONS, list[RegionInfo], query={"show": show} if show else {})
    extra = {"skip": skip, "rows": PAGE_ROWS, "show": show, "offers": acts.offers(visit, (OLDEST,))}
    panels = (
        Panel("regions", "Regions", call, live=False, extra=extra, meanings=MEANINGS),
        Panel("published", "What region servers are told", Call("GET", "/v1/admin/snapshot", ManagerSnapshotInfo)),
    )
    return await visit.page("Regions", panels, "regions.html", show=show, choices=SHOWN)


@route("POST", LIST_PATH + "/compact", PUBLIC, query=(STEP,), body=ACT_BODY)
async def compact_oldest(request: Request) -> Response:
    """Compact the regions that hold back the oldest writers."""
    return await acts.respond(Visit(request), OLDEST)


@route("GET", LIST_PATH + "/{region}", PUBLIC, query=PAGE_QUERY)
async def region(request: Request) -> Response:
    """Show a region with its files."""
    visit, name = Visit(request), request.path["region"]
    call = Call("GET", REGIONS + "/{region}", RegionDetail, {"region": name})
    extra = {"offers": acts.offers(visit, (compaction_of(name),))}
    panel = Panel("region", "What it reported", call, subject=True, extra=extra)
    return await visit.page(f"Region {name}", (panel,))


@route("POST", LIST_PATH + "/{region}/compact", PUBLIC, query=(STEP,), body=ACT_BODY)
async def compact(request: Request) -> Response:
    """Compact a region."""
    return await acts.respond(Visit(request), compaction_of(request.path["region"]))


def compaction_of(name: str) -> Act:
    """The act that has a region compacted."""
    call = Call("POST", COMPACT, Compactions, body=CompactionRequest((name,)))
    page = f"{LIST_PATH}/{quote(name, safe='')}"
    return Act("compact", "Compact it", page, call, "operate", CLUSTER, EFFECT, "compactions")


OLDEST = Act(
    "compact", "Compact those that hold back the oldest", LIST_PATH, Call("POST", COMPACT, Compactions, body=CompactionRequest()),
    "operate", CLUSTER, EFFECT, "compactions",
)  # fmt: skip
