"""The coordinator's state machine over the scale-out edits, and the views that members read with. Pure values.

The log is a list of entries, an entry a tuple of edits. What the log says is all that a new coordinator knows. The product has most of it in
`basalt.transactions.rules`; here is what the design of several members adds: loans, runs, joins by topic, members that ended.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from basalt_engine.snapshot import Visibility

LOAN_POINTERS = 6  # the product's is 4,096: here one ends every few one-shots


class Run(NamedTuple):
    """Write pointers that follow one another, both ends included."""

    first: int
    last: int


class Led(NamedTuple):
    """A coordinator takes over; its epoch is higher than any before."""

    epoch: int


class Began(NamedTuple):
    """A transaction has a write pointer; it may be a version of a named session, and a one-shot's request."""

    writer: int
    session: tuple[str, int] | None = None
    request: str | None = None


class Joined(NamedTuple):
    """Rows, payloads or cells of the writer may lie in this shard from now on."""

    writer: int
    shard: str


class Committing(NamedTuple):
    """Its rows are being placed."""

    writer: int


class Aborting(NamedTuple):
    """It is being rolled back: it will never be committed."""

    writer: int


class Committed(NamedTuple):
    """All of it shows."""

    writer: int


class Aborted(NamedTuple):
    """Nothing of it lies about any more."""

    writer: int


class Invalidated(NamedTuple):
    """What it has written stays, and is skipped for ever: cells are not rolled back."""

    writer: int


class EndsNoted(NamedTuple):
    """Its joined owners have noted where their topics end: region servers may hear of this failed writer."""

    writer: int


class Lent(NamedTuple):
    """A member may use these pointers for its one-shots: the intent of all of them."""

    member: str
    run: Run


class OneShot(NamedTuple):
    """A one-shot is committed; its rows were there before."""

    writer: int
    request: str


class GivenUp(NamedTuple):
    """One-shots with these pointers did not happen."""

    run: Run


class Returned(NamedTuple):
    """A member gives back what it has not used of a loan: nothing lies about."""

    run: Run


class MemberEnded(NamedTuple):
    """A member is over: what its loans leave undecided did not happen."""

    member: str


Edit = (
    Led | Began | Joined | Committing | Aborting | Committed | Aborted | Invalidated | EndsNoted | Lent | OneShot
) | (GivenUp | Returned | MemberEnded)  # fmt: skip


class View(NamedTuple):
    """The writers whose rows a reader may see, as the first `version` entries of the log say."""

    version: int = 0
    read_pointer: int = 0
    in_progress: frozenset[int] = frozenset()
    lent: tuple[Run, ...] = ()
    invalid: frozenset[int] = frozenset()
    invalid_runs: tuple[Run, ...] = ()

    def judge(self, row_writer: int | None) -> Visibility:
        """Decide about a row by its writer."""
        if row_writer is None:
            return Visibility.VISIBLE
        if row_writer in self.invalid or _holds(self.invalid_runs, row_writer):
            return Visibility.SKIP
        if row_writer > self.read_pointer or row_writer in self.in_progress or _holds(self.lent, row_writer):
            return Visibility.HOLD
        return Visibility.VISIBLE


class Open:
    """One transaction that is not over."""

    __slots__ = ("joins", "request", "session", "state")

    def __init__(self, session: tuple[str, int] | None, request: str | None) -> None:
        self.state = "open"
        self.joins: list[str] = []
        self.session, self.request = session, request


class Loan:
    """Write pointers that a member may use, and those of them that nobody has decided."""

    __slots__ = ("member", "undecided")

    def __init__(self, member: str, run: Run) -> None:
        self.member = member
        self.undecided = [run]


