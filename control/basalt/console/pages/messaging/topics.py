"""The topics: their list, searched, sorted and paged, with the figures of each; and how a new one is created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from basalt.access import resources
from basalt.access.needs import PUBLIC
from basalt.api.bodies.topics import TopicInfo, TopicPage, TopicPlan
from basalt.api.topic_properties import LABEL, PROPERTIES
from basalt.console import acts
from basalt.console.acts import ACT_BODY, READ_ONLY, STEP, Act, Offer
from basalt.console.call import Call
from basalt.console.forms import form_of
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, flag

PAGE_ROWS = 100
LIST_PATH = f"{CONSOLE_PATH}/topics"
ONE_PATH = CONSOLE_PATH + "/ns/{namespace}/topics/{topic}"
TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
DESCRIPTION = "/v1/admin/namespaces/{namespace}/topics/{topic}"
LABELS = "labels"  # the field of a form with properties of a user's own, a line each

# Columns that the list can be sorted by: the API's word, the title, and whether the largest come first at the first click.
COLUMNS = (
    ("name", "Topic", False),
    ("rate", "Messages a second", True),
    ("messages", "Messages", True),
    ("bytes", "Bytes", True),
    ("oldest", "Oldest", False),
    ("newest", "Newest", True),
    ("ttl", "Kept for", True),
    ("generation", "Generation", True),
)
_FILTERS = {
    "namespace": "only of this namespace",
    "contains": "only those with this in namespace:topic",
    "sort": "the column that they are sorted by",
}

route = RouteTable("console")


class SortLink(NamedTuple):
    """A column that the list can be sorted by: where its title leads, and how the list is sorted by it now."""

    title: str
    href: str
    aria: str
    is_number: bool


@route(
    "GET", LIST_PATH, PUBLIC,
    query=(
        *PAGE_QUERY, *(text_query(*each) for each in _FILTERS.items()), text_query("after", "the page behind this topic"),
        flag("descending", "the other way round"), flag("deleted", "show deleted topics, too"),
    ),
)  # fmt: skip
async def topics(request: Request) -> Response:
    """List the topics."""
    visit = Visit(request)
    given = {name: request.text(name) or "" for name in _FILTERS}
    flags = {name: "true" for name in ("descending", "deleted") if request.flag(name)}
    asked = {**{name: value for name, value in given.items() if value}, **flags}
    after = request.text("after")
    query = asked if after is None else {**asked, "after": after}
    call = Call("GET", "/v1/admin/topics", TopicPage, query={**query, "limit": str(PAGE_ROWS), "figures": "true"})
    extra = {"columns": columns_of(asked), "first": after and path_with(asked), "more": path_with(asked, after="")}
    # Who may create which topics, the plan tells: rights are on names that nobody has typed yet.
    offered = Offer(creation_of({}), READ_ONLY if visit.settings.console.read_only else "")
    return await visit.page(
        "Topics", (Panel("topics", "Topics", call, extra=extra),), "topics.html", given=given, deleted=request.flag("deleted"),
        creation=offered, properties=PROPERTIES, values={},
    )  # fmt: skip


@route("POST", f"{LIST_PATH}/create", PUBLIC, query=(STEP,), body=ACT_BODY)
async def create(request: Request) -> Response:
    """Create a topic."""
    fields = await form_of(request)
    return await acts.respond(Visit(request), creation_of(fields), fields)


def creation_of(fields: Mapping[str, str]) -> Act:
    """The act that creates the topic of a form."""
    names = {name: fields.get(name, "").strip() for name in ("namespace", "topic")}
    call = Call("PUT", TOPIC, (TopicPlan, TopicInfo, dict[str, str]), names, body=properties_of(fields))
    return Act(
        "create", "Create a topic", LIST_PATH, call, "manage", resources.topic(*names.values()),
        "Makes a topic, or one that was deleted anew, without its messages.", "topic_plan",
        inputs={name: value for name, value in fields.items() if name in FIELDS},
    )  # fmt: skip


def properties_of(fields: Mapping[str, str]) -> dict[str, str]:
    """The properties that a form has; a field that is empty stands for the default."""
    known = {each.name: fields.get(each.name, "").strip() for each in PROPERTIES}
    lines = [line.strip().partition("=") for line in fields.get(LABELS, "").splitlines() if line.strip()]
    labels = {f"{LABEL}{name.strip()}": value.strip() for name, _, value in lines}
    return {name: value for name, value in {**known, **labels}.items() if value}


def labels_of(properties: Mapping[str, str]) -> str:
    """A user's own properties, as the form has them."""
    found = {name.removeprefix(LABEL): value for name, value in properties.items() if name.startswith(LABEL)}
    return "\n".join(f"{name}={value}" for name, value in sorted(found.items()))


def columns_of(asked: Mapping[str, str]) -> tuple[SortLink, ...]:
    """The columns of the list, as it is sorted now."""
    now, is_descending = asked.get("sort", "name"), "descending" in asked
    found = []
    for name, title, largest_first in COLUMNS:
        turned = not is_descending if name == now else largest_first
        aria = ("descending" if is_descending else "ascending") if name == now else "none"
        kept = {key: value for key, value in asked.items() if key != "descending"}
        href = path_with({**kept, "sort": name, **({"descending": "true"} if turned else {})})
        found.append(SortLink(title, href, aria, name in ("rate", "messages", "bytes", "generation")))
    return tuple(found)


def path_with(asked: Mapping[str, str], **more: str) -> str:
    """The path of the list with these filters."""
    query = urlencode({**asked, **more})
    return f"{LIST_PATH}?{query}" if query else LIST_PATH


def path_of(namespace: str, topic: str) -> str:
    """The path of a topic's page."""
    return ONE_PATH.format(namespace=quote(namespace, safe=""), topic=quote(topic, safe=""))


FIELDS = frozenset(("namespace", "topic", LABELS, *(each.name for each in PROPERTIES)))
