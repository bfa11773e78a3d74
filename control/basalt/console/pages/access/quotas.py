"""The quotas of one subject: its rule, and of a principal what is in force and what it uses; changed, or removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlencode

from msgspec.structs import fields as members_of

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.access import QuotaDescription, QuotaLimit, QuotaRule, SubjectQuota
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.forms import form_of, whole_number
from basalt.console.page import PAGE_QUERY, Panel, Visit, text_query
from basalt.console.pages.access.rights import ACCESS_PATH
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

ONE_PATH = f"{ACCESS_PATH}/quota"  # ?subject=, for a principal's name may hold anything
QUOTA = "/v1/admin/quotas/{subject}"
MOVING = frozenset(("changedMs",))
OFF: Literal["off"] = "off"
NAMES = {each.name: each.encode_name for each in members_of(QuotaRule)}
_ESCAPES = str.maketrans({"~": "~0", "/": "~1", "\\": "~2"})  # a path holds no slash

route = RouteTable("console")


@route(
    "GET", ONE_PATH, PUBLIC, query=(*PAGE_QUERY, text_query("subject", "a principal, a group, role:NAME or everyone"))
)
async def quota(request: Request) -> Response:
    """Show the quotas of a subject."""
    visit, subject = Visit(request), (request.text("subject") or "").strip() or str(request.caller.principal)
    extra = {
        "offers": acts.offers(visit, (removal_of(subject),)),
        "set": acts.offer(visit, setting({"subject": subject})),
        "names": NAMES,
    }
    call = Call("GET", QUOTA, QuotaDescription, {"subject": subject.translate(_ESCAPES)})
    panel = Panel("quota", "Its quotas", call, subject=True, live=False, extra=extra)
    return await visit.page(f"Quotas of {subject}", (panel,))


@route("POST", ONE_PATH + "/set", PUBLIC, query=(STEP,), body=ACT_BODY)
async def set_rule(request: Request) -> Response:
    """Give a subject a rule."""
    fields = await form_of(request)
    return await acts.respond(Visit(request), setting(fields), fields)


@route("POST", ONE_PATH + "/remove", PUBLIC, query=(STEP,), body=ACT_BODY)
async def remove(request: Request) -> Response:
    """Remove a subject's rule."""
    fields = await form_of(request)
    return await acts.respond(Visit(request), removal_of(fields.get("subject", "")), fields)


def setting(fields: Mapping[str, str]) -> Act:
    """The act that gives a subject the rule that a form says: an empty field says nothing of its quota."""
    subject = fields.get("subject", "").strip()
    inputs = {name: fields.get(name, "").strip() for name in NAMES.values()}
    rule = QuotaRule(**{name: _limit(inputs[encoded], encoded) for name, encoded in NAMES.items()})
    return Act(
        "set", "Set quotas", path_of(subject), Call("PUT", QUOTA, SubjectQuota, _names(subject), body=rule), "operate", CLUSTER,
        "This rule counts from the next call on, in place of the one before.", "quota_changed", inputs={"subject": subject, **inputs},
        moving=MOVING, sent_to=f"{ONE_PATH}/set",
    )  # fmt: skip


def removal_of(subject: str) -> Act:
    """The act that removes a subject's rule."""
    return Act(
        "remove", "Remove", path_of(subject), Call("DELETE", QUOTA, SubjectQuota, _names(subject)), "operate", CLUSTER,
        "What its groups and roles, everyone, or the settings say counts then.", "quota_changed", inputs={"subject": subject}, moving=MOVING,
        sent_to=f"{ONE_PATH}/remove",
    )  # fmt: skip


def path_of(subject: str) -> str:
    """The path of the page of a subject's quotas."""
    return f"{ONE_PATH}?{urlencode({'subject': subject})}"


def _names(subject: str) -> Mapping[str, str]:
    return {"subject": subject.translate(_ESCAPES) or "-"}


def _limit(text: str, name: str) -> QuotaLimit:
    if text == OFF:
        return OFF
    return whole_number(text, name) if text else None