class Ledger:
    """All that the log says."""

    def __init__(self) -> None:
        self.version = 0
        self.epoch = 0
        self.last_pointer = 0
        self.open: dict[int, Open] = {}
        self.outcomes: dict[int, str] = {}
        self.requests: dict[str, int] = {}
        self.sessions: defaultdict[str, int] = defaultdict(int)
        self.loans: dict[int, Loan] = {}
        self.invalid: dict[int, list[str]] = {}  # with the shards whose owners have not noted their ends
        self.noted: set[int] = set()
        self.invalid_runs: list[Run] = []
        self.ended_members: set[str] = set()
        self._view: View | None = None

    def apply(self, entry: tuple[Edit, ...]) -> None:
        """Go on by one entry."""
        self.version += 1
        self._view = None
        for edit in entry:
            getattr(self, f"_{type(edit).__name__.lower()}")(edit)

    def view(self) -> View:
        """As readers are to see it now."""
        if self._view is None:
            lent = tuple(run for loan in self.loans.values() for run in loan.undecided)
            self._view = View(
                self.version,
                self.last_pointer,
                frozenset(self.open),
                lent,
                frozenset(self.invalid),
                tuple(self.invalid_runs),
            )
        return self._view

    def loan_of(self, writer: int) -> Loan | None:
        """The loan in which the pointer is undecided."""
        return next((loan for loan in self.loans.values() if _holds(loan.undecided, writer)), None)

    def request_under_way(self, request: str | None) -> bool:
        """True when a commit with this request id has begun and not ended."""
        return request is not None and any(each.request == request for each in self.open.values())

    def _led(self, edit: Led) -> None:
        assert edit.epoch > self.epoch, f"coordinator {edit.epoch} writes after {self.epoch}"
        self.epoch = edit.epoch

    def _began(self, edit: Began) -> None:
        assert edit.writer > self.last_pointer
        self.open[edit.writer] = Open(edit.session, edit.request)
        self.last_pointer = edit.writer

    def _joined(self, edit: Joined) -> None:
        if edit.shard not in self.open[edit.writer].joins:
            self.open[edit.writer].joins.append(edit.shard)

    def _committing(self, edit: Committing) -> None:
        self.open[edit.writer].state = "committing"

    def _aborting(self, edit: Aborting) -> None:
        self.open[edit.writer].state = "aborting"

    def _committed(self, edit: Committed) -> None:
        ended = self.open.pop(edit.writer)
        self.outcomes[edit.writer] = "committed"
        if ended.request is not None:
            self.requests[ended.request] = edit.writer
        if ended.session is not None:
            self.sessions[ended.session[0]] = ended.session[1]

    def _aborted(self, edit: Aborted) -> None:
        del self.open[edit.writer]
        self.outcomes[edit.writer] = "aborted"

    def _invalidated(self, edit: Invalidated) -> None:
        self.invalid[edit.writer] = self.open.pop(edit.writer).joins
        self.outcomes[edit.writer] = "aborted"

    def _endsnoted(self, edit: EndsNoted) -> None:
        self.noted.add(edit.writer)

    def _lent(self, edit: Lent) -> None:
        assert edit.run.first > self.last_pointer
        self.loans[edit.run.first] = Loan(edit.member, edit.run)
        self.last_pointer = edit.run.last

    def _oneshot(self, edit: OneShot) -> None:
        self._decide(Run(edit.writer, edit.writer))
        self.outcomes[edit.writer] = "committed"
        self.requests[edit.request] = edit.writer

    def _givenup(self, edit: GivenUp) -> None:
        self._decide(edit.run)
        self.invalid_runs.append(edit.run)

    def _returned(self, edit: Returned) -> None:
        self._decide(edit.run)

    def _memberended(self, edit: MemberEnded) -> None:
        self.ended_members.add(edit.member)
        for first in [first for first, loan in self.loans.items() if loan.member == edit.member]:
            self.invalid_runs += self.loans.pop(first).undecided

    def _decide(self, run: Run) -> None:
        for first, loan in list(self.loans.items()):
            loan.undecided = _without(loan.undecided, run)
            if not loan.undecided:
                del self.loans[first]


def _holds(runs: tuple[Run, ...] | list[Run], pointer: int) -> bool:
    return any(first <= pointer <= last for first, last in runs)


def _without(runs: list[Run], gone: Run) -> list[Run]:
    left = []
    for first, last in runs:
        pieces = (Run(first, min(last, gone.first - 1)), Run(max(first, gone.last + 1), last))
        left += [piece for piece in pieces if piece.first <= piece.last]
    return left
