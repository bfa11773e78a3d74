"""The transaction snapshot: the writers whose rows a reader may see, after Omid and Apache Tephra.

Its lists hold runs beside single write pointers: ranges, each told by its first and its last pointer. A server that takes a run
of pointers for itself needs no entry for each of them while it uses them, nor when it fails. Whoever judges a row looks in both.

Pure values. A snapshot is shared, never copied: its invalid list is one immutable object for all snapshots that were
taken while the list did not change.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

POINTER_MAX = (1 << 63) - 1  # write pointers are signed 64-bit numbers in every format that carries them
POINTERS_PER_MS = 1_000_000  # write pointers are milliseconds times this, plus a counter
SEARCHED_MAX = 256  # pointers added one by one; of more, sorting the whole list costs less
PACKED_POINTERS_MIN = 4  # a shorter run takes as much as its pointers one by one


class PointerRun(NamedTuple):
    """All write pointers from the first to the last, both included."""

    first: int
    last: int


class PointerRuns:
    """Some runs, ascending and with a gap before each next one. Immutable; the size of one does not matter."""

    __slots__ = ("edges",)

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        """These runs, in any order: those that overlap or touch become one. `ValueError` for one that ends before it begins."""
        edges: list[int] = []
        for first, last in sorted(runs):
            if first > last:
                raise ValueError(f"a run of write pointers from {first} to {last}")
            if edges and first <= edges[-1]:
                edges[-1] = max(edges[-1], last + 1)
            else:
                edges += (first, last + 1)
        # Where what is in a run begins and where it ends, in turn: one bisection finds a pointer.
        self.edges = tuple(edges)

    def __contains__(self, pointer: int) -> bool:
        return bisect_right(self.edges, pointer) & 1 == 1

    def __iter__(self) -> Iterator[PointerRun]:
        for index in range(0, len(self.edges), 2):
            yield PointerRun(self.edges[index], self.edges[index + 1] - 1)

    def __len__(self) -> int:
        return len(self.edges) // 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PointerRuns) and self.edges == other.edges

    def __hash__(self) -> int:
        return hash(self.edges)

    def __repr__(self) -> str:
        return f"PointerRuns({list(map(tuple, self))})"

    @property
    def pointers(self) -> int:
        """The number of write pointers in all runs."""
        return sum(run.last - run.first + 1 for run in self)

    def one_by_one(self) -> Iterator[int]:
        """Every write pointer of the runs, ascending."""
        return chain.from_iterable(range(run.first, run.last + 1) for run in self)

    def within(self, low: int, high: int) -> Iterator[PointerRun]:
        """The runs that have a pointer from `low` to `high`, whole."""
        edges = self.edges
        for index in range(bisect_right(edges, low) & ~1, len(edges), 2):
            if edges[index] > high:
                return
            yield PointerRun(edges[index], edges[index + 1] - 1)

    def with_added(self, added: PointerRuns) -> PointerRuns:
        """The pointers of both."""
        return PointerRuns(chain(self, added)) if added else self

    def without(self, gone: PointerRuns) -> PointerRuns:
        """The pointers that are not in the other: a run is left out whole, or cut."""
        left: list[PointerRun] = []
        for first, last in self:
            start = first
            for cut in gone.within(first, last):
                if start < cut.first:
                    left.append(PointerRun(start, cut.first - 1))
                start = cut.last + 1
            if start <= last:
                left.append(PointerRun(start, last))
        return PointerRuns(left)


NO_RUNS = PointerRuns()


def pack_runs(pointers: Sequence[int]) -> tuple[tuple[int, ...], PointerRuns]:
    """Tell apart what follows each other without a gap, of strictly rising pointers, and the rest."""
    alone: list[int] = []
    runs: list[PointerRun] = []
    gaps = (index for index, (left, right) in enumerate(pairwise(pointers), 1) if right - left != 1)
    for start, stop in pairwise(chain((0,), gaps, (len(pointers),))):
        if stop - start < PACKED_POINTERS_MIN:
            alone += pointers[start:stop]
        else:
            runs.append(PointerRun(pointers[start], pointers[stop - 1]))
    return tuple(alone), PointerRuns(runs) if runs else NO_RUNS


class Visibility(enum.Enum):
    """The three things that a reader may do at a row."""

    VISIBLE = "visible"
    SKIP = "skip"  # never to be seen: rolled back or invalid
    HOLD = "hold"  # undecided for this reader: it must stop here, or it would lose the row


class InvalidList:
    """The sorted write pointers of failed writers whose rows may still lie about, and runs of such pointers. Immutable.

    No pointer is in both. Its length is the number of write pointers, those in runs among them.
    """

    __slots__ = ("pointers", "runs", "version")

    def __init__(self, pointers: tuple[int, ...] = (), version: int = 0, runs: PointerRuns = NO_RUNS) -> None:
        if any(left >= right for left, right in pairwise(pointers)):
            raise ValueError("the invalid list is not sorted, or holds a write pointer twice")
        if runs and any(pointer in runs for pointer in pointers):
            raise ValueError("the invalid list holds a write pointer that is in one of its runs, too")
        self.pointers = pointers
        self.version = version
        self.runs = runs

    @classmethod
    def _of(cls, pointers: tuple[int, ...], version: int, runs: PointerRuns) -> InvalidList:
        """A list that is known to be sorted, because it was made from one."""
        made = cls.__new__(cls)
        made.pointers, made.version, made.runs = pointers, version, runs
        return made

    def __contains__(self, write_pointer: int) -> bool:
        pointers = self.pointers
        index = bisect_left(pointers, write_pointer)
        if index < len(pointers) and pointers[index] == write_pointer:
            return True
        runs = self.runs
        return runs is not NO_RUNS and write_pointer in runs

    def __len__(self) -> int:
        return len(self.pointers) + self.runs.pointers

    @property
    def entries(self) -> int:
        """The entries of the list: a run is one, however many write pointers it has."""
        return len(self.pointers) + len(self.runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InvalidList) and (self.pointers, self.runs) == (other.pointers, other.runs)

    def __hash__(self) -> int:
        return hash((self.pointers, self.runs))

    def __repr__(self) -> str:
        return f"InvalidList({len(self.pointers)} pointers, {len(self.runs)} runs, version {self.version})"

    @property
    def first(self) -> int | None:
        """The lowest write pointer on the list."""
        return min((*self.pointers[:1], *self.runs.edges[:1]), default=None)

    def with_added(self, pointers: Iterable[int] = (), runs: PointerRuns = NO_RUNS) -> InvalidList:
        """A new list that also holds these; its version is one higher. Costs a copy, and a search for each pointer; or a sort, for many."""
        held = self.runs.with_added(runs)
        added = tuple(pointer for pointer in pointers if pointer not in held) if held else tuple(pointers)
        before = tuple(pointer for pointer in self.pointers if pointer not in runs) if runs else self.pointers
        if len(added) > SEARCHED_MAX:
            return InvalidList._of(tuple(sorted({*before, *added})), self.version + 1, held)
        merged = list(before)
        for pointer in added:
            index = bisect_left(merged, pointer)
            if index == len(merged) or merged[index] != pointer:
                merged.insert(index, pointer)
        return InvalidList._of(tuple(merged), self.version + 1, held)

    def without(self, pointers: Iterable[int] = (), runs: PointerRuns = NO_RUNS) -> InvalidList:
        """A new list that no longer holds these; its version is one higher."""
        gone, held = frozenset(pointers), self.runs
        left = tuple(pointer for pointer in self.pointers if pointer not in gone)
        if runs:
            left = tuple(pointer for pointer in left if pointer not in runs)
        if held:
            cut = PointerRuns((pointer, pointer) for pointer in gone if pointer in held)
            held = held.without(cut.with_added(runs))
        return InvalidList._of(left, self.version + 1, held)


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

    `in_progress` is sorted and holds the pointers of all open writers, checkpoints among them; a writer in one of
    `in_progress_runs` is undecided as well. `own` are the pointers of the reading transaction itself; `excluded` is the own pointer that it does not want to see (its current one,
    under Tephra's SNAPSHOT_EXCLUDE_CURRENT).
    """

    read_pointer: int
    write_pointer: int = 0
    in_progress: tuple[int, ...] = ()
    invalid: InvalidList = NO_INVALID
    own: tuple[int, ...] | frozenset[int] = ()  # a set where a stranger's bytes may name very many
    excluded: int | None = None
    in_progress_runs: PointerRuns = NO_RUNS

    @property
    def first_in_progress(self) -> int | None:
        """The lowest write pointer that is undecided."""
        return min((*self.in_progress[:1], *self.in_progress_runs.edges[:1]), default=None)

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
        if written_by > self.read_pointer:
            return Visibility.HOLD
        pointers = self.in_progress
        if pointers:  # searched here, and without a call: each row that is read comes this way
            index = bisect_left(pointers, written_by)
            if index < len(pointers) and pointers[index] == written_by:
                return Visibility.HOLD
        runs = self.in_progress_runs
        return Visibility.VISIBLE if runs is NO_RUNS or written_by not in runs else Visibility.HOLD

    def sees_all(self, writers: Writers) -> bool:
        """True when it is certain that a reader with this snapshot gets the rows of each of these; one that is its own may make it False."""
        pointers, low, high = writers
        if high > self.read_pointer or self.excluded in pointers:
            return False
        for runs in (self.in_progress_runs, self.invalid.runs):
            if (
                runs is not NO_RUNS
                and next(runs.within(low, high), None) is not None
                and any(pointer in runs for pointer in pointers)
            ):
                return False
        return not any(
            pointer in pointers
            for undone in (self.in_progress, self.invalid.pointers)
            for pointer in undone[bisect_left(undone, low) : bisect_right(undone, high)]
        )

    def is_visible(self, written_by: int | None) -> bool:
        """True when a reader with this snapshot gets rows of this writer."""
        return self.judge(written_by) is Visibility.VISIBLE
