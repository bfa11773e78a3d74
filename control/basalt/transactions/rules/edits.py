"""The edits of the transaction log, each of which says one thing that has happened, and proposals of edits.

Bytes: docs/formats/transaction-log.md. An edit is only ever made by a proposal of a rule, written to the log, and applied. What follows from the
state (the snapshot of a transaction that begins, say) is not in it: replaying the edits in order finds it again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from basalt.errors import BasaltError
from basalt.transactions.rules.transaction import Join, Kind, Loss, SessionBinding, TableJoin, Transaction
from basalt_engine.snapshot import NO_RUNS, PointerRuns
from basalt_engine.spans.spans import Spans


class Edit(msgspec.Struct, frozen=True):
    """One thing that has happened. Its number and fields in the log: log/entry_format.py."""


class Began(Edit, frozen=True):
    """A transaction began; `id` is its first write pointer."""

    id: int
    kind: Kind
    external_writes: bool
    began_ms: int
    deadline_ms: int
    owner: str
    request_id: str | None


class Owned(Edit, frozen=True):
    """The transaction that has just begun belongs to this principal. In the entry of its Began or OneShot, after it."""

    id: int
    principal: str


class Checkpointed(Edit, frozen=True):
    """A transaction goes on under a further write pointer."""

    id: int
    write_pointer: int


class Joined(Edit, frozen=True):
    """A topic takes part in a transaction, or does so from an earlier time on."""

    id: int
    join: Join


class Changed(Edit, frozen=True):
    """A transaction told its change set, which replaces the one before. `external_writes` is the mark it has from now on."""

    id: int
    external_writes: bool
    changes: frozenset[bytes]


class Doomed(Edit, frozen=True):
    """A transaction lost a write conflict: it can only be aborted or invalidated."""

    id: int
    loss: Loss
    request_id: str | None
    at_ms: int


class Committing(Edit, frozen=True):
    """The decision to commit is made; the rows of its participants are being written."""

    id: int
    request_id: str | None
    at_ms: int


class Committed(Edit, frozen=True):
    """A transaction's writes are visible to everyone who begins from now on.

    `request_id` is that of the commit, where it had no Committing; behind one, that of a one-shot transaction over several owners.
    """

    id: int
    ended_ms: int
    request_id: str | None


class Aborting(Edit, frozen=True):
    """The decision to abort is made; its participants are being rolled back."""

    id: int
    timed_out: bool


class Aborted(Edit, frozen=True):
    """A transaction's writes are undone."""

    id: int
    ended_ms: int
    timed_out: bool


class Invalidated(Edit, frozen=True):
    """All write pointers of these transactions went to the invalid list."""

    ids: tuple[int, ...]
    ended_ms: int
    timed_out: bool


class OneShot(Edit, frozen=True):
    """A transaction began and was committed at once."""

    id: int
    ended_ms: int
    owner: str
    request_id: str | None


class Pruned(Edit, frozen=True):
    """These write pointers left the invalid list: no row of theirs is left anywhere. Ascending. Of a run on the list it may be a part."""

    pointers: tuple[int, ...]
    runs: PointerRuns = NO_RUNS


class Truncated(Edit, frozen=True):
    """All write pointers below this one left the invalid list."""

    before: int


class Reset(Edit, frozen=True):
    """Everything is forgotten but which write pointers were given out. Only where that is allowed: on test servers."""

    at_ms: int


class Restored(Edit, frozen=True):
    """These write pointers are on the invalid list again: rows of theirs came back with a copy of a table. Ascending."""

    pointers: tuple[int, ...]
    runs: PointerRuns = NO_RUNS


class Led(Edit, frozen=True):
    """A server leads from here on: it has read all entries before this one, and no former leader adds another."""

    epoch: int


class TableJoined(Edit, frozen=True):
    """A transactional table takes part in a transaction: cells may follow, so it ends committed or invalid."""

    id: int
    join: TableJoin


class SessionOpened(Edit, frozen=True):
    """A run holds a session from now on: a new session, or the same one at a higher epoch."""

    name: str
    run: str
    epoch: int
    at_ms: int
    principal: str = ""


class SessionBegan(Edit, frozen=True):
    """The transaction that has just begun is one of a session. Comes in the entry of its Began, after it."""

    id: int
    session: SessionBinding


