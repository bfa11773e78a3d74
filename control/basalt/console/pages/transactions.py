"""The transactions: which are open, which of them somebody should look at, and one with all that is known of it; its end by hand."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.operations import ManagerSnapshotInfo
from basalt.api.bodies.transactions import (
    EndDescription,
    FailedWriters,
    ForcedEnd,
    HangingList,
    InspectedList,
    Timeline,
    TransactionDescription,
)
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.history import RANGE, Drawing, charts_panel
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PAGE_ROWS = 100  # of the list of all
HANGING_ROWS = 20
INVALID_ROWS = 20
ROWS_READ = 5_000  # to tell what is held back, each time that an open page renews itself: some 25 ms
LIST_PATH = f"{CONSOLE_PATH}/transactions"
ONE_PATH = LIST_PATH + "/{transaction}"
STATES = ("open", "committing", "aborting")

# As the API has them, which says what is wrong with one: the list shows that in place of transactions.
_FILTERS = {
    "state": "only those in this state",
    "owner": "only those of this owner",
    "principal": "only those that it began",
    "topic": "only those that write to it, as namespace:topic",
    "olderThanMs": "only those that are open longer than this",
}
_AFTER = "after"
_INVALID_AFTER = "invalidAfter"  # the place in the other list of the page

DRAWINGS = (
    Drawing("Transactions that have not ended", (("open", "Open"), ("hanging", "Hanging"))),
    Drawing("Invalid list", (("invalid", "Write pointers"),)),
    Drawing(
        "Ends",
        (
            ("commits_per_s", "Committed"),
            ("aborts_per_s", "Aborted"),
            ("conflicts_per_s", "Lost a conflict"),
            ("timed_out_per_s", "Time was up"),
        ),
    ),
    Drawing("Time of a commit", (("commit_p50_s", "Median"), ("commit_p99_s", "99 of 100"))),
    Drawing("Age of the oldest", (("oldest_open_s", "That is open"), ("oldest_blocking_s", "For which readers wait"))),
)

route = RouteTable("console")


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(*PAGE_QUERY, RANGE, *(text_query(*each) for each in _FILTERS.items()), text_query(_AFTER, "the page behind this one"),
           text_query(_INVALID_AFTER, "the page of the invalid list behind this one")),
)  # fmt: skip
async def transactions(request: Request) -> Response:
    """List the transactions that have not ended."""
    given = {name: request.text(name) or "" for name in (*_FILTERS, _AFTER)}
    asked = {name: value for name, value in given.items() if value}
    filters = {name: value for name, value in asked.items() if name != _AFTER}
    listed = Call("GET", "/v1/admin/transactions", InspectedList, query={**asked, "limit": str(PAGE_ROWS)})
    first = f"{LIST_PATH}?{urlencode(filters)}"
    panels = (
        hanging_panel(HANGING_ROWS),
        Panel("transactions", "Transactions that have not ended", listed, extra={"first": first, "given": given}),
        _invalid_panel(request.text(_INVALID_AFTER) or "", first),
        Panel("manager", "The manager", Call("GET", "/v1/admin/snapshot", ManagerSnapshotInfo)),
        charts_panel(request, "history", "How it went", *DRAWINGS),
    )
    return await Visit(request).page("Transactions", panels, "transactions.html", given=given, states=STATES)


@route("GET", ONE_PATH, PUBLIC, query=PAGE_QUERY)
async def transaction(request: Request) -> Response:
    """Show all that is known of a transaction."""
    visit, name = Visit(request), request.path["transaction"]
    names = {"transaction": name}
    # Of one that has not ended more is told: that type is tried first.
    kinds = (TransactionDescription, EndDescription)
    panels = (
        Panel(
            "transaction",
            "What it is",
            Call("GET", "/v1/admin/transactions/{transaction}", kinds, names),
            subject=True,
            extra={"offers": acts.offers(visit, (abort_of(name), invalidate_of(name)))},
        ),
        Panel("timeline", "What happened", Call("GET", "/v1/transactions/{transaction}/timeline", Timeline, names)),
    )
    return await visit.page(f"Transaction {name}", panels)


@route("POST", ONE_PATH + "/abort", PUBLIC, query=(STEP,), body=ACT_BODY)
async def abort(request: Request) -> Response:
    """Abort a transaction by hand."""
    return await acts.respond(Visit(request), abort_of(request.path["transaction"]))


@route("POST", ONE_PATH + "/invalidate", PUBLIC, query=(STEP,), body=ACT_BODY)
async def invalidate(request: Request) -> Response:
    """Invalidate a transaction by hand."""
    return await acts.respond(Visit(request), invalidate_of(request.path["transaction"]))


def _invalid_panel(after: str, first: str) -> Panel:
    """The writers whose writes are hidden until they are pruned."""
    query = {**({"after": after} if after else {}), "limit": str(INVALID_ROWS)}
    call = Call("GET", "/v1/admin/transactions/invalid", FailedWriters, query=query)
    return Panel(
        "invalid",
        "Invalid: hidden until they are pruned",
        call,
        "failed_writers",
        extra={"first": first, "after": after},
    )


def hanging_panel(rows: int, every: int = 1) -> Panel:
    """The transactions that hold readers back or take long, worst first."""
    call = Call(
        "GET", "/v1/admin/transactions/hanging", HangingList, query={"limit": str(rows), "rows": str(ROWS_READ)}
    )
    return Panel("hanging", "What holds readers back, or takes long", call, every=every)


def abort_of(name: str) -> Act:
    """The act that ends a transaction of this id, and undoes what it did."""
    return Act(
        "abort", "Abort", path_of(name), Call("POST", "/v1/admin/transactions/{transaction}/abort", ForcedEnd, {"transaction": name}),
        "operate", CLUSTER, "Ends it: what it stored is dropped, what it published is rolled back. Nothing brings it back.", "forced_end",
    )  # fmt: skip


def invalidate_of(name: str) -> Act:
    """The act that hides for good what a transaction of this id wrote."""
    return Act(
        "invalidate", "Invalidate", path_of(name),
        Call("POST", "/v1/admin/transactions/{transaction}/invalidate", ForcedEnd, {"transaction": name}), "operate", CLUSTER,
        "Gives it up: what it wrote is hidden for good, and stays on the invalid list until it is pruned.", "forced_end", name,
    )  # fmt: skip


def path_of(name: str) -> str:
    """The path of a transaction's page."""
    return f"{LIST_PATH}/{quote(name, safe='')}"
