"""One topic: what its properties do, its figures, who reads it, what holds readers back; how it is changed, truncated and deleted."""

from __future__ import annotations

from collections.abc import Mapping

from basalt.access import resources
from basalt.access.needs import PUBLIC
from basalt.api.bodies.groups import GroupList
from basalt.api.bodies.operations import Problem
from basalt.api.bodies.owners import ShardOwner
from basalt.api.bodies.ranges import Holder, MarkersInfo
from basalt.api.bodies.topics import TopicDeletion, TopicDescription, TopicInfo, TopicPlan, TopicStats, TopicTruncation
from basalt.api.positions import parse_position
from basalt.api.topic_properties import GENERATION, PROPERTIES
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Answer, Call
from basalt.console.forms import form_of
from basalt.console.history import RANGE, charts_panel, rate_drawing
from basalt.console.page import PAGE_QUERY, Panel, Visit
from basalt.console.pages.messaging.topics import (
    DESCRIPTION,
    FIELDS,
    ONE_PATH,
    TOPIC,
    labels_of,
    path_of,
    properties_of,
)
from basalt.errors import InputError
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

CHART_TURNS = 6  # of the page's renewals: a chart of ten minutes moves by little in five seconds
GROUP_ROWS = 50  # their own page has all
COUNTS = frozenset(("messages", "bytes", "exact"))  # members of a plan that change while the topic is in use

route = RouteTable("console")


@route("GET", ONE_PATH, PUBLIC, query=(*PAGE_QUERY, RANGE))
async def topic(request: Request) -> Response:
    """Show a topic."""
    visit, names = Visit(request), dict(request.path)
    path = path_of(**names)
    extra = {
        "path": path,
        "properties": PROPERTIES,
        "edit": acts.offer(visit, edit_of(names, {}, {})),
        "truncation": acts.offer(visit, truncation_of(names, {}, 0)),
        "offers": acts.offers(visit, (deletion_of(names),)),
        "labels_of": labels_of,
    }
    few = {"limit": str(GROUP_ROWS), "figures": "true"}
    panels = (
        Panel("stats", "Figures", Call("GET", f"{TOPIC}/stats", TopicStats, names)),
        charts_panel(
            request, "history", "How it went", rate_drawing(names["namespace"], names["topic"]), every=CHART_TURNS,
            meanings={"series_not_found": "no_history"},
        ),
        Panel("holder", "What holds readers back", Call("GET", f"{TOPIC}/holder", Holder, names)),
        Panel("topic_groups", "Groups that read it", Call("GET", f"{TOPIC}/groups", GroupList, names, few), extra={"path": path}),
        Panel("owner", "Who owns it", Call("GET", "/v1/cluster/owners/{namespace}/{topic}", ShardOwner, names)),
        Panel("markers", "Markers of its tasks", Call("GET", f"{TOPIC}/markers", MarkersInfo, names)),
        # Not renewed: it has forms.
        Panel("topic", "What it is", Call("GET", DESCRIPTION, TopicDescription, names), live=False, subject=True, extra=extra),
    )  # fmt: skip
    return await visit.page(f"Topic {names['namespace']}:{names['topic']}", panels, "topic.html", here=path)


@route("POST", ONE_PATH + "/edit", PUBLIC, query=(STEP,), body=ACT_BODY)
async def edit(request: Request) -> Response:
    """Change a topic's properties."""
    visit, names, fields = Visit(request), dict(request.path), await form_of(request)
    found = await visit.ask(Call("GET", DESCRIPTION, TopicDescription, names))
    now = found.value.properties if found.ok else {}
    return await acts.respond(visit, edit_of(names, fields, now), fields)


@route("POST", ONE_PATH + "/truncate", PUBLIC, query=(STEP,), body=ACT_BODY)
async def truncate(request: Request) -> Response:
    """Truncate a topic."""
    visit, names, fields = Visit(request), dict(request.path), await form_of(request)
    try:
        position = parse_position(fields.get("before", "").strip(), visit.now_ms, field="before")
        if position.time_ms is None:
            raise InputError(
                f"{position.text} is not a time", hint="give @2026-01-31T10:00:00Z, @milliseconds, -7d or now"
            )
    except InputError as error:
        act = truncation_of(names, fields, 0)
        told = Problem(code=error.code, detail=error.message, hint=error.hint)
        return visit.html(
            "act_refused.html",
            400,
            title=act.title,
            offer=acts.offer(visit, act),
            answer=Answer(act.planned, 400, problem=told),
        )
    return await acts.respond(visit, truncation_of(names, fields, position.time_ms), fields)


@route("POST", ONE_PATH + "/delete", PUBLIC, query=(STEP,), body=ACT_BODY)
async def delete(request: Request) -> Response:
    """Delete a topic."""
    return await acts.respond(Visit(request), deletion_of(dict(request.path)))


def edit_of(names: Mapping[str, str], fields: Mapping[str, str], now: Mapping[str, str]) -> Act:
    """The act that gives a topic the properties of a form, in place of those that it has now."""
    wanted = properties_of(fields)
    changes: dict[str, str | None] = {name: value for name, value in wanted.items() if now.get(name) != value}
    defaults = {each.name: each.default for each in PROPERTIES}
    gone = (name for name, value in now.items() if name not in wanted and defaults.get(name) != value)
    changes.update((name, None) for name in gone if name != GENERATION)
    call = Call("PATCH", f"{TOPIC}/properties", (TopicPlan, TopicInfo, dict[str, str]), names, body=changes)
    return Act(
        "edit", "Change its properties", path_of(**names), call, "manage", resources.topic(*names.values()),
        "A new time to live holds for old messages at once: those that are over it are gone for good.", "topic_plan",
        inputs={name: value for name, value in fields.items() if name in FIELDS},
    )  # fmt: skip


def truncation_of(names: Mapping[str, str], fields: Mapping[str, str], before_ms: int) -> Act:
    """The act that truncates a topic before a time."""
    generation = fields.get("generation", "")
    body = {"beforeMs": before_ms, **({"generation": int(generation)} if generation.isdecimal() else {})}
    return Act(
        "truncate", "Truncate", path_of(**names), Call("POST", f"{TOPIC}/truncate", TopicTruncation, names, body=body),
        "manage", resources.topic(*names.values()),
        "Puts what was published before a time out of every reader's reach, for ever.", "truncation", names["topic"],
        inputs={"before": f"@{before_ms}", "generation": generation}, moving=COUNTS,
    )  # fmt: skip


def deletion_of(names: Mapping[str, str]) -> Act:
    """The act that deletes a topic."""
    return Act(
        "delete", "Delete", path_of(**names), Call("DELETE", TOPIC, TopicDeletion, names), "manage", resources.topic(*names.values()),
        "Deletes it with all its messages, for every reader and group. Nothing brings them back.", "topic_deletion",
        names["topic"], moving=COUNTS,
    )  # fmt: skip
