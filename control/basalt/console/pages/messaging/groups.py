"""The consumer groups: all of them with how far each is behind, those of a topic, and one with all that is known of it; what may be done to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args
from urllib.parse import quote, urlencode

import msgspec

from basalt.access import resources
from basalt.access.needs import PUBLIC
from basalt.api.bodies import groups as bodies
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.copy_lines import GROUP
from basalt.console.forms import form_of
from basalt.console.history import RANGE, charts_panel, lag_drawings
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PAGE_ROWS = 100
COUNT_MS = 10  # of each time that an open list renews itself
CLAIMS = 50
SLOTS = 50
MESSAGES = 50
CHART_TURNS = 6  # after which charts are drawn anew
LIST_PATH = f"{CONSOLE_PATH}/groups"
OF_TOPIC_PATH = CONSOLE_PATH + "/ns/{namespace}/topics/{topic}/groups"
ONE_PATH = OF_TOPIC_PATH + "/{group}"
MODES = get_args(bodies.GroupMode)
STATES = ("pending", "parked", "delayed", "claimed", "available")
NUMBERS = ("memberMs", "claimMs", "unackedMax", "attemptsMax", "retryDelayMs", "retryDelayMsMax", "expireMs")
MOVES = frozenset(("floor", "spans", "members", "claims", "usedMs"))  # of a group that somebody works for

_FILTERS = {
    "contains": "only those in whose namespace:topic/group this is",
    "namespace": "only of this namespace",
    "mode": "only those of this mode",
    "paused": "true: only those that are paused",
    "sort": "name, lag or age",
}
_AFTER = ("after", "the page behind this one")

route = RouteTable("console")


@route(
    "GET",
    LIST_PATH,
    PUBLIC,
    query=(*PAGE_QUERY, *(text_query(*each) for each in _FILTERS.items()), text_query(*_AFTER)),
)
async def groups(request: Request) -> Response:
    """List the groups of all topics."""
    given = {name: request.text(name) or "" for name in (*_FILTERS, _AFTER[0])}
    panel = _list(LIST_PATH, given, {})
    return await Visit(request).page("Groups", (panel,), "groups.html", given=given, modes=MODES)


@route("GET", OF_TOPIC_PATH, PUBLIC, query=(*PAGE_QUERY, text_query("sort", _FILTERS["sort"]), text_query(*_AFTER)))
async def groups_of_topic(request: Request) -> Response:
    """List the groups of a topic."""
    namespace, topic = request.path["namespace"], request.path["topic"]
    given = {name: request.text(name) or "" for name in ("sort", "after")}
    panel = _list(topic_path(namespace, topic), given, {"topic": f"{namespace}:{topic}"})
    return await Visit(request).page(f"Groups of {namespace}:{topic}", (panel,))


def _list(path: str, given: Mapping[str, str], fixed: Mapping[str, str]) -> Panel:
    asked = {name: value for name, value in given.items() if value}
    query = {**fixed, **asked, "limit": str(PAGE_ROWS), "countMs": str(COUNT_MS)}
    call = Call("GET", "/v1/admin/groups", bodies.ListedGroups, query=query)
    kept = {name: value for name, value in asked.items() if name != "after"}
    sorts = {sort: f"{path}?{urlencode({**kept, 'sort': sort})}" for sort in ("name", "lag", "age")}
    return Panel(
        "groups",
        "Groups",
        call,
        subject=bool(fixed),
        extra={"given": given, "sorts": sorts, "first": f"{path}?{urlencode(kept)}"},
    )


@route(
    "GET", ONE_PATH, PUBLIC,
    query=(*PAGE_QUERY, RANGE, text_query("state", "only messages in this state"), text_query("message", "a message to explain")),
)  # fmt: skip
async def group(request: Request) -> Response:
    """Show a group: how far behind it is and why, who works for it, and on what."""
    visit, names = Visit(request), _names(request)
    state, message = request.text("state") or "", request.text("message") or ""
    shown = {"state": state} if state else {}
    panels = [
        Panel("group", "What it is", Call("GET", GROUP, bodies.GroupInfo, names), subject=True),
        Panel("members", "Who works for it", Call("GET", f"{GROUP}/members", bodies.MemberList, names)),
        Panel("slots", "Slots", Call("GET", f"{GROUP}/slots", bodies.SlotList, names, {"limit": str(SLOTS)})),
        Panel(
            "claims", "What is worked on", Call("GET", f"{GROUP}/claims", bodies.ClaimList, names, {"limit": str(CLAIMS)}),
            extra={"limit": CLAIMS},
        ),
        Panel(
            "group_messages", "Messages that are not acknowledged",
            Call("GET", f"{GROUP}/messages", bodies.GroupMessages, names, {**shown, "limit": str(MESSAGES)}),
            extra={"state": state, "states": STATES, "limit": MESSAGES},
        ),
    ]  # fmt: skip
    drawings = lag_drawings(names["namespace"], names["topic"], names["group"])
    panels.append(
        charts_panel(request, "history", "How far behind it was", *drawings, every=CHART_TURNS, default="24h")
    )
    if message:
        asked = Call("GET", f"{GROUP}/messages/{{message}}", bodies.GroupMessage, {**names, "message": message})
        panels.append(Panel("group_message", "One message", asked))
    page = f"Group {names['group']} of {names['namespace']}:{names['topic']}"
    return await visit.page(
        page, panels, "group.html", modes=MODES, offered=lambda info: acts.offers(visit, acts_on(names, info))
    )


@route("POST", ONE_PATH + "/seek", PUBLIC, query=(STEP,), body=ACT_BODY)
async def seek(request: Request) -> Response:
    """Let a group go on somewhere else."""
    visit, fields = Visit(request), await form_of(request)
    # A time that is told from now on is another one a moment later: the plan is made, and done, for the id that it means now.
    to = fields.get("to", "").strip()
    act = seek_of(_names(request), to)
    if request.text("step") == "plan":
        planned = await visit.ask(act.planned)
        if planned.ok and planned.value.floor != bytes(20):
            act = seek_of(_names(request), behind(planned.value.floor))
    return await acts.respond(visit, act, fields)


@route("POST", ONE_PATH + "/change", PUBLIC, query=(STEP,), body=ACT_BODY)
async def change(request: Request) -> Response:
    """Change a group's options."""
    fields = await form_of(request)
    return await acts.respond(Visit(request), change_of(_names(request), fields), fields)


