"""Transactions, as their clients and as operators see them, and named sessions: of all runs of a job only the newest may write,
and work that has a version is committed once. Times are milliseconds since 1970 by the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

TransactionKind: TypeAlias = Literal["short", "long"]


class BeginRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The body of a begin. `external_writes`: the client also writes elsewhere under the transaction's pointer.

    With a `session`, `session_epoch` is the one that opening it answered, and `version` that of the work, if it is to be
    committed once. With a `run` in place of the epoch it is a named transaction: begun, or joined, by session, run and
    version; `counter_owner` says whose version that is. `snapshot` false leaves the snapshot's bytes out of the answer.
    """

    kind: TransactionKind = "short"
    timeout_ms: int | None = None
    owner: str = ""
    external_writes: bool = False
    snapshot: bool = True
    session: str | None = None
    session_epoch: int | None = None
    version: int | None = None
    run: str | None = None
    counter_owner: str | None = None


class CheckpointRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a checkpoint, which may be empty."""

    snapshot: bool = True


class OneShotRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a one-shot transaction. `work` is described in docs/formats/json-bodies.md."""

    work: Any
    owner: str = ""


class ChangesRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The whole change set of a transaction; it replaces the one told before. Each change is base64.

    `external_writes` is false where all changes are in Basalt's own tables.
    """

    changes: list[bytes]
    external_writes: bool = True


class ExternalParticipantRequest(Struct, frozen=True, forbid_unknown_fields=True, tag="external", tag_field="kind"):
    """A store of the client's own takes part."""

    name: str


class TopicParticipantRequest(Struct, frozen=True, forbid_unknown_fields=True, tag="topic", tag_field="kind"):
    """A topic takes part, ahead of its first write."""

    namespace: str
    topic: str


