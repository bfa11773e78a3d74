"""Loans: runs of write pointers that a member has for its one-shot transactions. Pure.

A member that writes rows under a pointer of its loan needs nothing in the log before: the loan is the intent of all its one-shot
transactions. Until the loan is settled, every pointer of it from the first undecided one on is in progress. It is settled from
below: a member's one-shot transactions are decided, or given up, in the order of their pointers. What a member leaves undecided
when it ends becomes one run on the invalid list, for rows may lie under any of these pointers.
Edits: docs/formats/transaction-log.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from basalt.errors import CorruptionError
from basalt.transactions.rules import edits
from basalt.transactions.rules.edits import Proposal
from basalt.transactions.rules.transaction import next_pointer
from basalt_engine.snapshot import NO_RUNS, PointerRun, PointerRuns

LOAN_POINTERS = (
    4_096  # at 800 one-shot transactions a second they last as long as a loan is used; a run costs two numbers
)
USED_MS = (
    5_000  # how long a loan is used: a pointer of it is at most so much older than those that are given out beside it
)
ASKED_AHEAD_POINTERS = 1_024  # so few are left when the next loan is asked for: some 100 ms at 10,000 a second, a write of the log takes less
ASKED_AHEAD_MS = 1_000  # or so little time
OPEN_LOANS_MAX = 64  # of one member: more would be one-shot transactions that wait for the log by the hundred thousand


class LoanImage(NamedTuple):
    """A loan that is not settled, as a snapshot of the log keeps it."""

    member: str
    undecided: int
    last: int


class Loan:
    """A loan that is not settled. Of its pointers those from `undecided` on are in progress."""

    __slots__ = ("last", "member", "undecided")

    def __init__(self, member: str, undecided: int, last: int) -> None:
        self.member = member
        self.undecided = undecided
        self.last = last

    @property
    def run(self) -> PointerRun:
        return PointerRun(self.undecided, self.last)


class LoanTable:
    """The loans of all members, by their last pointers, which rise as loans are made."""

    def __init__(self, loans: Iterable[LoanImage] = ()) -> None:
        self._by_last = {last: Loan(member, undecided, last) for member, undecided, last in loans}
        self._runs: PointerRuns | None = None

    def __iter__(self) -> Iterator[Loan]:
        return iter(self._by_last.values())

    def image(self) -> tuple[LoanImage, ...]:
        return tuple(LoanImage(loan.member, loan.undecided, loan.last) for loan in self)

    @property
    def in_progress(self) -> PointerRuns:
        """The pointers under which rows may be written, or lie undecided."""
        if self._runs is None:
            self._runs = PointerRuns(loan.run for loan in self) if self._by_last else NO_RUNS
        return self._runs

    def of(self, member: str) -> list[Loan]:
        return [loan for loan in self if loan.member == member]

    # Proposals.

    def lend(self, member: str, last_pointer: int, now_ms: int) -> Proposal:
        """A run of pointers for a member, behind all that were given out; no edits while it has too many that are not settled."""
        if len(self.of(member)) >= OPEN_LOANS_MAX:
            return Proposal(())
        first = next_pointer(last_pointer, now_ms)
        return Proposal((edits.Lent(member, first, first + LOAN_POINTERS - 1),), first)

    def give_back(self, member: str, first: int) -> Proposal:
        """A member writes nothing from this pointer of a loan on, and everything before it is decided; no edits where that is not so."""
        loan = next((loan for loan in self.of(member) if loan.undecided == first), None)
        return Proposal(() if loan is None else (edits.LoanReturned(first, loan.last),))

    def end(self, members: Collection[str]) -> Proposal:
        """These members write nothing any more: an edit for each that leaves something undecided."""
        left = {loan.member: None for loan in self if loan.member in members}
        return Proposal(tuple(edits.MemberEnded(member) for member in left))

    # Edits. Each tells which pointers go on the invalid list.

    def lent(self, edit: edits.Lent, last_pointer: int) -> None:
        if not last_pointer < edit.first <= edit.last:
            raise CorruptionError(f"a loan from {edit.first} to {edit.last} when {last_pointer} was given out")
        self._by_last[edit.last] = Loan(edit.member, edit.first, edit.last)
        self._runs = None

    def decided(self, pointer: int) -> bool:
        """A one-shot transaction of a loan was committed; False where the pointer is of none."""
        loan = self.find(pointer)
        if loan is None:
            return False
        self._settle(loan, pointer, pointer)
        return True

    def given_up(self, edit: edits.GivenUp) -> PointerRuns:
        loan = self.find(edit.first)
        if loan is None:
            raise CorruptionError(f"pointers from {edit.first} to {edit.last} are given up, and no loan has them")
        self._settle(loan, edit.first, edit.last)
        return PointerRuns(((edit.first, edit.last),))

    def returned(self, edit: edits.LoanReturned) -> None:
        loan = self.find(edit.first)
        if loan is None or loan.last != edit.last:
            raise CorruptionError(f"a loan from {edit.first} to {edit.last} comes back, and none is like that")
        self._settle(loan, edit.first, edit.last)

    def member_ended(self, edit: edits.MemberEnded) -> PointerRuns:
        ended = self.of(edit.member)
        for loan in ended:
            del self._by_last[loan.last]
        self._runs = None
        return PointerRuns(loan.run for loan in ended)

    def find(self, pointer: int) -> Loan | None:
        """The loan of which this pointer is, and is not settled."""
        # A member has few loans that are not settled, and there are some hundred members at most.
        for loan in self._by_last.values():
            if loan.undecided <= pointer <= loan.last:
                return loan
        return None

    def _settle(self, loan: Loan, first: int, last: int) -> None:
        if first != loan.undecided or last > loan.last:
            raise CorruptionError(
                f"pointers from {first} to {last} are settled, and those of {loan.member} from {loan.undecided} on are not"
            )
        self._runs = None
        if last == loan.last:
            del self._by_last[last]
        else:
            loan.undecided = last + 1


class LoanInUse:
    """A member's own side of a loan: which pointer comes next, and how long. Times are those of one clock that never goes back."""

    __slots__ = ("_last", "_used_until_ms", "next")

    def __init__(self, first: int, last: int, asked_ms: float) -> None:
        self.next, self._last = first, last
        self._used_until_ms = asked_ms + USED_MS

    @property
    def rest(self) -> PointerRun | None:
        """The pointers that were never given out."""
        return PointerRun(self.next, self._last) if self.next <= self._last else None

    def is_over(self, now_ms: float) -> bool:
        """True when it is used up, or too old: another one is needed."""
        return self.next > self._last or now_ms >= self._used_until_ms

    def is_ending(self, now_ms: float) -> bool:
        """True when it is about to be over: who asks for another one now need not wait for it later."""
        return self._last - self.next < ASKED_AHEAD_POINTERS or now_ms >= self._used_until_ms - ASKED_AHEAD_MS

    def take(self) -> int:
        """The next pointer, while it is not over."""
        self.next += 1
        return self.next - 1


