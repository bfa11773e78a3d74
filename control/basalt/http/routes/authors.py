"""Who asks for an operator's act, and why: for the audit. The parameters `as` and `reason` of every such call."""

from __future__ import annotations

from collections.abc import Callable

from basalt.errors import InputError
from basalt.http.asgi.requests import Request
from basalt.http.routes.operations import Query
from basalt.operations.audit import TEXT_CHARS_MAX, Author, check_text

EMBEDDED = "embedded"  # the address of calls that come over no socket


def _text(name: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        try:
            return check_text(text, name)
        except InputError as error:
            raise ValueError(f"must be printable text of up to {TEXT_CHARS_MAX} characters") from error

    return read


def text_query(name: str, meaning: str) -> Query:
    """One line of printable text."""
    return Query(name, _text(name), {"type": "string", "maxLength": TEXT_CHARS_MAX}, meaning)


AS = text_query("as", "who does it, for the audit")
REASON = text_query("reason", "why it is done, for the audit")


def author_of(request: Request) -> Author:
    """Who sent the request."""
    client = request.scope.get("client")
    agent = request.headers.get(b"user-agent", b"").decode("latin-1")
    return Author(client[0] if client else EMBEDDED, agent, request.text("as") or "")


def reason_of(request: Request) -> str:
    """Why, or nothing."""
    return request.text("reason") or ""
