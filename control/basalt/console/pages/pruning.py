"""Pruning: the invalid list, what is in the way of its writers, and why one of them stays; a run by hand, and what a restore takes back."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.operations import (
    ExplainedWriter,
    InvalidList,
    PrunedWriters,
    PruneRun,
    PruneStatus,
    RestoredWriters,
    RestoreRequest,
)
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.history import RANGE, Drawing, charts_panel
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, redirect, text_query
from basalt.errors import InputError
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PAGE_ROWS = 100  # of the invalid list
HISTORY_ROWS = 20
TIME_DIGITS_MAX = 16  # of milliseconds: 300,000 years
LIST_PATH = f"{CONSOLE_PATH}/pruning"
WHY_PATH = f"{CONSOLE_PATH}/prune"
PRUNE = "/v1/admin/prune"

RUN = Act(
    "run", "Prune now", LIST_PATH, Call("POST", f"{PRUNE}/run", PruneRun), "operate", CLUSTER,
    "Forgets the failed writers of which no row is left, and asks for compactions where files hold back the oldest. Readers see the same before"
    " and after. A writer comes back only with a restore.", "prune_run",
)  # fmt: skip

# As the API has them, which says what is wrong with one: the list shows that in place of writers.
_FILTERS = {"cause": "only those that wait for this first", "after": "the page behind this writer"}

SIZE = Drawing("Invalid list", (("invalid", "Write pointers"),))

route = RouteTable("console")


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(
        *PAGE_QUERY, RANGE, *(text_query(*each) for each in _FILTERS.items()), text_query("pointer", "go to this writer"),
        text_query("since", "offer to take back what was pruned since this time"),
    ),
)  # fmt: skip
async def pruning(request: Request) -> Response:
    """Show the invalid list, and what is in the way of its writers."""
    visit, pointer, since = Visit(request), request.text("pointer"), request.text("since") or ""
    if pointer:
        return redirect(f"{WHY_PATH}/{quote(pointer.strip(), safe='')}")
    given = {name: request.text(name) or "" for name in _FILTERS}
    asked = {name: value for name, value in given.items() if value}
    first = f"{LIST_PATH}?{urlencode({'cause': given['cause']})}" if given["cause"] else LIST_PATH
    since_ms = time_of(since)
    offered = (RUN,) if since_ms is None else (RUN, restore_of(since_ms))
    panels = (
        Panel("status", "How it stands", Call("GET", PRUNE, PruneStatus), "prune_status", extra={"offers": acts.offers(visit, offered)}),
        Panel(
            "invalid", "The invalid list", Call("GET", f"{PRUNE}/invalid", InvalidList, query={**asked, "limit": str(PAGE_ROWS)}),
            live=False, extra={"given": given, "first": first},  # who reads rows does not want them to move
        ),
        Panel(
            "pruned", "What was pruned", Call("GET", f"{PRUNE}/history", list[PrunedWriters], query={"limit": str(HISTORY_ROWS)}),
            extra={"rows": HISTORY_ROWS},
        ),
        charts_panel(request, "history", "How it went", SIZE),
    )  # fmt: skip
    return await visit.page(
        "Pruning", panels, "pruning.html", given=given, since=since, is_time=not since or since_ms is not None
    )


@route("GET", WHY_PATH + "/{pointer}", PUBLIC, query=PAGE_QUERY)
async def why(request: Request) -> Response:
    """Tell why a writer stays on the invalid list."""
    visit, pointer = Visit(request), request.path["pointer"]
    call = Call("GET", f"{PRUNE}/explain", list[ExplainedWriter], query={"writePointer": pointer, "limit": "1"})
    panel = Panel("explained", "What is in its way", call, subject=True, extra={"offers": acts.offers(visit, (RUN,))})
    return await visit.page(f"Why does {pointer} stay?", (panel,))


@route("POST", RUN.path, PUBLIC, query=(STEP,), body=ACT_BODY)
async def run(request: Request) -> Response:
    """Prune by hand."""
    return await acts.respond(Visit(request), RUN)


@route("POST", LIST_PATH + "/since/{since}/restore", PUBLIC, query=(STEP,), body=ACT_BODY)
async def restore(request: Request) -> Response:
    """Take back what was pruned since a time."""
    since_ms = time_of(request.path["since"])
    if since_ms is None:
        raise InputError("the path names no time", field="path", hint="Go there from the page of pruning.")
    return await acts.respond(Visit(request), restore_of(since_ms))


def restore_of(since_ms: int) -> Act:
    """The act that makes writers invalid again that were pruned since."""
    return Act(
        "restore", "Take back what was pruned since", LIST_PATH,
        Call("POST", f"{PRUNE}/restore", RestoredWriters, body=RestoreRequest(since_ms)), "operate", CLUSTER,
        "Puts every writer that was pruned since the time of the copy, and an hour before, back on the invalid list: for after tables were"
        " restored from that copy.", "restored", below=f"since/{since_ms}",
    )  # fmt: skip


def time_of(text: str) -> int | None:
    """The time, in ms since 1970, that a text names as such or as a date and time (of UTC, where it names no zone); None: it names none."""
    given = text.strip().removeprefix("@")
    if given.isascii() and given.isdigit():
        return int(given) if len(given) <= TIME_DIGITS_MAX else None
    try:
        at = datetime.fromisoformat(given)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        return None
