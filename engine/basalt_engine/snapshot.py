"""The transaction snapshot: the writers whose rows a reader may see, after Omid and Apache Tephra.

Pure values. A snapshot is shared, never copied: its invalid list is one immutable object for all snapshots that were
taken while the list did not change.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

POINTER_MAX = (1 << 63) - 1  # write pointers are signed 64-bit numbers in every format that carries them
POINTERS_PER_MS = 1_000_000  # write pointers are milliseconds times this, plus a counter
SEARCHED_MAX = 256  # pointers added one by one; of more, sorting the whole list costs less


class Visibility(enum.Enum):
    """The three things that a reader may do at a row."""

    VISIBLE = "visible"
    SKIP = "skip"  # never to be seen: rolled back or invalid
    HOLD = "hold"  # undecided for this reader: it must stop here, or it would lose the row


class InvalidList:
    """The sorted write pointers of failed writers whose rows may still lie about. Immutable."""

    __slots__ = ("pointers", "version")

    def __init__(self, pointers: tuple[int, ...] = (), version: int = 0) -> None:
        if any(left >= right for left, right in itertools.pairwise(pointers)):
            raise ValueError("the invalid list is not sorted, or holds a write pointer twice")
        self.pointers = pointers
        self.version = version

    @classmethod
    def _of(cls, pointers: tuple[int, ...], version: int) -> InvalidList:
        """A list that is known to be sorted, because it was made from one."""
        made = cls.__new__(cls)
        made.pointers, made.version = pointers, version
        return made

    def __contains__(self, write_pointer: int) -> bool:
        return _contains(self.pointers, write_pointer)

    def __len__(self) -> int:
        return len(self.pointers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InvalidList) and self.pointers == other.pointers

    def __hash__(self) -> int:
        return hash(self.pointers)

    def __repr__(self) -> str:
        return f"InvalidList({len(self.pointers)} pointers, version {self.version})"

    def with_added(self, pointers: Iterable[int]) -> InvalidList:
        """A new list that also holds these; its version is one higher. Costs a copy, and a search for each pointer; or a sort, for many."""
        added = tuple(pointers)
        if len(added) > SEARCHED_MAX:
            return InvalidList._of(tuple(sorted({*self.pointers, *added})), self.version + 1)
        merged = list(self.pointers)
        for pointer in added:
            index = bisect_left(merged, pointer)
            if index == len(merged) or merged[index] != pointer:
                merged.insert(index, pointer)
        return InvalidList._of(tuple(merged), self.version + 1)

    def without(self, pointers: Iterable[int]) -> InvalidList:
        """A new list that no longer holds these; its version is one higher."""
        gone = frozenset(pointers)
        return InvalidList._of(tuple(pointer for pointer in self.pointers if pointer not in gone), self.version + 1)


NO_INVALID = InvalidList()


class Writers(NamedTuple):
    """The transactional writers of several rows, none of which was rolled back, with the lowest and the highest of them."""

    pointers: frozenset[int]
    low: int
    high: int

    @classmethod
    def of(cls, pointers: frozenset[int]) -> Writers | None:
        """These writers, if there are any."""
        return cls(pointers, min(pointers), max(pointers)) if pointers else None


class TransactionSnapshot(NamedTuple):
    """The transactions as one reader sees them.

    `in_progress` is sorted and holds the pointers of all open writers, checkpoints among them. `own` are the pointers
    of the reading transaction itself; `excluded` is the own pointer that it does not want to see (its current one,
    under Tephra's SNAPSHOT_EXCLUDE_CURRENT).
    """

    read_pointer: int
    write_pointer: int = 0
    in_progress: tuple[int, ...] = ()
    invalid: InvalidList = NO_INVALID
    own: tuple[int, ...] | frozenset[int] = ()  # a set where a stranger's bytes may name very many
    excluded: int | None = None

    def judge(self, written_by: int | None) -> Visibility:
        """Decide about a row by its column t, `written_by`: None without a transaction, negative when rolled back."""
        if written_by is None:
            return Visibility.VISIBLE
        if written_by < 0 or written_by == self.excluded:
            return Visibility.SKIP
        if written_by in self.own:
            return Visibility.VISIBLE
        if written_by in self.invalid:
            return Visibility.SKIP
        if written_by > self.read_pointer or _contains(self.in_progress, written_by):
            return Visibility.HOLD
        return Visibility.VISIBLE

    def sees_all(self, writers: Writers) -> bool:
        """True when it is certain that a reader with this snapshot gets the rows of each of these; one that is its own may make it False."""
        pointers, low, high = writers
        if high > self.read_pointer or self.excluded in pointers:
            return False
        return not any(
            pointer in pointers
            for undone in (self.in_progress, self.invalid.pointers)
            for pointer in undone[bisect_left(undone, low) : bisect_right(undone, high)]
        )

    def is_visible(self, written_by: int | None) -> bool:
        """True when a reader with this snapshot gets rows of this writer."""
        return self.judge(written_by) is Visibility.VISIBLE


def _contains(pointers: tuple[int, ...], pointer: int) -> bool:
    index = bisect_left(pointers, pointer)
    return index < len(pointers) and pointers[index] == pointer