class OneShotInFlight(NamedTuple):
    """A one-shot transaction whose rows are written, or being written, and which is not decided."""

    id: int
    owner: str
    principal: str
    request_id: str | None


class OneShotsInFlight:
    """The one-shot transactions in flight of this process: readers and stable ends stop at their rows."""

    def __init__(self) -> None:
        self._by_id: dict[int, OneShotInFlight] = {}  # of one loan ids rise
        self._requests: dict[str, int] = {}

    def __iter__(self) -> Iterator[OneShotInFlight]:
        return iter(self._by_id.values())

    def __contains__(self, transaction_id: int) -> bool:
        return transaction_id in self._by_id

    @property
    def first(self) -> int | None:
        """The lowest pointer in flight."""
        return next(iter(self._by_id), None)

    def has_request(self, request_id: str | None) -> bool:
        """True while the one-shot transaction of this request id is in flight."""
        return request_id in self._requests

    def add(self, placed: OneShotInFlight) -> None:
        """Its rows are about to be written."""
        self._by_id[placed.id] = placed
        if placed.request_id is not None:
            self._requests[placed.request_id] = placed.id

    def failed(self, placed: OneShotInFlight) -> None:
        """It will be given up: the same request is carried out anew."""
        if placed.request_id is not None and self._requests.get(placed.request_id) == placed.id:
            del self._requests[placed.request_id]

    def remove(self, placed: OneShotInFlight) -> None:
        """It is decided, or given up, durably."""
        self.failed(placed)
        self._by_id.pop(placed.id, None)
