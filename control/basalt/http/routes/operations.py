"""What a call is: its path and method, who handles it, and what it takes and answers. The OpenAPI document says the same.

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
from basalt.http.asgi.requests import Request, Value
from basalt.http.asgi.responses import Answer, send_answer
from basalt.http.routes.schemas import Content, Schema

Handler: TypeAlias = Callable[[Request], Awaitable[Answer]]

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Query:
    """One query parameter: its name, how its text is read (`ValueError` says what it must be), its JSON schema."""

    name: str
    read: Callable[[str], Value]
    schema: Schema
    meaning: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of the API. `body`, `answers` (by status) and `errors` are for the OpenAPI document.

    `errors` are the classes that this call may answer beside those that every call may (see `openapi`).
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    query: tuple[Query, ...] = ()
    body: Content = field(default_factory=dict)
    body_required: bool = False
    answers: Mapping[int, Content] = field(default_factory=lambda: {200: {}})
    errors: tuple[type[BasaltError], ...] = ()
    if_match: bool = False  # whether it reads the header If-Match


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
    """All operations of one path, as an ASGI application. Errors go up to the front, which tells them."""

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
            await send_answer(request, self._without_handler(request), send)
            return
        handler, declared = found
        request.path = scope["path_params"]
        query_string = scope["query_string"]
        if query_string:
            request.query = read_query(query_string, declared)
        await send_answer(request, await handler(request), send)

    def _without_handler(self, request: Request) -> Answer:
        allowed = ", ".join(self._allowed)
        if request.scope["method"] == "OPTIONS":
            return Answer(204, headers=[(b"allow", allowed.encode("ascii"))])
        error = MethodNotAllowedError(
            f"{request.scope['method'][:20]} is not a method of {self.path}", hint=f"Use one of: {allowed}."
        )
        error.allowed = self._allowed
        raise error
