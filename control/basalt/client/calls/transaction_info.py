"""Transactions as the server describes them."""

from __future__ import annotations

import msgspec


class TransactionTopic(msgspec.Struct, frozen=True):
    """A topic in which a transaction has stored messages that its commit will publish."""

    namespace: str
    topic: str


class TransactionTable(msgspec.Struct, frozen=True):
    """A transactional table that a transaction has, or may have, written to."""

    namespace: str
    table: str


class TransactionSession(msgspec.Struct, frozen=True):
    """The named session that a transaction began in, and the version of the session's work that it is for, if any."""

    name: str
    epoch: int
    version: int | None = None


class TransactionInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A transaction: its id, the pointers it reads and writes under, its state and its deadline.

    `expires_at_ms` is milliseconds since 1970, by the server's clock. `transaction` is its snapshot in bytes, as a poll
    takes it; only `begin` and `checkpoint` answer that.
    """

    id: str
    write_pointer: int
    state: str
    read_pointer: int | None = None
    kind: str = ""
    owner: str = ""
    began_at_ms: int | None = msgspec.field(default=None, name="beganAt")
    expires_at_ms: int | None = msgspec.field(default=None, name="expiresAt")
    transaction: bytes | None = None
    topics: tuple[TransactionTopic, ...] = ()
    tables: tuple[TransactionTable, ...] = ()
    outside_writes: bool = False
    session: TransactionSession | None = None


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """How a transaction ended: `state` is COMMITTED, ABORTED or INVALID."""

    id: str
    write_pointer: int
    state: str