@route("POST", ONE_PATH + "/pause", PUBLIC, query=(STEP,), body=ACT_BODY)
async def pause(request: Request) -> Response:
    """Pause a group."""
    return await acts.respond(Visit(request), pause_of(_names(request)))


@route("POST", ONE_PATH + "/resume", PUBLIC, query=(STEP,), body=ACT_BODY)
async def resume(request: Request) -> Response:
    """Resume a group."""
    return await acts.respond(Visit(request), resume_of(_names(request)))


@route("POST", ONE_PATH + "/unpark", PUBLIC, query=(STEP,), body=ACT_BODY)
async def unpark(request: Request) -> Response:
    """Deal all parked messages of a group again."""
    return await acts.respond(Visit(request), unpark_of(_names(request)))


@route("POST", ONE_PATH + "/delete", PUBLIC, query=(STEP,), body=ACT_BODY)
async def delete(request: Request) -> Response:
    """Delete a group."""
    return await acts.respond(Visit(request), delete_of(_names(request)))


def acts_on(names: Mapping[str, str], info: bodies.GroupInfo) -> tuple[Act, ...]:
    """The acts that a group takes as it is now."""
    options = {name: "" if value is None else str(value) for name, value in msgspec.to_builtins(info.options).items()}
    first = resume_of(names) if info.paused else pause_of(names)
    is_parked = info.figures is not None and info.figures.parked
    return (
        seek_of(names, "-1h"),
        first,
        *((unpark_of(names),) if is_parked else ()),
        change_of(names, options),
        delete_of(names),
    )


