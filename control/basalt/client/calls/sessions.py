"""Named sessions: of all runs of a job only the newest may write, and work that has a version is committed once.

A run opens the session, which fences every run before it, and begins its transactions in it. Routes and rules:
docs/reference/http-api.md, "Sessions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

import msgspec

from basalt.api.bodies.sessions import OpenedSession, OpenSession, SessionInfo, SessionList
from basalt.client.calls.admin import act
from basalt.client.plans.calls import JSON, Answer, Call, Effect, Steps, ask, joined_path, nothing
from basalt.client.plans.scopes import ClientScope

T = TypeVar("T")


class SessionScope(msgspec.Struct, frozen=True):
    """A session that this run has opened. `version` is the newest that was committed by then; None: none was."""

    client: ClientScope
    name: str
    run: str
    epoch: int
    version: int | None


def open_session(scope: ClientScope, name: str, *, run: str | None = None) -> Steps[SessionScope]:
    """Open a named session, and fence every run that has it open, but for the same `run` (None: a run of its own).

    The same run may open it again, in another process too.
    """
    run = run or uuid4().hex
    call = Call(
        f"open session {name}",
        "POST",
        _path(name),
        _parser(OpenedSession),
        Effect.REPEATABLE,  # the same run opens it again
        body=msgspec.json.encode(OpenSession(run)),
        content_type=JSON,
    )
    opened = yield from ask(call)
    return SessionScope(scope, opened.name, run, opened.epoch, opened.version)


def get(scope: ClientScope, name: str) -> Steps[SessionInfo]:
    """A session. `SessionNotFoundError` when there is none of the name."""
    return (yield from ask(Call(f"get session {name}", "GET", _path(name), _parser(SessionInfo), Effect.NONE)))


def known(scope: ClientScope) -> Steps[list[SessionInfo]]:
    """All sessions, by name."""
    return (yield from ask(Call("list sessions", "GET", _path(), _parser(SessionList), Effect.NONE))).sessions


def delete(scope: ClientScope, name: str, *, reason: str = "", by: str = "") -> Steps[None]:
    """End what is open in a session, and forget it with the version that it has committed. Its runs stay fenced.

    The audit keeps who did it and why.
    """
    query = act(reason, by)
    return (yield from ask(Call(f"delete session {name}", "DELETE", _path(name), nothing, Effect.ONCE, query=query)))


def _path(name: str | None = None) -> str:
    return joined_path("v1", "transactions", "sessions", *(() if name is None else (name,)))


def _parser(kind: type[T]) -> Callable[[Answer], T]:
    def parse(answer: Answer) -> T:
        return msgspec.json.decode(answer.body, type=kind)

    return parse
