"""A topic's messages, read from where somebody says; searched, as they are shown or further; one message; and how they are taken along.

Nothing is read before a start is chosen: on a large topic that would cost, and show what nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from basalt.access import resources
from basalt.access.needs import PUBLIC
from basalt.api.bodies import json
from basalt.api.bodies.operations import Problem
from basalt.api.bodies.topics import TopicDescription
from basalt.api.positions import END, after_id
from basalt.console.call import Answer, Call
from basalt.console.page import HEADERS, PAGE_QUERY, POLICY, Panel, Shown, Visit, login_path, redirect, text_query
from basalt.console.pages.messaging.topics import DESCRIPTION, ONE_PATH, TOPIC, path_of
from basalt.console.views import avro_view, message_view
from basalt.console.views.avro_view import SCHEMA_CHARS_MAX, AvroError
from basalt.console.views.message_view import VIEWS, Filter, RecordPage, Seen, ShownRecord
from basalt.http.asgi.requests import Headers
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Query, Request, RouteTable, choice, flag, form_field, integer, query

PAGE_ROWS = 50
PAGE_ROWS_MAX = 500
LINE_CHARS = 2_000  # of a payload in the list: its own page has more
SCANNED_MAX = 10_000  # messages that one search goes through,
SCANNED_BYTES_MAX = 32 << 20  # or answers of so many bytes: a second or so of the server's time
SCAN_ROWS = 500  # of one call of it; others get their turn in between
MESSAGES_PATH = ONE_PATH + "/messages"
MESSAGE_PATH = MESSAGES_PATH + "/{message}"
INSPECT = "inspect"
READS = ("committed", "uncommitted", INSPECT)
SCHEMA_LABEL = "label.schema"
NDJSON = b"application/x-ndjson"
OCTETS = b"application/octet-stream"

_SCHEMA: Query = query(
    "schema", {"type": "string", "maxLength": SCHEMA_CHARS_MAX}, "an Avro schema, in JSON",
    lambda value: len(value) <= SCHEMA_CHARS_MAX, f"have up to {SCHEMA_CHARS_MAX} characters",
)  # fmt: skip
_VIEW = form_field(choice("view", VIEWS, "how payloads are shown"))
_FILTERS = {
    "contains": "only messages whose payload has this text in it",
    "pointer": "only those whose JSON has at this pointer",
    "equals": "this value",
    "header": "only those with this header",
    "value": "of this value",
}
_LIST_QUERY = (
    *PAGE_QUERY, text_query("from", "where to begin: start, end, now, an id, a time, or a time from now"),
    form_field(integer("back", 1, PAGE_ROWS_MAX, "so many messages before that")),
    form_field(integer("limit", 1, PAGE_ROWS_MAX, "most messages on the page")),
    form_field(choice("isolation", READS, "which messages there are")), _VIEW, _SCHEMA, *(text_query(*each) for each in _FILTERS.items()),
    flag("scan", f"search up to {SCANNED_MAX:,} messages, and not only those of the page"), flag("follow", "new ones as they come"),
)  # fmt: skip

route = RouteTable("console")


class Row(NamedTuple):
    """A message of the list."""

    record: ShownRecord
    seen: Seen


class Found(NamedTuple):
    """The messages of a page: how many were looked through for them, and from where it goes on (None: from nowhere)."""

    rows: list[Row]
    looked_at: int
    next: str | None
    held_by: str | None
    gave_up: bool  # at a bound, before the end


class Reading(NamedTuple):
    """A reading of messages, as the URL has it."""

    names: Mapping[str, str]
    given: Mapping[str, str]
    limit: int
    scan: bool
    schema: Any
    problem: str  # of the schema

    @property
    def filter(self) -> Filter:
        """The filter that the URL has."""
        return Filter(*(self.given[name] for name in _FILTERS))

    @property
    def is_chosen(self) -> bool:
        """True where a start is chosen."""
        return bool(self.given["from"])

    def call(self, start: str | None = None, limit: int | None = None) -> Call:
        """The call that reads from the chosen start on, or from a later one."""
        asked = {"from": start or self.given["from"], "back": self.given["back"] if start is None else ""}
        asked = {name: value for name, value in asked.items() if value} | {"limit": str(limit or self.limit)}
        if self.given["isolation"] == INSPECT:
            return Call("GET", f"{TOPIC}/messages", list[ShownRecord], self.names, asked)
        asked["isolation"] = self.given["isolation"] or READS[0]
        return Call("GET", f"{TOPIC}/records", RecordPage, self.names, asked)

    def query(self, **more: str) -> str:
        """The query of a page that reads in the same way."""
        return urlencode({name: value for name, value in {**self.given, **more}.items() if value})


@route("GET", MESSAGES_PATH, PUBLIC, query=_LIST_QUERY)
async def messages(request: Request) -> Response:
    """Show messages from a chosen start on."""
    visit, names = Visit(request), dict(request.path)
    if visit.must_sign_in:
        return redirect(login_path(request))
    title, path = f"Messages of {names['namespace']}:{names['topic']}", path_of(**names)
    topic = await described(visit, names)
    if not topic.ok:
        return visit.html("absent.html", topic.status, title=title, answer=topic)
    reading = reading_of(visit, names, topic)
    extra = {"path": path, "reading": reading, "python": python_of(visit, reading), "more": ""}
    panel = Panel("messages", "Messages", reading.call(), live=False, extra=extra)
    if request.flag("json") and reading.is_chosen:
        return await visit.page(title, (panel,))
    shown = []
    if reading.is_chosen:
        answer = await read(visit, reading)
        if answer.ok and answer.value.next is not None:
            extra["more"] = f"{path}/messages?" + reading.query(**{"from": answer.value.next, "back": ""})
        shown = [Shown(panel, answer)]
    follow = {"from": "end", "isolation": reading.given["isolation"] or READS[0]} if request.flag("follow") else None
    return visit.html(
        "messages.html", title=title, shown=shown, reading=reading, here=path, views=VIEWS, follow=follow,
        live=f"/console/live/ns/{quote(names['namespace'], safe='')}/topics/{quote(names['topic'], safe='')}",
        scanned_max=SCANNED_MAX,
    )  # fmt: skip


@route("GET", MESSAGES_PATH + "/download", PUBLIC, query=_LIST_QUERY)
async def download(request: Request) -> Response:
    """The messages of such a page, as JSON lines."""
    visit, names = Visit(request), dict(request.path)
    if visit.must_sign_in:
        return redirect(login_path(request))
    reading = reading_of(visit, names, await described(visit, names))
    answer = await read(visit, reading)
    if not answer.ok:
        return visit.html("absent.html", answer.status, title="No download", answer=answer)
    lines = b"".join(json.encode(row.record) + b"\n" for row in answer.value.rows)
    return Response(200, lines, NDJSON, attachment(f"{names['topic']}.jsonl"))


@route("GET", MESSAGE_PATH, PUBLIC, query=(*PAGE_QUERY, _VIEW, _SCHEMA))
async def message(request: Request) -> Response:
    """Show one message."""
    visit, names = Visit(request), dict(request.path)
    if visit.must_sign_in:
        return redirect(login_path(request))
    answer = await one(visit, names)
    title, path = f"Message {names['message']}", path_of(names["namespace"], names["topic"])
    if request.flag("json"):
        return await visit.page(title, (Panel("message", "What it is", answer.call, live=False),))
    if not answer.ok:
        return visit.html("absent.html", answer.status, title=title, answer=answer)
    schema, problem = schema_of(visit, await described(visit, names))
    found = message_view.seen(answer.value.content, request.text("view") or "auto", schema)
    given = {"view": request.text("view") or "", "schema": request.text("schema") or ""}
    extra = {
        "seen": found,
        "path": path,
        "problem": problem,
        "python": _PYTHON_ONE.format(**_python_names(visit, names)),
    }
    panel = Panel("message", "What it is", answer.call, live=False, extra=extra)
    return visit.html(
        "message.html", title=title, shown=[Shown(panel, answer)], here=path, views=VIEWS, given=given, names=names
    )


@route("GET", MESSAGE_PATH + "/payload", PUBLIC)
async def payload(request: Request) -> Response:
    """The payload of a message, to be kept and not to be shown: it is whatever somebody has published."""
    visit, names = Visit(request), dict(request.path)
    if visit.must_sign_in:
        return redirect(login_path(request))
    answer = await one(visit, names)
    if not answer.ok:
        return visit.html("absent.html", answer.status, title="No payload", answer=answer)
    return Response(200, answer.value.content, OCTETS, attachment(f"{names['topic']}-{names['message']}.bin"))


def reading_of(visit: Visit, names: Mapping[str, str], topic: Answer) -> Reading:
    """The reading that the request's query asks for."""
    request = visit.request
    given = {name: request.text(name) or "" for name in ("from", "isolation", "view", "schema", *_FILTERS)}
    numbers = {name: request.integer(name) for name in ("back", "limit")}
    given.update((name, "" if number is None else str(number)) for name, number in numbers.items())
    given["scan"] = "true" if request.flag("scan") else ""
    schema, problem = schema_of(visit, topic)
    return Reading(names, given, numbers["limit"] or PAGE_ROWS, request.flag("scan"), schema, problem)


