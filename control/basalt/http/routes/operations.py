"""An operation: method and path of a call, its handler, what it takes and answers. The OpenAPI document is made of them.

Query parameters are declared, so that an unknown, doubled or malformed one is refused by name in one place.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from starlette.types import Receive, Scope, Send

from basalt.errors import BasaltError, InputError, MethodNotAllowedError
from basalt.http.asgi.requests import BodyBudget, RequestHead, Value
from basalt.http.asgi.responses import JSON, Response, send_response
from basalt.http.metrics.metrics import Metrics
from basalt.http.routes.schemas import Content, Schema, Shape
from basalt.http.services import Services
from basalt.operations.audit import TEXT_CHARS_MAX, Author, By, check_text
from basalt.transactions.codec import SnapshotBytes

Handler: TypeAlias = Callable[["Request"], Awaitable[Response]]

EMBEDDED = "embedded"  # the address of calls that come over no socket
MS_MAX = (1 << 53) - 1  # what JavaScript still counts exactly

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Query:
    """One query parameter: its name, how its text is read (`ValueError` says what it must be), its JSON schema."""

    name: str
    read: Callable[[str], Value]
    schema: Schema
    meaning: str
    required: bool = False


class Request(RequestHead):
    """A request to a server that serves, with what its handler needs."""

    __slots__ = ("metrics", "services", "snapshots")

    def __init__(
        self,
        services: Services,
        metrics: Metrics,
        snapshots: SnapshotBytes,
        bodies: BodyBudget,
        scope: Scope,
        receive: Receive,
        started_ms: float,
    ) -> None:
        super().__init__(scope, receive, started_ms, bodies)
        self.services = services
        self.metrics = metrics
        self.snapshots = snapshots


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of the API. `body`, `answers` (by status) and `errors` are for the OpenAPI document.

    `errors` are the classes that this call may answer beside those that every call may (see `openapi`).
    """

    method: str
    path: str
    handler: Handler
    tag: str
    query: tuple[Query, ...] = ()
    body: Content = field(default_factory=dict)
    body_required: bool = False
    answers: Mapping[int, Content] = field(default_factory=lambda: {200: {}})
    errors: tuple[type[BasaltError], ...] = ()
    if_match: bool = False  # whether it reads the header If-Match

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")


class RouteTable:
    """The operations of one module, in the order in which the router tries them."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.operations: list[Operation] = []

    def __call__(
        self,
        method: str,
        path: str,
        *,
        answer: Shape | Content | None = None,
        answers: Mapping[int, Content] | None = None,
        query: tuple[Query, ...] = (),
        body: Shape | Content | None = None,
        body_required: bool | None = None,
        errors: tuple[type[BasaltError], ...] = (),
        tag: str | None = None,
        if_match: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated handler as an operation. A `body` or an `answer` that is no mapping is sent as JSON.

        A JSON body is required, another one only if it is said so.
        """

        def declare(handler: Handler) -> Handler:
            operation = Operation(
                method=method,
                path=path,
                handler=handler,
                tag=tag or self._tag,
                query=query,
                body=_content(body),
                body_required=not isinstance(body, Mapping) and body is not None
                if body_required is None
                else body_required,
                answers=answers or {200: _content(answer)},
                errors=errors,
                if_match=if_match,
            )
            self.operations.append(operation)
            return handler

        return declare


def _content(shape: Shape | Content | None) -> Content:
    if shape is None:
        return {}
    return shape if isinstance(shape, Mapping) else {JSON: shape}


def integer(name: str, low: int, high: int, meaning: str) -> Query:
    """A whole number from `low` to `high`, both included."""

    def read(text: str) -> int:
        if _WHOLE_NUMBER.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return Query(name, read, {"type": "integer", "minimum": low, "maximum": high}, meaning)


def choice(name: str, values: Sequence[str], meaning: str) -> Query:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"must be {' or '.join(values)}")
        return text

    return Query(name, read, {"type": "string", "enum": list(values)}, meaning)


