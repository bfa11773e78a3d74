"""The server's own reference: its settings in force, without secrets; and every call of the API with what it takes, the rights that it needs, and its command.

Both are searched by the server: no page needs a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from basalt.access.needs import PUBLIC
from basalt.api.bodies.operations import SettingInfo
from basalt.console import text
from basalt.console.call import Call
from basalt.console.copy_lines import form_of
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit, text_query
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, flag

API_PATH = f"{CONSOLE_PATH}/api"
SETTINGS_PATH = f"{CONSOLE_PATH}/settings"
METHODS = ("get", "put", "post", "patch", "delete")

_TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
_GROUP = _TOPIC + "/groups/{group}"
_TABLE = "/v1/namespaces/{namespace}/tables/{table}"
# Of calls that no page makes, so that nobody copies a line of theirs: without their options, which --help tells.
FURTHER_COMMANDS: Mapping[tuple[str, str], str] = {
    ("POST", f"{_TOPIC}/publish"): "publish {topic} --namespace {namespace}",
    ("POST", f"{_TOPIC}/store"): "publish {topic} --namespace {namespace} --tx {transaction}",
    ("POST", f"{_TOPIC}/poll"): "consume {topic} --namespace {namespace}",
    ("GET", _TOPIC): "topic show {topic} --namespace {namespace}",
    ("GET", f"{_TOPIC}/stable-end"): "topic range {topic} --namespace {namespace}",
    ("POST", f"{_TOPIC}/markers"): "topic watermark {topic} --namespace {namespace}",
    ("GET", f"{_TOPIC}/producers"): "topic producers list {topic} --namespace {namespace}",
    ("DELETE", f"{_TOPIC}/producers/{{producer}}"): "topic producers delete {topic} {producer} --namespace {namespace}",
    ("PUT", _GROUP): "group create {topic} {group} --namespace {namespace}",
    ("POST", f"{_GROUP}/release"): "group release {topic} {group} --namespace {namespace}",
    ("POST", "/v1/transactions"): "tx begin",
    ("GET", "/v1/transactions/{transaction}"): "tx show {transaction}",
    ("POST", "/v1/transactions/{transaction}/commit"): "tx commit {transaction}",
    ("POST", "/v1/transactions/{transaction}/abort"): "tx abort {transaction}",
    ("POST", "/v1/transactions/{transaction}/invalidate"): "tx invalidate {transaction}",
    ("GET", "/v1/namespaces/{namespace}/tables"): "table list --namespace {namespace}",
    ("PUT", _TABLE): "table create {table} --namespace {namespace}",
    ("DELETE", _TABLE): "table delete {table} --namespace {namespace}",
    ("POST", f"{_TABLE}/read"): "table get {table} --namespace {namespace}",
    ("POST", f"{_TABLE}/write"): "table put {table} --namespace {namespace}",
    ("GET", "/v1/admin/namespaces"): "namespace list",
    ("PATCH", "/v1/admin/settings"): "config set",
    ("POST", "/v1/admin/backups/{backup}/verify"): "backup verify {backup}",
    ("DELETE", "/v1/admin/backups/{backup}"): "backup delete {backup}",
    ("POST", "/v1/auth/logins"): "auth login",
    ("DELETE", "/v1/auth/logins"): "auth logout",
    ("POST", "/v1/admin/snapshot/publish"): "snapshot publish",
}

route = RouteTable("console")


@dataclass(frozen=True, slots=True)
class Described:
    """A call as the page tells it. `commands`: its line with the words to fill in; empty where this page knows none."""

    method: str
    path: str
    tag: str
    summary: str
    description: str
    rights: tuple[str, ...]
    in_body: tuple[str, ...]
    filters: str
    is_public: bool
    parameters: tuple[Mapping[str, Any], ...]
    bodies: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    command: str

    @property
    def anchor(self) -> str:
        """The part of a link that leads to it."""
        return text.anchor(f"{self.method} {self.path}")

    def has(self, words: list[str]) -> bool:
        """Tell whether all of these words are somewhere in it."""
        names = " ".join(str(each["name"]) for each in self.parameters)
        told = " ".join(
            (
                self.method,
                self.path,
                self.tag,
                self.summary,
                self.description,
                *self.rights,
                *self.in_body,
                names,
                self.command,
            )
        )
        return all(word in told.lower() for word in words)


@route("GET", API_PATH, PUBLIC, query=(*PAGE_QUERY, text_query("q", "only calls with these words")))
async def api(request: Request) -> Response:
    """List the calls."""
    q = (request.text("q") or "").strip()
    extra = {"described": described, "words": q.lower().split()}
    panel = Panel("api", "Calls", Call("GET", "/openapi.json", dict[str, Any]), live=False, extra=extra)
    return await Visit(request).page("API", (panel,), "api.html", q=q)


@route(
    "GET", SETTINGS_PATH, PUBLIC,
    query=(*PAGE_QUERY, text_query("q", "only those with this text in key or meaning"), flag("changed", "only those that are not defaults")),
)  # fmt: skip
async def settings(request: Request) -> Response:
    """List the settings."""
    q, changed = (request.text("q") or "").strip(), request.flag("changed")
    call = Call("GET", "/v1/admin/settings", list[SettingInfo])
    panel = Panel("settings", "Settings", call, live=False, extra={"q": q.lower(), "changed": changed})
    return await Visit(request).page("Settings", (panel,), "settings.html", q=q, changed=changed)


def described(document: Mapping[str, Any]) -> Iterator[Described]:
    """The calls of an OpenAPI document."""
    for path, calls in document["paths"].items():
        for method in METHODS:
            if method in calls:
                yield _described(method.upper(), path, calls[method])


def _described(method: str, path: str, told: Mapping[str, Any]) -> Described:
    rights = told.get("x-basalt-rights", {})
    return Described(
        method, path, ", ".join(told.get("tags", ())), told.get("summary", ""), told.get("description", ""),
        tuple(rights.get("path", ())), tuple(rights.get("body", ())), rights.get("filters", ""), "x-basalt-rights" not in told,
        tuple(told.get("parameters", ())), tuple(told.get("requestBody", {}).get("content", ())),
        tuple((status, answer.get("description", "")) for status, answer in told.get("responses", {}).items()),
        f"basalt {line}" if (line := form_of(method, path) or FURTHER_COMMANDS.get((method, path))) else "",
    )  # fmt: skip
