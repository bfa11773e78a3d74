"""Named sessions: of all runs of a job only the newest may write, and work that has a version is committed once.

A run opens the session, which fences every run before it, and begins its transactions in it. Several processes of one run
share a named transaction: each begins it by session, run and version, and gets the same one. Each stores under segments of
its own, and one of them, which knows which segments count, commits these by the transaction's id. Routes and rules:
docs/reference/http-api.md, "Sessions" and "Named transactions".
"""

from __future__ import annotations

from typing import TypeVar
from uuid import uuid4

import msgspec

from basalt.api.bodies.transactions import (
    BeginRequest,
    CheckpointRequest,
    CommittedBefore,
    OpenedSession,
    OpenSession,
    SessionInfo,
    SessionList,
    TransactionInfo,
    TransactionKind,
)
from basalt.client.calls.admin import act
from basalt.client.calls.transactions import begin_call
from basalt.client.plans.calls import JSON, Call, Effect, Steps, ask, joined_path, json_of, nothing
from basalt.client.plans.scopes import ClientScope
from basalt.errors import TransactionEndedError

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
        json_of(OpenedSession),
        Effect.REPEATABLE,  # the same run opens it again
        body=msgspec.json.encode(OpenSession(run)),
        content_type=JSON,
    )
    opened = yield from ask(call)
    return SessionScope(scope, opened.name, run, opened.epoch, opened.version)


def get(scope: ClientScope, name: str) -> Steps[SessionInfo]:
    """A session. `SessionNotFoundError` when there is none of the name."""
    return (yield from ask(Call(f"get session {name}", "GET", _path(name), json_of(SessionInfo), Effect.NONE)))


def known(scope: ClientScope) -> Steps[list[SessionInfo]]:
    """All sessions, by name."""
    return (yield from ask(Call("list sessions", "GET", _path(), json_of(SessionList), Effect.NONE))).sessions


def delete(scope: ClientScope, name: str, *, reason: str = "", by: str = "") -> Steps[None]:
    """End what is open in a session, and forget it with the version that it has committed. Its runs stay fenced.

    The audit keeps who did it and why.
    """
    query = act(reason, by)
    return (yield from ask(Call(f"delete session {name}", "DELETE", _path(name), nothing, Effect.ONCE, query=query)))


def _path(name: str | None = None) -> str:
    return joined_path("v1", "transactions", "sessions", *(() if name is None else (name,)))


class NamedScope(msgspec.Struct, frozen=True):
    """A named transaction. Without an id there is none, for `committed_by` has committed its version, or a later one."""

    client: ClientScope
    session: str
    run: str
    version: int
    id: str | None
    write_pointer: int | None
    expires_ms: int | None
    committed_by: str | None

    def described(self) -> tuple[str, int]:
        """Its id and first write pointer; `TransactionEndedError` when its version was committed before."""
        if self.id is None or self.write_pointer is None:
            raise TransactionEndedError(
                f"version {self.version} of session {self.session!r} was committed before, by transaction"
                f" {self.committed_by}",
                hint="Leave this work out: ask committed_before first.",
            )
        return self.id, self.write_pointer


def named_transaction(
    scope: ClientScope,
    session: str,
    run: str,
    version: int,
    *,
    ledger: str | None = None,
    kind: TransactionKind = "long",
    timeout_ms: int | None = None,
    owner: str = "",
) -> Steps[NamedScope]:
    """The transaction of this run for this version of a session's work, which all processes of the run share.

    The first one begins it, with its `kind`, `timeout_ms` and `owner`; the others join. `SessionFencedError`: another run has
    taken the session over. `SessionForeignError`: its versions were counted under another `ledger`. Leaving it leaves it
    open: it is ended by its id, with `client.transactions`.
    """
    body = BeginRequest(
        kind, timeout_ms, owner, snapshot=False, session=session, version=version, run=run, ledger=ledger
    )
    found = yield from ask(begin_call(body))
    if isinstance(found, CommittedBefore):
        return NamedScope(scope, session, run, version, None, None, None, found.committed_by)
    return NamedScope(scope, session, run, version, found.id, found.write_pointer, found.expires_ms, None)


def segment(scope: NamedScope) -> Steps[int]:
    """A write pointer of one's own, to store under; it is published if the commit names it, and dropped if not."""
    transaction_id, _ = scope.described()
    call = Call(
        f"begin a segment of transaction {transaction_id}",
        "POST",
        joined_path("v1", "transactions", transaction_id, "checkpoint"),
        json_of(TransactionInfo),
        Effect.REPEATABLE,  # one under which nobody stores is none
        body=msgspec.json.encode(CheckpointRequest(snapshot=False)),
        content_type=JSON,
    )
    return (yield from ask(call)).write_pointer
