"""Pages: a list of panels, each of which is one call of the API, made as whoever looks at the page.

So rights, audit, limits and errors are the API's, and a page cannot show what a call would not. `?panel=NAME,NAME` renders these panels, for a
page that keeps itself up to date; `?json=true` gives its calls and answers.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec

from basalt.access.resources import Resource
from basalt.api.bodies import json
from basalt.api.bodies.access import QuotaRule
from basalt.console import text
from basalt.console.assets import ASSETS
from basalt.console.call import Answer, Call, answer_of
from basalt.console.copy_lines import NO_COMMAND
from basalt.console.views.charts import spark
from basalt.http.asgi.inside import InsideCall
from basalt.http.asgi.requests import JSON, Headers
from basalt.http.asgi.responses import HTML, Response
from basalt.http.asgi.responses import PAGES_PATH as CONSOLE_PATH
from basalt.http.routes.route_table import Query, Request, flag, query, text_query
from basalt.settings import Settings

PANEL_NAMES_CHARS_MAX = 400  # of those that are asked for: a page has some ten
LOGIN_PATH = f"{CONSOLE_PATH}/login"
TERMS_PATH = f"{CONSOLE_PATH}/terms"

# Nothing is loaded from elsewhere, nothing inline runs, and no other page frames this one.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]

# The navigation: path, title, and the key that goes there behind `g`.
NAVIGATION: tuple[tuple[str, str, str], ...] = (
    (CONSOLE_PATH, "Overview", "o"),
    (f"{CONSOLE_PATH}/topics", "Topics", "t"),
    (f"{CONSOLE_PATH}/transactions", "Transactions", "x"),
    (f"{CONSOLE_PATH}/groups", "Groups", "g"),
    (f"{CONSOLE_PATH}/sessions", "Sessions", "s"),
    (f"{CONSOLE_PATH}/tables", "Tables", "b"),
    (f"{CONSOLE_PATH}/pipelines", "Pipelines", "l"),
    (f"{CONSOLE_PATH}/pruning", "Pruning", "p"),
    (f"{CONSOLE_PATH}/regions", "Regions", "r"),
    (f"{CONSOLE_PATH}/jobs", "Jobs", "j"),
    (f"{CONSOLE_PATH}/cluster", "Cluster", "c"),
    (f"{CONSOLE_PATH}/audit", "Audit", "a"),
    (f"{CONSOLE_PATH}/access", "Access", "y"),
    (f"{CONSOLE_PATH}/settings", "Settings", "e"),
    (f"{CONSOLE_PATH}/api", "API", "i"),
)

PANEL: Query = query(
    "panel", {"type": "string", "maxLength": PANEL_NAMES_CHARS_MAX}, "these panels alone, by their names with commas between them",
    lambda value: len(value) <= PANEL_NAMES_CHARS_MAX, "be names of panels",
)  # fmt: skip
AS_JSON = flag("json", "the calls and answers of the page, in place of it")
PAGE_QUERY = (PANEL, AS_JSON)


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page: a call, and the template that shows its answer (`panels/NAME.html`). `live`: it is renewed while the page is open, `every` so many
    turns, for what changes slowly or costs much.

    `subject`: it finds what the page is about. Where that call is refused, or there is no such thing, the page says so and nothing else.
    `meanings`: the templates that say in the answer's place what a problem of a code means here.
    """

    name: str
    title: str
    call: Call
    template: str = ""
    live: bool = True
    every: int = 1
    subject: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)  # what its template needs beside the answer
    meanings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel with the answer to its call."""

    panel: Panel
    answer: Answer

    @property
    def template(self) -> str:
        """The file that shows the answer."""
        return f"panels/{self.panel.template or self.panel.name}.html"

    @property
    def meaning(self) -> str | None:
        """The file that says what the answer's problem means; None where the problem says it itself."""
        problem = self.answer.problem
        found = None if problem is None else self.panel.meanings.get(problem.code)
        return None if found is None else f"panels/{found}.html"


_PROVING = (b"host", b"authorization", b"cookie")  # who a visitor is; the host, for the two are proved together


