"""The overview: whether the server is well, what it does, and what somebody should look at."""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.api.bodies.operations import AuditLine, JobInfo, ManagerSnapshotInfo, Readiness
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit
from basalt.console.pages.transactions import hanging_panel
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

AUDIT_LINES = 10
HANGING_ROWS = 5

route = RouteTable("console")


@route("GET", CONSOLE_PATH, PUBLIC, query=PAGE_QUERY)
async def overview(request: Request) -> Response:
    """Show whether the server is well, and what somebody should look at."""
    panels = (
        Panel("readiness", "Health", Call("GET", "/readyz", Readiness)),
        hanging_panel(HANGING_ROWS),
        Panel("manager", "Transactions", Call("GET", "/v1/admin/snapshot", ManagerSnapshotInfo)),
        Panel("jobs", "Jobs", Call("GET", "/v1/admin/jobs", list[JobInfo])),
        Panel("audit", "Last acts", Call("GET", "/v1/admin/audit", list[AuditLine], query={"limit": str(AUDIT_LINES)})),
    )
    return await Visit(request).page("Overview", panels)
