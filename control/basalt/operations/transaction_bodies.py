"""Transactions as bodies of the API, made of the manager's own."""

from __future__ import annotations

from typing import Any

from basalt.api.bodies.transactions import (
    CommittedBefore,
    Outcome,
    TransactionInfo,
    TransactionSession,
    TransactionTable,
    TransactionTopic,
)
from basalt.catalog.topics import title_of
from basalt.transactions.rules import outcomes
from basalt.transactions.rules.sessions import Session
from basalt.transactions.rules.transaction import Join, Kind, State, TableJoin, Transaction, TransactionIds

KINDS = {"short": Kind.SHORT, "long": Kind.LONG}
KIND_NAMES = {kind: name for name, kind in KINDS.items()}


def transaction_fields(ids: TransactionIds, transaction: Transaction) -> dict[str, Any]:
    """The fields that every answer about an open transaction has."""
    return {
        "id": ids.text(transaction.id),
        "write_pointer": transaction.write_pointer,
        "read_pointer": transaction.read_pointer,
        "state": transaction.state.name,
        "kind": KIND_NAMES[transaction.kind],
        "owner": transaction.owner,
        "began_ms": transaction.began_ms,
        "expires_ms": transaction.deadline_ms,
        "topics": tuple(map(transaction_topic, transaction.topics)),
        "tables": tuple(map(transaction_table, transaction.tables)),
        "outside_writes": transaction.outside,
        "session": None if transaction.session is None else TransactionSession(*transaction.session),
    }


def transaction_info(ids: TransactionIds, transaction: Transaction, encoded: bytes | None = None) -> TransactionInfo:
    """An open transaction; `encoded` is its snapshot, for who goes on with it."""
    return TransactionInfo(**transaction_fields(ids, transaction), transaction=encoded)


def transaction_topic(join: Join, stored: tuple[int, int] | None = None) -> TransactionTopic:
    """A topic that takes part; `stored` are the messages and bytes that wait for the commit."""
    title = title_of(join.topic)
    messages, payload_bytes = stored or (None, None)
    return TransactionTopic(title.namespace, title.name, join.generation, messages, payload_bytes)


def transaction_table(join: TableJoin) -> TransactionTable:
    """A table that takes part."""
    namespace, name, _ = join.table.decode("ascii").split(":")
    return TransactionTable(namespace, name.removeprefix("~"), join.generation)


def outcome_info(ids: TransactionIds, outcome: outcomes.Outcome) -> Outcome:
    """Outcome of a transaction."""
    return Outcome(ids.text(outcome.id), outcome.write_pointer, outcome.state.name)


def committed_before(ids: TransactionIds, session: Session) -> CommittedBefore:
    """The session's newest committed version, which covers the one that was to begin."""
    assert session.version is not None, "something was committed"
    committed_by = ids.text(session.committed_by)
    return CommittedBefore(None, None, State.COMMITTED.name, session.name, session.version, committed_by)
