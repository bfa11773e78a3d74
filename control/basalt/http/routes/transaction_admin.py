"""The calls of those who look after transactions: which there are, what they hold back, what happened; end them by hand.

Clients end their own transactions with the calls of `routes.transactions`.
"""

from __future__ import annotations

from basalt.api.bodies.transactions import (
    EndDescription,
    ForcedEnd,
    HangingList,
    InspectedList,
    Timeline,
    TransactionDescription,
)
from basalt.errors import ConflictError, OutsideWritesError, TransactionEndedError, TransactionNotFoundError
from basalt.http.asgi.request_bodies import read_no_members
from basalt.http.asgi.responses import Response, json_response
from basalt.http.routes.operations import (
    AS,
    DRY_RUN,
    MS_MAX,
    REASON,
    Request,
    RouteTable,
    act_by,
    choice,
    flag,
    integer,
    text_query,
    words,
)
from basalt.http.routes.schemas import EMPTY_BODY
from basalt.http.routes.server import ADMIN_PATH
from basalt.http.routes.transactions import TRANSACTION_PATH, id_of
from basalt.operations.inspection import STATES, Filter

_OPERATORS = ADMIN_PATH + "/transactions"
_ONE = _OPERATORS + "/{transaction}"
_STATE = choice("state", tuple(STATES), "only those in this state")
_OWNER = text_query("owner", "only those of this owner")
_OLDER = integer("olderThanMs", 0, MS_MAX, "only those that are open longer than this")
_HANGS = integer("olderThanMs", 0, MS_MAX, "what counts as long; half of its own time-out when it is left out")
_TOPIC = words(
    "topic", "^[A-Za-z0-9_-]{1,255}:[A-Za-z0-9_-]{1,255}$", "only those that write to it, as namespace:topic"
)
_FORCE = flag("force", "abort it though it has writes outside Basalt: they have been undone")

route = RouteTable("admin")


@route("GET", TRANSACTION_PATH + "/timeline", answer=Timeline, errors=(TransactionNotFoundError,), tag="transactions")
async def timeline(request: Request) -> Response:
    """What happened to a transaction, step by step."""
    return json_response(await request.services.inspection.timeline(id_of(request)))


@route("GET", _OPERATORS, query=(_STATE, _OWNER, _OLDER, _TOPIC), answer=InspectedList)
async def listed(request: Request) -> Response:
    """Transactions that have not ended, as operators see them."""
    return json_response(await request.services.inspection.list(_filter(request)))


@route("GET", _OPERATORS + "/hanging", query=(_STATE, _OWNER, _HANGS, _TOPIC), answer=HangingList)
async def hanging(request: Request) -> Response:
    """Transactions that hold readers back or take long, worst first."""
    return json_response(await request.services.inspection.hanging(_filter(request)))


@route("GET", _ONE, answer=(TransactionDescription, EndDescription), errors=(TransactionNotFoundError,))
async def describe(request: Request) -> Response:
    """All there is to know of a transaction."""
    return json_response(await request.services.inspection.describe(id_of(request)))


@route(
    "POST",
    _ONE + "/abort",
    query=(REASON, AS, _FORCE, DRY_RUN),
    body=EMPTY_BODY,
    answer=ForcedEnd,
    errors=(TransactionNotFoundError, TransactionEndedError, OutsideWritesError, ConflictError),
)
async def abort(request: Request) -> Response:
    """Abort a transaction by hand."""
    await read_no_members(request)
    force, dry_run = request.flag("force", False), request.flag("dryRun", False)
    return json_response(
        await request.services.forced_ends.abort(id_of(request), act_by(request), force=force, dry_run=dry_run)
    )


@route(
    "POST",
    _ONE + "/invalidate",
    query=(REASON, AS, DRY_RUN),
    body=EMPTY_BODY,
    answer=ForcedEnd,
    errors=(TransactionNotFoundError, TransactionEndedError),
)
async def invalidate(request: Request) -> Response:
    """Invalidate a transaction by hand."""
    await read_no_members(request)
    dry_run = request.flag("dryRun", False)
    return json_response(
        await request.services.forced_ends.invalidate(id_of(request), act_by(request), dry_run=dry_run)
    )


def _filter(request: Request) -> Filter:
    return Filter(request.text("state"), request.text("owner"), request.integer("olderThanMs"), request.text("topic"))