class SessionsForgotten(Edit, frozen=True):
    """Nothing is known of these sessions any more but that their epochs are over. Names ascend."""

    names: tuple[str, ...]


class CounterOwnerClaimed(Edit, frozen=True):
    """The versions of a session are counted by this owner from now on."""

    name: str
    owner: str


class ChangesUnlogged(Edit, frozen=True):
    """The change set of the transaction that has just begun is logged only when it commits. In the entry of its Began."""

    id: int


class GroupMade(Edit, frozen=True):
    """A consumer group reads a generation of a topic; what is up to `floor` it has acknowledged. `options`: JSON, members sorted.

    `round` here and of a seek: a number that no other round of the group's name has.
    """

    number: int
    at_ms: int
    generation: int
    prefix: bytes
    name: str
    options: bytes
    floor: bytes
    round: int


class GroupChanged(Edit, frozen=True):
    """A group has these options from now on, and deals messages or not."""

    number: int
    at_ms: int
    options: bytes
    paused: bool


class GroupSought(Edit, frozen=True):
    """A group goes on behind `floor`: it has acknowledged what is up to there, and nothing else. Attempts are forgotten."""

    number: int
    at_ms: int
    round: int
    floor: bytes


class GroupsForgotten(Edit, frozen=True):
    """Nothing is known of these groups any more: they were deleted, nobody used them, or their topic's generation is over."""

    numbers: tuple[int, ...]


class Acknowledged(Edit, frozen=True):
    """Messages of a group are acknowledged. `writer` is the one-shot transaction in whose entry it is; 0: none."""

    writer: int
    number: int
    at_ms: int
    spans: Spans


class AcknowledgedIn(Edit, frozen=True):
    """Messages of a group are acknowledged once this transaction commits, and until then are nobody else's."""

    id: int
    number: int
    at_ms: int
    spans: Spans


class ReturnReason(enum.IntEnum):
    """Why messages came back to a group unacknowledged; the numbers are on disk."""

    RELEASED = 1
    ABORTED = 2
    TIMED_OUT = 3
    CLAIM_EXPIRED = 4
    MEMBER_LOST = 5
    UNPARKED = 6  # somebody wants them dealt again as if they had never come back


class Returned(Edit, frozen=True):
    """Messages of a group came back: one attempt more of each has failed. They are not dealt before `not_before_ms`."""

    number: int
    at_ms: int
    reason: ReturnReason
    not_before_ms: int
    spans: Spans


class Lent(Edit, frozen=True):
    """A member has these write pointers for its one-shot transactions. Until they are settled they are in progress."""

    member: str
    first: int
    last: int


class LoanReturned(Edit, frozen=True):
    """The rest of a loan was never used, and never will be."""

    first: int
    last: int


class GivenUp(Edit, frozen=True):
    """Nobody knows what was written under these pointers of a loan, or nobody shall see it: they are a run on the invalid list."""

    first: int
    last: int


class MemberEnded(Edit, frozen=True):
    """A member writes nothing any more under the loans that it has. What they leave undecided goes to the invalid list, of each as one run."""

    member: str


class Proposal(msgspec.Struct, frozen=True):
    """Edits to log and apply, and the transaction they are about. No edits: the call was answered before.

    With a `refusal` the edits still hold (a transaction is doomed, or has timed out); raise it once they are durable.
    """

    edits: tuple[Edit, ...]
    transaction_id: int = 0  # 0 where a proposal is about several, or none
    refusal: BasaltError | None = None


def forced_ends(transactions: Iterable[Transaction], now_ms: int, *, timed_out: bool) -> tuple[Edit, ...]:
    """The edits that end open transactions that nobody asked to end: their time is up, or their session was taken over.

    What cannot be undone here becomes invalid, the rest is aborted.
    """
    invalid: list[int] = []
    ended: list[Edit] = []
    for transaction in transactions:
        if transaction.cannot_roll_back:
            invalid.append(transaction.id)
        elif transaction.topics:
            ended.append(Aborting(transaction.id, timed_out))
        else:
            ended.append(Aborted(transaction.id, now_ms, timed_out))
    if invalid:  # one edit for all: each copies the invalid list
        ended.append(Invalidated(tuple(sorted(invalid)), now_ms, timed_out))
    return tuple(ended)