def seek_of(names: Mapping[str, str], to: str) -> Act:
    """The act that lets a group go on at a place."""
    call = Call("POST", f"{GROUP}/seek", bodies.Sought, names, body=bodies.SeekRequest(to))
    return _act(
        "seek", "Seek", names, call, "Messages that it skips are not dealt any more, others are dealt once more; who works on some loses them.",
        "sought", inputs={"to": to}, moving=frozenset(("skipped", "repeated", "exact", "claimsRevoked", "round")),
    )  # fmt: skip


def pause_of(names: Mapping[str, str]) -> Act:
    """The act that deals no more messages."""
    call = Call("POST", f"{GROUP}/pause", bodies.GroupInfo, names)
    return _act(
        "pause", "Pause", names, call, "Deals nothing until it is resumed; what is claimed may be acknowledged.", "paused_group"
    )  # fmt: skip


def resume_of(names: Mapping[str, str]) -> Act:
    """The act that deals messages again."""
    call = Call("POST", f"{GROUP}/resume", bodies.GroupInfo, names)
    return _act("resume", "Resume", names, call, "Deals messages again.", "paused_group")


def unpark_of(names: Mapping[str, str]) -> Act:
    """The act that deals all parked messages again."""
    call = Call("POST", f"{GROUP}/unpark", bodies.Unparked, names, body=bodies.UnparkRequest(all=True))
    return _act(
        "unpark", "Unpark all", names, call, "Deals what is parked again, as if it had never failed.", "unparked",
        moving=frozenset(("unparked", "exact")),
    )  # fmt: skip


def change_of(names: Mapping[str, str], given: Mapping[str, str]) -> Act:
    """The act that gives a group the options of a form. What is no number there is sent as it is: the API says what is wrong with it."""
    read: dict[str, object] = {name: given.get(name, "") for name in ("mode", "key")}
    read |= {name: _number(given.get(name, "")) for name in NUMBERS}
    read["deadLetterTopic"] = given.get("deadLetterTopic") or None
    read["start"] = given.get("start", "") or bodies.DEFAULT_OPTIONS.start
    if not read["expireMs"]:
        del read["expireMs"]  # as it is when it is left out; the command has no word for it
    call = Call("PUT", f"{GROUP}/options", bodies.ChangedGroup, names, body=read)
    inputs = {name: given.get(name, "") for name in ("mode", "key", *NUMBERS, "deadLetterTopic", "start")}
    return _act(
        "change", "Change options", names, call, "They hold from the next message on that is dealt. Change them back to undo it.",
        "changed_group", inputs=inputs, moving=frozenset(("group",)),
    )  # fmt: skip


def delete_of(names: Mapping[str, str]) -> Act:
    """The act that forgets a group."""
    call = Call("DELETE", GROUP, bodies.DeletedGroup, names)
    return _act(
        "delete", "Delete", names, call, "Forgets it, and how far it is. The topic and its messages stay. Nothing brings it back.",
        "deleted_group", typed=names["group"],
    )  # fmt: skip


def _act(
    name: str, title: str, names: Mapping[str, str], call: Call, effect: str, plan: str, typed: str = "",
    inputs: Mapping[str, str] | None = None, moving: frozenset[str] = MOVES,
) -> Act:  # fmt: skip
    resource = resources.group(names["namespace"], names["topic"], names["group"])
    return Act(
        name, title, path_of(names), call, "manage", resource, effect, plan, typed, inputs=inputs or {}, moving=moving
    )  # fmt: skip


def behind(floor: bytes) -> str:
    """The id at which a group goes on that has this floor."""
    return (int.from_bytes(floor, "big") + 1).to_bytes(len(floor), "big").hex()


def topic_path(namespace: str, topic: str) -> str:
    """The path of the page of a topic's groups."""
    return f"{CONSOLE_PATH}/ns/{quote(namespace, safe='')}/topics/{quote(topic, safe='')}/groups"


def path_of(names: Mapping[str, str]) -> str:
    """The path of a group's page."""
    return f"{topic_path(names['namespace'], names['topic'])}/{quote(names['group'], safe='')}"


def _names(request: Request) -> dict[str, str]:
    return {name: request.path[name] for name in ("namespace", "topic", "group")}


def _number(text: str) -> object:
    return int(text) if text.strip().isdecimal() and len(text) < 20 else text
