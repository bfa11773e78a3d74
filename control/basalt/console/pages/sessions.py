"""The named sessions: which run holds each, what it has committed, and what is open in it; its deletion."""

from __future__ import annotations

from urllib.parse import quote

from basalt.access import resources
from basalt.access.needs import PUBLIC
from basalt.api.bodies.transactions import DeletedSession, SessionInfo, SessionList
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PAGE_ROWS = 100
LIST_PATH = f"{CONSOLE_PATH}/sessions"
ONE_PATH = LIST_PATH + "/{session}"
SESSIONS = "/v1/transactions/sessions"
SESSION = SESSIONS + "/{session}"

route = RouteTable("console")


@route("GET", LIST_PATH, PUBLIC, query=(*PAGE_QUERY, text_query("after", "the page behind this session")))
async def sessions(request: Request) -> Response:
    """List the sessions."""
    after = request.text("after")
    query = {"limit": str(PAGE_ROWS)} if after is None else {"after": after, "limit": str(PAGE_ROWS)}
    panel = Panel(
        "sessions", "Sessions", Call("GET", SESSIONS, SessionList, query=query), extra={"first": after and LIST_PATH}
    )
    return await Visit(request).page("Sessions", (panel,))


@route("GET", ONE_PATH, PUBLIC, query=PAGE_QUERY)
async def session(request: Request) -> Response:
    """Show a session."""
    visit, name = Visit(request), request.path["session"]
    call = Call("GET", SESSION, SessionInfo, {"session": name})
    panel = Panel(
        "session", "What it is", call, subject=True, extra={"offers": acts.offers(visit, (deletion_of(name),))}
    )
    return await visit.page(f"Session {name}", (panel,))


@route("POST", ONE_PATH + "/delete", PUBLIC, query=(STEP,), body=ACT_BODY)
async def delete(request: Request) -> Response:
    """Delete a session."""
    return await acts.respond(Visit(request), deletion_of(request.path["session"]))


def deletion_of(name: str) -> Act:
    """The act that forgets a session."""
    return Act(
        "delete", "Delete", f"{LIST_PATH}/{quote(name, safe='')}", Call("DELETE", SESSION, DeletedSession, {"session": name}),
        "manage", resources.session(name),
        "Ends what is open in it, and forgets it with its version: work that it has committed may be committed again.",
        "deleted_session", name,
    )  # fmt: skip
