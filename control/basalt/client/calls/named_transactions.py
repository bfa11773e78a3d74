"""Transactions that several processes of one run share: each begins by session, run and version, and gets the same one.

Each process stores under segments of its own, and one of them, who knows which of these count, commits them by the
transaction's id. Routes and rules: docs/reference/http-api.md, "Named transactions".
"""

from __future__ import annotations

import msgspec

from basalt.api.bodies.transactions import (
    BeginRequest,
    CheckpointRequest,
    CommittedBefore,
    TransactionInfo,
    TransactionKind,
)
from basalt.client.plans.calls import JSON, Answer, Call, Effect, Steps, ask, joined_path
from basalt.client.plans.scopes import ClientScope
from basalt.errors import TransactionEndedError


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


def begin(
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
    call = Call(
        f"begin version {version} of session {session}",
        "POST",
        joined_path("v1", "transactions"),
        _begun,
        Effect.REPEATABLE,  # the second one joins
        body=msgspec.json.encode(body),
        content_type=JSON,
    )
    found = yield from ask(call)
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
        _write_pointer,
        Effect.REPEATABLE,  # one under which nobody stores is none
        body=msgspec.json.encode(CheckpointRequest(snapshot=False)),
        content_type=JSON,
    )
    return (yield from ask(call))


def _begun(answer: Answer) -> TransactionInfo | CommittedBefore:
    try:
        return msgspec.json.decode(answer.body, type=TransactionInfo)
    except msgspec.ValidationError:
        return msgspec.json.decode(answer.body, type=CommittedBefore)


def _write_pointer(answer: Answer) -> int:
    return msgspec.json.decode(answer.body, type=TransactionInfo).write_pointer
