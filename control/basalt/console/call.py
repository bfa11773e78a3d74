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
    """A call of the API: its method and path as OpenAPI has them, the names in the path, query and body; and the type of its answer."""

    method: str
    path: str
    kind: Any
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def target(self) -> str:
        """The target of the request."""
        path = self.path.format_map({name: quote(value, safe="") for name, value in self.names.items()})
        return f"{path}?{urlencode(self.query)}" if self.query else path

    @property
    def sent(self) -> bytes:
        """The body of the request; empty where it has none."""
        return b"" if self.body is None else msgspec.json.encode(self.body)

    def curl(self, url: str) -> str:
        """The call as a line for curl. The token is in the environment, and not in the line."""
        words = ["curl", "-sS"]
        if self.method != "GET":
            words += ["-X", self.method]
        if self.body is not None:
            words += ["-H", "Content-Type: application/json", "--data-binary", self.sent.decode()]
        return " ".join((*map(shlex.quote, words), shlex.quote(url + self.target)))

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
    if kind == b"application/problem+json":
        return Answer(call, reply.status, problem=json.decode(reply.body, Problem), raw=reply.body)
    if kind == b"application/json":
        return Answer(call, reply.status, json.decode(reply.body, call.kind), raw=reply.body)
    return Answer(call, reply.status)
