"""What is remembered of ended transactions and answered requests, so that a retry after a lost answer finds the first one.

Both memories forget by count and by age, oldest first, and only when an edit adds to them: replaying the same edits
forgets the same entries.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from basalt.transactions.rules.states import Join, Kind, State, TableJoin, Transaction


class Call(enum.IntEnum):
    """What a request id was used for; the numbers are on disk."""

    BEGIN = 1
    COMMIT = 2
    ONE_SHOT = 3


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a transaction ended, or where it stands. `at_ms` is when it ended (its deadline while it has not).

    `pointers`, `topics` and `tables` are kept for invalid transactions only: an abort that comes late rolls those topics
    back and takes the pointers off the invalid list, unless there are tables: cells are never rolled back.
    """

    id: int
    write_pointer: int
    state: State
    kind: Kind
    owner: str
    at_ms: int
    timed_out: bool = False
    pointers: tuple[int, ...] = ()
    topics: tuple[Join, ...] = ()
    tables: tuple[TableJoin, ...] = ()

    @classmethod
    def of(cls, transaction: Transaction, state: State, at_ms: int, timed_out: bool) -> Outcome:
        """The outcome of a transaction that is now in this state."""
        invalid = state is State.INVALID
        return cls(
            transaction.id,
            transaction.write_pointer,
            state,
            transaction.kind,
            transaction.owner,
            at_ms,
            timed_out,
            transaction.pointers if invalid else (),
            transaction.topics if invalid else (),
            transaction.tables if invalid else (),
        )

    @property
    def undone_by_abort(self) -> bool:
        """Whether an abort that comes late promises that its writes are undone: see `Transaction.undone_by_abort`."""
        return not self.tables and self.kind is Kind.SHORT

    def revived(self) -> Transaction:
        """The invalid transaction, with what is left to know of it."""
        assert self.state is State.INVALID, "only of an invalid transaction is enough kept"
        return Transaction(
            id=self.id,
            kind=self.kind,
            read_pointer=0,
            began_ms=self.at_ms,
            deadline_ms=self.at_ms,
            owner=self.owner,
            checkpoints=self.pointers[1:],
            topics=self.topics,
            tables=self.tables,
            state=State.INVALID,
            timed_out=self.timed_out,
            was_invalid=True,
        )


class Request(msgspec.Struct, frozen=True, gc=False):
    """The first use of a request id."""

    id: str
    call: Call
    transaction_id: int
    at_ms: int


class _Remembered(Protocol):
    @property
    def id(self) -> int | str: ...

    @property
    def at_ms(self) -> int: ...


E = TypeVar("E", bound=_Remembered)


class Memory(Generic[E]):
    """The newest entries by id, at most `count_max` and none older than `age_ms_max` before the newest."""

    def __init__(self, count_max: int, age_ms_max: int, entries: Iterable[E] = ()) -> None:
        assert count_max > 0, "a memory holds at least the newest entry"
        self._count_max = count_max
        self._age_ms_max = age_ms_max
        self._entries: dict[int | str, E] = {}
        self._order: deque[int | str] = deque()  # a dict alone takes longer and longer to find its oldest key
        for entry in entries:
            self._entries[entry.id] = entry
            self._order.append(entry.id)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: int | str) -> E | None:
        """The entry of this id, unless it was forgotten."""
        return self._entries.get(key)

    def put(self, entry: E) -> None:
        """Remember an entry; one of the same id is replaced where it stands."""
        if entry.id not in self._entries:
            self._order.append(entry.id)
        self._entries[entry.id] = entry
        oldest_ms = entry.at_ms - self._age_ms_max
        while len(self._order) > self._count_max or self._entries[self._order[0]].at_ms < oldest_ms:
            del self._entries[self._order.popleft()]

    def entries(self) -> tuple[E, ...]:
        """All entries, oldest first."""
        return tuple(self._entries.values())  # a dict keeps the order in which keys came, as does the deque
