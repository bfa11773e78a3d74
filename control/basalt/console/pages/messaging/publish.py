"""Publishing one message by hand, made up on the page or copied from another topic. A form that is sent twice publishes once."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from basalt.access import resources
from basalt.access.needs import PUBLIC
from basalt.console import acts
from basalt.console.acts import ACT_BODY, Act
from basalt.console.call import Call
from basalt.console.forms import form_of
from basalt.console.page import CONSOLE_PATH, Visit, login_path, redirect, sign_in_path, text_query
from basalt.console.pages.messaging.messages import one
from basalt.console.pages.messaging.topics import ONE_PATH, TOPIC, path_of
from basalt.console.views.message_view import ShownRecord
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

PUBLISH_PATH = ONE_PATH + "/publish"
KEY_BYTES = 16  # of randomness in the key of a form: nobody meets another's
_COPY = text_query("copy", "a message to begin with, as namespace:topic:id")

route = RouteTable("console")


@route(
    "GET", f"{CONSOLE_PATH}/publish", PUBLIC,
    query=(text_query("namespace", "of the topic"), text_query("topic", "to which it is published"), _COPY),
)  # fmt: skip
async def choose(request: Request) -> Response:
    """Go on to the form of a topic that was chosen by name."""
    path = path_of(request.text("namespace") or "-", request.text("topic") or "-") + "/publish"
    copied = request.text("copy")
    return redirect(f"{path}?{urlencode({'copy': copied})}" if copied else path)


@route("GET", PUBLISH_PATH, PUBLIC, query=(_COPY,))
async def form(request: Request) -> Response:
    """Show the form of a message."""
    visit, names = Visit(request), dict(request.path)
    if visit.must_sign_in:
        return redirect(login_path(request))
    fields: Mapping[str, str] = {"encoding": "text"}
    problem = ""
    copied = (request.text("copy") or "").split(":")
    if len(copied) == 3:
        answer = await one(visit, dict(zip(("namespace", "topic", "message"), copied, strict=True)))
        if answer.ok:
            fields = fields_of(answer.value)
        else:
            problem = f"The message was not copied: {answer.problem.detail}" if answer.problem else ""
    return _shown(visit, names, fields, problem)


@route("POST", PUBLISH_PATH, PUBLIC, body=ACT_BODY)
async def publish(request: Request) -> Response:
    """Publish the message of a form."""
    visit, names, fields = Visit(request), dict(request.path), await form_of(request)
    act = publication_of(names, fields)
    if visit.must_sign_in:
        return redirect(sign_in_path(f"{act.page}/publish"))
    offered = acts.offer(visit, act)
    if visit.settings.console.read_only:
        return visit.html("act_refused.html", 403, title=act.title, offer=offered, answer=None)
    done = await visit.ask(act.call)
    if not done.ok:
        return visit.html("act_refused.html", done.status, title=act.title, offer=offered, answer=done)
    return visit.html("published.html", title="Published", here=act.page, answer=done)


def publication_of(names: Mapping[str, str], fields: Mapping[str, str]) -> Act:
    """The act that publishes the message of a form."""
    call = Call(
        "POST", f"{TOPIC}/records", None, names, body={"records": [record_of(fields)]}, once=fields.get("once", "")
    )
    return Act(
        "publish", "Publish a message", path_of(**names), call, "write", resources.topic(*names.values()),
        "Readers of the topic get it as any other message. It is not taken back.", "",
    )  # fmt: skip


def record_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The record that a form has, as the API takes it: which says what is wrong with it."""
    encoding = "Base64" if fields.get("encoding") == "base64" else ""
    # A browser sends the ends of lines as CR and LF, whatever was typed.
    record: dict[str, Any] = {f"payload{encoding}": fields.get("payload", "").replace("\r\n", "\n")}
    if fields.get("key"):
        record["key"] = fields["key"]
    lines = [line.strip().partition("=") for line in fields.get("headers", "").splitlines() if line.strip()]
    if lines:
        record["headers"] = [{"name": name.strip(), "value": value} for name, _, value in lines]
    if fields.get("ttl", "").strip():
        ttl = fields["ttl"].strip()
        record["ttlMs"] = int(ttl) * 1_000 if ttl.isdecimal() and len(ttl) < 16 else ttl
    return record


def fields_of(record: ShownRecord) -> dict[str, str]:
    """The fields of a form that publishes the same again; headers whose values are no text are left out."""
    headers = [f"{each.name}={each.value}" for each in record.headers if each.value is not None]
    payload = {"encoding": "text", "payload": record.payload}
    if record.payload is None or "\r" in record.payload:  # which a form would send as other bytes
        payload = {"encoding": "base64", "payload": b64encode(record.content).decode()}
    return {
        **{name: value or "" for name, value in payload.items()},
        "key": record.key or "",
        "headers": "\n".join(headers),
    }


def _shown(visit: Visit, names: Mapping[str, str], fields: Mapping[str, str], problem: str) -> Response:
    given = {name: fields.get(name, "") for name in ("encoding", "payload", "key", "headers", "ttl")}
    return visit.html(
        "publish.html", title=f"Publish to {names['namespace']}:{names['topic']}", given=given, problem=problem,
        offer=acts.offer(visit, publication_of(names, given)), once=secrets.token_hex(KEY_BYTES),
        here=path_of(**names),
    )  # fmt: skip
