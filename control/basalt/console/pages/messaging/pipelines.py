"""The pipelines as the server knows them: event time in topics, jobs that commit by name, and steps lined up by who writes what."""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.api.bodies.pipelines import Pipelines
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PAGE_TOPICS = 50
TURNS = 3  # after which the page is renewed: it reads up to 50 topics
TASKS = 20  # of one topic; the rest is counted
LIST_PATH = f"{CONSOLE_PATH}/pipelines"

route = RouteTable("console")


@route("GET", LIST_PATH, PUBLIC, query=(*PAGE_QUERY, text_query("after", "the topics behind this one")))
async def pipelines(request: Request) -> Response:
    """Show pipelines."""
    after = request.text("after")
    query = {"limit": str(PAGE_TOPICS)} if after is None else {"after": after, "limit": str(PAGE_TOPICS)}
    call = Call("GET", "/v1/admin/pipelines", Pipelines, query=query)
    panel = Panel("pipelines", "Pipelines", call, every=TURNS, extra={"first": after and LIST_PATH, "tasks": TASKS})
    return await Visit(request).page("Pipelines", (panel,))
