"""The settings in force: each with its value, where that came from, what it means, and what it is by default. Secrets are not shown."""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.api.bodies.operations import SettingInfo
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, flag

LIST_PATH = f"{CONSOLE_PATH}/settings"

route = RouteTable("console")


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(*PAGE_QUERY, text_query("q", "only those with this text in key or meaning"), flag("changed", "only those that are not defaults")),
)  # fmt: skip
async def settings(request: Request) -> Response:
    """List the settings."""
    q, changed = (request.text("q") or "").strip(), request.flag("changed")
    call = Call("GET", "/v1/admin/settings", list[SettingInfo])
    panel = Panel("settings", "Settings", call, live=False, extra={"q": q.lower(), "changed": changed})
    return await Visit(request).page("Settings", (panel,), "settings.html", q=q, changed=changed)
