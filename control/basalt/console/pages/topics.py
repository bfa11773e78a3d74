"""The topics: their list, and one topic with all that is known of it."""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.api.bodies.topics import TopicDescription
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, flag

route = RouteTable("console")


@route("GET", f"{CONSOLE_PATH}/topics", PUBLIC, query=(*PAGE_QUERY, flag("deleted", "show deleted topics, too")))
async def topics(request: Request) -> Response:
    """List the topics."""
    call = Call("GET", "/v1/admin/topics", list[TopicDescription])
    panels = (Panel("topics", "Topics", call, extra={"deleted": request.flag("deleted")}),)
    return await Visit(request).page("Topics", panels)