async def described(visit: Visit, names: Mapping[str, str]) -> Answer:
    """The description of the topic, or that there is none."""
    return await visit.ask(Call("GET", DESCRIPTION, TopicDescription, names))


def schema_of(visit: Visit, topic: Answer) -> tuple[Any, str]:
    """The schema that is pasted, or else that of the topic, and what is wrong with it; None where there is none."""
    pasted = visit.request.text("schema") or (topic.value.properties.get(SCHEMA_LABEL) if topic.ok else None)
    try:
        return (None, "") if not pasted else (avro_view.parse_schema(pasted), "")
    except AvroError as error:
        return None, str(error)


async def read(visit: Visit, reading: Reading) -> Answer:
    """The messages of a page, by one call, or by as many as a search takes: its `Found`, or the problem that was told."""
    wanted, view = reading.filter, reading.given["view"] or "auto"
    rows: list[Row] = []
    looked_at = read_bytes = 0
    call, first = reading.call(limit=SCAN_ROWS if reading.scan else None), None
    while True:
        answer = await visit.ask(call)
        first = first or answer
        if not answer.ok:
            return replace(answer, call=first.call)
        records, following, held_by = _page(answer)
        read_bytes += len(answer.raw)
        for record in records:
            looked_at += 1
            if wanted.takes(record, reading.schema):
                rows.append(Row(record, message_view.seen(record.content, view, reading.schema, LINE_CHARS)))
            if len(rows) >= reading.limit or looked_at >= SCANNED_MAX:
                following = record.id
                break
        gave_up = looked_at >= SCANNED_MAX or read_bytes >= SCANNED_BYTES_MAX
        is_full = not reading.scan or len(rows) >= reading.limit
        if is_full or gave_up or not records or following is None:
            more = None if following is None or not records else _behind(following)
            return replace(first, value=Found(rows, looked_at, more, held_by, gave_up and not is_full))
        call = reading.call(_behind(following), SCAN_ROWS)