class TransactionTopic(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A topic that takes part in a transaction. `stored_…` is what waits for the commit, where the server has it in memory."""

    namespace: str
    topic: str
    generation: int
    stored_messages: int | None = None
    stored_bytes: int | None = None


class WrittenTable(Struct, frozen=True):
    """A transactional table that a transaction has written to, or may have."""

    namespace: str
    table: str
    generation: int


class TransactionSession(Struct, frozen=True):
    """The named session that a transaction began in, and the version of the session's work that it is for, if any."""

    name: str
    epoch: int
    version: int | None = None


class TransactionInfo(Struct, frozen=True, rename="camel"):
    """A transaction: its id, the pointers it reads and writes under, its state and its deadline.

    `transaction` is its snapshot in bytes, as a poll takes it; only begin and checkpoint answer that. `principal` began it; `owner`
    is what its client calls itself. Of one that has ended only id, write pointer and state are told.
    """

    id: str
    write_pointer: int
    state: str
    read_pointer: int | None = None
    kind: str = ""
    owner: str = ""
    began_ms: int | None = None
    expires_ms: int | None = None
    topics: tuple[TransactionTopic, ...] = ()
    tables: tuple[WrittenTable, ...] = ()
    external_writes: bool = False
    session: TransactionSession | None = None
    transaction: bytes | None = None
    principal: str | None = None


class TransactionList(Struct, frozen=True):
    """All transactions that have not ended, oldest first."""

    transactions: list[TransactionInfo]


class CommittedBefore(Struct, frozen=True, rename="camel"):
    """Answer of a begin that began nothing: the session has committed this version, or a later one, before."""

    id: None
    write_pointer: None
    state: str
    session: str
    version: int
    committed_by: str


class TransactionOutcome(Struct, frozen=True, rename="camel"):
    """Outcome of a transaction: `state` is COMMITTED, ABORTED or INVALID, or the state it is in."""

    id: str
    write_pointer: int
    state: str


class InvalidateResponse(Struct, frozen=True):
    """False when the transaction was not in progress."""

    invalidated: bool


class TransactionLoss(Struct, frozen=True, rename="camel"):
    """The conflict that a transaction lost: the winner had changed `key` and committed first."""

    winner: str
    winner_owner: str
    key: str


class BlockedTopic(Struct, frozen=True, rename="camel"):
    """A topic whose readers of committed messages stop at message `at` (null: not found, the search was given up).

    `messages` of writers that have not failed come after it (`exact` is false where there may be more); `waiting` long polls
    wait in the topic.
    """

    namespace: str
    topic: str
    at: str | None
    messages: int
    exact: bool
    waiting: int


class HeldBack(Struct, frozen=True, rename="camel"):
    """Work that cannot go on, beside readers. Compactions do not pass `visibility_bound`, pruning does not look past `decided`.

    `change_sets` of committed transactions, with `changes` keys, are kept because this one may still clash with them.
    """

    visibility_bound: int
    visibility: bool
    decided: int
    pruning: bool
    change_sets: int
    changes: int


class PendingAcknowledgement(Struct, frozen=True):
    """Messages of a group that the transaction acknowledges if it commits: so many, or so many at least where it is not `exact`."""

    namespace: str
    topic: str
    group: str
    messages: int
    exact: bool


class InspectedTransaction(Struct, frozen=True, rename="camel", kw_only=True):
    """A transaction that has not ended, as operators see it. `holds_readers`: it has published since the server started.

    `principal` began it, null where who asks may not look at it: then label, topics, tables and session are left out, too.
    """

    id: str
    write_pointer: int
    read_pointer: int
    state: str
    kind: str
    owner: str
    began_ms: int
    age_ms: int
    expires_ms: int
    remaining_ms: int
    topics: tuple[TransactionTopic, ...]
    tables: tuple[WrittenTable, ...]
    external_writes: bool
    doomed: bool
    holds_readers: bool
    session: TransactionSession | None
    principal: str | None


class InspectedList(Struct, frozen=True):
    """Transactions, oldest first; `open` counts all that have not ended, also those that the filters left out.

    `next` is the `after` of the page behind it, and null in the last one.
    """

    open: int
    transactions: tuple[InspectedTransaction, ...]
    next: str | None = None


class HangingTransaction(InspectedTransaction, frozen=True, rename="camel", kw_only=True):
    """A transaction that somebody should look at, and why."""

    reasons: tuple[str, ...]
    blocks: tuple[BlockedTopic, ...]
    next_step: str


class HangingList(Struct, frozen=True, rename="camel"):
    """Worst first: those that hold most messages back, then the oldest. `left_out` pass the filters and were not looked at.

    `found` counts all that hang, also those beyond the limit of the list.
    """

    open: int
    left_out: int
    hanging: tuple[HangingTransaction, ...]
    found: int


class TransactionDescription(InspectedTransaction, frozen=True, rename="camel", kw_only=True):
    """Everything that is known of a transaction that has not ended."""

    write_pointers: tuple[int, ...]
    write_pointers_left_out: int
    change_set: int | None
    change_set_bytes: int
    lost_to: TransactionLoss | None
    timed_out: bool
    blocks: tuple[BlockedTopic, ...]
    acknowledges: tuple[PendingAcknowledgement, ...]
    held_back: HeldBack
    waits_for: str
    at_deadline: str
    next_step: str


class EndDescription(Struct, frozen=True, rename="camel", kw_only=True):
    """End of a transaction. `began_ms` is read off its id; `invalid_pointers` are those still on the invalid list.

    `principal` began it, null where who asks may not look at it: then label, topics and tables are left out, too.
    """

    id: str
    write_pointer: int
    state: str
    kind: str
    owner: str
    principal: str | None
    began_ms: int
    ended_ms: int
    timed_out: bool
    topics: tuple[TransactionTopic, ...]
    tables: tuple[WrittenTable, ...]
    external_writes: bool
    invalid_pointers: int
    meaning: str
    next_step: str


class FailedWriter(Struct, frozen=True, rename="camel"):
    """A write pointer on the invalid list, and its transaction; what is not remembered of it, or is not for who asks, is left out."""

    write_pointer: int
    transaction: str | None = None
    kind: str | None = None
    ended_ms: int | None = None
    timed_out: bool = False
    owner: str = ""
    principal: str | None = None
    topics: tuple[TransactionTopic, ...] = ()
    tables: tuple[WrittenTable, ...] = ()


class FailedWriters(Struct, frozen=True):
    """Writers on the invalid list, of `invalid` in all, in the order in which they began. `next` is the `after` of the page behind."""

    invalid: int
    writers: tuple[FailedWriter, ...]
    next: int | None = None


class ForcedEnd(Struct, frozen=True, rename="camel"):
    """A transaction that an operator ended. `changed` is false when it had ended like that before.

    `owner` is whose it was; `topics` and `tables` are those that it had written to, as far as they are known.
    """

    id: str
    was: str
    state: str
    changed: bool
    dry_run: bool
    owner: str
    topics: tuple[TransactionTopic, ...]
    tables: tuple[WrittenTable, ...]


class TimelineStep(Struct, frozen=True, rename="camel"):
    """One step. `exact` is false where only a time is known after which it happened."""

    at_ms: int
    exact: bool
    event: str
    detail: Mapping[str, str | int | bool]


class Timeline(Struct, frozen=True, rename="camel"):
    """The steps of a transaction. Every step since `since_ms` is there; `whole`: every step there was."""

    id: str
    since_ms: int
    whole: bool
    steps: tuple[TimelineStep, ...]


class OpenSession(Struct, frozen=True, forbid_unknown_fields=True):
    """The run that wants to hold the session."""

    run: str


class OpenedSession(Struct, frozen=True):
    """The session, held by the caller's run. `version` is the newest that was committed; null: none was."""

    name: str
    epoch: int
    version: int | None


class SessionInfo(Struct, frozen=True, rename="camel"):
    """A session: the run that holds it, the newest version that was committed, and the ids of what is open in it.

    `committed_by` is the transaction that committed `version`; `counter_owner` says whose count the versions are, if anybody
    said so; `replaced` are the runs before, newest last, which cannot begin by their names any more. `principal` opened it for the run.
    """

    name: str
    run: str
    epoch: int
    version: int | None
    committed_by: str | None
    used_ms: int
    transactions: tuple[str, ...]
    counter_owner: str | None
    replaced: tuple[str, ...]
    principal: str


class SessionList(Struct, frozen=True):
    """Sessions, by name. `next` is the `after` of the page behind it, and null in the last one."""

    sessions: list[SessionInfo]
    next: str | None = None


class DeletedSession(Struct, frozen=True, rename="camel"):
    """A session that was forgotten, or would be: its newest version, and the ids of what was open in it, which is ended."""

    name: str
    run: str
    version: int | None
    transactions: tuple[str, ...]
    dry_run: bool
