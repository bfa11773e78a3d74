"""The tokens: who has which, and when each was used; one that is made, takes another's place, or is revoked.

A new token is in the page that answers its form, once: in no other page, no path, no line of a log or the audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.access import NewToken, Rights, RotateRequest, TokenInfo, TokenRequest
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.forms import form_of, whole_number
from basalt.console.page import PAGE_QUERY, Panel, Visit, text_query
from basalt.console.pages.access.rights import ACCESS_PATH
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, flag

PAGE_ROWS = 100
LIST_PATH = f"{ACCESS_PATH}/tokens"
MAKE_PATH = f"{LIST_PATH}/make"
ONE_PATH = LIST_PATH + "/{token}"
TOKENS = "/v1/admin/tokens"
TOKEN = TOKENS + "/{token}"
DAY_MS = 86_400_000
NEVER = "never"
LASTS = {"1 day": DAY_MS, "7 days": 7 * DAY_MS, "30 days": 30 * DAY_MS, "90 days": 90 * DAY_MS, "a year": 365 * DAY_MS}
OVERLAPS = {"none: it ends at once": 0, "an hour": DAY_MS // 24, "a day": DAY_MS, "7 days": 7 * DAY_MS}
INPUTS = ("name", "ttlMs", "only", "networks", "note")
# What says something else each second, and is no other token by that.
MOVING = frozenset(("createdMs", "expiresMs", "usedMs", "usedFrom"))

route = RouteTable("console")


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(
        *PAGE_QUERY, text_query("principal", "only those of this principal"), flag("all", "those that are over, and logins, too"),
        text_query("after", "the page behind this id"),
    ),
)  # fmt: skip
async def tokens(request: Request) -> Response:
    """List the tokens."""
    visit, everything = Visit(request), request.flag("all")
    given = {name: (request.text(name) or "").strip() for name in ("principal", "after")}
    asked = {name: value for name, value in given.items() if value}
    filters = {"principal": given["principal"]} if given["principal"] else {}
    first = f"{LIST_PATH}?{urlencode({**filters, **({'all': 'true'} if everything else {})})}"
    query = {**({} if everything else {"active": "true"}), **asked, "limit": str(PAGE_ROWS)}
    extra = {"first": first, "given": given, "rows": PAGE_ROWS}
    panel = Panel("tokens", "Tokens", Call("GET", TOKENS, list[TokenInfo], query=query), extra=extra)
    return await visit.page(
        "Tokens", (panel,), "tokens.html", given=given, everything=everything, offer=acts.offer(visit, making({})), lasts=LASTS,
        never=NEVER,
    )  # fmt: skip


# Before the page of one token, which has as many parts.
@route("POST", MAKE_PATH, PUBLIC, query=(STEP,), body=ACT_BODY)
async def make(request: Request) -> Response:
    """Make a token, and show it."""
    fields = await form_of(request)
    return await acts.respond(Visit(request), making(fields), fields)


@route("GET", ONE_PATH, PUBLIC, query=PAGE_QUERY)
async def token(request: Request) -> Response:
    """Show a token, without its secret."""
    visit, token_id = Visit(request), request.path["token"]
    revoking = revocation_of(token_id)
    extra = {
        "offers": acts.offers(visit, (revoking,)),
        # One's own takes no right.
        "own": str(visit.request.caller.principal),
        "own_offers": (acts.Offer(revoking, acts.READ_ONLY if visit.settings.console.read_only else ""),),
        "rotate": acts.offer(visit, rotation_of(token_id, {})),
        "overlaps": OVERLAPS,
    }
    call = Call("GET", TOKEN, TokenInfo, {"token": token_id})
    panel = Panel("token", "What it is", call, subject=True, live=False, extra=extra)
    return await visit.page(f"Token {token_id}", (panel,))


@route("POST", ONE_PATH + "/rotate", PUBLIC, query=(STEP,), body=ACT_BODY)
async def rotate(request: Request) -> Response:
    """Have a new token take another one's place, and show it."""
    fields = await form_of(request)
    return await acts.respond(Visit(request), rotation_of(request.path["token"], fields), fields)


@route("POST", ONE_PATH + "/revoke", PUBLIC, query=(STEP,), body=ACT_BODY)
async def revoke(request: Request) -> Response:
    """Revoke a token."""
    return await acts.respond(Visit(request), revocation_of(request.path["token"]))


def making(fields: Mapping[str, str]) -> Act:
    """The act that makes a token of what a form says."""
    inputs = {name: fields.get(name, "").strip() for name in INPUTS}
    lasts = inputs["ttlMs"] or str(LASTS["90 days"])
    only = tuple(map(_rights, filter(None, map(str.strip, inputs["only"].splitlines()))))
    asked = TokenRequest(
        inputs["name"], None if lasts == NEVER else whole_number(lasts, "ttlMs"), only or None,
        tuple(inputs["networks"].replace(",", " ").split()), inputs["note"],
    )  # fmt: skip
    return Act(
        "make", "Make a token", LIST_PATH, Call("POST", TOKENS, NewToken, body=asked), "grant", CLUSTER,
        "Makes a key of token:NAME, with what is granted to that name, and nothing without a grant.", "token_made", inputs=inputs,
        moving=MOVING,
    )  # fmt: skip


def rotation_of(token_id: str, fields: Mapping[str, str]) -> Act:
    """The act that has a new token take this one's place."""
    overlap = fields.get("overlapMs", "") or str(DAY_MS)
    call = Call(
        "POST", TOKEN + "/rotate", NewToken, {"token": token_id}, body=RotateRequest(whole_number(overlap, "overlapMs"))
    )
    return Act(
        "rotate", "Rotate", path_of(token_id), call, "grant", CLUSTER,
        "Makes a token with the same rights and for as long. This one goes on for a while beside it, and ends then.", "token_made",
        inputs={"overlapMs": overlap}, moving=MOVING,
    )  # fmt: skip


def revocation_of(token_id: str) -> Act:
    """The act after which a token counts no more."""
    return Act(
        "revoke", "Revoke", path_of(token_id), Call("DELETE", TOKEN, TokenInfo, {"token": token_id}), "grant", CLUSTER,
        "It counts no more, nor do the logins that were made with it. Nothing brings it back.", "token_revoked", token_id, moving=MOVING,
    )  # fmt: skip


def path_of(token_id: str) -> str:
    """The path of a token's page."""
    return f"{LIST_PATH}/{quote(token_id, safe='')}"


def _rights(line: str) -> Rights:
    verbs, _, resource = line.partition(" ")
    return Rights(tuple(verbs.split(",")), resource.strip())
