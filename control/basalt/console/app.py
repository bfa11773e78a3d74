"""The console's routes, which the server answers beside the API; where there is no page, one that says so, as a browser can show it."""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.console import assets, sign_in, terms
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Visit, login_path, redirect
from basalt.console.pages import (
    audit,
    cluster,
    jobs,
    overview,
    pruning,
    reference,
    regions,
    sessions,
    tables,
    transactions,
)
from basalt.console.pages.access import grants, quotas, rights, roles, tokens
from basalt.console.pages.messaging import groups, live, messages, pipelines, publish, topic, topics
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Operation, Request, RouteTable

PATH_NAMES_MAX = 10  # behind /console, of what is answered as a page that is missing; those of pages have up to eight

missing = RouteTable("console")


async def no_page(request: Request) -> Response:
    """Say that there is no such page."""
    visit = Visit(request)
    if visit.must_sign_in:
        return redirect(login_path(request))
    return visit.html("no_page.html", 404, title="No such page")


for _count in range(1, PATH_NAMES_MAX + 1):
    _names = "".join(f"/{{name{number}}}" for number in range(_count))
    missing("GET", CONSOLE_PATH + _names, PUBLIC, query=PAGE_QUERY)(no_page)

# Routes are tried in this order; what is missing comes last, for it takes every path.
PAGES: tuple[Operation, ...] = tuple(
    operation
    for table in (
        overview.route, groups.route, topics.route, topic.route, messages.route, publish.route, live.route, transactions.route,
        sessions.route, tables.route, pipelines.route, pruning.route, regions.route, jobs.route, cluster.route, audit.route, rights.route,
        tokens.route, grants.route, roles.route, quotas.route, reference.route, sign_in.route, terms.route, assets.route, missing,
    )
    for operation in table.operations
)  # fmt: skip
