"""Who comes in and what they may do: a right asked for, principals that were seen, what was refused, roles, and quotas."""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.access.resources import KINDS
from basalt.api.bodies.access import (
    Identity,
    RefusalInfo,
    RightAnswer,
    RightRequest,
    RoleInfo,
    SeenPrincipal,
    SubjectQuota,
)
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

LIST_ROWS = 100  # of those that were seen, and of refusals
SHOWN_ROWS = 200  # of roles and of quotas: the rest is counted
ACCESS_PATH = f"{CONSOLE_PATH}/access"
VERBS = tuple(sorted({verb for kind in KINDS.values() for verb in kind.verbs}))

route = RouteTable("console")


@route(
    "GET", ACCESS_PATH, PUBLIC,
    query=(
        *PAGE_QUERY, text_query("principal", "whose right is asked for; oneself by default"), text_query("verb", "the right that is asked for"),
        text_query("resource", "what it is on"),
    ),
)  # fmt: skip
async def access(request: Request) -> Response:
    """Show who comes in and what they may do."""
    given = {name: (request.text(name) or "").strip() for name in ("principal", "verb", "resource")}
    visit, limit = Visit(request), {"limit": str(LIST_ROWS)}
    rows = {"rows": SHOWN_ROWS}
    panels = [
        Panel("whoami", "Who you are", Call("GET", "/v1/auth/whoami", Identity), live=False),
        Panel("seen", "Who called since the server started", Call("GET", "/v1/admin/principals", list[SeenPrincipal], query=limit)),
        Panel("refusals", refused_title(visit), Call("GET", "/v1/admin/refusals", list[RefusalInfo], query=limit)),
        Panel("roles", "Roles", Call("GET", "/v1/admin/roles", list[RoleInfo]), live=False, extra=rows),
        Panel("quotas", "Quotas of their own", Call("GET", "/v1/admin/quotas", list[SubjectQuota]), live=False, extra=rows),
    ]  # fmt: skip
    if given["verb"] and given["resource"]:
        asked = RightRequest(given["verb"], given["resource"], given["principal"])
        call = Call("POST", "/v1/auth/check", RightAnswer, body=asked)
        panels.insert(0, Panel("check", "May they?", call, live=False))
    return await visit.page("Access", panels, "access.html", given=given, verbs=VERBS)


def refused_title(visit: Visit) -> str:
    """The title of the list of refusals, which are none where rights are not enforced yet."""
    return "What was refused" if visit.settings.auth.enforce else "What would be refused, once auth.enforce is true"
