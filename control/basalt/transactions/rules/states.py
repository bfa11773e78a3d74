"""Transactions and the states that they may go through: values and one table, no I/O.

    OPEN --commit--> COMMITTING --finish--> COMMITTED        COMMITTING and ABORTING last while the rows of the
      |--abort-----> ABORTING ----finish--> ABORTED          participants are written or rolled back; `inline` moves
      '--invalidate-----------------------> INVALID          skip them, for stores that write rows and log at once.

A transaction that cannot be undone (`Transaction.cannot_roll_back`) never goes through ABORTING: its abort is an invalidation.

The numbers are those of the log (docs/formats/transaction-log.md) and, for `Kind` and `VisibilityLevel`, of the
transaction bytes that clients hold.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from basalt.transactions.rules.pointers import PointerSet
from basalt_engine.snapshot import NO_INVALID, POINTER_MAX, InvalidList, TransactionSnapshot

NO_SHORT = POINTER_MAX  # `first_short` when no short transaction is in progress: every pointer is older than it


class Kind(enum.IntEnum):
    """SHORT: time-outs of seconds, conflict detection. LONG: hours, no conflict detection, its abort is invalid."""

    SHORT = 1
    LONG = 2


class VisibilityLevel(enum.IntEnum):
    """Which of its own writes a transaction sees."""

    SNAPSHOT = 1
    SNAPSHOT_EXCLUDE_CURRENT = 2  # all but those under its newest pointer
    SNAPSHOT_ALL = 3


class State(enum.IntEnum):
    """The states of a transaction; the numbers are on disk."""

    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5
    INVALID = 6


class Event(enum.Enum):
    """The events that may move a transaction to another state."""

    CHECKPOINT = "checkpoint"
    JOIN = "join"
    CHANGE = "change"  # its change set is told
    LOSE = "lose"  # another transaction won a write conflict: it is doomed
    COMMIT = "commit"
    COMMIT_INLINE = "commit inline"
    ABORT = "abort"
    ABORT_INLINE = "abort inline"
    INVALIDATE = "invalidate"
    FINISH = "finish"  # the participants are done
    GIVE_UP = "give up"  # a commit was interrupted before its outcome was logged: its rows are rolled back
    GIVE_UP_HIDDEN = "give up hidden"  # the same of one whose writes cannot be undone here: they are hidden for good


_NO = None
_STATES: dict[State, tuple[State | None, ...]] = {
    # The columns are the events in their order; a state that stays itself is a repeated call, answered as the first was.
    State.OPEN: (State.OPEN,) * 4
    + (State.COMMITTING, State.COMMITTED, State.ABORTING, State.ABORTED, State.INVALID, _NO, _NO, _NO),
    State.COMMITTING: (_NO,) * 4
    + (State.COMMITTING, State.COMMITTING, _NO, _NO, _NO, State.COMMITTED, State.ABORTING, State.INVALID),
    State.COMMITTED: (_NO,) * 4 + (State.COMMITTED, State.COMMITTED, _NO, _NO, _NO, State.COMMITTED, _NO, _NO),
    # An operator may give up on a roll back that keeps failing: the writes stay hidden either way.
    State.ABORTING: (_NO,) * 4
    + (_NO, _NO, State.ABORTING, State.ABORTING, State.INVALID, State.ABORTED, State.ABORTING, State.ABORTING),
    State.ABORTED: (_NO,) * 4 + (_NO, _NO) + (State.ABORTED,) * 6,
    # The abort of a short transaction promises that its writes are undone, so it may leave the invalid list.
    State.INVALID: (_NO,) * 4 + (_NO, _NO, State.ABORTING, State.ABORTED) + (State.INVALID,) * 4,
}
TABLE: dict[tuple[State, Event], State | None] = {
    (state, event): after for state, row in _STATES.items() for event, after in zip(Event, row, strict=True)
}


def step(state: State, event: Event) -> State | None:
    """The state after the event: the same one for a repeated call, None when the state does not allow it."""
    return TABLE[state, event]


class Join(NamedTuple):
    """A topic that takes part in a transaction: rows of the writer lie in it, from this time on.

    `topic` is the topic prefix `namespace:topic:`.
    """

    topic: bytes
    generation: int
    from_ms: int


class TableJoin(NamedTuple):
    """A transactional table that takes part in a transaction: cells of the writer lie in it, or may.

    `table` is the table prefix `namespace:~table:`.
    """

    table: bytes
    generation: int


class SessionBinding(NamedTuple):
    """In which session a transaction began, and the version of the session's work that its commit makes true, if any."""

    name: str
    epoch: int
    version: int | None = None


class Loss(NamedTuple):
    """Why a transaction is doomed: another one changed `key` and committed first."""

    winner: int
    key: bytes
    winner_owner: str


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction that has not ended. `id` is its first write pointer; times are in milliseconds since 1970.

    `read_pointer`, `concurrent`, `invalid` and `first_short` are its snapshot: what was true when it began.
    `outside` means that it has, or may have, writes outside Basalt that only its client can undo. `was_invalid` marks one
    that is being aborted from the invalid list: its pointers stay on that list until it is rolled back, and its snapshot
    is gone. `changes_unlogged`: its change set is deferred, whoever keeps it brings it with the commit.
    """

    id: int
    kind: Kind
    read_pointer: int
    began_ms: int
    deadline_ms: int
    owner: str = ""
    outside: bool = False
    request_id: str | None = None
    checkpoints: tuple[int, ...] = ()
    concurrent: PointerSet = PointerSet()
    invalid: InvalidList = NO_INVALID
    first_short: int = NO_SHORT
    level: VisibilityLevel = VisibilityLevel.SNAPSHOT
    topics: tuple[Join, ...] = ()
    tables: tuple[TableJoin, ...] = ()
    session: SessionBinding | None = None
    changes: frozenset[bytes] | None = None
    changes_unlogged: bool = False
    state: State = State.OPEN
    doomed: Loss | None = None
    timed_out: bool = False
    was_invalid: bool = False

    @property
    def write_pointer(self) -> int:
        """The pointer that it writes under now: its newest checkpoint, or its id."""
        return self.checkpoints[-1] if self.checkpoints else self.id

    @property
    def pointers(self) -> tuple[int, ...]:
        """All its write pointers, ascending; they live and die together."""
        return (self.id, *self.checkpoints)

    @property
    def cannot_roll_back(self) -> bool:
        """True when its writes, if it does not commit, can only be hidden: they are cells, or are outside Basalt."""
        return self.outside or bool(self.tables)

    @property
    def abort_rolls_back(self) -> bool:
        """True when an abort promises that its writes are undone.

        Of a long one nobody knows where its client wrote, unless it is of a session, which says so.
        """
        return not self.tables and (self.kind is Kind.SHORT or (self.session is not None and not self.outside))

    @property
    def in_progress(self) -> tuple[int, ...]:
        """The write pointers that were in progress when it began, ascending; costs their number."""
        return self.concurrent.as_tuple()

    def snapshot(self) -> TransactionSnapshot:
        """The snapshot through which this transaction reads."""
        excluded = self.write_pointer if self.level is VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT else None
        return TransactionSnapshot(
            read_pointer=self.read_pointer,
            write_pointer=self.write_pointer,
            in_progress=self.in_progress,
            invalid=self.invalid,
            own=self.pointers,
            excluded=excluded,
        )