class Visit:
    """A request for a page, and the calls that it makes for it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.services = request.services
        self.now_ms = request.services.clock.now_ms()
        self.settings = request.services.settings

    def may(self, verb: str, resource: Resource) -> bool:
        """Tell whether the visitor has a right: an act without it is shown, and disabled. To look at the act is no use of the grant."""
        caller = self.request.caller
        is_let_through = caller.refusals is not None and not caller.refusals.enforced
        return is_let_through or caller.why(verb, resource).allowed

    @property
    def must_sign_in(self) -> bool:
        """True for a visitor without a login, where the server asks who is there: `login_path` is where they are to go.

        A certificate alone is none: the browser sends it whoever sits there, and nobody could sign out.
        """
        authentication, caller = self.services.authentication, self.request.caller
        if authentication is None:
            return False
        return authentication.is_nobody(caller) or (caller.via is None and caller.credential.startswith("cert "))

    @property
    def url(self) -> str:
        """The server's own URL, as the visitor's browser has it."""
        host = (self.request.headers.get(b"host") or b"localhost").decode("latin-1")
        return f"{self.request.exchange.scheme}://{host}"

    async def ask(self, call: Call) -> Answer:
        """Make a call as the visitor."""
        headers = self.request.headers
        inside = InsideCall(
            call.method,
            call.target,
            call.sent,
            self.request.exchange.client,
            headers.get(b"user-agent", b""),
            call.once,
            tuple((name, headers[name]) for name in _PROVING if name in headers),
            self.request.exchange.scheme,
        )
        return answer_of(call, await self.request.ask(self.request.caller, inside))

    async def page(self, title: str, panels: Sequence[Panel], template: str = "page.html", **context: Any) -> Response:
        """The page of these panels; or one of them, or all answers as JSON, as the request's query has it.

        Who has not signed in is sent to do so, and comes back.
        """
        if self.must_sign_in:
            return redirect(login_path(self.request))
        wanted = self.request.text("panel")
        if wanted is not None:
            names = wanted.split(",")
            panels = [panel for panel in panels if panel.name in names]
        answers = await asyncio.gather(*(self.ask(panel.call) for panel in panels))
        seen = [Shown(panel, answer) for panel, answer in zip(panels, answers, strict=True)]
        if self.request.flag("json"):
            return self._as_json(seen)
        absent = next((each.answer for each in seen if each.panel.subject and not each.answer.ok), None)
        if absent is not None:
            return self.html("absent.html", absent.status, title=title, answer=absent)
        if wanted is not None:
            return self.html("panel_alone.html", title=title, shown=seen, **context)
        return self.html(template, title=title, shown=seen, **context)

    def html(self, template: str, status: int = 200, headers: Headers | None = None, **context: Any) -> Response:
        """A template with what every one has."""
        return rendered(
            template, status, headers, self.settings, self.request.head.path,
            visit=self,
            now_ms=self.now_ms,
            principal=str(self.request.caller.principal),
            is_asked=self.services.authentication is not None,
            has_login=self.request.caller.credential.startswith("login "),
            **context,
        )  # fmt: skip

    def _as_json(self, seen: Sequence[Shown]) -> Response:
        found = {
            each.panel.name: {
                "call": f"{each.answer.call.method} {each.answer.call.target}",
                "curl": each.answer.call.curl(self.url, self.services.authentication is not None),
                "cli": each.answer.call.cli(),
                "status": each.answer.status,
                "answer": each.answer.plain(),
            }
            for each in seen
        }
        return Response(200, msgspec.json.encode(found), JSON)


def rendered(
    template: str, status: int, headers: Headers | None, settings: Settings, path: str, **context: Any
) -> Response:
    """A page of a template, at this path."""
    body = environment().get_template(template).render(
        path="/" + "/".join(filter(None, path.split("/"))),
        refresh_ms=settings.console.refresh_ms,
        read_only=settings.console.read_only,
        **context,
    )  # fmt: skip
    return Response(status, body.encode("utf-8", "backslashreplace"), HTML, [*HEADERS, *(headers or [])])


def redirect(to: str, headers: Headers | None = None) -> Response:
    """Send the browser to another page of the console."""
    assert to.startswith(CONSOLE_PATH)
    return Response(303, headers=[(b"location", to.encode("ascii")), *HEADERS, *(headers or [])])


def login_path(request: Request) -> str:
    """The path at which a visitor signs in, and comes back to this page."""
    head = request.head
    target = head.raw_path.decode("ascii", "replace")
    if head.query_string:
        target = f"{target}?{head.query_string.decode('ascii', 'replace')}"
    return sign_in_path(target)


def sign_in_path(following: str) -> str:
    """The path at which a visitor signs in, and goes on to this page."""
    return f"{LOGIN_PATH}?next={quote(inside_console(following), safe='')}"


def inside_console(path: str) -> str:
    """The path, where it is one of the console; the first page otherwise, so that nobody is sent elsewhere."""
    is_ours = path == CONSOLE_PATH or path.startswith((f"{CONSOLE_PATH}/", f"{CONSOLE_PATH}?"))
    if (
        not is_ours
        or path.startswith(LOGIN_PATH)
        or "\\" in path
        or "//" in path
        or not path.isascii()
        or not path.isprintable()
    ):
        return CONSOLE_PATH
    return path


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, with the filters and names that each of them may use."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("basalt.console"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    found.filters.update(
        shown=text.shown, number=text.number, size=text.size, duration=text.duration, moment=text.moment, age=text.age, left=text.left,
        block=text.block, content=text.content, words=text.words, advice=text.advice, json=lambda value: json.encode(value).decode(),
        anchor=text.anchor, spark=spark,
    )  # fmt: skip
    found.globals.update(
        asset={name: asset.path for name, asset in ASSETS.items()},
        navigation=NAVIGATION,
        no_command=NO_COMMAND,
        terms_path=TERMS_PATH,
        quota_names={each.name: each.encode_name for each in msgspec.structs.fields(QuotaRule)},
    )
    return found


__all__ = [
    "CONSOLE_PATH",
    "LOGIN_PATH",
    "PAGE_QUERY",
    "TERMS_PATH",
    "Panel",
    "Visit",
    "inside_console",
    "login_path",
    "redirect",
    "sign_in_path",
    "text_query",
]