def flag(name: str, meaning: str) -> Query:
    """True or false, in those words."""

    def read(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError("must be true or false")
        return text == "true"

    return Query(name, read, {"type": "boolean"}, meaning)


def words(name: str, pattern: str, meaning: str) -> Query:
    """Text that a pattern describes (of both Python and JSON Schema, so keep it plain)."""
    expression = re.compile(pattern.removeprefix("^").removesuffix("$"))

    def read(text: str) -> str:
        if expression.fullmatch(text) is None:
            raise ValueError(f"must match {pattern}")
        return text

    return Query(name, read, {"type": "string", "pattern": pattern}, meaning)


def text_query(name: str, meaning: str) -> Query:
    """One line of printable text."""

    def read(text: str) -> str:
        try:
            return check_text(text, name)
        except InputError as error:
            raise ValueError(f"must be printable text of up to {TEXT_CHARS_MAX} characters") from error

    return Query(name, read, {"type": "string", "maxLength": TEXT_CHARS_MAX}, meaning)


AS = text_query("as", "who does it, for the audit")
REASON = text_query("reason", "why it is done, for the audit")


DRY_RUN = flag("dryRun", "tell what would be done, and do nothing")


def act_by(request: Request) -> By:
    """Who asks for an operator's act, why, and in which request: for the audit."""
    client = request.scope.get("client")
    agent = request.headers.get(b"user-agent", b"").decode("latin-1")
    author = Author(client[0] if client else EMBEDDED, agent, request.text("as") or "")
    return author, request.text("reason") or "", request.id


def read_query(query_string: bytes, declared: Mapping[str, Query]) -> dict[str, Value]:
    """The parameters of a query string, each read as declared. `InputError` names the one at fault."""
    values: dict[str, Value] = {}
    for item in query_string.split(b"&"):
        name_bytes, equals, value_bytes = item.partition(b"=")
        name, text = _decoded(name_bytes), _decoded(value_bytes)
        parameter = declared.get(name)
        if parameter is None:
            known = ", ".join(declared) or "none"
            raise InputError(
                f"query parameter {name[:60]!r} is not one of this call", field=name[:60], hint=f"It takes: {known}."
            )
        if name in values:
            raise InputError(f"query parameter {name} is given twice", field=name, hint="Give it once.")
        if not equals:
            raise InputError(f"query parameter {name} has no value", field=name, hint=f"Write {name}=VALUE.")
        try:
            values[name] = parameter.read(text)
        except ValueError as error:
            raise InputError(f"query parameter {name} is {text[:60]!r}; it {error}", field=name) from None
    return values


def _decoded(text: bytes) -> str:
    if re.search(rb"%(?![0-9A-Fa-f]{2})", text):
        raise InputError("the query has a % that two hex digits do not follow", field="query", hint="Write % as %25.")
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("the query does not decode to UTF-8", field="query", hint="Encode it as UTF-8.") from None


class Endpoint:
    """All operations of one path, as an ASGI application. Errors go up to the frame, which tells them."""

    def __init__(self, path: str, operations: Sequence[Operation]) -> None:
        self.path = path
        self._handlers = {
            operation.method: (operation.handler, {query.name: query for query in operation.query})
            for operation in operations
        }
        if "GET" in self._handlers:
            self._handlers.setdefault("HEAD", self._handlers["GET"])
        self._allowed = (*sorted(self._handlers), "OPTIONS")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope["basalt.request"]
        request.route = self.path
        found = self._handlers.get(scope["method"])
        if found is None:
            await send_response(request, self._without_handler(request), send)
            return
        handler, declared = found
        request.path = scope["path_params"]
        query_string = scope["query_string"]
        if query_string:
            request.query = read_query(query_string, declared)
        await send_response(request, await handler(request), send)

    def _without_handler(self, request: Request) -> Response:
        allowed = ", ".join(self._allowed)
        if request.scope["method"] == "OPTIONS":
            return Response(204, headers=[(b"allow", allowed.encode("ascii"))])
        error = MethodNotAllowedError(
            f"{request.scope['method'][:20]} is not a method of {self.path}", hint=f"Use one of: {allowed}."
        )
        error.allowed = self._allowed
        raise error
