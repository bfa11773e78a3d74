"""One role: its members, and what they have by it; changed, with who gains or loses what, or removed."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.access import GrantInfo, RoleInfo, RoleRequest
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.forms import form_of
from basalt.console.page import PAGE_QUERY, Panel, Visit, text_query
from basalt.console.pages.access.rights import ACCESS_PATH
from basalt.errors import InputError
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

ONE_PATH = f"{ACCESS_PATH}/role"  # ?name=, for a name may hold anything
ROLE = "/v1/admin/roles/{role}"
GRANT_ROWS = 100
MOVING = frozenset(("changedMs",))

route = RouteTable("console")


@route("GET", ONE_PATH, PUBLIC, query=(*PAGE_QUERY, text_query("name", "the role; none for a new one")))
async def role(request: Request) -> Response:
    """Show a role, or the form for a new one."""
    visit, name = Visit(request), (request.text("name") or "").strip()
    if not name:
        return await visit.page("New role", (), "role.html", offer=acts.offer(visit, setting({})), name="")
    extra = {"offers": acts.offers(visit, (removal_of(name),)), "set": acts.offer(visit, setting({"name": name}))}
    panels = (
        Panel("role", "Its members", Call("GET", ROLE, RoleInfo, {"role": name}), subject=True, live=False, extra=extra),
        Panel(
            "role_grants", "What they have by it",
            Call("GET", "/v1/admin/grants", list[GrantInfo], query={"subject": f"role:{name}", "limit": str(GRANT_ROWS)}), live=False,
            extra={"rows": GRANT_ROWS},
        ),
    )  # fmt: skip
    return await visit.page(f"Role {name}", panels, "role.html", offer=None, name=name)


@route("POST", ONE_PATH + "/set", PUBLIC, query=(STEP,), body=ACT_BODY)
async def set_members(request: Request) -> Response:
    """Make a role, or give it other members."""
    fields = await form_of(request)
    _must_name(fields)
    return await acts.respond(Visit(request), setting(fields), fields)


@route("POST", ONE_PATH + "/remove", PUBLIC, query=(STEP,), body=ACT_BODY)
async def remove(request: Request) -> Response:
    """Remove a role."""
    fields = await form_of(request)
    _must_name(fields)
    return await acts.respond(Visit(request), removal_of(fields["name"]), fields)


def setting(fields: Mapping[str, str]) -> Act:
    """The act that gives a role the members that a form says."""
    name = fields.get("name", "").strip()
    members = tuple(dict.fromkeys(filter(None, map(str.strip, fields.get("members", "").splitlines()))))
    call = Call("PUT", ROLE, RoleInfo, {"role": name or "-"}, body=RoleRequest(members))
    return Act(
        "set", "Set members", path_of(name), call, "grant", CLUSTER, "These are its members from then on, and no others.",
        "role_changed", inputs={"name": name, "members": "\n".join(members)}, moving=MOVING, sent_to=f"{ONE_PATH}/set",
    )  # fmt: skip


def removal_of(name: str) -> Act:
    """The act that removes a role."""
    return Act(
        "remove", "Remove", path_of(name), Call("DELETE", ROLE, RoleInfo, {"role": name or "-"}), "grant", CLUSTER,
        "Its members lose what they have by it. What is granted to it stays granted to a later role of its name.", "role_changed", name,
        inputs={"name": name}, moving=MOVING, sent_to=f"{ONE_PATH}/remove",
    )  # fmt: skip


def path_of(name: str) -> str:
    """The path of a role's page."""
    return f"{ONE_PATH}?{urlencode({'name': name})}" if name else ACCESS_PATH


def _must_name(fields: Mapping[str, str]) -> None:
    if not fields.get("name", "").strip():
        raise InputError("the form names no role", field="name", hint="Go back and name one.")
