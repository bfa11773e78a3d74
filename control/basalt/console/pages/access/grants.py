"""The grants: who has which rights by them, and who used each last; one that is added, with who gains what, or taken back, with who loses what."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote, urlencode

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER, parse_resource
from basalt.api.bodies.access import GrantInfo, GrantRequest
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act, Offer
from basalt.console.call import Call
from basalt.console.forms import form_of
from basalt.console.page import PAGE_QUERY, Panel, Visit, text_query
from basalt.console.pages.access.rights import ACCESS_PATH, VERBS
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, form_field, integer

PAGE_ROWS = 100
UNUSED_DAYS_MAX = 3_660
LIST_PATH = f"{ACCESS_PATH}/grants"
ADD_PATH = f"{LIST_PATH}/add"
GRANTS = "/v1/admin/grants"
MOVING = frozenset(("createdMs", "usedMs", "usedBy"))

route = RouteTable("console")


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(
        *PAGE_QUERY, text_query("subject", "only those to this subject itself"),
        form_field(integer("unusedDays", 1, UNUSED_DAYS_MAX, "only those that nobody needed for so many days")),
        text_query("after", "the page behind this id"),
    ),
)  # fmt: skip
async def grants(request: Request) -> Response:
    """List the grants."""
    visit, days = Visit(request), request.integer("unusedDays")
    given = {"subject": (request.text("subject") or "").strip(), "unusedDays": "" if days is None else str(days)}
    filters = {name: value for name, value in given.items() if value}
    after = request.text("after") or ""
    query = {**filters, **({"after": after} if after else {}), "limit": str(PAGE_ROWS)}
    extra = {
        "first": f"{LIST_PATH}?{urlencode(filters)}",
        "after": after,
        "rows": PAGE_ROWS,
        "path": LIST_PATH,
        "may_take_back": functools.partial(_may_take_back, visit),
        "read_only": acts.READ_ONLY if visit.settings.console.read_only else "",
    }
    panel = Panel("grants", "Grants", Call("GET", GRANTS, list[GrantInfo], query=query), extra=extra)
    return await visit.page(
        "Grants", (panel,), "grants.html", given=given, offer=_offer(visit), verbs=VERBS, days_max=UNUSED_DAYS_MAX
    )


@route("POST", ADD_PATH, PUBLIC, query=(STEP,), body=ACT_BODY)
async def add(request: Request) -> Response:
    """Give rights."""
    fields = await form_of(request)
    return await acts.respond(Visit(request), addition(fields), fields)


@route("POST", LIST_PATH + "/{grant}/remove", PUBLIC, query=(STEP,), body=ACT_BODY)
async def remove(request: Request) -> Response:
    """Take rights back."""
    return await acts.respond(Visit(request), removal_of(request.path["grant"]))


def addition(fields: Mapping[str, str]) -> Act:
    """The act that gives what a form says."""
    inputs = {name: fields.get(name, "").strip() for name in ("subject", "verbs", "resource")}
    verbs = tuple(dict.fromkeys(inputs["verbs"].replace(",", " ").split()))
    call = Call("POST", GRANTS, GrantInfo, body=GrantRequest(inputs["subject"], verbs, inputs["resource"]))
    return Act(
        "add", "Give rights", LIST_PATH, call, "grant", CLUSTER, "Grants only allow, and add up; taking this one back undoes it.",
        "grant_changed", inputs=inputs, moving=MOVING,
    )  # fmt: skip


def removal_of(grant_id: str) -> Act:
    """The act that takes a grant back."""
    return Act(
        "remove", "Take back", LIST_PATH, Call("DELETE", GRANTS + "/{grant}", GrantInfo, {"grant": grant_id}), "grant", CLUSTER,
        "Whoever has a right by nothing else has it no more, from the next call on.", "grant_changed", moving=MOVING,
        sent_to=f"{LIST_PATH}/{quote(grant_id, safe='')}/remove",
    )  # fmt: skip


def _may_take_back(visit: Visit, grant: GrantInfo) -> bool:
    if visit.settings.console.read_only:
        return False
    return visit.may("grant", parse_resource(grant.resource)) or visit.may("grant", CLUSTER)


def _offer(visit: Visit) -> Offer:
    """The act, for who may give rights on the cluster, or on anything: on what, the call is to say."""
    offered, caller = acts.offer(visit, addition({})), visit.request.caller
    gives = caller.policy is not None and caller.policy.may_give_somewhere(caller.principal)
    return replace(offered, missing="", grant="") if gives and not visit.settings.console.read_only else offered