async def one(visit: Visit, names: Mapping[str, str]) -> Answer:
    """One message with its state, for who may inspect the topic; as readers of all messages see it, for others."""
    topic = {name: names[name] for name in ("namespace", "topic")}
    if visit.may("inspect", resources.topic(*topic.values())):
        return await visit.ask(Call("GET", f"{TOPIC}/messages/{{message}}", ShownRecord, names))
    asked = {"from": names["message"], "limit": "1", "isolation": "uncommitted"}
    answer = await visit.ask(Call("GET", f"{TOPIC}/records", RecordPage, topic, asked))
    records = answer.value.records if answer.ok else []
    if records and records[0].id == names["message"].lower():
        return replace(answer, value=records[0])
    if not answer.ok:
        return answer
    missing = Problem(code="message_not_found", detail=f"the topic has no message {names['message']}")
    return replace(answer, status=404, value=None, problem=missing)


def _page(answer: Answer) -> tuple[list[ShownRecord], str | None, str | None]:
    if isinstance(answer.value, RecordPage):
        return answer.value.records, answer.value.next, answer.value.held_by
    return answer.value, answer.value[-1].id if answer.value else None, None


def _behind(message_id: str) -> str:
    position = after_id(bytes.fromhex(message_id))
    return END.text if position.id is None else position.id.hex()


def attachment(name: str) -> Headers:
    """The headers of an answer that a browser keeps as a file, and neither shows nor runs."""
    return [
        (b"content-disposition", b"attachment; filename*=UTF-8''" + quote(name, safe="").encode("ascii")),
        (b"content-security-policy", f"{POLICY}; sandbox".encode()),
        *HEADERS[1:],
    ]


_PYTHON = """import basalt

with basalt.connect({url!r}, namespace={namespace!r}) as client:
    for message in client.topic({topic!r}).read({start!r}, limit={limit}, isolation={isolation!r}):
        print(message.id.hex(), message.payload)"""
_PYTHON_BACK = _PYTHON.replace("read({start!r}", "read(client.topic({topic!r}).back({start!r}, {back})")
_PYTHON_PEEK = """import basalt

with basalt.connect({url!r}, namespace={namespace!r}) as client:
    for message in client.topic({topic!r}).peek({start!r}, back={back}, limit={limit}):
        print(message.id, message.state, message.content)"""
_PYTHON_ONE = """import basalt

with basalt.connect({url!r}, namespace={namespace!r}) as client:
    print(client.topic({topic!r}).message({message!r}))"""


def python_of(visit: Visit, reading: Reading) -> str:
    """The same reading as a program."""
    given = reading.given
    words = {"start": given["from"], "back": int(given["back"]) if given["back"] else None, "limit": reading.limit}
    form = _PYTHON_PEEK if given["isolation"] == INSPECT else _PYTHON_BACK if given["back"] else _PYTHON
    return form.format(**_python_names(visit, reading.names), **words, isolation=given["isolation"] or READS[0])


def _python_names(visit: Visit, names: Mapping[str, str]) -> dict[str, str]:
    return {"url": visit.url, **names}
