"""What the calls on transactions take and answer, as JSON: docs/reference/http-api.md."""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec

from basalt.catalog.topics import TopicName, title_of
from basalt.http.asgi.requests import Request
from basalt.transactions.rules.outcomes import Outcome
from basalt.transactions.rules.pointers import TransactionIds
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.states import Join, Kind, State, TableJoin, Transaction

KINDS = {"short": Kind.SHORT, "long": Kind.LONG}
_KIND_NAMES = {kind: name for name, kind in KINDS.items()}


class BeginRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a begin. `outside_writes`: the client also writes elsewhere under the transaction's pointer.

    With a `session`, `session_epoch` is the one that opening it answered; `version` that of the work, if it is to be
    committed once. With `run` in place of the epoch it is a named transaction: begun, or joined, by session, run and
    version; `ledger` says whose version that is.
    """

    kind: Literal["short", "long"] = "short"
    timeout_ms: int | None = None
    owner: str = ""
    outside_writes: bool = False
    snapshot: bool = True
    session: str | None = None
    session_epoch: int | None = None
    run: str | None = None
    version: int | None = None
    ledger: str | None = None


class CheckpointRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a checkpoint, which may be empty."""

    snapshot: bool = True


class OneShotRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a one-shot transaction."""

    work: Any
    owner: str = ""


class ChangesRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The whole change set of a transaction; it replaces the one told before. Each change is base64.

    `outside_writes` is false where all of it happens in Basalt's own tables.
    """

    changes: list[str]
    outside_writes: bool = True


class OutsideParticipant(msgspec.Struct, forbid_unknown_fields=True, tag="outside", tag_field="kind"):
    """A store of the client's own takes part."""

    name: str


class TopicTakesPart(msgspec.Struct, forbid_unknown_fields=True, tag="topic", tag_field="kind"):
    """A topic takes part, ahead of its first write."""

    namespace: str
    topic: str


class TopicShown(msgspec.Struct):
    """A topic that takes part in a transaction."""

    namespace: str
    topic: str


class Begun(msgspec.Struct, rename="camel", omit_defaults=True):
    """A transaction that its client goes on with. Times in ms since 1970; `transaction` is TransactionCodec, base64."""

    id: str
    write_pointer: int
    read_pointer: int
    state: str
    kind: str
    owner: str
    expires_at: int
    transaction: str | None = None


class DoneBefore(msgspec.Struct, rename="camel"):
    """No transaction was begun: the session has committed this version, or a later one, before."""

    id: None
    write_pointer: None
    state: str
    session: str
    version: int
    committed_by: str


class SessionOf(msgspec.Struct):
    """The session that a transaction began in, and the version of its work that the commit makes true, if any."""

    name: str
    epoch: int
    version: int | None


class TableWritten(msgspec.Struct):
    """A transactional table that takes part in a transaction."""

    namespace: str
    table: str


class Shown(msgspec.Struct, rename="camel"):
    """A transaction that has not ended, as operators see it."""

    id: str
    write_pointer: int
    read_pointer: int
    state: str
    kind: str
    owner: str
    began_at: int
    expires_at: int
    topics: list[TopicShown]
    tables: list[TableWritten]
    outside_writes: bool
    session: SessionOf | None


class ShownList(msgspec.Struct):
    """All transactions that have not ended, oldest first."""

    transactions: list[Shown]


class Ended(msgspec.Struct, rename="camel"):
    """How a transaction ended, or where it stands."""

    id: str
    write_pointer: int
    state: str


class Invalidated(msgspec.Struct):
    """False when the transaction was not in progress."""

    invalidated: bool


def begun(request: Request, transaction: Transaction, with_bytes: bool) -> Begun:
    """What the client of a transaction goes on with."""
    codec = base64.b64encode(request.snapshots.encode(transaction)).decode("ascii") if with_bytes else None
    return Begun(
        id=request.services.ids.text(transaction.id),
        write_pointer=transaction.write_pointer,
        read_pointer=transaction.read_pointer,
        state=transaction.state.name,
        kind=_KIND_NAMES[transaction.kind],
        owner=transaction.owner,
        expires_at=transaction.deadline_ms,
        transaction=codec,
    )


def shown(ids: TransactionIds, transaction: Transaction) -> Shown:
    """A transaction that has not ended."""
    return Shown(
        id=ids.text(transaction.id),
        write_pointer=transaction.write_pointer,
        read_pointer=transaction.read_pointer,
        state=transaction.state.name,
        kind=_KIND_NAMES[transaction.kind],
        owner=transaction.owner,
        began_at=transaction.began_ms,
        expires_at=transaction.deadline_ms,
        topics=[_topic_shown(join) for join in transaction.topics],
        tables=[_table_shown(join) for join in transaction.tables],
        outside_writes=transaction.outside,
        session=None if transaction.session is None else SessionOf(*transaction.session),
    )


def _topic_shown(join: Join) -> TopicShown:
    title: TopicName = title_of(join.topic)
    return TopicShown(title.namespace, title.name)


def ended(ids: TransactionIds, outcome: Outcome) -> Ended:
    """How a transaction ended."""
    return Ended(ids.text(outcome.id), outcome.write_pointer, outcome.state.name)


def done_before(ids: TransactionIds, session: Session) -> DoneBefore:
    """The session's newest committed version, which covers the one that was to begin."""
    assert session.version is not None, "something was committed"
    return DoneBefore(None, None, State.COMMITTED.name, session.name, session.version, ids.text(session.committed_by))


def _table_shown(join: TableJoin) -> TableWritten:
    namespace, name = join.table.decode("ascii").rstrip(":").split(":")
    return TableWritten(namespace, name.removeprefix("~"))
