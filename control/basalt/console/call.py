"""A call that a panel makes: what it asks of the API, what came back, and the same call for a shell to copy."""

from __future__ import annotations

import json as plain_json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from basalt.api.bodies import json
from basalt.api.bodies.operations import Problem
from basalt.console.copy_lines import command_of
from basalt.http.asgi.inside import Reply


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the API: its method and path as OpenAPI has them, the names in the path, query and body; and the type of its answer.

    `kind` is a tuple where the answer is of one of several types, those that ask for most members first.
    """

    method: str
    path: str
    kind: Any
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    once: str = ""  # a key with which it is done once, however often it is sent

    @property
    def target(self) -> str:
        """The target of the request."""
        path = self.path.format_map({name: quote(value, safe="") for name, value in self.names.items()})
        return f"{path}?{urlencode(self.query)}" if self.query else path

    @property
    def sent(self) -> bytes:
        """The body of the request; empty where it has none."""
        return b"" if self.body is None else msgspec.json.encode(self.body)

    def curl(self, url: str, is_asked: bool = False) -> str:
        """The call as a line for curl. Where the server asks who is there, the token is in the environment, and not in the line."""
        words = ["curl", "-sS"]
        if self.method != "GET":
            words += ["-X", self.method]
        if self.body is not None:
            words += ["-H", "Content-Type: application/json", "--data-binary", self.sent.decode()]
        if self.once:
            words += ["-H", f"Idempotency-Key: {self.once}"]
        token = ('-H "Authorization: Bearer $BASALT_TOKEN"',) if is_asked else ()
        return " ".join((*map(shlex.quote, words), *token, shlex.quote(url + self.target)))

    def cli(self) -> str | None:
        """The call as a command; None where there is none."""
        return command_of(self.method, self.path, self.names, self.query, self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call: its value as the call's type has it, or the problem that was told instead."""

    call: Call
    status: int
    value: Any = None
    problem: Problem | None = None
    raw: bytes = b""
    request_id: str = ""  # by which the audit knows the call

    @property
    def ok(self) -> bool:
        """True where there is a value."""
        return self.problem is None

    def plain(self) -> Any:
        """The answer as it was sent, for the page's JSON."""
        return plain_json.loads(self.raw) if self.raw else None


def answer_of(call: Call, reply: Reply) -> Answer:
    """The answer in a reply."""
    kind = (reply.header(b"content-type") or b"").partition(b";")[0]
    request_id = (reply.header(b"basalt-request-id") or b"").decode("latin-1")
    if kind == b"application/problem+json":
        return Answer(call, reply.status, None, json.decode(reply.body, Problem), reply.body, request_id)
    value = _value(reply.body, call.kind) if kind == b"application/json" else None
    return Answer(call, reply.status, value, None, reply.body, request_id)


def _value(body: bytes, kind: Any) -> Any:
    """The value in a body of this type; of the first of several whose members are all there."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for each in kinds[:-1]:
        try:
            return json.decode(body, each)
        except msgspec.ValidationError:
            pass
    return json.decode(body, kinds[-1])
