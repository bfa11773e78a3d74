"""The overview: whether the server is well, what it does, and what somebody should look at.

An open overview asks for each of its panels again and again, so each is a call that costs little, and what changes slowly is asked for
less often.
"""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.api.bodies.groups import ListedGroups
from basalt.api.bodies.operations import (
    AlertList,
    AuditLine,
    JobInfo,
    ManagerSnapshotInfo,
    ProcessInfo,
    Readiness,
    StoreInfo,
)
from basalt.console.call import Call
from basalt.console.history import RANGE, Drawing, charts_panel
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit
from basalt.console.pages.transactions import hanging_panel
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

ALERTS_AGE_MS = 20_000  # the server looks by itself every 15 s
AUDIT_LINES = 10
HANGING_ROWS = 5
GROUPS = 5
COUNT_MS = (
    2  # of each time that the panel of groups renews itself: with a thousand of them each is counted every few minutes
)
# How often panels are renewed, in turns of `console.refresh_ms`.
NOW, SOON, SELDOM = 1, 3, 12

# The panels that stand beside each other where there is room.
ROWS = (
    ("readiness", "alerts"), ("hanging",), ("manager", "worst_groups"), ("history",), ("process", "store", "jobs"), ("audit",),
)  # fmt: skip
DRAWINGS = (
    Drawing(
        "Calls a second", (("publishes_per_s", "Publish"), ("fetches_per_s", "Fetch"), ("commits_per_s", "Commit"))
    ),
    Drawing("Time of a publish", (("publish_p50_s", "Median"), ("publish_p99_s", "99 of 100"))),
    Drawing("Time of a fetch", (("fetch_p50_s", "Median"), ("fetch_p99_s", "99 of 100"))),
    Drawing("Time of a commit", (("commit_p50_s", "Median"), ("commit_p99_s", "99 of 100"))),
)

route = RouteTable("console")


@route("GET", CONSOLE_PATH, PUBLIC, query=(*PAGE_QUERY, RANGE))
async def overview(request: Request) -> Response:
    """Show whether the server is well, and what somebody should look at."""
    worst = {"sort": "age", "limit": str(GROUPS), "countMs": str(COUNT_MS)}
    panels = (
        Panel("readiness", "Health", Call("GET", "/readyz", Readiness), every=SOON),
        Panel("alerts", "Alerts that would fire now", Call("GET", "/v1/admin/alerts", AlertList, query={"ageMs": str(ALERTS_AGE_MS)}), every=SOON),
        hanging_panel(HANGING_ROWS, every=SOON),
        Panel("manager", "Transactions", Call("GET", "/v1/admin/snapshot", ManagerSnapshotInfo), every=NOW),
        Panel("worst_groups", "Groups that are the furthest behind", Call("GET", "/v1/admin/groups", ListedGroups, query=worst), every=SOON),
        charts_panel(request, "history", "How it went", *DRAWINGS, every=SELDOM),
        Panel("process", "The process", Call("GET", "/v1/admin/process", ProcessInfo), "process_short", every=SELDOM),
        Panel("store", "The store", Call("GET", "/v1/admin/store", StoreInfo), "store_size", every=SELDOM),
        Panel("jobs", "Jobs that failed", Call("GET", "/v1/admin/jobs", list[JobInfo]), "failed_jobs", every=SOON),
        Panel(
            "audit", "Last acts", Call("GET", "/v1/admin/audit", list[AuditLine], query={"limit": str(AUDIT_LINES)}), every=SOON
        ),
    )  # fmt: skip
    return await Visit(request).page("Overview", panels, "overview.html", rows=ROWS)
